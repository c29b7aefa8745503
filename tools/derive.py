"""Generates declarations, functions and lists from the rows of ops and kernels and from the ops' functions.

    python tools/derive.py            # the build does this
    python tools/derive.py --check    # only reports what is out of date, as tests/test_derived.py does

From the rows of `include/dynet_cy/*.def`: enumerators and the table of kernels for Cython, the Python functions of
elementwise ops, and their formulas for ONNX files.  From the functions in `dynet_cy/ops/*.pyx`: the list of ops in
`ops/api.py`, and the lists in docs/.  From all .pyx files: their stubs.  From the headers: structs for Cython.  The
output stays under version control, so that readers, editors and type checkers need no build.

A file that is generated completely says so in its first lines.  In other files, the generated part is between a line
with `derived: NAME` and one with `end of NAME`; the rest of the file is left unchanged.
"""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for runpy, which runs this file without its folder

from derive_arguments import arguments
from derive_launches import launches
from derive_notebook import notebook
from derive_structs import declarations
from derive_stubs import Module, compiled, stub
from derive_text import ROOT, WIDTH, Mistake, closing, imported, split, with_regions, wrapped

ROWS = ROOT / "include" / "dynet_cy"
OPS = ROOT / "dynet_cy" / "ops"
HINTS = ROOT / "dynet_cy" / "hints"


# ---- rows of .def files ------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One row of a .def file.

    Attributes:
        kind: the macro, such as UNARY.
        name: its first argument.
        rest: its other arguments, as one text.
        face: the comment `/** ... */` right above it; "" if there is none.
    """

    kind: str
    name: str
    rest: str
    face: str


def rows(file: str) -> list[Row]:
    """The rows of a .def file, in the order of the file."""
    text = (ROWS / file).read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^([A-Z_]+)\(", text, re.MULTILINE):
        end = closing(text, match.end() - 1)
        first, _, rest = text[match.end() : end].partition(",")
        above = re.search(r"/\*\*((?:(?!\*/).)*)\*/\s*\Z", text[: match.start()], re.DOTALL)
        found.append(Row(match[1], first.strip(), rest.strip(), above[1] if above else ""))
    return found


# ---- Python functions of rows ----------------------------------------------------------


@dataclass(frozen=True)
class Face:
    """The Python function of a row.

    Attributes:
        name: of the function.
        arguments: the expressions.
        parameters: name and default ("" if none) of each number that the row takes.
        doc: lines of the docstring.
        requirements: pairs of a condition and a message.
    """

    name: str
    arguments: list[str]
    parameters: list[tuple[str, str]]
    doc: list[str]
    requirements: list[tuple[str, str]]


def face(row: Row, n_arguments: int) -> Face | None:
    """Parse the comment above a row: ``/** name(x, p=1.0): What it is. */``; None if there is none.

    Further lines of the docstring follow after ` * `.  A line ``require CONDITION: MESSAGE`` is not part of it: the
    function raises ValueError with the message if the condition does not hold.
    """
    if not row.face:
        return None
    text = row.face.strip()
    match = re.match(r"(\w+)\(", text)
    if match is None or not text[closing(text, match.end() - 1) + 1 :].startswith(":"):
        raise Mistake(f"{row.kind}({row.name}): the comment must begin as /** name(x): What it is.")
    end = closing(text, match.end() - 1)
    words = split(text[match.end() : end])
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in text[end + 2 :].strip().split("\n")]
    required = [line[len("require ") :].partition(": ") for line in lines if line.startswith("require ")]
    doc = [line for line in lines if not line.startswith("require ")]
    while not doc[-1]:
        doc.pop()
    numbers = [word.partition("=") for word in words[n_arguments:]]
    if len(words) < n_arguments or len(numbers) > (2 if row.kind == "UNARY" else 0):
        raise Mistake(
            f"{row.kind}({row.name}): {match[1]} takes {n_arguments} expressions and as many numbers as rows do"
        )
    return Face(
        match[1],
        words[:n_arguments],
        [(name.strip(), default.strip()) for name, _, default in numbers],
        doc,
        [(condition, message) for condition, _, message in required],
    )


def described(f: Face) -> list[str]:
    """The lines of a docstring after its first, with the section on arguments that all elementwise functions share."""
    alone = len(f.arguments) == 1
    what = "an expression of any shape, which the result has too" if alone else "expressions whose shapes broadcast"
    words = ["Args:", f"    {', '.join(f.arguments)}: {what}."]
    place = next((i for i, line in enumerate(f.doc) if line in ("Raises:", "Example:")), len(f.doc))
    before, after = f.doc[1:place], f.doc[place:]
    if not before or before[-1]:
        before = [*before, ""]
    return [*before, *words, *(["", *after] if after else [])]


def functions(file: str, kind: str, table: str) -> Iterator[str]:
    """Cython code: the functions of all rows of a kind that have a face."""
    faces = [(row, face(row, 2 if kind == "BINARY" else 1)) for row in rows(file) if row.kind == kind]
    public = [(row, f) for row, f in faces if f is not None]
    names = sorted((f"DY_{kind}_{row.name}" for row, _ in public), key=str)
    yield "from dynet_cy.kernels.kernels cimport ("
    yield from wrapped(", ".join(names) + ",", "    ")
    yield ")"
    for row, f in public:
        numbers = [f"float {name}={default}" if default else f"float {name}" for name, default in f.parameters]
        doc = ['    """' + f.doc[0], *["    " + line if line else "" for line in described(f)]]
        yield ""
        yield ""
        yield f"def {f.name}({', '.join([*f.arguments, *numbers])}):"
        yield from [doc[0] + '"""'] if len(doc) == 1 else [*doc, '    """']
        for condition, message in f.requirements:
            yield f"    if not ({condition}):"
            yield f'        raise ValueError(f"{f.name}: {message}")'
        op = f"DY_{kind}_{row.name}"
        if f.parameters:
            numbers = [*[name for name, _ in f.parameters], "0"][:2]
            yield f"    return apply_unary({op}, {f.arguments[0]}, {', '.join(numbers)})"
        else:
            yield f"    return apply{len(f.arguments)}({table}[{op}], {', '.join(f.arguments)})"


