"""Asynchronous training: all processes change one copy of the parameters."""

from __future__ import annotations

import numpy as np
import pytest
from parallel import jobs

import dynet_cy as dy


@pytest.mark.parametrize("way", ["mode", "setting"])
def test_all_train_the_same_parameters(tmp_path, way) -> None:
    """Asynchronous training is chosen by the option of the launcher, or by DyNet's setting in the program."""
    options = ["--mode", "async"] if way == "mode" else []
    result = jobs.launch(tmp_path, "lockfree.py", tmp_path, way, options=options)
    assert result.code == 0, result.err
    ranks = [jobs.arrays(tmp_path / f"{rank}.npz") for rank in range(2)]
    for name in ("SimpleSGDTrainer", "AdamTrainer"):
        np.testing.assert_array_equal(ranks[0][name], ranks[1][name])
        assert np.abs(ranks[0][f"{name} errors"]).mean() < 0.15, name
    # Adam's correction counts the updates of all ranks.
    assert ranks[0]["AdamTrainer steps"].max() == 600
    # Together the ranks made ten updates with steps of zero, which show only the accumulated decay.
    for rank in ranks:
        np.testing.assert_allclose(rank["decayed"], [0.99**10, 0.95**10, 1, 0.99**10, 0.99**10], rtol=1e-5)
        assert rank["made"].tolist() == [5, 5]
    for what in ("exponential_moving_average", "cumulative_moving_average"):
        assert "not in asynchronous training" in str(ranks[0][what])


def test_setting_without_the_launcher() -> None:
    with pytest.raises(RuntimeError, match=r"python -m dynet_cy\.launch"):
        dy.config.set(shared_parameters=1)
    dy.config.set(shared_parameters=0)
    assert dy.config.get()["shared_params"] == 0
