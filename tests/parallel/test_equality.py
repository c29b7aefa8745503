"""Synchronous training with several processes gives the same parameters as one process with larger batches."""

from __future__ import annotations

import numpy as np
import pytest
from parallel import jobs
from parallel.programs import training


@pytest.fixture(scope="module")
def alone() -> dict[str, np.ndarray]:
    return training.results()


@pytest.mark.parametrize(("communicator", "n"), [("shared", 4), ("general", 2)])
def test_same_as_alone(alone, tmp_path, communicator, n) -> None:
    """All trainers and settings, over shared memory and as over any communicator."""
    result = jobs.launch(tmp_path, "training.py", tmp_path, communicator, n=n)
    assert result.code == 0, result.err
    expected = "SharedReducer" if communicator == "shared" else "AllreduceReducer"
    assert result.out.count(expected) == n
    ranks = [jobs.arrays(tmp_path / f"{rank}.npz") for rank in range(n)]
    for name, numbers in alone.items():
        for other in ranks[1:]:
            np.testing.assert_array_equal(ranks[0][name], other[name], err_msg=f"{name}: ranks differ")
        np.testing.assert_allclose(ranks[0][name], numbers, rtol=2e-6, atol=5e-7, err_msg=name)


ALIKE = [{"Joined", "Uneven"}, {"Decoupled", "DecoupledInPlace"}]


def test_trainings_differ(alone) -> None:
    """The training runs differ, so the tested settings have an effect."""
    names = [name for name in alone if len(alone[name]) == len(alone["All_AdamTrainer"])]
    for i, name in enumerate(names):
        for other in names[:i]:
            if {name, other} in ALIKE:
                continue
            assert np.abs(alone[name] - alone[other]).max() > 5e-6, (name, other)
