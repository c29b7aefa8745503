"""Declarations of C structs, types, constants, variables and functions for Cython, from headers.

A file says which: `# derived: structs of Dim, Changes, Panels = dy_packed`.  If nothing else is said, `Changes` is
`dy_changes`, the constant `FIRST` is `DY_FIRST`, and the function `blocks` is `dy_blocks`; a name that begins with dy_
is that of C.  `bint reads` is a number or a function that is true or false, `Op with saved work of needs[DY_CPU]` a
struct with two names more, for fields of a field.  The file declares or imports the types of all fields, arguments and
results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from derive_text import ROOT, WIDTH, Mistake, split, wrapped

REGION = re.compile(
    r"^( *)# derived: (structs|types|constants|variables|functions) of (.+(?:\n *#  .+)*)\n((?:.*\n)*?) *# end of \2$",
    re.MULTILINE,
)
KNOWN = {  # to Cython itself
    *("char", "double", "float", "int", "long", "ptrdiff_t", "size_t", "unsigned", "void"),
    *("long long", "unsigned long long"),
}
KEYWORDS = {"from": "begin", "in": "inputs"}  # of Python


@cache
def header(name: str) -> str:
    """The text of a header and of those that it includes, without comments."""
    path = ROOT / "include" / name
    if not path.exists():
        path = next((ROOT / "dynet_cy").rglob(name))
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    included = [path.with_name(n) for n in re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE)]
    return text + "".join(header(str(p.relative_to(ROOT / "include"))) for p in included if p.exists())


def expanded(body: str, text: str) -> str:
    """The fields of a struct that has a field for each row of a list of macros."""
    macro = re.fullmatch(r"#define (\w+)\((\w+), (\w+)\) (.+)\n *(\w+)\n#undef \1\n", body)
    if macro is None:
        return body
    name, first, second, field, rows = macro.groups()
    listed = re.search(rf"^#define {rows} ((?:.*\\\n)*.*)", text, re.MULTILINE)
    found = re.findall(rf"\b{name}\((\w+), (\((?:[^()])*\))\)", listed[1].replace("\\\n", ""))
    return "".join(field.replace(first, a).replace(second, b) for a, b in found)


@cache
def structs(text: str) -> dict[str, tuple[str, list[str]]]:
    """`struct` or `union`, and the fields as in C, of each struct of a header, by its name."""
    found = {}
    pattern = r"^(?:typedef )?(struct|union)(?: (\w+))? \{\n((?:[ \t#].*\n|\n)*)\} ?(\w*);"
    for kind, tag, body, name in re.findall(pattern, text, re.MULTILINE):
        body = expanded(body, text)
        fields = re.sub(r"\b(?:union|struct)\s*\{|\}\s*;", "", body)  # those without a name
        found[name or tag] = kind, [" ".join(field.split()) for field in fields.split(";") if field.strip()]
    return found


def fields(declaration: str, known: dict[str, str], text: str) -> Iterator[str]:
    """A declaration of C as declarations of Cython."""
    match = re.fullmatch(r"((?:(?:const|struct|_Atomic) )*)((?:unsigned )?long long|\w+) ?(.+)", declaration)
    if match is None or match[2] not in known:
        raise Mistake(f"include/dynet_cy: {declaration!r} has a type that the file does not know")
    base = ("const " if "const" in match[1] else "") + known[match[2]]
    function = re.fullmatch(r"(\**)\(\*(\w+)\) ?\((.*)\)", match[3])
    if function is not None:
        yield from call(
            f"{base}{function[1]} (*{function[2]})(", arguments(function[3], known, text), ") noexcept nogil"
        )
        return
    for declarator in split(match[3]):
        parts = re.fullmatch(r"((?:\* ?(?:const )?)*)(\w+)((?:\[[^]]*\])*)(?: : \d+)?", declarator)
        if parts is None:
            raise Mistake(f"include/dynet_cy: {declaration!r} is not understood")
        stars, name, size = parts.groups()
        sizes = [number(part, text) for part in re.findall(r"\[(.+?)\]", size)]
        stars = stars.replace(" ", "").replace("const", " const")
        named = f'{KEYWORDS[name]} "{name}"' if name in KEYWORDS else name
        yield f"{base}{stars} {named}" + "".join(f"[{n}]" for n in sizes)


def arguments(declarations: str, known: dict[str, str], text: str) -> Iterator[str]:
    """The arguments of a function of C as those of one of Cython."""
    for declaration in split(declarations):
        if declaration != "void":
            argument = next(fields(" ".join(declaration.split()), known, text))
            yield re.sub(r" (\w+)\[\d+\]$", r"* \1", re.sub(r' "\w+"', "", argument))


def number(size: str, text: str) -> int:
    """The value of the size of an array: a sum of numbers and constants."""
    value = 0
    for sign, term in re.findall(r"(^|[+-] ?)(\w+)", size):
        match = re.search(rf"\b{term}(?: =)? (\d+)\b", text)
        listed = re.search(rf"^ *(?:typedef )?enum \{{ ?((?:\w+, )*){term}\b", text, re.MULTILINE)
        if match is None and listed is None and not term.isdigit():
            raise Mistake(f"include/dynet_cy: the size {size!r} is not understood")
        n = int(match[1] if match else term) if match or not listed else listed[1].count(",")
        value += -n if sign.startswith("-") else n
    return value


def named(kind: str, names: str) -> dict[str, str]:
    """The names in C of what a file asks for, by their names in Cython."""
    words = [word.partition(" = ") for word in split(re.sub(r"\s*#\s*|\s+", " ", names))]
    usual = {
        "structs": lambda name: "dy" + re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", name),
        "constants": lambda name: f"DY_{name}",
        "functions": lambda name: f"dy_{name}",
    }
    usual["types"], usual["variables"] = usual["structs"], usual["functions"]
    own = {name: name.removeprefix("bint ") for name, _, _ in words}
    return {
        name: c_name or (own[name] if name.lower().startswith(("dy_", "bint dy_")) else usual[kind](own[name]))
        for name, _, c_name in words
    }


def renamed(name: str, c_name: str) -> str:
    return name if name == c_name else f'{name} "{c_name}"'


def struct(name: str, c_name: str, known: dict[str, str], text: str) -> Iterator[str]:
    c_name, _, more = c_name.partition(" with ")
    kind, declarations = structs(text)[c_name]
    tag = "" if re.search(rf"^(?:\}}|typedef .*) {c_name};", text, re.MULTILINE) else f"{kind} "
    yield from ["", f"ctypedef {kind} {renamed(name, tag + c_name)}:"]
    yield from (f"    {line}" for d in declarations for line in fields(d, known, text))
    for names, _, field in (part.partition(" of ") for part in more.split(" with ") if part):
        outer = next(d for d in declarations if re.search(rf"\b{field.partition('[')[0]}\b", d))
        inner = structs(text)[outer.removeprefix("struct ").split()[0]][1]
        own = {line.split()[-1]: line for d in inner for line in fields(d, known, text)}
        yield from (f'    {own[name]} "{field}{"->" if "*" in outer else "."}{name}"' for name in names.split())


def result(c_type: str, name: str, known: dict[str, str], text: str) -> str:
    """The type of what a function returns."""
    if name.startswith("bint "):
        return "bint"
    return next(fields(f"{c_type}{'' if c_type.endswith('*') else ' '}{name}", known, text)).removesuffix(f" {name}")


def number_type(name: str, c_type: str) -> str:
    return "bint" if name.startswith("bint ") else c_type


def type_of(name: str, c_name: str, known: dict[str, str], text: str) -> Iterator[str]:
    """A typedef of a number or of a function."""
    function = re.search(rf"^typedef ([^;{{}}]+?)\(\*{c_name}\)\(([^)]*)\);", text, re.MULTILINE)
    other = re.search(rf"^typedef (?:_Atomic )?(\w+) {c_name};", text, re.MULTILINE)
    if function is None and other is None:
        raise KeyError
    if function is None:
        yield f"ctypedef {number_type(name, known[other[1]])} {renamed(name.removeprefix('bint '), c_name)}"
        return
    head = (
        f"ctypedef {result(function[1].strip(), name, known, text)} (*{renamed(name.removeprefix('bint '), c_name)})("
    )
    yield from call(head, arguments(function[2], known, text), ") noexcept nogil")


def variable(name: str, c_name: str, known: dict[str, str], text: str) -> Iterator[str]:
    """A variable, or an array of them."""
    match = re.search(rf"^(?:extern|static)(?: _Thread_local)? ([\w *]+?)\b{c_name}(\[?)", text, re.MULTILINE)
    if match is None:
        raise KeyError
    declared = next(fields(f"{match[1]}{name}", known, text))
    yield declared.removesuffix(name) + renamed(name, c_name) + ("[]" if match[2] else "")


def constant(name: str, c_name: str, known: dict[str, str], text: str) -> Iterator[str]:
    """An enumerator, a row of a .def file or a number is an int; the greatest number of a type has its type."""
    greatest = re.search(rf"^#define {c_name} UINT(32|64)_MAX$", text, re.MULTILINE)
    included = set(re.findall(r'^#include "(\w+\.def)"', text, re.MULTILINE))
    rows = "".join((ROOT / "include/dynet_cy" / name).read_text(encoding="utf-8") for name in included)
    if not greatest and not re.search(
        rf"^#define {c_name} (?:\d+|UINT8_MAX) *$|[{{,]\s*{c_name}\b|^ *{c_name}$|^\w+\({c_name.removeprefix('DY_')},",
        text + rows,
        re.MULTILINE,
    ):
        raise KeyError
    c_type = number_type(name, f"uint{greatest[1]}_t" if greatest else "int")
    yield f"{c_type} {renamed(name.removeprefix('bint '), c_name)}"


def function(name: str, c_name: str, known: dict[str, str], text: str) -> Iterator[str]:
    match = re.search(
        rf"^(?:static inline |static |DY_[A-Z]+ )?([\w ]+?\W\**){c_name}\(((?:[^()]|\([^()]*\))*)\) ?[{{;]",
        text,
        re.MULTILINE,
    )
    if match is None:
        raise KeyError
    head = f"{result(match[1], name, known, text)} {renamed(name.removeprefix('bint '), c_name)}("
    yield from call(head, arguments(match[2], known, text), ")")


def call(head: str, arguments: Iterator[str], end: str) -> Iterator[str]:
    """A declaration of a function, in as many lines as it takes within a struct."""
    rest = ", ".join(arguments) + end
    if len(head + rest) <= WIDTH - 8:
        yield head + rest
    else:
        lines = wrapped(re.sub(r"(?<!,) ", "\0", rest), " " * 12)  # not within an argument
        yield from [head, *(line[8:].replace("\0", " ") for line in lines)]


KINDS = {"structs": struct, "types": type_of, "constants": constant, "variables": variable, "functions": function}


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
    types = re.compile(r'^    ctypedef .*?(\w+)(?: "(?:struct )?(\w+)"|:)', re.MULTILINE)
    for path, text in texts.items():
        regions = [(kind, names) for _, kind, names, _ in REGION.findall(text) if kind in ("structs", "types")]
        own[path] = {
            c.partition(" with ")[0]: name.removeprefix("bint ")
            for kind, names in regions
            for name, c in named(kind, names).items()
        }
        own[path].update((c or name, name) for name, c in types.findall(text))
    everywhere = {c: name for found in own.values() for c, name in found.items()}
    for path, text in texts.items():
        if REGION.search(text):
            both = [p for p in {path, path.with_suffix(".pxd")} if p in texts]  # what a .pxd knows, its .pyx knows too
            imports = re.findall(r"\bcimport (\([^)]*\)|.*)$", "\n".join(texts[p] for p in both), re.MULTILINE)
            words = set(re.findall(r"\w+", " ".join(imports)))
            known = {name: name for name in KNOWN | words}
            known.update({c: name for c, name in everywhere.items() if name in words})
            known.update(pair for p in both for pair in own[p].items())
            try:
                yield path, REGION.sub(partial(declared, known=known), text)
            except Mistake as mistake:
                raise Mistake(f"{path.relative_to(ROOT)}: {mistake}") from None