def formulas() -> Iterator[str]:
    """The formula of each op of unary.def and binary.def, in Python syntax, for ONNX files."""
    for row in [row for file in ("unary.def", "binary.def") for row in rows(file) if row.kind in ("UNARY", "BINARY")]:
        line = f'    "{row.name}": "{in_python(split(row.rest)[0])}",'
        if len(line) <= WIDTH:
            yield line
        else:
            yield from [f'    "{row.name}": (', *literal(in_python(split(row.rest)[0])), "    ),"]


def in_python(formula: str) -> str:
    """A formula of a row in Python syntax: without `C` around numbers, which are integers if they end with a point."""
    text = " ".join(formula[1:-1].split())
    text = re.sub(r"C[(](-?[0-9.e+-]+)f[)]", lambda match: match[1].rstrip("."), text)
    return re.sub(r"C[(](FLT_\w+)[)]", r"\1", text)


def derivatives(*kinds: str) -> Iterator[str]:
    """The derivatives of each row of unary.def and binary.def of some kinds, in Python syntax."""
    for row in [row for file in ("unary.def", "binary.def") for row in rows(file) if row.kind in kinds]:
        parts = [in_python(part) for part in split(row.rest)[1:]]
        line = f'    "{row.name}": ({", ".join(map(in_quotes, parts))}{"," * (len(parts) == 1)}),'
        if len(line) <= WIDTH:
            yield line
        else:
            yield from [f'    "{row.name}": (', *[line for part in parts for line in literal(part, ",")], "    ),"]


def in_quotes(text: str) -> str:
    return f'"{text}"'


def literal(text: str, end: str = "") -> list[str]:
    """The lines of a string within parentheses; a long one is several literals."""
    pieces = textwrap.wrap(text, WIDTH - 12)
    lines = [f"        {in_quotes(piece + ' ')}" for piece in pieces[:-1]]
    return [*lines, f"        {in_quotes(pieces[-1])}{end}"]


# ---- the table of kernels for Cython ------------------------------------------------------

# .def file, macros of its rows, prefix of the enumerators
ENUMERATED = [
    ("unary.def", ("UNARY",), "DY_UNARY"),
    ("binary.def", ("BINARY", "BINARY_PART"), "DY_BINARY"),
    ("optim.def", ("OPTIM",), "DY_OPTIM"),
    ("rng.def", ("RNG",), "DY_RNG"),
]


def enumerators() -> Iterator[str]:
    for file, kinds, prefix in ENUMERATED:
        names = [f"{prefix}_{row.name}" for row in rows(file) if row.kind in kinds]
        yield "    enum:"
        yield from wrapped(", ".join([*names, f"{prefix}_COUNT"]), "        ")


