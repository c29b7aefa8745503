"""Docstrings of stubs: the first sentence of each compiled docstring, which editors show beside the types.

They do not find the docstrings of a compiled module themselves: they read stubs and Python sources only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from derive_text import WIDTH, closing

_DEFINED = re.compile(r"^( *)(?:cdef (?=class)|cpdef [\w ]*?)?(class|def)?\b ?(\w+)(?=[(:])", re.MULTILINE)
_TEXT = re.compile(r'[^:\n]*:[^\n]*\n\s*(r?)"""(.+?)"""', re.DOTALL)


def docstrings(source: str) -> dict[str, str]:
    """The first sentence of each docstring of Cython code, as a literal, by name: `tanh`, `RNNState.add_input`."""
    found: dict[str, str] = {}
    owner = ""
    for match in _DEFINED.finditer(source):
        indent, kind, name = match.groups()
        if kind is None or len(indent) > 4:
            continue
        if not indent:
            owner = f"{name}." if kind == "class" else ""
        end = closing(source, match.end()) if source[match.end()] == "(" else match.end() - 1
        text = _TEXT.match(source, end + 1)
        if text is not None:
            full = name if not indent else owner + name
            found.setdefault(full, f'{text[1]}"""{first_sentence(text[2])}"""')
    return found


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph, in one line."""
    words = " ".join(re.split(r"\n\s*\n", text.strip())[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", words)[0]


def public(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """The public functions, classes and methods of a stub, by name; of a private class too, as others inherit them."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            parts = node.body if isinstance(node, ast.ClassDef) else []
            functions = [(f"{node.name}.{part.name}", part) for part in parts if isinstance(part, ast.FunctionDef)]
            for name, found in [(node.name, node), *functions]:
                if not found.name.startswith("_"):
                    yield name, found


def with_docstrings(stub: str, module: Path) -> str:
    """A stub with the docstrings of its module, laid out as ruff does."""
    docs = docstrings(module.read_text(encoding="utf-8"))
    lines = stub.split("\n")
    for name, node in sorted(public(ast.parse(stub)), key=lambda pair: -pair[1].lineno):
        if name in docs:
            _document(lines, node, docs[name])
    return "\n".join(lines)


def _document(lines: list[str], node: ast.FunctionDef | ast.ClassDef, doc: str) -> None:
    """Put a docstring, as one line, at the beginning of a definition."""
    body = node.body[0]
    at, line = body.lineno - 1, " " * (node.col_offset + 4) + doc
    value = body.value.value if isinstance(body, ast.Expr) and isinstance(body.value, ast.Constant) else None
    if value is Ellipsis:
        head = [*lines[node.lineno - 1 : at], lines[at][: body.col_offset].rstrip()]
        whole = head[0] + " ".join(part.strip() for part in head[1:-1]) + head[-1].strip() if len(head) == 3 else ""
        if whole and len(whole) <= WIDTH and not head[1].endswith(","):
            head = [whole]
        end = node.lineno - 1 + len(head)
        lines[node.lineno - 1 : at + 1] = [*head, line]
        if node.col_offset == 0 and end + 1 < len(lines) and lines[end + 1]:
            lines.insert(end + 1, "")
    elif value is not None:
        lines[at] = line
    else:
        first = min(d.lineno for d in [body, *getattr(body, "decorator_list", [])]) - 1
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        lines[first:first] = [line] if isinstance(body, ast.FunctionDef) else [line, ""]
