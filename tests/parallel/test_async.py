"""Asynchronous training: all processes change one copy of the parameters."""

from __future__ import annotations

import signal
import subprocess
import threading

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


@pytest.mark.parametrize(
    ("phase", "way", "code", "last"),
    [
        ("batch", "kill", 128 + signal.SIGKILL, "rank 1 was killed by signal 9 (SIGKILL)"),
        ("batch", "raise", 1, "rank 1 ended with exit code 1: ValueError: bad luck"),
        ("saving", "kill", 128 + signal.SIGKILL, "rank 1 was killed by signal 9 (SIGKILL)"),
    ],
)
def test_failing_rank(tmp_path, phase, way, code, last) -> None:
    """The others do not train on for ever, and the launcher says why the job has ended."""
    result = jobs.launch(tmp_path, "failing.py", phase, way, options=["--mode", "async"])
    assert result.code == code, result.err
    assert last in result.err.splitlines()[-1]


def test_rank_that_does_not_end(tmp_path) -> None:
    """No process waits for this rank, and it may have work to do: the launcher reports that it still runs."""

    def stop(launcher: subprocess.Popen[str], token: str) -> None:
        assert launcher.stderr is not None
        late = threading.Timer(600, launcher.terminate)
        late.start()
        for line in launcher.stderr:
            if "still runs" in line:
                said.append(line)
                launcher.send_signal(signal.SIGTERM)
        late.cancel()

    said: list[str] = []
    options = ["--mode", "async", "--timeout", "1"]
    result = jobs.launch(tmp_path, "failing.py", "batch", "hang", options=options, during=stop)
    assert result.code == 128 + signal.SIGTERM
    assert said == ["dynet_cy.launch: rank 1 still runs, 1 s after rank 0 has ended\n"]


def test_killed_in_the_middle(tmp_path) -> None:
    """A rank that is killed while all train: the others are ended, wherever they are."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, threading\n"
        "import dynet_cy as dy\n"
        "m = dy.ParameterCollection()\n"
        "E = m.add_lookup_parameters((1000, 50))\n"
        "trainer = dy.parallel.wrap(dy.AdamTrainer(m))\n"
        "if dy.parallel.rank() == 1:\n"
        "    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()\n"
        "for k in range(10**9):\n"
        "    dy.renew_cg()\n"
        "    dy.squared_norm(E[k % 1000]).backward()\n"
        "    trainer.update()\n"
    )
    result = jobs.launch(tmp_path, program, options=["--mode", "async"], n=3)
    assert result.code == 128 + signal.SIGKILL
    assert result.err.splitlines()[-1] == "dynet_cy.launch: rank 1 was killed by signal 9 (SIGKILL)"
