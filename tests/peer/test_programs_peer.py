"""Programs with `import dynet` train the same under DyNet and, unchanged, under `python -m dynet_cy.compat`.

If DyNet is not installed, they run only under the latter.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from own_process import environment

PROGRAMS = Path(__file__).resolve().parent / "programs"
HAS_DYNET = importlib.util.find_spec("dynet") is not None
CASES = {
    "tagger": ["tagger.py"],
    "tagger, batched": ["tagger.py", "--dynet-autobatch", "1", "--batch", "8"],
    "parser": ["parser.py"],
    "translate": ["translate.py", "model"],
}


def run(folder: Path, *arguments: str, compat: bool) -> list[list[str]]:
    """The words of each line that a program prints."""
    program, *rest = arguments
    done = subprocess.run(
        [sys.executable, *(["-m", "dynet_cy.compat"] if compat else []), str(PROGRAMS / program), *rest],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines() if not line.startswith(("The dy.parameter", " "))]


def losses(lines: list[list[str]]) -> list[float]:
    return [float(words[-1]) for words in lines if "loss" in words or "final" in words]


@pytest.mark.parametrize("case", CASES)
def test_trains(tmp_path: Path, case: str) -> None:
    lines = run(tmp_path, *CASES[case], compat=True)
    found = losses(lines)
    assert len(found) >= 3
    assert np.all(np.diff(found) < 0), "the loss falls"


@pytest.mark.peer
@pytest.mark.skipif(not HAS_DYNET, reason="DyNet is not installed")
@pytest.mark.parametrize("case", CASES)
def test_same_losses(tmp_path: Path, case: str) -> None:
    have = run(tmp_path, *CASES[case], compat=True)
    want = run(tmp_path, *CASES[case], compat=False)
    assert [words[:-1] for words in have if words[0] != "output"] == [w[:-1] for w in want if w[0] != "output"]
    np.testing.assert_allclose(losses(have), losses(want), rtol=1e-5)
    for mine, theirs in zip(have, want):
        if mine[0] == "accuracy":  # scores that are nearly equal may be ranked either way
            assert abs(float(mine[1]) - float(theirs[1])) < 0.03


@pytest.mark.peer
@pytest.mark.skipif(not HAS_DYNET, reason="DyNet is not installed")
@pytest.mark.parametrize("writer", ["dynet", "dynet_cy"])
def test_model_file_goes_over(tmp_path: Path, writer: str) -> None:
    written = run(tmp_path, "translate.py", "model", compat=writer == "dynet_cy")
    read = run(tmp_path, "translate.py", "model", "--load", compat=writer == "dynet")
    np.testing.assert_allclose(losses(read), losses(written)[-1:], rtol=1e-5)
    assert read[-1] == written[-1]
