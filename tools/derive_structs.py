"""Declarations of C structs, constants and functions for Cython, from `include/dynet_cy/*.h`.

A file says which: `# derived: structs of Dim, Changes, Panels = dy_packed`.  If nothing else is said, `Changes` is
`dy_changes`, the constant `FIRST` is `DY_FIRST`, and the function `blocks` is `dy_blocks`.  The file declares or
imports the types of all fields, arguments and results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from derive_text import ROOT, WIDTH, Mistake, split, wrapped

REGION = re.compile(
    r"^( *)# derived: (structs|constants|functions) of (.+(?:\n *#  .+)*)\n((?:.*\n)*?) *# end of \2$", re.MULTILINE
)
KNOWN = {"char", "double", "float", "int", "ptrdiff_t", "size_t", "unsigned", "void"}  # to Cython itself
KEYWORDS = {"from": 'begin "from"', "in": 'inputs "in"'}  # of Python


@cache
def header(name: str) -> str:
    """The text of a header and of those that it includes, without comments."""
    path = ROOT / "include" / name
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    included = [path.with_name(n) for n in re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE)]
    return text + "".join(header(str(p.relative_to(ROOT / "include"))) for p in included if p.exists())


@cache
def structs(text: str) -> dict[str, tuple[str, list[str]]]:
    """`struct` or `union`, and the fields as in C, of each struct of a header, by its name."""
    found = {}
    pattern = r"^(?:typedef )?(struct|union)(?: (\w+))? \{\n((?:[ \t].*\n|\n)*)\} ?(\w*);"
    for kind, tag, body, name in re.findall(pattern, text, re.MULTILINE):
        fields = re.sub(r"\b(?:union|struct)\s*\{|\}\s*;", "", body)  # those without a name
        found[name or tag] = kind, [" ".join(field.split()) for field in fields.split(";") if field.strip()]
    return found


def fields(declaration: str, known: dict[str, str], text: str) -> Iterator[str]:
    """A declaration of C as declarations of Cython."""
    match = re.fullmatch(r"((?:(?:const|struct|_Atomic) )*)(\w+) ?(.+)", declaration)
    if match is None or match[2] not in known:
        raise Mistake(f"include/dynet_cy: {declaration!r} has a type that the file does not know")
    base = ("const " if "const" in match[1] else "") + known[match[2]]
    function = re.fullmatch(r"(\**)\(\*(\w+)\)\((.*)\)", match[3])
    if function is not None:
        arguments = ", ".join(next(fields(argument, known, text)) for argument in split(function[3]))
        yield f"{base}{function[1]} (*{function[2]})({arguments}) noexcept nogil"
        return
    for declarator in split(match[3]):
        parts = re.fullmatch(r"((?:\* ?(?:const )?)*)(\w+)((?:\[[^]]+\])*)(?: : \d+)?", declarator)
        if parts is None:
            raise Mistake(f"include/dynet_cy: {declaration!r} is not understood")
        stars, name, size = parts.groups()
        sizes = [number(part, text) for part in re.findall(r"\[(.+?)\]", size)]
        stars = stars.replace(" ", "").replace("const", " const")
        yield f"{base}{stars} {KEYWORDS.get(name, name)}" + "".join(f"[{n}]" for n in sizes)


def number(size: str, text: str) -> int:
    """The value of the size of an array: a sum of numbers and constants."""
    terms = []
    for term in size.split(" + "):
        match = re.search(rf"\b{term}(?: =)? (\d+)\b", text)
        if match is None and not term.isdigit():
            raise Mistake(f"include/dynet_cy: the size {size!r} is not understood")
        terms.append(int(match[1] if match else term))
    return sum(terms)


def named(kind: str, names: str) -> dict[str, str]:
    """The names in C of what a file asks for, by their names in Cython."""
    words = [word.partition(" = ") for word in split(re.sub(r"\s*#\s*|\s+", " ", names))]
    usual = {
        "structs": lambda name: "dy" + re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", name),
        "constants": lambda name: f"DY_{name}",
        "functions": lambda name: f"dy_{name}",
    }
    return {name: c_name or usual[kind](name) for name, _, c_name in words}


def struct(name: str, c_name: str, known: dict[str, str], text: str) -> Iterator[str]:
    kind, declarations = structs(text)[c_name]
    tag = "" if re.search(rf"^(?:\}}|typedef .*) {c_name};", text, re.MULTILINE) else f"{kind} "
    yield from ["", f'ctypedef {kind} {name} "{tag}{c_name}":']
    yield from (f"    {line}" for d in declarations for line in fields(d, known, text))


def constant(name: str, c_name: str, known: dict[str, str], text: str) -> Iterator[str]:
    """An enumerator or a number is an int; the greatest number of a type has that type."""
    greatest = re.search(rf"^#define {c_name} UINT(32|64)_MAX$", text, re.MULTILINE)
    if not greatest and not re.search(rf"^#define {c_name} (?:\d+|UINT8_MAX)$|[{{,]\s*{c_name}\b", text, re.MULTILINE):
        raise KeyError
    yield f'{f"uint{greatest[1]}_t" if greatest else "int"} {name} "{c_name}"'


def function(name: str, c_name: str, known: dict[str, str], text: str) -> Iterator[str]:
    match = re.search(rf"^static inline ([\w ]+?\W\**){c_name}\(([^)]*)\) ?\{{", text, re.MULTILINE)
    if match is None:
        raise KeyError
    result = next(fields(f"{match[1]}{name}", known, text)).removesuffix(f" {name}")
    arguments = [next(fields(" ".join(a.split()), known, text)) for a in split(match[2]) if a != "void"]
    head, rest = f'{result} {name} "{c_name}"(', ", ".join(arguments) + ")"
    if len(head + rest) <= WIDTH - 4:
        yield head + rest
    else:
        lines = wrapped(re.sub(r"(?<!,) ", "\0", rest), " " * 8)  # not within an argument
        yield from [head, *(line[4:].replace("\0", " ") for line in lines)]


KINDS = {"structs": struct, "constants": constant, "functions": function}


def declared(match: re.Match[str], known: dict[str, str]) -> str:
    """A region of a file, with the declarations that its first line asks for."""
    indent, kind, names, _ = match.groups()
    name = re.findall(r'^cdef extern from "(.+)"', match.string[: match.start()], re.MULTILINE)[-1]
    lines: list[str] = []
    for name_here, c_name in named(kind, names).items():
        try:
            lines += KINDS[kind](name_here, c_name, known, header(name))
        except KeyError:
            raise Mistake(f"{name}: there is no {kind[:-1]} {c_name}") from None
    text = "".join(f"{indent}{line}\n" if line else "\n" for line in lines).lstrip("\n")
    return f"{indent}# derived: {kind} of {names}\n{text}{indent}# end of {kind}"


def declarations() -> Iterator[tuple[Path, str]]:
    """All files that ask for declarations, with these."""
    texts = {p: p.read_text(encoding="utf-8") for p in sorted((ROOT / "dynet_cy").rglob("*.p[xy][dx]"))}
    own: dict[Path, dict[str, str]] = {}
    types = re.compile(r'^    ctypedef .*?(\w+) "(?:struct )?(\w+)"', re.MULTILINE)
    for path, text in texts.items():
        regions = [names for _, kind, names, _ in REGION.findall(text) if kind == "structs"]
        own[path] = {c: name for names in regions for name, c in named("structs", names).items()}
        own[path].update((c, name) for name, c in types.findall(text))
    everywhere = {c: name for found in own.values() for c, name in found.items()}
    for path, text in texts.items():
        if REGION.search(text):
            imports = re.findall(r"\bcimport (\([^)]*\)|.*)$", text, re.MULTILINE)
            words = set(re.findall(r"\w+", " ".join(imports)))
            known = {name: name for name in KNOWN | words}
            known.update({c: name for c, name in everywhere.items() if name in words}, **own[path])
            yield path, REGION.sub(partial(declared, known=known), text)
