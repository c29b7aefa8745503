"""Programs that use DyNet as public projects do: the same under DyNet and, unchanged, under compat mode.

Each program of the folder `programs` is ours; it repeats how a project calls the library: see its docstring. What it
prints must be equal: words and decisions exactly, losses to 1e-5. Its initial values come from NumPy.
"""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from own_process import environment
from project_cases import CASES

PROGRAMS = Path(__file__).resolve().parent / "programs"
HAS_DYNET = importlib.util.find_spec("dynet") is not None
NOTES = ("The dy.parameter", " ", "[")  # lines that a library prints: DyNet's on deprecated calls, `status` of trainers
TOLERANCE = 1e-5

needs_dynet = pytest.mark.skipif(not HAS_DYNET, reason="DyNet is not installed")


@functools.lru_cache(maxsize=1)
def folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


@functools.cache
def printed(name: str, library: str, writer: str = "") -> list[list[str]]:
    """The words of each line that the runs of a case print.

    Args:
        writer: the library whose model files are read; the runs before the last are then left out
    """
    place = Path(folder().name) / library / name.replace(" ", "_")
    runs = CASES[name]
    if writer:
        place, runs = Path(folder().name) / writer / name.replace(" ", "_"), runs[-1:]
    place.mkdir(parents=True, exist_ok=True)
    lines = []
    for program, *arguments in runs:
        runner = ["-m", "dynet_cy.compat"] if library == "dynet_cy" else []
        done = subprocess.run(
            [sys.executable, *runner, str(PROGRAMS / program), *arguments],
            cwd=place,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        lines += [line.split() for line in done.stdout.splitlines() if not line.startswith(NOTES)]
    return lines


def number(word: str) -> float | None:
    """The value of a number with a point or an exponent, or None."""
    try:
        return float(word) if not word.lstrip("-").isdigit() else None
    except ValueError:
        return None


def compare(have: list[list[str]], want: list[list[str]]) -> None:
    exact = [[[w for w in line if number(w) is None] for line in lines] for lines in (have, want)]
    assert exact[0] == exact[1]
    numbers = [[number(w) for line in lines for w in line if number(w) is not None] for lines in (have, want)]
    np.testing.assert_allclose(numbers[0], numbers[1], rtol=TOLERANCE, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_trains(name: str) -> None:
    losses: dict[str, list[float]] = {}
    for kind, *words in printed(name, "dynet_cy"):
        if kind == "loss":
            series = " ".join(w for w in words[:1] if not w.isdigit())  # programs may train several models
            losses.setdefault(series, []).append(float(words[-1]))
    assert losses
    for found in losses.values():
        assert np.all(np.isfinite(found))
        assert found[-1] < found[0], "the loss falls"


@pytest.mark.peer
@needs_dynet
@pytest.mark.parametrize("name", CASES)
def test_same_as_dynet(name: str) -> None:
    compare(printed(name, "dynet_cy"), printed(name, "dynet"))


@pytest.mark.peer
@needs_dynet
@pytest.mark.parametrize("reader", ["dynet", "dynet_cy"])
@pytest.mark.parametrize("name", [name for name, runs in CASES.items() if len(runs) > 1])
def test_files_go_over(name: str, reader: str) -> None:
    """The last run of a case, which reads a model, prints the same from the files of the other library."""
    writer = "dynet_cy" if reader == "dynet" else "dynet"
    written = printed(name, writer)
    read = printed(name, reader, writer)
    compare(read, written[-len(read) :])


def test_every_program_has_a_case() -> None:
    used = {run[0] for runs in CASES.values() for run in runs}
    assert used == {path.name for path in PROGRAMS.glob("*.py")} - {"common.py"}