def kernels() -> Iterator[Row]:
    """The rows of kernels.def, and those that its macro LINE makes of each row of line.def."""
    yield from rows("kernels.def")
    text = (ROWS / "kernels.def").read_text(encoding="utf-8").replace("\\\n", " ")
    for line in rows("line.def"):
        for end, takes in re.findall(r"KERNEL\(void, name(?:##)?(\w*), (\([^)]*\))\)", text):
            yield Row("KERNEL", "void", f"{line.name}{end}, {takes}", "")


def members() -> Iterator[str]:
    for row in kernels():
        name, arguments = (" ".join(part.split()) for part in row.rest.split(",", 1))
        start = f"        {row.name} (*{name})"  # the first argument of KERNEL is the result
        whole = [word.replace(" ", "\0") for word in split(arguments[1:-1])]  # lines end between arguments
        for line in wrapped(f"{start}({', '.join(whole)})\0noexcept\0nogil", "", " " * (len(start) + 1)):
            yield line.replace("\0", " ")


# ---- stubs and lists of ops ------------------------------------------------------------------


def families() -> list[Module]:
    """The modules that have public ops."""
    found = [ops(path) for path in sorted(OPS.glob("*.pyx")) if path.stem not in ("index", "registry")]
    return [f for f in found if f.functions]


def ops(path: Path) -> Module:
    """A module of ops: what has no type is an expression."""
    return compiled(path, "Expression", "Expression")


def stubs() -> Iterator[tuple[Path, str]]:
    """The stubs of all modules that have names for Python."""
    for path in sorted((ROOT / "dynet_cy").rglob("*.pyx")):
        found = ops(path) if path.parent == OPS else compiled(path)
        if found.items:
            yield path.with_suffix(".pyi"), stub(found, str(path.relative_to(ROOT)))


def check_names(found: Sequence[Module]) -> None:
    """Ops and the functions that are made of ops share the names of `dynet_cy`."""
    owners: dict[str, str] = {}
    modules = [(f"dynet_cy/ops/{f.name}.pyx", f.names()) for f in found]
    modules += [(f"dynet_cy/functions/{module}.py", names) for module, names in offered(FUNCTIONS).items()]
    for module, names in modules:
        for name in names:
            if owners.setdefault(name, module) != module:
                raise Mistake(f"{module}: {name} is the name of a function of {owners[name]}")


def api(found: Sequence[Module]) -> str:
    """dynet_cy/ops/api.py."""
    lines = ['"""All public ops, family by family.  Written by tools/derive.py."""', ""]
    for f in found:
        names = sorted(f.names(), key=lambda n: (not n[0].isupper(), n.lower()))
        line = f"from dynet_cy.ops.{f.name} import {', '.join(names)}"
        if len(line) <= WIDTH:
            lines.append(line)
        else:
            lines += [f"from dynet_cy.ops.{f.name} import (", *(f"    {n}," for n in names), ")"]
    lines += ["", "__all__ = ["]
    for f in found:
        lines += [f"    # {f.name}", *(f'    "{n}",' for n in f.names())]
    return "\n".join([*lines, "]", ""])


def listed(found: Sequence[Module], text: str) -> Iterator[str]:
    """The ops in docs/surface.md: the titles of its paragraphs are kept, the names after them are generated."""
    titles = re.findall(r"^(\*\*.+\*\*) \(`(\w+)`\):", text, re.MULTILINE)
    by_name = {f.name: f for f in found}
    known = {name for _, name in titles}
    new = [(f"**{f.doc.rstrip('.')}**", f.name) for f in found if f.name not in known]
    for title, name in [*titles, *new]:
        if name in by_name:
            names = ", ".join(f"`{n}`" for n in by_name[name].names())
            yield ""
            yield from wrapped(f"{title} (`{name}`): {names}.", "")
    yield ""


FUNCTIONS = ROOT / "dynet_cy" / "functions"


