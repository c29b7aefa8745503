"""Stubs of compiled modules: the types, and the first sentence of each docstring, which editors show beside them.

Editors and type checkers read stubs and Python sources only.  A stub has the functions and classes of a module, its
constants that have annotations, and the attributes of its classes that Python can read.  The name of what is private
begins with an underscore: such a method is in the stub if its return type is stated, and such a class if something else
in the stub mentions it.

The types are those of Cython (`int n`, `Plane p not None`) and of defaults; where these do not say enough, annotations.
What these cannot say is in comments: `# stub: (x: int) -> str` above a function, once for each overload, and
`# type: list[int]` after an attribute.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from derive_text import ROOT, WIDTH, Mistake, closing, imported, split

WRITTEN = "# Written by tools/derive.py"

TYPES = {
    "double": "float",
    "bint": "bool",
    "_Stored": "_AnyParameters",
    **dict.fromkeys(("unsigned int", "uint32_t", "uint64_t", "size_t", "Py_ssize_t"), "int"),
    **{name: name for name in ("int", "float", "str", "bytes", "list", "dict", "tuple", "object")},
}
VAGUE = ("list", "dict", "tuple", "object")  # of what?  An annotation says it

# The names that annotations may use: where each is imported from, or what it abbreviates.  Classes of dynet_cy, and
# types that its Python modules define, are found by their names.
IMPORTS = {
    **dict.fromkeys(("Callable", "Iterable", "Iterator", "Mapping", "Sequence"), "collections.abc"),
    **dict.fromkeys(("AbstractContextManager", "ContextDecorator"), "contextlib"),
    "Context": "contextvars",
    "Input": "dynet_cy.functions.arguments",
    "Tensor": "dynet_cy.graph.tensor",
    "PathLike": "os",
    "EllipsisType": "types",
    **dict.fromkeys(
        ("IO", "Any", "Literal", "NamedTuple", "NoReturn", "SupportsIndex", "TypeVar", "final", "overload"), "typing"
    ),
    "np": "numpy as np",
    "npt": "numpy.typing as npt",
    **dict.fromkeys(("Buffer", "ParamSpec", "Self", "TypeAlias"), "typing_extensions"),
}
SHORT = {
    "_Int": "int | np.integer[Any]",
    "_Ints": "Sequence[int] | npt.NDArray[np.integer[Any]]",
    "_Shape": "int | tuple[int, ...] | list[int]",
    "_Floats": "npt.NDArray[np.float32]",
    "_FileName": "str | PathLike[str]",
    "_File": "_FileName | IO[bytes]",
    "_Init": "PyInitializer | float | npt.NDArray[Any] | str | None",
    "_AnyParameters": "Parameters | LookupParameters",
    "_Params": "_AnyParameters | CollectionOrLayer | Iterable[_Params]",
    "_Number": "float | np.floating[Any] | np.integer[Any]",
    "_Operand": "Expression | _Number | npt.NDArray[Any]",
    "_Axis": "_Shape | None",
    "_Key": "_Int | slice | EllipsisType | list[int] | list[bool] | npt.NDArray[Any] | Expression | None",
    "_Index": "_Key | tuple[_Key, ...]",
    "_Arguments": 'ParamSpec("_Arguments")',
    "_Result": 'TypeVar("_Result")',
    "_Kept": 'TypeVar("_Kept", bound="_Stored")',
}
STANDARD = ("collections.abc", "contextlib", "contextvars", "os", "types", "typing")


@dataclass
class Function:
    """A function: its name, its arguments with their types, its return type, and what stands around it in a stub."""

    name: str
    arguments: list[str]
    returns: str
    doc: str = ""
    decorators: list[str] = field(default_factory=list)
    remark: str = ""


@dataclass
class Class:
    """A class: its name with its bases, its attributes as lines of a stub, and its methods."""

    name: str
    heading: str
    doc: str
    decorators: list[str]
    attributes: list[str]
    functions: list[Function | str]


@dataclass
class Module:
    """A compiled module: its name, the first sentence of its docstring, and what its stub contains, in order; an item
    that is text is an annotated constant or another name of a function."""

    name: str
    doc: str
    items: list[Function | Class | str]

    @property
    def functions(self) -> list[Function]:
        """Its public functions."""
        return [i for i in self.items if isinstance(i, Function) and not i.name.startswith("_")]

    def names(self) -> list[str]:
        """The names of its public functions."""
        aliases = [item.partition(" = ")[0] for item in self.items if isinstance(item, str) and " = " in item]
        return sorted({*(f.name for f in self.functions), *aliases})


# ---- reading -----------------------------------------------------------------------------------


def argument(text: str, where: str, untyped: str = "Expression") -> str:
    """An argument of a stub.  If neither a type nor a default says otherwise, it is `untyped`; "": that is an error."""
    if text in ("self", "*", "/"):
        return text
    types = "|".join(TYPES)
    match = re.fullmatch(
        rf"(?:({types}|_?[A-Z]\w+) )?(\*{{0,2}}\w+)(?: not None)?(?:\s*:\s*([^=]+?))?(?:\s*=\s*(.+))?", text
    )
    if match is None:
        raise Mistake(f"{where}: argument {text!r} is not understood")
    c_type, name, annotation, default = match.groups()
    kind = annotation or TYPES.get(c_type, c_type)
    if not annotation and kind and default == "None":
        kind += " | None"
    if kind is None:
        value = ast.literal_eval(default) if default else None
        kind = type(value).__name__ if default else untyped
    if not kind or not annotation and (kind.partition(" ")[0] in (*VAGUE, "NoneType") or name.startswith("**")):
        raise Mistake(f"{where}: argument {name} needs a type: {name}: TYPE" + (f" = {default}" if default else ""))
    return f"{name}: {kind}" + (f" = {default}" if default else "")


_DOC = re.compile(r'\s*(r?)"""(.+?)"""', re.DOTALL)


def first_sentence(text: str) -> str:
    """The first sentence of the first paragraph, in one line."""
    words = " ".join(re.split(r"\n\s*\n", text.strip())[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", words)[0]


def docstring(text: str, at: int) -> tuple[str, int]:
    """The first sentence of the docstring at an index, as a literal, and where the docstring ends."""
    match = _DOC.match(text, at)
    return (f'{match[1]}"""{first_sentence(match[2])}"""', match.end()) if match else ("", at)


def functions(text: str, start: re.Match[str], where: str, returns: str, untyped: str) -> Iterator[Function]:
    """The function that begins there, or its overloads; nothing if it is private."""
    name = start["function"]
    end = closing(text, start.end() - 1)
    tail = re.compile(r"\)(?:\s*->\s*([^:]+))?:[ \t]*(# (?:type|pyright): ignore.*)?").match(text, end)
    if tail is None:
        raise Mistake(f"{where}: {name} is not understood")
    doc = docstring(text, text.find("\n", tail.end()))[0] if not name.startswith("_") else ""
    decorators = [d for d in re.findall(r"@(.+)", start["decorators"]) if re.match(r"property|\w+\.setter|overload", d)]
    comment = " ".join(re.sub(r"^\s*#", "", line).strip() for line in start["comment"].splitlines())
    forms = [f"{form} " for form in comment.split("stub: ")[1:]]
    if len(forms) > 1:
        decorators.append("overload")
    if name.startswith("_") and not ((tail[1] or forms) and start[0].endswith(f"    def {name}(")):
        return
    if "property" in decorators and not tail[1]:
        raise Mistake(f"{where}: property {name} needs a type: def {name}(self) -> TYPE")
    for form in forms or [f"{text[start.end() - 1 : end + 1]} -> {tail[1] or returns} {tail[2] or ''}"]:
        close = closing(form, 0)
        result = re.fullmatch(r" -> (.+?)\s*(#.*?)?\s*", form[close + 1 :])
        if result is None:
            raise Mistake(f"{where}: {name}: {form!r} is not understood")
        words = split(" ".join(form[1:close].split()))
        arguments = [argument(w, f"{where}: {name}", untyped) for w in words]
        if name == "__cinit__":
            yield Function("__new__", ["cls", *arguments[1:]], "Self")
        else:
            yield Function(name, arguments, result[1], doc, decorators, result[2] or "")


def attribute(declaration: str, where: str) -> Iterator[str]:
    """The lines of a stub for `cdef readonly TYPE name, name  # type: ...`."""
    comment = r"(?:\s*#(?: type: (.+?)(?:  .*)?| .*))?"
    match = re.fullmatch(r"cdef (readonly|public) ((?:unsigned )?\w+) ([\w, ]+?)" + comment, declaration)
    if match is None:
        raise Mistake(f"{where}: {declaration!r} is not understood")
    access, c_type, names, kind = match.groups()
    if not kind and c_type in VAGUE:
        raise Mistake(f"{where}: {names} needs a type: {declaration}  # type: TYPE")
    kind = kind or TYPES.get(c_type, c_type)
    for name in split(names):
        yield from [f"{name}: {kind}"] if access == "public" else ["@property", f"def {name}(self) -> {kind}: ..."]


def item(indent: str) -> re.Pattern[str]:
    """What a stub may need, at an indentation."""
    return re.compile(
        rf"(?P<comment>(?:^{indent}# .*\n)*)(?P<decorators>(?:^{indent}@.*\n)*)^{indent}(?:def (?P<function>\w+)\("
        rf"|(?:cdef )?class (?P<class>\w+)(?P<bases>\(.*\))?:.*\n"
        rf"|(?P<attribute>cdef (?:readonly|public) .*)$"
        rf"|(?P<constant>\w+): (?P<type>[^=#\n]+?)(?P<value> = .*)?(?:\s+#.*)?$"
        rf"|(?P<commented>\w+) = .*  # type: (?P<its>.*)$"
        rf"|(?P<alias>[A-Za-z]\w*) = (?P<of>\w+)$)",
        re.MULTILINE,
    )


_BODY = re.compile(r"(?:(?:    .*)?\n)*")


def class_of(text: str, start: re.Match[str], declared: str, where: str) -> Class:
    """The class that begins there; what its declaration in the .pxd says about its attributes is added."""
    name, bases = start["class"], start["bases"]
    where = f"{where}: {name}"
    body = _BODY.match(text, start.end())[0]
    doc, at = docstring(body, 0)
    head = re.search(rf"^((?:@.*\n)*)cdef class {name}(\(.*\))?:\n", declared, re.MULTILINE)
    lines = _BODY.match(declared, head.end())[0] if head else ""
    attributes: list[str] = []
    for line in re.findall(r"^    (cdef (?:readonly|public) .*)", lines, re.MULTILINE):
        attributes += attribute(line, where)
    decorators = start["decorators"] + (head[1] if head else "")
    bases = bases or (head and head[2]) or ""
    methods: list[Function | str] = []
    for match in item("    ").finditer(body, at):
        if match["function"]:
            methods += functions(body, match, where, "None", "")
        elif match["attribute"]:
            attributes += attribute(match["attribute"], where)
        elif match["constant"]:
            has_default = match["value"] and "NamedTuple" in bases
            attributes.append(f"{match['constant']}: {match['type']}" + (" = ..." if has_default else ""))
        elif match["commented"]:
            attributes.append(f"{match['commented']}: {match['its']}")
        elif match["alias"] and any(isinstance(m, Function) and m.name == match["of"] for m in methods):
            methods.append(f"{match['alias']} = {match['of']}")
    final = ["final"] if "@cython.final" in decorators else []
    return Class(name, name + bases, doc, final, attributes, methods)


def compiled(path: Path, returns: str = "None", untyped: str = "") -> Module:
    """What the stub of a .pyx contains; functions return `returns` if they do not say it."""
    text = path.read_text(encoding="utf-8")
    pxd = path.with_suffix(".pxd")
    declared = pxd.read_text(encoding="utf-8") if pxd.exists() else ""
    head = re.compile(r"(?:#.*\n|\s)*").match(text)
    doc, at = docstring(text, head.end())
    where = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    found = Module(path.stem, re.sub(r'^r?"""|"""$', "", doc), [])
    hidden: dict[str, tuple[int, re.Match[str]]] = {}
    for match in item("").finditer(text, at):
        if match["function"]:
            found.items += functions(text, match, where, returns, untyped)
        elif match["class"] and match["class"].startswith("_"):
            hidden[match["class"]] = len(found.items), match
        elif match["class"]:
            found.items.append(class_of(text, match, declared, where))
        elif match["constant"]:
            found.items.append(f"{match['constant']}: {match['type']}")
        elif match["alias"] and match["of"] in {f.name for f in found.functions}:
            found.items.append(f"{match['alias']} = {match['of']}")
    said = "\n".join(written(i) for i in found.items)
    for name, (place, match) in reversed(hidden.items()):
        if re.search(rf"\b{name}\b", said):
            found.items.insert(place, class_of(text, match, declared, where))
    return found


# ---- writing -----------------------------------------------------------------------------------


def written(item: Function | Class | str, indent: str = "") -> str:
    """An item as it stands in a stub, on as many lines as ruff would use."""
    if isinstance(item, str):
        return indent + item
    decorators = [f"{indent}@{d}" for d in item.decorators]
    inner = indent + "    "
    if isinstance(item, Function):
        end = ":" if item.doc else ": ..."
        lines = [f"{indent}def {item.name}({', '.join(item.arguments)}) -> {item.returns}{end}"]
        if len(lines[0]) > WIDTH:
            middle = [f"{inner}{', '.join(item.arguments)}"]
            if len(middle[0]) > WIDTH:
                middle = [f"{inner}{a}," for a in item.arguments]
            lines = [f"{indent}def {item.name}(", *middle, f"{indent}) -> {item.returns}{end}"]
        lines = [*decorators, *lines, *([inner + item.doc] if item.doc else [])]
        if item.remark:
            lines[0 if "[override]" in item.remark else len(decorators)] += f"  {item.remark}"  # where mypy reports it
        return "\n".join(lines)
    parts = [inner + item.doc, *([""] if item.attributes else [])] if item.doc else []
    parts += [inner + a for a in item.attributes]
    parts += [written(f, inner) for f in item.functions]
    return "\n".join([*decorators, f"{indent}class {item.heading}:{'' if parts else ' ...'}", *parts])


def words_of(text: str) -> set[str]:
    """The names in a text that are not attributes."""
    return set(re.findall(r"(?<![.\w])_?[A-Za-z]\w*", text))


@cache
def owners() -> dict[str, list[str]]:
    """The modules that define each class and each type of dynet_cy, by its name."""
    found: dict[str, list[str]] = {}
    for path in sorted([*(ROOT / "dynet_cy").rglob("*.py"), *(ROOT / "dynet_cy").rglob("*.pyx")]):
        text = path.read_text(encoding="utf-8")
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        names = re.findall(r"^(?:(?:cdef )?class (_?[A-Z]\w+)|([A-Z]\w+)(?:: TypeAlias)? = )", text, re.MULTILINE)
        for word in {a or b for a, b in names}:
            found.setdefault(word, []).append(name)
    return found


def stub(m: Module, where: str) -> str:
    """The .pyi of a module."""
    parts = [written(i) for i in m.items]
    words = words_of(re.sub(r'r?""".*"""', "", "\n".join(parts)))
    short: list[str] = []
    for name in reversed(SHORT):
        if name in words:
            kind = "" if SHORT[name].startswith(("TypeVar", "ParamSpec")) else ": TypeAlias"
            short.insert(0, f"{name}{kind} = {SHORT[name]}")
            words |= words_of(short[0])
    words -= {re.split(r"[(:]", i if isinstance(i, str) else i.name)[0] for i in m.items}
    by_module: dict[str, list[str]] = {}
    for word in words:
        if word in IMPORTS:
            by_module.setdefault(IMPORTS[word], []).append(word)
        elif word in owners():
            of = owners()[word]
            if len(of) > 1:
                raise Mistake(f"{where}: {word} is a name in {' and '.join(of)}")
            by_module.setdefault(of[0], []).append(word)
    groups: list[list[str]] = [[], [], []]  # the standard library, others, ours
    for name in sorted(by_module, key=lambda m: (" as " not in m, m)):
        lines = [f"import {name}"] if " as " in name else imported(name, by_module[name])
        groups[0 if name in STANDARD else 2 if name.startswith("dynet_cy") else 1] += lines
    text = "\n".join([WRITTEN, *groups[0]]) + "\n"
    for group in (groups[1], groups[2], short):
        text += "\n" + "\n".join([*group, ""]) if group else ""
    return text + laid_out(m, parts)


def laid_out(m: Module, parts: list[str]) -> str:
    """The items of a stub, with empty lines around classes and after docstrings."""
    text, before = "", None
    for i, part in zip(m.items, parts):
        near = type(before) is type(i) and not isinstance(i, Class) and not getattr(before, "doc", "")
        text += ("" if near else "\n") + part + "\n"
        before = i
    return text
