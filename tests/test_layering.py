"""The order of docs/layers.txt: a module imports only modules that are listed before it, so none import each other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "dynet_cy"
# Stubs are for type checkers: they import nothing when a program runs.
SUFFIXES = {".py", ".pyx", ".pxd", ".pxi"}


def read_order(text: str) -> dict[str, int]:
    """The place of each module (without "dynet_cy.") in the list; 0 is the lowest."""
    places: dict[str, int] = {}
    for line in text.splitlines():
        for module in line.split("#")[0].partition(":")[2].split():
            assert module not in places, f"{module} is listed twice"
            places[module] = len(places)
    return places


def module_name(path: Path) -> str:
    """The name in docs/layers.txt of a file given relative to the package."""
    parts = path.with_suffix("").parts
    if len(parts) > 1 and parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def code_lines(source: str) -> list[str]:
    """Logical lines that contain an import, without multi-line strings, comments, parentheses, and what only type
    checkers read."""
    source = re.sub(r'("""|\'\'\').*?\1', "''", source, flags=re.DOTALL)
    source = re.sub(r"^if TYPE_CHECKING:\n(?: .*\n|\n)*", "", source, flags=re.MULTILINE)
    source = re.sub(r"#.*", "", source).replace("\\\n", " ")
    source = re.sub(r"\(([^()]*)\)", lambda m: m[1].replace("\n", " "), source)
    return [line.strip() for line in source.splitlines() if "import" in line]


def imported(source: str, path: Path, known: set[str]) -> set[str]:
    """The modules of the package that a file imports or cimports, as named in docs/layers.txt."""
    here = [PACKAGE, *path.parts[:-1]]
    found: set[str] = set()
    for line in code_lines(source):
        match = re.match(r"from\s+(\.*)\s*([\w.]*)\s+c?import\s+(.*)", line)
        if match:
            dots, base, names = match.groups()
            start = here[: len(here) - len(dots) + 1] if dots else []
            full = [*start, *(base.split(".") if base else [])]
            if full[:1] != [PACKAGE]:
                continue
            for name in names.split(","):
                one = [*full[1:], *name.split()[:1]]
                target = ".".join(one)
                found.add(target if target in known else ".".join(full[1:]) or "__init__")
            continue
        match = re.match(r"c?import\s+(.*)", line)
        for name in match[1].split(",") if match else []:
            full = name.split()[0].split(".") if name.split() else []
            if full[:1] == [PACKAGE]:
                found.add(".".join(full[1:]) or "__init__")
    return found


ORDER = read_order((ROOT / "docs" / "layers.txt").read_text(encoding="utf-8"))
FILES = sorted(p.relative_to(ROOT / PACKAGE) for p in (ROOT / PACKAGE).rglob("*") if p.suffix in SUFFIXES)
KNOWN = {module_name(p) for p in FILES}


def uses() -> dict[str, set[str]]:
    """What each module of the package imports from it."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        module = module_name(path)
        source = (ROOT / PACKAGE / path).read_text(encoding="utf-8")
        found.setdefault(module, set()).update(imported(source, path, KNOWN) - {module})
    return found


USES = uses()


def upward(uses: dict[str, set[str]], order: dict[str, int]) -> list[str]:
    """One line for each module that is not listed, and for each import of a module that is not listed before."""
    found = []
    for module, targets in sorted(uses.items()):
        if module not in order:
            found.append(f"{module} is not in docs/layers.txt")
            continue
        found += [
            f"{module} imports {target}, which is not listed before it"
            for target in sorted(targets)
            if order.get(target, len(order)) >= order[module]
        ]
    return found


def test_imports_go_down() -> None:
    found = upward(USES, ORDER)
    assert not found, "\n" + "\n".join(found)


def test_imports_that_do_not_go_down_are_all_found() -> None:
    uses = {"core.a": {"graph", "train"}, "graph": {"core.a"}, "new": {"core.a"}, "train": {"core.a", "new"}}
    assert upward(uses, {"core.a": 0, "graph": 1, "train": 2}) == [
        "core.a imports graph, which is not listed before it",
        "core.a imports train, which is not listed before it",
        "new is not in docs/layers.txt",
        "train imports new, which is not listed before it",
    ]


def test_devices_share_the_walk_only() -> None:
    """Devices share the walk and the gradients; the CPU executor is used only where part of a graph runs on the CPU."""
    users = {module for module, targets in USES.items() if module.startswith("gpu.") and "execute.cpu" in targets}
    assert users == {"gpu.executor"}


def test_two_functions_say_whether_a_value_is_there() -> None:
    """A value that is there and is not, or the reverse, is a wrong number: so nothing else changes that bit."""
    changes = re.compile(r"(\|=? (<uint8_t>)?|~\(?)(DY_)?COMPUTED\b")
    found = [
        f"{path.name}: {line.strip()}"
        for path in [*(ROOT / PACKAGE / p for p in FILES), *(ROOT / "include").rglob("*.h")]
        for line in path.read_text(encoding="utf-8").splitlines()
        if changes.search(line) and not line.startswith("static inline void dy_value_")
    ]
    assert not found, "\n".join(found)


def test_listed_modules_exist() -> None:
    missing = [module for module in ORDER if module not in KNOWN]
    assert not missing, f"docs/layers.txt names modules that do not exist: {missing}"


def test_imports_are_found() -> None:
    source = '''"""import dynet_cy.train"""
from dynet_cy.core cimport A, B
from ..graph cimport (
    Graph,  # from dynet_cy.io import x
)
    from . import registry as r, elementwise
cimport dynet_cy.memory as m, cython
import numpy as np, dynet_cy
from dynet_cy import schedule, \\
    Trainer
if TYPE_CHECKING:
    from dynet_cy import train

    from dynet_cy.train import rules
'''
    known = {"core", "graph", "ops", "ops.registry", "ops.elementwise", "memory", "schedule", "train", "__init__"}
    want = {"core", "graph", "ops.registry", "ops.elementwise", "memory", "__init__", "schedule"}
    assert imported(source, Path("ops/conv.pyx"), known) == want


def test_the_order_is_read() -> None:
    assert read_order("# comment: a\nx: core.a core.b\ny: graph # more\n") == {"core.a": 0, "core.b": 1, "graph": 2}
