"""Programs on pages of docs/ print what the pages show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    """A line without parts that differ between runs: numbers and widths."""
    return " ".join(re.sub(r"-?\d[\d.,e+-]*", "#", line.replace("%", "")).split())


def with_marks(command: str) -> Any:
    """A command as a parameter of a test, marked if its program uses fibers."""
    uses = "batched_map" in PROGRAMS[command.split()[2]]
    return pytest.param(command, marks=[pytest.mark.fibers] if uses else [])


@pytest.mark.parametrize("command", [with_marks(command) for command in RUNS])
def test_output(command: str, tmp_path: Path) -> None:
    words = command.split()
    assert words[:2] == ["$", "python"]
    (tmp_path / words[2]).write_text(PROGRAMS[words[2]], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *words[2:]], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    text = done.stdout + done.stderr
    found = {plain(line) for line in text.replace(f"{tmp_path}/", "").splitlines()}
    wanted = [plain(line) for line in RUNS[command].splitlines() if line != "..."]
    assert [line for line in wanted if line not in found] == [], text


def test_all_programs_are_run() -> None:
    assert set(PROGRAMS) == {command.split()[2] for command in RUNS}