def offered(folder: Path) -> dict[str, list[str]]:
    """The `__all__` of each module of a package."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        match = re.search(r"^__all__ = (\[.*?\])", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        if match and path.stem != "__init__":
            found[path.stem] = sorted(ast.literal_eval(match[1]))
    return found


def functions_of_ops() -> Iterator[tuple[Path, str]]:
    """The functions of `dynet_cy/functions` in its `__init__.py`."""
    modules = offered(FUNCTIONS)
    imports = [line for module, names in modules.items() for line in imported(f"dynet_cy.functions.{module}", names)]
    names = quoted(sorted(name for names in modules.values() for name in names))
    yield with_regions(FUNCTIONS / "__init__.py", imports=iter([*imports, ""]), names=names)


def listed_functions() -> Iterator[str]:
    """The functions in docs/surface.md, with the first sentence of each module's docstring."""
    for module, names in offered(FUNCTIONS).items():
        title = re.match(r'"""(.+?)\.', (FUNCTIONS / f"{module}.py").read_text(encoding="utf-8"))
        if title is None:
            raise Mistake(f"dynet_cy/functions/{module}.py: there is no docstring that ends with a point")
        yield ""
        yield from wrapped(f"**{title[1]}** (`functions.{module}`): {', '.join(f'`{n}`' for n in names)}.", "")
    yield ""


def moving(*ways: str) -> list[str]:
    """The ops of the rows of index.def of these ways: GPU ops and rules serve them all."""
    return [row.name for row in rows("index.def") if split(row.rest)[0] in ways]


def made_of_products() -> list[str]:
    """The ops of which modules say what they do on every device."""
    text = "".join(path.read_text(encoding="utf-8") for path in OPS.glob("*.pyx"))
    return re.findall(r'= product_op\(b"(\w+)"', text)


def not_named(start: str, *patterns: str, but: Sequence[str] = ()) -> Iterator[str]:
    """A sentence with the ops, except those of rows and `but`, that no file names; nothing where each is named."""
    paths = [*sorted(OPS.glob("*.pyx")), ROOT / "dynet_cy" / "model" / "parameters.pyx"]
    sources = "".join(path.read_text(encoding="utf-8") for path in paths)
    ops = re.findall(r'^(?:cdef Op\* )?[A-Z]\w* = \w+\(\s*b"(\w+)"', sources, re.MULTILINE)
    files = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    ops = [op for op in ops if op not in but]
    missing = sorted(f"`{op}`" for op in ops if not re.search(rf'"{op}"|^(/\*\*| \*) +op {op}\(', text, re.MULTILINE))
    yield ""
    if missing:
        yield from wrapped(f"{start} {', '.join(missing)}.", "")
        yield ""


def not_in_dynet(found: Sequence[Module]) -> list[str]:
    """The ops that DyNet does not have."""
    surface = json.loads((ROOT / "tests" / "peer" / "surface.json").read_text(encoding="utf-8"))["dynet"]
    return [n for f in found for n in f.names() if n not in surface["functions"] and n not in surface["classes"]]


def differences(found: Sequence[Module]) -> tuple[Path, str]:
    """docs/differences.md: the row of the ops that DyNet does not have.  A table cannot contain `derived:` marks."""
    path = ROOT / "docs" / "differences.md"
    names = ", ".join(f"`{n}`" for n in not_in_dynet(found))
    line = re.compile(r"^\| `\w+`(, `\w+`)* \| not there \|$", re.MULTILINE)
    text = path.read_text(encoding="utf-8")
    if len(line.findall(text)) != 1:
        raise Mistake(f"{path}: there must be one line of ops that are not there")
    return path, line.sub(f"| {names} | not there |", text)


