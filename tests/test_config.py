"""Settings: from `set`, the command line and the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import config


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = config.get()
    yield
    config.set(before["mem"], int(before["random_seed"]), int(before["autobatch"]))
    dy.renew_cg()


def in_a_process(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Import with these options, and print the settings and what is left of the command line."""
    code = "import json, sys; from dynet_cy import config; print(json.dumps([config.get(), sys.argv[1:]]))"
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-c", code, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )


def test_set_and_get() -> None:
    config.set(mem="100,20,8", random_seed=7, autobatch=2)
    assert config.get() == {"mem": 128, "random_seed": 7, "autobatch": 2, "weight_decay": 0}
    config.set(mem=0)
    assert config.get() == {"mem": 0, "random_seed": 7, "autobatch": 2, "weight_decay": 0}


def test_autobatch_holds_for_the_next_graph() -> None:
    dy.renew_cg()
    config.set(autobatch=1)
    x = dy.inputVector([1.0, 2.0])
    dy.esum([dy.tanh(x * 1.0), dy.tanh(x * 2.0), dy.tanh(x * 3.0)]).value()
    assert dy.cg().n_batches() < 7


def test_limit() -> None:
    with dy.ComputationGraph():  # one that holds no memory yet
        config.set(mem=1)
        with pytest.raises(
            MemoryError, match=r"bytes needed, [\d,]+ left of the limit of 1 MiB; raise it with --dynet-mem"
        ):
            dy.inputTensor(np.zeros((1024, 1024)))
        config.set(mem=0)
        assert dy.inputTensor(np.zeros((1024, 1024))).npvalue().shape == (1024, 1024)


def test_seed_zero_is_drawn() -> None:
    config.set(random_seed=0)
    assert config.get()["random_seed"] != 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"mem": "much"}, "mem must be megabytes"),
        ({"mem": -1}, "mem must be between"),
        ({"autobatch": 3}, "autobatching must be 0"),
    ],
)
def test_out_of_range(arguments: dict[str, object], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        config.set(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["profiling", "shared_parameters", "requested_gpus", "gpu_mask"])
def test_not_done_yet(name: str) -> None:
    with pytest.raises(NotImplementedError, match=name):
        config.set(**{name: 1})  # type: ignore[arg-type]


def test_options(tmp_path: Path) -> None:
    options = ["--dynet-mem", "300", "--dynet_autobatch=1", "--dynet-seed", "5", "--dynet-weight-decay", "0.25"]
    options += ["--other", "x"]
    settings, rest = json.loads(in_a_process(tmp_path, *options).stdout)
    assert settings == {"mem": 300, "random_seed": 5, "autobatch": 1, "weight_decay": 0.25}
    assert rest == options


def test_environment_and_option(tmp_path: Path) -> None:
    done = in_a_process(tmp_path, "--dynet-seed=6", DYNET_CY_SEED="5", DYNET_CY_AUTOBATCH="2")
    assert json.loads(done.stdout)[0] == {"mem": 0, "random_seed": 6, "autobatch": 2, "weight_decay": 0}


@pytest.mark.parametrize(
    ("option", "error"),
    [
        (["--dynet-autobatch"], "ValueError"),
        (["--dynet-mem", "many"], "ValueError: --dynet-mem needs a number, not 'many'"),
        (["--dynet-speed", "1"], "ValueError: unknown option --dynet-speed"),
        (["--dynet-gpu"], "NotImplementedError: --dynet-gpu"),
        (["--dynet-weight-decay", "-1"], "ValueError: weight decay must be a number of at least 0"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, option: list[str], error: str) -> None:
    done = in_a_process(tmp_path, *option)
    assert done.returncode != 0
    assert error in done.stderr
