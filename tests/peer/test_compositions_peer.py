"""Random graphs in both libraries, in DyNet also with its own autobatching."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from compositions import composition
from libraries import both, counts, dynet, same_numbers

import dynet_cy

pytestmark = pytest.mark.peer

SEEDS = 150
# The greatest difference among 2000 graphs was 2.4e-6.
TOL = 1e-5


def assert_same(theirs: dict[str, Any], ours: dict[str, Any], seed: int) -> None:
    assert theirs["ops"] == ours["ops"]
    assert theirs["dims"] == ours["dims"], f"seed {seed}: {theirs['ops']}"
    for part in ("values", "gradients"):
        for i, (a, b) in enumerate(zip(theirs[part], ours[part])):
            assert a.shape == b.shape, f"seed {seed}: {part} {i} of {theirs['ops']}"
            assert same_numbers(a, b, TOL), f"seed {seed}: {part} {i} of {theirs['ops']}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_composition(seed: int) -> None:
    found = []
    for library in both():
        library.renew_cg()
        found.append(composition(library, seed))
    assert_same(found[0], found[1], seed)
    counts["random graphs compared"] = counts.get("random graphs compared", 0) + 1


@pytest.mark.parametrize("strategy", [1, 2])
def test_autobatching(strategy: int, tmp_path: Path) -> None:
    """DyNet's option takes effect on import, so it runs in another process."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(Path(dynet_cy.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(
        [sys.executable, here / "compositions.py", tmp_path / "found", str(SEEDS), "--dynet-autobatch", str(strategy)],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        timeout=120,
    )
    everything = pickle.loads((tmp_path / "found").read_bytes())
    assert len(everything) == SEEDS
    for seed, theirs in enumerate(everything):
        if {"elu", "selu"} <= set(theirs["ops"]):  # DyNet batches both as one op; see docs/differences.md
            continue
        library = both()[1]
        library.renew_cg(autobatching=strategy)
        assert_same(theirs, composition(library, seed), seed)
    dynet_cy.renew_cg(autobatching=0)
    dynet.renew_cg()
