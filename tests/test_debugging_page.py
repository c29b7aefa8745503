"""Pages of docs/ with programs: these print what it says that they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = "\n".join(
    (DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("debugging", "decisions", "performance")
)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGES, flags=re.M | re.S)


PROGRAMS = {block.split("\n", 1)[0][2:]: block for block in blocks("python")}
RUNS = dict(block.split("\n", 1) for block in blocks("text"))


def plain(line: str) -> str:
    """A line without what differs from run to run: numbers, paths, widths."""
    return " ".join(re.sub(r"-?\d[\d.,e+-]*", "#", line.replace("%", "")).split())


@pytest.mark.parametrize("command", RUNS)
def test_output(command: str, tmp_path: Path) -> None:
    words = command.split()
    assert words[:2] == ["$", "python"]
    if "batched_map" in PROGRAMS[words[2]] and "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("it needs fibers: see conftest.py")
    (tmp_path / words[2]).write_text(PROGRAMS[words[2]], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *words[2:]], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    text = done.stdout + done.stderr
    found = {plain(line) for line in text.replace(f"{tmp_path}/", "").splitlines()}
    wanted = [plain(line) for line in RUNS[command].splitlines() if line != "..."]
    assert [line for line in wanted if line not in found] == [], text


def test_all_programs_are_run() -> None:
    assert set(PROGRAMS) == {command.split()[2] for command in RUNS}
