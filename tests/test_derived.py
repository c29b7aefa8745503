"""Derived files are up to date with their rows and functions, and unreadable sources raise errors."""

from __future__ import annotations

import re
import runpy
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dynet_cy.ops import api
from dynet_cy.ops.registry import describe

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def derive() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "derive.py"))


def test_all_files_are_in_step(derive: dict[str, Any]) -> None:
    assert derive["main"](check=True) == [], "run python tools/derive.py"


@pytest.mark.parametrize(("file", "kind"), [("unary.def", "UNARY"), ("binary.def", "BINARY")])
def test_each_row_is_an_op(derive: dict[str, Any], file: str, kind: str) -> None:
    """Each row is an op, anywhere in the file, and has a function if its comment declares one."""
    ops = {op["name"] for op in describe()}
    rows = derive["rows"](file)
    for row in rows:
        assert (row.name in ops) == (row.kind == kind) or row.kind == "BINARY_PART"
    faces = [derive["face"](row, 2 if kind == "BINARY" else 1) for row in rows]
    names = {face.name for face in faces if face}
    assert len(names) > 1
    assert names <= set(api.__all__)


def test_the_guide_shows_rows_as_they_are() -> None:
    """The guide's example of an elementwise function matches the sources line by line; `...` stands for other rows."""
    guide = (ROOT / "docs" / "add-an-op.md").read_text(encoding="utf-8")
    section = guide.partition("## An elementwise function\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    for file, block in zip(("include/dynet_cy/unary.def", "tests/elementwise.py"), blocks):
        source = (ROOT / file).read_text(encoding="utf-8").splitlines()
        at = 0
        for line in textwrap.dedent(block).rstrip().splitlines():
            if line.strip() != "...,":
                at = source.index(line, at) + 1


def test_a_row_becomes_a_function(derive: dict[str, Any], tmp_path: Path) -> None:
    """A row becomes a function with a docstring, numbers, defaults and checks."""
    (tmp_path / "some.def").write_text(
        "/* SPDX */\n\n"
        "UNARY(hidden, (f(x, 1)), (y))\n"
        "/** leaky(x, slope=0.01): Of each\n * element.\n *\n * require slope > 0: slope is {slope}\n */\n"
        "UNARY(leaky, (SEL(x > C(0.f), x, p0 * x)), (p0))\n"
        "/** inside(x, low, high): Both. */\nUNARY(inside, (x),\n      (y))\n"
    )
    derive["functions"].__globals__["ROWS"] = tmp_path
    try:
        lines = "\n".join(derive["functions"]("some.def", "UNARY", "UNARY"))
    finally:
        derive["functions"].__globals__["ROWS"] = ROOT / "include" / "dynet_cy"
    assert "hidden" not in lines
    assert lines.endswith(
        "\n\n\ndef leaky(x, float slope=0.01):\n"
        '    """Of each\n    element.\n\n    Args:\n        x: an expression of any shape, which the result has too.\n'
        '    """\n'
        "    if not slope > 0:\n"
        '        raise ValueError(f"leaky: slope is {slope}")\n'
        "    return apply_unary(DY_UNARY_leaky, x, slope, 0)\n"
        "\n\ndef inside(x, float low, float high):\n"
        '    """Both.\n\n    Args:\n        x: an expression of any shape, which the result has too.\n    """\n'
        "    return apply_unary(DY_UNARY_inside, x, low, high)"
    )


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("/** tanh: no arguments */", "the comment must begin as"),
        ("/** tanh(x) no colon */", "the comment must begin as"),
        ("/** tanh(x, a, b, c): too many */", "takes 1 expressions"),
        ("/** tanh(): none */", "takes 1 expressions"),
    ],
)
def test_comments_that_say_nothing(derive: dict[str, Any], comment: str, message: str) -> None:
    row = derive["Row"]("UNARY", "tanh", "(TANH(x)), (y)", comment[3:-2])
    with pytest.raises(derive["Mistake"], match=message):
        derive["face"](row, 1)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("x", "x: Expression"),
        ("d=0", "d: int = 0"),
        ("b=False", "b: bool = False"),
        ('device=""', 'device: str = ""'),
        ("float c=1.345", "c: float = 1.345"),
        ("bint is_valid=True", "is_valid: bool = True"),
        ("unsigned int nrows=2", "nrows: int = 2"),
        ("xs: Iterable[Expression]", "xs: Iterable[Expression]"),
        ("axis: int | None = None", "axis: int | None = None"),
        ("dims: Sequence[int] = (1, 0)", "dims: Sequence[int] = (1, 0)"),
    ],
)
def test_types_of_arguments(derive: dict[str, Any], text: str, want: str) -> None:
    assert derive["argument"](text, "here") == want


@pytest.mark.parametrize("text", ["axis=None", "dims=(1, 0)", "**more", "a b c"])
def test_arguments_that_need_a_type(derive: dict[str, Any], text: str) -> None:
    with pytest.raises(derive["Mistake"], match="here: argument"):
        derive["argument"](text, "here")


def test_structs_shared_with_gpus_stand_once() -> None:
    """They are declared once, in a header for both sides, with their size."""
    for header in sorted((ROOT / "include" / "dynet_cy").glob("gpu_*.h")):
        text = header.read_text(encoding="utf-8")
        structs = set(re.findall(r"^} (dy_\w+);", text, re.MULTILINE))
        sized = set(re.findall(r"^DY_SIZE\((dy_\w+), \d+\);", text, re.MULTILINE))
        parts = set(re.findall(r"^    (dy_\w+) \w+\[", text, re.MULTILINE))  # structs that are parts of others
        assert structs == sized | parts, header.name
    kernels = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "cuda").glob("*.cu*"))
    launchers = [p for p in (ROOT / "dynet_cy" / "gpu").iterdir() if p.suffix in (".pyx", ".pxd")]
    host = "".join(path.read_text(encoding="utf-8") for path in launchers)
    twice = set(re.findall(r"^struct (\w+) {", kernels, re.MULTILINE)) & set(re.findall(r"cdef struct (\w+):", host))
    assert not twice
