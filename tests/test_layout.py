"""docs/layout.md: the functions that a call goes through are there, and call each other."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "layout.md"


def functions() -> list[tuple[int, str, str]]:
    """Of each line of the section: its depth, the function and its module."""
    section = PAGE.read_text(encoding="utf-8").split("## A call, function by function")[1].split("\n## ")[0]
    lines = [line for block in re.findall(r"```text\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]
    return [(len(line) - len(line.lstrip()), *line.split()[:2]) for line in lines]  # type: ignore[misc]


def test_the_printed_plan_is_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the last line: memory depends on the machine."""
    section = PAGE.read_text(encoding="utf-8").split("## Reading a plan")[1].split("\n## ")[0]
    command, expected = (text for text in re.findall(r"```(?:sh|text)\n(.*?)```", section, re.DOTALL))
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "examples"))
    importlib.import_module("made_data").write_treebank(tmp_path / "short.conllu", 64, 1)
    words = [sys.executable, *command.split()[1:]]
    words[words.index("examples/tagger.py")] = str(ROOT / "examples" / "tagger.py")
    settings = {name: value for name, value in os.environ.items() if not name.startswith("DYNET_CY_")}
    done = subprocess.run(words, cwd=tmp_path, env=settings, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines()[:-1] == expected.splitlines()[:-1]
    assert re.sub(r"[\d.]+", "0", done.stdout.splitlines()[-1]) == re.sub(r"[\d.]+", "0", expected.splitlines()[-1])


def test_forms_are_named_wherever_all_are() -> None:
    """In the page and in what prints plans; and a form that runs forward runs backward."""
    header = (ROOT / "include" / "dynet_cy" / "graph.h").read_text(encoding="utf-8")
    enumerators = re.findall(r"^    DY_(\w+),? ", header.split("How the nodes of a batch run")[1].split("};")[0], re.M)
    table = PAGE.read_text(encoding="utf-8").split("| form | how |")[1].split("\n\n")[0]
    assert set(re.findall(r"`([A-Z_]+)`", table)) == set(enumerators)
    lifetimes = (ROOT / "dynet_cy" / "watch" / "lifetimes.pyx").read_text(encoding="utf-8")
    names = lifetimes.split("cdef dict FORMS = {")[1].split("}")[0]
    assert set(re.findall(r"(\w+):", names)) == set(enumerators)
    for module in [ROOT / "dynet_cy" / "execute" / "cpu.pyx", *(ROOT / "dynet_cy" / "gpu").glob("*.pyx")]:
        text = module.read_text(encoding="utf-8")
        ways = {
            way: re.findall(rf"^ *(?:\w+_)?forms\[([A-Z_]+)\]\.{way} =", text, re.M) for way in ("forward", "backward")
        }
        assert ways["forward"] == ways["backward"], module


def bodies(name: str, module: str) -> list[str]:
    """The functions and methods of that name."""
    files = [ROOT / "dynet_cy" / f"{module}{kind}" for kind in (".pyx", ".pxd")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files if file.exists())
    found = []
    for match in re.finditer(rf"^( *)(?:cdef|cpdef|def) [^\n=]*\b{name}\(", text, re.MULTILINE):
        rest = text[match.end() :]
        end = re.search(rf"^ {{0,{len(match[1])}}}(?:cdef|cpdef|def|class|@|#)", rest, re.MULTILINE)
        found.append(rest[: end.start() if end else None])
    return found


def test_functions_of_a_call_are_where_the_page_says() -> None:
    assert len(functions()) > 40
    assert [(name, module) for _, name, module in functions() if not bodies(name, module)] == []


def test_functions_of_a_call_are_called_by_those_above_them() -> None:
    above: list[tuple[int, str, str]] = []
    missing = []
    for depth, name, module in functions():
        above = [one for one in above if one[0] < depth]
        if above and not any(re.search(rf"\b{name}\b", body) for body in bodies(*above[-1][1:])):
            missing.append((name, above[-1][1:]))
        above.append((depth, name, module))
    assert missing == []
