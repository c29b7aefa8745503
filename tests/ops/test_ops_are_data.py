"""The engine knows ops by the fields of their struct only: no code asks whether a node is of a certain op.

Converters of ONNX files are written for certain ops, and are the exception.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    p
    for folder, suffixes in (("dynet_cy", {".py", ".pyx", ".pxd"}), ("include", {".h", ".inl"}))
    for p in (ROOT / folder).rglob("*")
    if p.suffix in suffixes and "onnx" not in p.parts
)

# One side of a comparison: the op of a node, the number of an op, or its name.
OF_NODE = r"[^\s(!]*(?:\.|->)op(?![\w\]\[.]|->)"
OPERAND = rf"(?:{OF_NODE}|\b[A-Z][A-Z_0-9]*(?:\[[^\]]*\])?(?:\.|->)id\b|\bop(?:\.|->)(?:id|name)\b)"
COMPARED = re.compile(rf"{OPERAND}\s*[!=]=|[!=]=\s*{OPERAND}")
OF_TWO_NODES = re.compile(rf"{OF_NODE}\s*[!=]=\s*{OF_NODE}")


def comparisons(source: str) -> list[str]:
    """Lines that compare the op of a node with a certain op.  Whether two nodes have the same op may be asked."""
    source = re.sub(r'("""|\'\'\').*?\1', "", source, flags=re.DOTALL)
    lines = [re.sub(r"(^|\s)(#|//|/\*).*", "", line).strip() for line in source.splitlines()]
    return [line for line in lines if COMPARED.search(OF_TWO_NODES.sub("", line))]


@pytest.mark.parametrize("folder", sorted({p.relative_to(ROOT).parts[:2] for p in FILES}), ids="/".join)
def test_no_code_compares_ops(folder: tuple[str, ...]) -> None:
    found = {
        f"{p.relative_to(ROOT)}: {line}"
        for p in FILES
        if p.relative_to(ROOT).parts[:2] == folder
        for line in comparisons(p.read_text(encoding="utf-8"))
    }
    assert not found


def test_comparisons_are_found() -> None:
    source = """
    if x.op == TO_DEVICE.id:
    if node->op != op_at(3)->id:
    return MATMUL.id == nodes[a].op
    if a.op != product or b.op == product:
    if op.name == b"add":
    if BINARY[which].id == number:
    """
    assert len(comparisons(source)) == 6
    assert not comparisons("if x.op != y.op or x.nargs != y.nargs:\n    if op.role == ADDS:  # not x.op == ADD.id\n")
