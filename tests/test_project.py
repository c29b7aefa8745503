"""Checks of the project as a whole: version, README, documentation of names, stubs, sdist."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from own_process import run_python

import dynet_cy

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "dynet_cy"
STUBS = sorted(p.relative_to(SOURCE).with_suffix("") for p in SOURCE.rglob("*.pyx"))
TOP_LEVEL = [
    *["setup.py", "pyproject.toml", "dynet_cy", "include", "cuda", "tests", "examples", "benchmarks", "docs", "tools"],
    *[".ci/run", "noxfile.py", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"],
]


def test_rows_of_ops_stand_where_the_source_does() -> None:
    """Rows of dynet_cy/ops/reduce.pyx are in tests/ops/cases_reduce.py, those of a section in cases_reduce_along.py."""
    for path in sorted((ROOT / "tests").glob("*/cases_*.py")):
        name = path.stem.replace("cases_function_", "cases_")[len("cases_") :]
        words = name.split("_")
        folder = SOURCE / path.parent.name
        modules = [folder / "_".join(words[: n + 1]) for n in range(len(words))]
        assert any((m.with_suffix(".pyx").exists() or m.with_suffix(".py").exists()) for m in modules), path


def test_asyncio_is_imported_by_calls_of_tasks_only(tmp_path: Path) -> None:
    """Importing asyncio would take a tenth of the time of `import dynet_cy`."""
    done = run_python(tmp_path, "import sys, dynet_cy; raise SystemExit('asyncio' in sys.modules)")
    assert done.returncode == 0, done.stderr


def module_of(path: Path) -> str:
    return ".".join(["dynet_cy", *path.parts])


def public_names(module) -> list[str]:
    """The public names of a module: its __all__, or the names it defines without a leading underscore."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    names = [n for n in vars(module) if not n.startswith("_")]
    own = [n for n in names if getattr(vars(module)[n], "__module__", None) == module.__name__]
    return sorted(own)


def undocumented(name: str, value) -> list[str]:
    """A value, and the public members of a class, as far as they have no docstring."""
    if inspect.isclass(value):
        members = [(n, m) for n, m in vars(value).items() if not n.startswith("_")]
        inner = [f"{name}.{n}" for n, m in members if (callable(m) or is_property(m)) and not inspect.getdoc(m)]
        return ([] if inspect.getdoc(value) else [name]) + inner
    return [name] if callable(value) and not inspect.getdoc(value) else []


def is_property(value) -> bool:
    return isinstance(value, property) or inspect.isgetsetdescriptor(value)


