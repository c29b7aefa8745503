"""The layers of docs/layers.txt: no file of the package imports from a higher layer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "dynet_cy"
SUFFIXES = {".py", ".pyx", ".pxd", ".pxi", ".pyi"}


def read_layers(text: str) -> dict[str, int]:
    """Map from module or package names (without "dynet_cy.") to numbers of layers; 0 is the lowest."""
    layers: dict[str, int] = {}
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    for number, line in enumerate(line for line in lines if line):
        for module in line.partition(":")[2].split():
            assert module not in layers, f"{module} is in two layers"
            layers[module] = number
    return layers


def layer_of(module: str, layers: dict[str, int]) -> int | None:
    """The layer of a module: its own entry, or that of the nearest package above it."""
    while module:
        if module in layers:
            return layers[module]
        module = module.rpartition(".")[0]
    return None


def module_name(path: Path) -> str:
    """The name in docs/layers.txt of a file given relative to the package."""
    parts = path.with_suffix("").parts
    if len(parts) > 1 and parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def code_lines(source: str) -> list[str]:
    """Logical lines that contain an import, without multi-line strings, comments and parentheses."""
    source = re.sub(r'("""|\'\'\').*?\1', "''", source, flags=re.DOTALL)
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


LAYERS = read_layers((ROOT / "docs" / "layers.txt").read_text(encoding="utf-8"))
FILES = sorted(p.relative_to(ROOT / PACKAGE) for p in (ROOT / PACKAGE).rglob("*") if p.suffix in SUFFIXES)
KNOWN = {module_name(p) for p in FILES}
# What each file of the package imports from it.
IMPORTED = {path: imported((ROOT / PACKAGE / path).read_text(encoding="utf-8"), path, KNOWN) for path in FILES}


def upward(imports: dict[Path, set[str]], layers: dict[str, int]) -> list[str]:
    """One line for each file that is in no layer, and for each import that does not go down."""
    found = []
    for path, targets in imports.items():
        own = layer_of(module_name(path), layers)
        if own is None:
            found.append(f"{path} is in no layer: add {module_name(path)} to docs/layers.txt")
            continue
        for target in sorted(targets):
            layer = layer_of(target, layers)
            if layer is None:
                found.append(f"{path} imports {target}, which is in no layer")
            elif layer > own:
                found.append(f"{path} imports {target}, from a higher layer")
    return found


def test_imports_go_down() -> None:
    found = upward(IMPORTED, LAYERS)
    assert not found, "\n" + "\n".join(found)


def test_imports_that_do_not_go_down_are_all_found() -> None:
    layers = {"core": 0, "graph": 1, "train": 2}
    uses = {
        "core/a.pyx": {"graph", "train"},
        "graph/b.py": {"core", "new"},
        "new.py": {"core"},
        "train/c.pxd": {"core"},
    }
    assert upward({Path(path): targets for path, targets in uses.items()}, layers) == [
        "core/a.pyx imports graph, from a higher layer",
        "core/a.pyx imports train, from a higher layer",
        "graph/b.py imports new, which is in no layer",
        "new.py is in no layer: add new to docs/layers.txt",
    ]


def cycles(uses: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, directly or through others."""
    left = {module: {m for m in targets if m in uses and m != module} for module, targets in uses.items()}
    while True:
        ready = {module for module, targets in left.items() if not targets}
        if not ready:
            return sorted(left)
        left = {module: targets - ready for module, targets in left.items() if module not in ready}


@pytest.mark.parametrize("package", ["schedule", "execute"])
def test_no_modules_import_each_other(package: str) -> None:
    uses: dict[str, set[str]] = {}
    for path in FILES:
        if path.parts[0] == package and path.name != "__init__.py":
            uses.setdefault(module_name(path), set()).update(IMPORTED[path])
    assert uses
    assert not cycles(uses)


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b", "x"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}) == ["a", "b", "c"]
    assert not cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_devices_share_the_walk_only() -> None:
    """Devices share the walk and the gradients; the CPU executor is used only where part of a graph runs on the CPU."""
    users = set()
    of_cpu = {"execute.cpu", "execute.pieces", "execute.views"}
    for path in FILES:
        if path.parts[0] == "gpu" and IMPORTED[path] & of_cpu:
            users.add(module_name(path))
    assert users == {"gpu.multi_device"}


def test_listed_modules_exist() -> None:
    missing = [m for m in LAYERS if m not in KNOWN and not any(k.startswith(m + ".") for k in KNOWN)]
    assert not missing, f"docs/layers.txt names modules that do not exist: {missing}"


def test_imports_are_found() -> None:
    source = '''"""import dynet_cy.train"""
from dynet_cy.core cimport A, B
from ..graph cimport (
    Graph,  # from dynet_cy.io import x
)
    from . import registry as r, unary
cimport dynet_cy.memory as m, cython
import numpy as np, dynet_cy
from dynet_cy import schedule, \\
    Trainer
'''
    known = {"core", "graph", "ops", "ops.registry", "ops.unary", "memory", "schedule", "__init__"}
    want = {"core", "graph", "ops.registry", "ops.unary", "memory", "__init__", "schedule"}
    assert imported(source, Path("ops/binary.pyx"), known) == want


def test_layers_are_ordered() -> None:
    layers = read_layers("# comment\na: core\nb: ops.registry\nc: ops graph\n")
    assert layers == {"core": 0, "ops.registry": 1, "ops": 2, "graph": 2}
    assert layer_of("ops.registry", layers) == 1
    assert layer_of("ops.unary", layers) == 2
    assert layer_of("train", layers) is None
