"""Running statistics of BatchNorm with several processes, as values."""

from __future__ import annotations

import numpy as np
import pytest
from parallel import jobs
from parallel.programs import batch_statistics as program

N = 2


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_running_statistics(tmp_path, mode) -> None:
    """Synchronous: each rank has those of its own minibatches; asynchronous: there is one copy, which all move."""
    result = jobs.launch(tmp_path, "batch_statistics.py", tmp_path, n=N, options=["--mode", mode])
    assert result.code == 0, result.err
    ranks = [jobs.arrays(tmp_path / f"{rank}.npz") for rank in range(N)]

    def minibatches(steps: range, some: list[int]) -> list[np.ndarray]:
        return [program.minibatch(rank, step) for step in steps for rank in some]

    first, second = range(program.STEPS), range(program.STEPS, 2 * program.STEPS)
    for rank, found in enumerate(ranks):
        seen = [rank] if mode == "sync" else list(range(N))
        for part, name in enumerate(("mean", "var")):
            close(found[f"own {name}"], program.reference(minibatches(first, seen))[part])
            # A checkpoint has the statistics of rank 0.
            close(found[f"loaded {name}"], ranks[0][f"own {name}"])
            if mode == "sync":
                after = minibatches(first, [0]) + minibatches(second, [rank])
                close(found[f"beside {name}"], program.reference(after)[part])
            else:
                assert (found[f"beside {name}"] == ranks[0][f"beside {name}"]).all()
            mean = np.mean([other[f"beside {name}"].astype(np.float64) for other in ranks], axis=0)
            close(found[f"averaged {name}"], mean)
            assert (found[f"averaged {name}"] == ranks[0][f"averaged {name}"]).all()