def tracked_files() -> list[str]:
    """Files under version control; skips outside a clone."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run([git, "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [f for f in listed.stdout.splitlines() if (ROOT / f).is_file()]


@pytest.mark.parametrize("name", TOP_LEVEL)
def test_top_level(name: str) -> None:
    assert (ROOT / name).exists()


def test_version_is_in_one_place() -> None:
    version = dynet_cy.__version__
    assert importlib.metadata.version("dynet_cy") == version
    text = (SOURCE / "_version.py").read_text(encoding="utf-8")
    assert f'__version__ = "{version}"' in text
    places = [p for p in SOURCE.rglob("*") if p.suffix in {".py", ".pyx"} and p.name != "_version.py"]
    places += [ROOT / "pyproject.toml", ROOT / "setup.py"]
    assert not [p for p in places if version in p.read_text(encoding="utf-8")]


def test_a_release_is_the_newest_of_the_changelog_and_the_one_to_cite() -> None:
    if "dev" in dynet_cy.__version__:
        pytest.skip("no release")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version, date = re.search(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", changelog, flags=re.MULTILINE).groups()
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert version == dynet_cy.__version__
    assert f"\nversion: {version}\ndate-released: {date}\n" in citation


def test_readme_has_two_commands_and_ci_runs_them() -> None:
    commands = runpy.run_path(str(ROOT / ".ci" / "readme_commands.py"))["commands"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = commands(readme)
    assert len(found) == 2
    assert "examples/tagger.py" in found[0]
    assert "[examples]" in found[0]
    assert "[test]" in found[1]
    assert "pytest" in found[1]
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert "MAIN, TESTS = " in noxfile
    assert "    readme(session, tree, MAIN)\n" in noxfile
    assert '    readme(session, tree, " ".join([TESTS, *map(shlex.quote, session.posargs)]))\n' in noxfile


def test_hosted_integration_runs_all_steps() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    hosted = re.search(r"session:\s+\[(.+?)\]", workflow)
    assert hosted[1].split(", ") == re.findall(r"^@step\(.*\)\ndef (\w+)", noxfile, flags=re.MULTILINE)


def test_release_builds_on_four_machines_and_only_a_tag_releases() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = dict(re.findall(r"^  (\w+):\n((?:    .*\n)+)", workflow.partition("\njobs:")[2], re.MULTILINE))
    assert list(jobs) == ["archive", "wheels", "release", "upload"]
    machines = re.search(r"machine: \[(.+)\]", jobs["wheels"])
    assert len(machines[1].split(", ")) == 4
    assert {name for name, job in jobs.items() if ": write" in job} == {"release", "upload"}
    for_tags = re.compile("^    if: .*== 'tag'", re.MULTILINE)
    assert {name for name, job in jobs.items() if for_tags.search(job)} == {"release", "upload"}
    assert "needs: [archive, wheels]" in jobs["release"]
    assert "needs: release" in jobs["upload"]
    for file in re.findall(r"-r (\S+)", workflow):
        assert (ROOT / file).exists(), file


def test_readme_program_prints_what_readme_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", readme, flags=re.MULTILINE | re.DOTALL)
    said = re.search(r"^prints `(.+?)`", readme, flags=re.MULTILINE)
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=False, cwd="/")
    assert (done.stdout.strip(), done.stderr) == (said[1], "")


def test_source_tree_without_compiled_modules_says_so(tmp_path: Path) -> None:
    package = tmp_path / "dynet_cy"
    package.mkdir()
    for name in ("__init__.py", "_built.py"):
        shutil.copy(SOURCE / name, package)

    def error() -> str:
        done = subprocess.run(
            [sys.executable, "-c", "import dynet_cy"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        return done.stderr.splitlines()[-1]

    assert re.fullmatch(
        r"ImportError: dynet_cy in \S+ is a source tree without compiled modules.*pip install -e .*", error()
    )
    (package / "core").mkdir()
    (package / "core" / "threads.cpython-27-pdp11.so").touch()
    assert "was compiled for another Python (threads.cpython-27-pdp11.so)" in error()


def test_public_names_have_docstrings() -> None:
    missing: list[str] = [] if dynet_cy.__doc__ else ["dynet_cy"]
    for name in public_names(dynet_cy):
        missing += undocumented(name, getattr(dynet_cy, name))
    assert not missing


@pytest.mark.parametrize("path", STUBS, ids=str)
def test_stub_is_complete(path: Path) -> None:
    """A module that only Cython uses has no stub, as it has no names for Python."""
    stub = (SOURCE / path).with_suffix(".pyi")
    text = stub.read_text(encoding="utf-8") if stub.exists() else ""
    defined: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            defined.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            defined.add(node.target.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            defined.update(a.asname or a.name for a in node.names)
        elif isinstance(node, ast.Assign):
            defined.update(t.id for t in node.targets if isinstance(t, ast.Name))
    module = importlib.import_module(module_of(path))
    assert module.__doc__, f"{module.__name__} has no docstring"
    assert not set(public_names(module)) - defined
    assert defined or not stub.exists(), f"{path}.pyi defines nothing"


def test_installed_package_has_headers_and_types() -> None:
    installed = Path(dynet_cy.__file__).parent
    if installed == SOURCE:
        pytest.skip("editable install: the files are in the clone")
    wanted = [p.relative_to(SOURCE) for p in SOURCE.rglob("*") if p.suffix in {".py", ".pyi", ".pxd", ".h"}]
    wanted += [Path("py.typed")]
    wanted += [p.relative_to(ROOT) for tree in ("include", "cuda") for p in (ROOT / tree).rglob("*") if p.is_file()]
    assert not [str(p) for p in wanted if not (installed / p).exists()]


SUBINTERPRETERS = """
import sys
import {module} as interpreters
if {first}:
    import dynet_cy as dy
for name in ("dynet_cy", "dynet_cy.serving.fibers", "dynet_cy.memory.storage"):
    one = interpreters.create()
    code = "try:\\n    import " + name + "\\nexcept ImportError as error:\\n    print(error)"
    interpreters.run_string(one, code)
    interpreters.destroy(one)
sys.stdout.flush()
import dynet_cy as dy
print(dy.batched_map(lambda i: dy.scalarInput(i).value(), [1, 2]))
"""


@pytest.mark.fibers
@pytest.mark.parametrize("first", [False, True])
def test_a_subinterpreter_gets_an_import_error(first: bool, tmp_path: Path) -> None:
    module = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    pytest.importorskip(module)
    done = run_python(tmp_path, SUBINTERPRETERS.format(module=module, first=first))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines[:3]] == [
        "dynet_cy works in the main interpreter of a process only"
    ] * 3
    assert lines[3:] == ["[1.0, 2.0]"]


def test_extension_modules_are_built() -> None:
    for path in STUBS:
        module = importlib.import_module(module_of(path))
        assert not str(module.__file__).endswith(".py")


@pytest.mark.slow
def test_sdist_holds_every_tracked_file(tmp_path: Path) -> None:
    files = tracked_files()
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {m.name.partition("/")[2] for m in tar.getmembers() if m.isfile()}
    unneeded = {".gitignore", ".gitattributes"}
    assert not sorted(set(files) - names - unneeded)
    generated = {"PKG-INFO", "setup.cfg"}
    extra = {n for n in names - set(files) - generated if not n.startswith("dynet_cy.egg-info/")}
    assert not [n for n in extra if n.endswith((".c", ".so", ".pyc"))]


def test_every_op_is_documented() -> None:
    """docs/surface.md lists all names of ops/api.py."""
    from dynet_cy.ops import api

    listed = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "surface.md").read_text(encoding="utf-8")))
    assert set(api.__all__) <= listed