def known_differences() -> Iterator[tuple[Path, str]]:
    """The rows of the tables of docs/differences.md, for `dynet_cy.port`."""
    page = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    rows = []
    for head, body in re.findall(r"^\| (what \| DyNet.*) \|\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE):
        for row in body.splitlines():
            cells = [cell.strip() for cell in row[1:-1].split("|")]
            cells += ["works as its docstring says"] if "dynet_cy" not in head else []
            cells += [""] * (4 - len(cells))
            rows.append(f"    Difference({', '.join(json.dumps(cell, ensure_ascii=False) for cell in cells)}),")
    yield with_regions(HINTS / "differences.py", rows=iter(rows))


# ---- trainers, builders and layers -------------------------------------------------------------

TRAINERS = ROOT / "dynet_cy" / "train" / "trainer.pyx"
BUILDERS = ROOT / "dynet_cy" / "rnn"
LAYERS = ROOT / "dynet_cy" / "nn"


def trainers() -> list[tuple[str, str, str]]:
    """Name, base and body of each class that is derived from Trainer."""
    text = TRAINERS.read_text(encoding="utf-8")
    found: list[tuple[str, str, str]] = []
    for name, base, body in re.findall(r"^class (\w+)\((\w+)\):\n((?:(?:    .*)?\n)*)", text, re.MULTILINE):
        if base == "Trainer" or base in [known for known, _, _ in found]:
            found.append((name, base, body))
    return found


def builders() -> dict[str, list[str]]:
    """The `__all__` of each module of `dynet_cy/rnn` that has recurrent networks."""
    return {module: names for module, names in offered(BUILDERS).items() if module != "softmax_builders"}


def quoted(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        yield f'    "{name}",'


def package() -> Iterator[tuple[Path, str]]:
    """The names of trainers and builders in the `__init__.py` of their packages and of dynet_cy."""
    own = ["Trainer", "PythonTrainer", *(name for name, _, _ in trainers())]
    more = [*own, "ParameterGroup"]
    built = builders()
    public = sorted([*(n for names in built.values() for n in names), "RNNState"])
    root = ROOT / "dynet_cy"
    yield with_regions(
        root / "train" / "__init__.py",
        imports=iter(
            [
                *imported("dynet_cy.train.interfaces", ["ParameterGroup"]),
                *imported("dynet_cy.train.python_trainer", ["PythonTrainer"]),
                *imported("dynet_cy.train.trainer", ["Trainer", *(name for name, _, _ in trainers())]),
                "",
            ]
        ),
        names=quoted(sorted(more, key=str.lower)),
    )
    modules = {**built, "builder": ["_RNNBuilder"], "state": ["RNNState"]}
    lines = [line for m, names in sorted(modules.items()) for line in imported(f"dynet_cy.rnn.{m}", names)]
    yield with_regions(root / "rnn" / "__init__.py", imports=iter([*lines, ""]), names=quoted(public))
    yield with_regions(
        root / "__init__.py",
        packages=iter([*imported("dynet_cy.rnn", public), *imported("dynet_cy.train", own), ""]),
        names=quoted([*public, *sorted(own)]),
    )
    surface = json.loads((ROOT / "tests" / "peer" / "surface.json").read_text(encoding="utf-8"))["dynet"]["classes"]
    yield with_regions(
        ROOT / "docs" / "surface.md",
        trainers=in_words("Trainers", own, surface),
        builders=in_words("Recurrent networks", public, surface),
        layers=listed_layers(),
    )
    yield from layers()


def layers() -> Iterator[tuple[Path, str]]:
    """The layers in the `__init__.py` of `dynet_cy/nn`."""
    modules = offered(LAYERS)
    lines = [line for module, names in modules.items() for line in imported(f"dynet_cy.nn.{module}", names)]
    names = sorted(name for names in modules.values() for name in names)
    yield with_regions(LAYERS / "__init__.py", imports=iter([*lines, ""]), names=quoted(names))


def listed_layers() -> Iterator[str]:
    """The layers in docs/surface.md, module by module."""
    names = "; ".join(", ".join(f"`{name}`" for name in names) for names in offered(LAYERS).values())
    yield ""
    yield from wrapped(f"**Layers** ([layers.md](layers.md)): the module `nn`: {names}.", "")
    yield ""


def in_words(title: str, names: Sequence[str], surface: dict[str, object]) -> Iterator[str]:
    """A sentence that lists names: first those of DyNet, then the others."""
    both = [", ".join(f"`{n}`" for n in names if (n in surface) == known) for known in (True, False)]
    yield ""
    yield from wrapped(f"**{title}**: {both[0]}" + (f"; beyond DyNet {both[1]}" if both[1] else "") + ".", "")
    yield ""


# ---- the page for users of other libraries ----------------------------------------------------


def equivalents() -> Iterator[tuple[Path, str]]:
    """The tables of what other libraries write, and the attributes of classes that no stub has."""
    module = runpy.run_path(str(HINTS / "equivalents.py"))
    tables = module["TABLES"]
    heads = {"numpy": "NumPy", "tensorflow": "TensorFlow"}
    regions = {
        name: [
            "",
            f"| {heads.get(name, 'PyTorch')} | dynet_cy |",
            "|---|---|",
            *(f"| {r.theirs} | {r.ours} |" for r in rows),
            "",
        ]
        for name, rows in tables.items()
    }
    page = ROOT / "docs" / "dynet-cy-for-pytorch-users.md"
    rows = runpy.run_path(str(HINTS / "readings.py"))["READINGS"]
    for name, errors in (("readings", True), ("listed", False)):
        regions[name] = [
            "",
            "| a program has | PyTorch, NumPy | dynet_cy | write |",
            "|---|---|---|---|",
            *(f"| {r.place} | {r.there} | {r.here} | {r.write} |" for r in rows if bool(r.differs) == errors),
            "",
        ]
    yield with_regions(page, **{name: iter(lines) for name, lines in regions.items()})
    lines = [rf"dynet_cy\.{cls}\.({'|'.join(module['names'](place))})" for place, cls in module["CLASSES"].items()]
    yield with_regions(ROOT / ".ci" / "stubtest-allowlist.txt", elsewhere=iter(lines))


def notebooks() -> Iterator[tuple[Path, str]]:
    """The first tutorial as a notebook."""
    docs = ROOT / "docs"
    yield docs / "notebooks" / "first_steps.ipynb", notebook(docs / "learn" / "1_a_graph_for_each_example.py")


# ---- the generated files -----------------------------------------------------------------------


def from_rows() -> Iterator[tuple[Path, str]]:
    """Path and text of each file that is generated from the rows of .def files."""
    yield with_regions(ROOT / "dynet_cy" / "kernels" / "kernels.pxd", enumerators=enumerators(), kernels=members())
    yield with_regions(
        OPS / "elementwise.pyx",
        unary=functions("unary.def", "UNARY", "UNARY"),
        binary=functions("binary.def", "BINARY", "BINARY"),
    )
    yield with_regions(ROOT / "dynet_cy" / "onnx" / "formulas.py", formulas=formulas())
    yield with_regions(
        OPS / "formulas.py", derivatives=derivatives("UNARY", "BINARY"), parts=derivatives("BINARY_PART")
    )


def from_functions() -> Iterator[tuple[Path, str]]:
    """Path and text of each file that is generated from the functions of ops."""
    found = families()
    check_names(found)
    yield OPS / "api.py", api(found)
    surface = ROOT / "docs" / "surface.md"
    text = surface.read_text(encoding="utf-8")
    yield with_regions(surface, ops=listed(found, text), functions=listed_functions())
    yield from functions_of_ops()
    yield differences(found)
    # Exported functions do not search.
    unwritten = not_named("Not written yet are the converters of", "dynet_cy/onnx/*.py", but=("continuations",))
    yield with_regions(ROOT / "docs" / "onnx.md", unwritten=unwritten)
    # Inputs and parameters have nothing to compute, and the scheduler makes `gates` for the CPU only.
    but = ("input", "parameter", "gates", *moving("READS", "ADDS"), *made_of_products())
    unwritten = not_named("Not written yet are the GPU ops of", "dynet_cy/gpu/*.pyx", "cuda/*.cu", but=but)
    yield with_regions(ROOT / "docs" / "gpu.md", unwritten=unwritten)
    # Leaves, and ops that pass no gradient.
    leaves = ("input", "parameter", "lookup", "random_bernoulli", "random_gumbel", "random_normal", "random_uniform")
    indices = ("argmax", "argsort", "continuations", "index_of_max", "index_of_min", "one_hot_at", "sample")
    but = (*leaves, *indices, *moving("READS"), "crf_marginals", "crf_viterbi", "nobackprop", "to_float", "to_int")
    first_order = not_named("Not written yet are the rules of", "dynet_cy/derivatives/*.py", but=but)
    yield with_regions(ROOT / "docs" / "training.md", **{"first-order": first_order})


def main(check: bool) -> list[str]:
    """Write the files that have changed, unless it is only a check.

    Returns:
        The paths of the files that were out of date.
    """
    changed = []
    for step in (
        declarations,
        from_rows,
        launches,
        from_functions,
        package,
        stubs,
        equivalents,
        known_differences,
        notebooks,
        arguments,
    ):
        for path, text in list(step()):
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                changed.append(str(path.relative_to(ROOT)))
                if not check:
                    path.write_text(text, encoding="utf-8")
    return changed


if __name__ == "__main__":
    try:
        done = main("--check" in sys.argv[1:])
    except Mistake as mistake:
        raise SystemExit(f"tools/derive.py: {mistake}") from None
    for path in done:
        print(path)
    if done and "--check" in sys.argv[1:]:
        raise SystemExit("out of date: run python tools/derive.py")
