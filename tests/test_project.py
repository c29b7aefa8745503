"""Checks of the project as a whole: version, README, sdist, interpreters."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import quick
import sampling
from own_process import run_python

import dynet_cy

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "dynet_cy"


# Modules that only some functions need; together they would take nearly as long as the rest of `import dynet_cy`.
SELDOM = "asyncio dataclasses gzip hashlib html json random safetensors sysconfig tempfile"


def test_modules_that_few_programs_need_are_imported_where_they_are_used(tmp_path: Path) -> None:
    program = f"""
import sys
import numpy
before = set(sys.modules)
import dynet_cy
print(*sorted(set("{SELDOM}".split()) & (set(sys.modules) - before)))
"""
    done = run_python(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.split()


def tracked_files() -> list[str]:
    """Files under version control; skips outside a clone."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run([git, "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [f for f in listed.stdout.splitlines() if (ROOT / f).is_file()]


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


def test_hosted_integration_runs_all_steps() -> None:
    noxfile = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    hosted = re.search(r"session:\s+\[(.+?)\]", workflow)
    assert hosted[1].split(", ") == re.findall(r"^@step\(.*\)\ndef (\w+)", noxfile, flags=re.MULTILINE)


def test_release_builds_on_four_machines_and_only_a_tag_releases() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = dict(re.findall(r"^  (\w+):\n((?:    .*\n)+)", workflow.partition("\njobs:")[2], re.MULTILINE))
    assert len(re.search(r"machine: \[(.+)\]", jobs["wheels"])[1].split(", ")) == 4
    assert {name for name, job in jobs.items() if ": write" in job} == {"release", "upload"}
    assert {name for name, job in jobs.items() if re.search("^    if: .*== 'tag'", job, re.M)} == {"release", "upload"}


def test_of_several_tests_with_the_same_cases_one_runs_each() -> None:
    names = [f"test_a.py::test_{k}[{case}]" for k in range(3) for case in range(101)]
    chosen = sampling.part_of([*names, "test_b.py::test_0[few]"], 3)
    assert sorted(name.partition("[")[2] for name in chosen) == sorted([*(f"{case}]" for case in range(101)), "few]"])


def test_quick_loses_no_test_when_a_name_changes() -> None:
    assert not [name for name in (*quick.WHOLE, *quick.LEFT_OUT) if not (quick.TESTS / name).exists()]
    text = (quick.TESTS / "ops" / "test_ops.py").read_text(encoding="utf-8")
    assert set(re.findall(r"^def (test_\w+)\(case: Case", text, re.MULTILINE)) >= quick.OF_OPS
