"""Builds for other systems, as described in docs/platforms.md."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def build() -> dict:
    """The globals of setup.py, without building anything."""
    return runpy.run_path(str(ROOT / "setup.py"), run_name="setup")


@pytest.fixture(scope="module")
def cross_compile() -> dict:
    return runpy.run_path(str(ROOT / "tools" / "cross_compile.py"), run_name="cross_compile")


def test_other_systems_are_refused_in_one_sentence(build: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(**_) -> None:
        raise AssertionError("the build has begun")

    monkeypatch.setitem(build["main"].__globals__, "setup", never)
    monkeypatch.setitem(build["main"].__globals__, "os", SimpleNamespace(name="nt"))
    with pytest.raises(SystemExit) as stopped:
        build["main"]()
    message = str(stopped.value)
    assert "POSIX" in message
    assert "WSL 2" in message
    assert "\n" not in message
    assert "docs/platforms.md" in message


@pytest.mark.parametrize(("system", "origin"), [("linux", "$ORIGIN"), ("darwin", "@loader_path")])
def test_openblas_is_found_beside_the_package(
    build: dict, monkeypatch: pytest.MonkeyPatch, system: str, origin: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    module = build["Extension"]("dynet_cy.kernels.kernels", [])
    build["BuildExt"].link_blas(SimpleNamespace(stays=lambda: False), module)
    assert module.extra_link_args == [f"-Wl,-rpath,{origin}/../../scipy_openblas32/lib"]


def test_wheels_are_those_of_the_page() -> None:
    tables = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML").loads(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    wheels = tables["tool"]["cibuildwheel"]
    pythons = [re.fullmatch(r"cp3(\d+t?)-\*", name)[1] for name in wheels["build"]]
    said = re.findall(r"Python :: 3\.(\d+)", "\n".join(tables["project"]["classifiers"]))
    assert set(said) <= set(pythons)
    rows = re.findall(r"^\| (?:CPython )?3\.(\d+t?)[^|]*\|", PAGE, re.MULTILINE)
    assert not set(pythons) ^ set(rows)
    for system in ("linux", "macos"):
        assert "--exclude libscipy_openblas" in wheels[system]["repair-wheel-command"]
    for image in ("manylinux", "musllinux"):
        for architecture in ("x86_64", "aarch64"):
            assert wheels["linux"][f"{image}-{architecture}-image"].startswith(f"{image}_")
            assert wheels["linux"][f"{image}-{architecture}-image"] in PAGE


def test_all_modules_say_that_they_need_no_gil(build: dict) -> None:
    """The directive is set once for all modules, and no module overrides it."""
    assert build["DIRECTIVES"]["freethreading_compatible"] is True
    sources = [p for p in (ROOT / "dynet_cy").rglob("*") if p.suffix in {".pyx", ".pxd"}]
    assert not [p.name for p in sources if "freethreading_compatible" in p.read_text(encoding="utf-8")]
    assert "freethreading_compatible" in PAGE


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has the GIL")
def test_importing_leaves_the_gil_off(tmp_path: Path) -> None:
    code = "import sys, dynet_cy; print(sys._is_gil_enabled())"
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout == "False\n", ran.stderr


def test_targets_of_the_cross_compiler_are_on_the_page(cross_compile: dict) -> None:
    assert not [target for target in cross_compile["TARGETS"] if f"`{target}`" not in PAGE]


def test_symbols_that_nobody_has_are_told_from_those_of_python(cross_compile: dict) -> None:
    unresolved = cross_compile["unresolved"]
    elf = "ld.lld: error: undefined symbol: PyList_New\n>>> referenced by x\nld.lld: error: undefined symbol: mremap\n"
    mach = "error: undefined symbol: __Py_Dealloc\nerror: undefined symbol: _scipy_cblas_sgemm\n"
    assert unresolved(elf) == ["mremap"]
    assert unresolved(mach) == []
    assert unresolved("ld.lld: error: duplicate symbol: x\n") is None
