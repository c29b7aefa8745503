"""Tests that cannot run are collected as one test for each file and reason."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from own_process import environment

CONFTEST = """
import cannot_run, pytest
from cannot_run import pytest_leave_out_cases, pytest_pycollect_makeitem

cannot_run.NO_DYNET = {no_dynet!r}
cannot_run.NEEDED["device"] = lambda: {no_device!r}

def pytest_configure(config):
    for name in ("peer", "gpu"):
        config.addinivalue_line("markers", name)

@pytest.fixture
def device():
    if {no_device!r}:
        pytest.skip({no_device!r})

@pytest.fixture
def on_device(device):
    pass
"""

TESTS = """
import pytest

each = pytest.mark.parametrize("n", range(100))

@each
def test_on_a_device(on_device, n): ...

@pytest.mark.gpu
@each
def test_on_a_device_too(device, n): ...

class TestPeer:
    pytestmark = pytest.mark.peer

    @each
    def test_of_a_class(self, n): ...

@pytest.mark.parametrize("n", [0, pytest.param(1, marks=pytest.mark.peer), pytest.param(2, marks=pytest.mark.peer)])
def test_cases(n): ...

@pytest.mark.parametrize("place", ["CPU", pytest.param("GPU", marks=pytest.mark.gpu)])
def test_on_each_device(place): ...

@pytest.fixture(params=["ours", pytest.param("dynet", marks=pytest.mark.peer)])
def library(request): return request.param

@each
def test_libraries(library, n): ...

@pytest.mark.skipif(True, reason="no abacus")
@each
def test_that_is_skipped(n): ...

@pytest.mark.skipif(False, reason="no wonder")
def test_that_runs(): ...
"""


def run(folder: Path, *arguments: str, no_dynet: str = "", no_device: str = "") -> tuple[dict[str, int], list[str]]:
    """How many tests pass and skip, and the reasons of those that skip."""
    (folder / "conftest.py").write_text(CONFTEST.format(no_dynet=no_dynet, no_device=no_device), encoding="utf-8")
    (folder / "test_it.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *(arguments or ["test_it.py"])]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|skipped|deselected)", done.stdout)}
    return counts, re.findall(r"^SKIPPED \[\d+\] test_it\.py.*?: (.*)$", done.stdout, re.MULTILINE)


def test_one_for_each_file_and_reason(tmp_path: Path) -> None:
    counts, reasons = run(tmp_path, no_dynet="no DyNet", no_device="no GPU")
    assert counts == {"passed": 1 + 1 + 100 + 1, "skipped": 3}
    assert sorted(reasons) == ["no DyNet", "no GPU", "no abacus"]


def test_all_that_can_run_are_collected(tmp_path: Path) -> None:
    counts, reasons = run(tmp_path)
    assert counts == {"passed": 2 * 100 + 100 + 3 + 2 + 200 + 1, "skipped": 1}
    assert reasons == ["no abacus"]


def test_a_test_that_is_named_is_collected(tmp_path: Path) -> None:
    counts, reasons = run(tmp_path, "test_it.py::test_on_a_device[7]", no_device="no GPU")
    assert counts == {"skipped": 1}
    assert reasons in ([], ["no GPU"])  # pytest gives the place in conftest.py


@pytest.mark.parametrize("expression", ["-mpeer", "-kDyNet"])
def test_what_stands_for_tests_is_selected_like_them(tmp_path: Path, expression: str) -> None:
    counts, reasons = run(tmp_path, expression, "test_it.py", no_dynet="no DyNet", no_device="no GPU")
    assert counts == {"skipped": 1, "deselected": 105}
    assert reasons == ["no DyNet"]
