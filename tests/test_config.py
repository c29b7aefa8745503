"""Settings: from `set`, the command line and the environment."""

from __future__ import annotations

import builtins
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_process import run_python

import dynet_cy as dy
from dynet_cy import config


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Settings of their own, with one thread by default here and in other processes: the number of CPUs may change."""
    before = config.get()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config.set(threads=0)
    yield
    monkeypatch.undo()
    config.set(before["mem"], before["seed"], before["autobatch"], weight_decay=before["weight_decay"], threads=0)
    dy.renew_cg()


def in_a_process(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Import with these options, and print the settings and the remaining command line."""
    code = "import json, sys; from dynet_cy import config; print(json.dumps([config.get(), sys.argv[1:]]))"
    return run_python(folder, code, *options, **environment)


NOT_SET = {
    "check": False,
    "profiling": 0,
    "weight_decay": 0,
    "shared_params": 0,
    "requested_gpus": 0,
    "gpu_mask": [],
    "threads": 1,
    "flush_denormals": True,
    "batch_requests": True,
    "precision": "float32",
    "strict": False,
}


def test_set_and_get() -> None:
    config.set(mem="100,20,8", random_seed=7, autobatch=2)
    assert config.get() == {"mem": 128, "seed": 7, "autobatch": 2, **NOT_SET}
    config.set(mem=0)
    assert config.get() == {"mem": 0, "seed": 7, "autobatch": 2, **NOT_SET}


def test_autobatch_holds_for_the_next_graph() -> None:
    dy.renew_cg()
    config.set(autobatch=1)
    x = dy.inputVector([1.0, 2.0])
    dy.esum([dy.tanh(x * 1.0), dy.tanh(x * 2.0), dy.tanh(x * 3.0)]).value()
    assert dy.cg().n_batches() < 7


def test_limit() -> None:
    with dy.ComputationGraph():  # a new graph, with no memory yet
        config.set(mem=1)
        with pytest.raises(
            MemoryError,
            match=r"bytes needed, [\d,]+ left of the limit of 1,048,576 \(1 MiB\); raise it with --dynet-mem",
        ):
            dy.inputTensor(np.zeros((1024, 1024)))
        config.set(mem=0)
        assert dy.inputTensor(np.zeros((1024, 1024))).npvalue().shape == (1024, 1024)


def test_seed_zero_is_drawn() -> None:
    config.set(random_seed=0)
    assert config.get()["seed"] != 0


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


def test_not_done_yet() -> None:
    with pytest.raises(RuntimeError, match=r"shared_parameters: .* dynet_cy\.launch"):
        config.set(shared_parameters=1)


@pytest.mark.parametrize("arguments", [{"requested_gpus": 1}, {"gpu_mask": [0, 1]}])
def test_there_is_no_gpu(arguments: dict[str, Any]) -> None:
    if len(dy.available_devices()) > 1:
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match=f"{next(iter(arguments))}=.*: Invalid device name: GPU:[01]: "):
        config.set(**arguments)
    with pytest.raises(RuntimeError, match=r"set_gpu\(\): Invalid device name: GPU:0: "):
        config.set_gpu()
    config.set(requested_gpus=0, gpu_mask=[0, 0])
    config.set_gpu(False)
    assert config.gpu() is False


def test_options(tmp_path: Path) -> None:
    """Every form of an option is read, and all options stay visible to the program."""
    options = ["--dynet-mem", "300", "--dynet_autobatch=1", "--dynet-seed=4", "--other", "x", "--dynet_seed", "5"]
    options += ["--dynet-viz", "a", "--dynet-gpus", "0", "--dynet-devices", "CPU", "--dynet-profiling", "0"]
    settings, rest = json.loads(in_a_process(tmp_path, *options).stdout)
    assert settings == {"mem": 300, "seed": 5, "autobatch": 1, **NOT_SET}
    assert rest == options


def test_environment_and_option(tmp_path: Path) -> None:
    done = in_a_process(tmp_path, "--dynet-seed=6", DYNET_CY_SEED="5", DYNET_CY_AUTOBATCH="2", DYNET_CY_GPUS="0")
    assert json.loads(done.stdout)[0] == {"mem": 0, "seed": 6, "autobatch": 2, **NOT_SET}


def test_threads(tmp_path: Path) -> None:
    def threads(*options: str, **environment: str) -> int:
        return json.loads(in_a_process(tmp_path, *options, **environment).stdout)[0]["threads"]

    assert threads(OMP_NUM_THREADS="1") == 1
    assert threads(OMP_NUM_THREADS="1", DYNET_CY_THREADS="3") == 3
    assert threads("--dynet-threads", "5", DYNET_CY_THREADS="3") == 5
    assert threads("--dynet-threads=0", OMP_NUM_THREADS="1", DYNET_CY_THREADS="3") == 1
    done = in_a_process(tmp_path, "--dynet-threads=-1")
    assert done.returncode == 1
    assert "ValueError: threads must be between 1 and 1024, or 0 for the default, not -1" in done.stderr


def test_unknown_option(tmp_path: Path) -> None:
    done = in_a_process(tmp_path, "--dynet-speed", "1")
    assert done.returncode == 0
    assert "RuntimeWarning: dynet_cy knows no option --dynet-speed" in done.stderr


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--dynet-autobatch"], "ValueError: --dynet-autobatch needs a value"),
        (["--dynet-mem", "--dynet-seed"], "ValueError: --dynet-mem needs a value"),
        (["--dynet-mem", "many"], "ValueError: --dynet-mem needs a number, not 'many'"),
        (["--dynet-seed", "1.5"], "ValueError: --dynet-seed needs a number, not '1.5'"),
        (["--dynet-devices", "GPU:x"], "RuntimeError: --dynet-devices: Invalid device name: GPU:x; devices are CPU"),
    ],
)
def test_options_that_cannot_be(monkeypatch: pytest.MonkeyPatch, options: list[str], error: str) -> None:
    monkeypatch.setattr(sys, "argv", ["program", *options])
    kind, _, message = error.partition(": ")
    with pytest.raises(getattr(builtins, kind), match=re.escape(message)):
        dy.init()


def test_an_option_that_cannot_be_stops_the_import(tmp_path: Path) -> None:
    done = in_a_process(tmp_path, "--dynet-mem", "many")
    assert done.returncode == 1
    assert "ValueError: --dynet-mem needs a number, not 'many'" in done.stderr


def test_params_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "--dynet-seed", "8", "--dynet-autobatch", "2"])
    params = dy.DynetParams()
    params.set_random_seed(3)
    params.from_args()
    params.set_mem(64)
    params.set_autobatch(True)
    params.set_weight_decay(0)
    params.set_profiling(0)
    params.set_threads(3)
    params.set_shared_parameters(False)
    params.set_requested_gpus(2)
    params.set_gpu_mask([1])
    params.set_cpu_mode()
    assert config.get()["mem"] == 0, "nothing takes effect before init"
    params.init()
    assert config.get() == {"mem": 64, "seed": 8, "autobatch": 1, **NOT_SET, "threads": 3}
    other = dy.DynetParams()
    settings = {"mem": 0, "seed": 9, "autobatch": 0, "profiling": 0, "shared_params": 0, "gpu_mask": [], "threads": 0}
    other.from_config(settings)
    dy.init_from_params(other)
    assert config.get() == {"mem": 0, "seed": 9, "autobatch": 0, **NOT_SET}
    dy.init()
    assert config.get()["seed"] == 8


@pytest.mark.parametrize(
    ("method", "value", "error", "match"),
    [
        ("set_shared_parameters", True, RuntimeError, "shared_parameters"),
        ("from_config", {"memory": 1}, KeyError, "'memory' is no setting; there are mem, seed"),
    ],
)
def test_params_that_cannot_be(method: str, value: Any, error: type[Exception], match: str) -> None:
    def attempt() -> None:
        params = dy.DynetParams()
        getattr(params, method)(value)
        params.init()

    with pytest.raises(error, match=match):
        attempt()


def test_devices() -> None:
    dy.renew_cg()
    assert dy.available_devices()[0] == "CPU"
    assert vars(dy.get_device_info("CPU")) == vars(dy.get_device_info("")) == {"name": "CPU", "id": 0, "type": -1}
    x = dy.inputVector([1.0, 2.0])
    assert dy.to_device(x, "CPU").value() == dy.to_device(x, "").value() == [1.0, 2.0]
    with pytest.raises(TypeError, match="to_device: e must be an Expression, not int"):
        dy.to_device(1, "CPU")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="to_device: a device is a string, not 0"):
        dy.to_device(x, 0)  # type: ignore[arg-type]
    dy.renew_cg()
    with pytest.raises(dy.StaleExpressionError):
        dy.to_device(x, "CPU")


def use_device(name: str, device: str) -> Any:
    """Call the function, or the method of a collection, of this name with a device."""
    arguments: dict[str, list[Any]] = {
        "add_parameters": [(2,)],
        "add_lookup_parameters": [(3, 2)],
        "parameters_from_numpy": [np.ones(2)],
        "lookup_parameters_from_numpy": [np.ones((3, 2))],
        "scalarInput": [1.0],
        "inputVector": [[1.0]],
        "vecInput": [2],
        "inputTensor": [np.ones(2)],
        "one_hot": [3, 1],
        "to_device": [dy.inputVector([1.0])],
        "get_device_info": [],
    }
    given = [*arguments[name], device] if name in ("to_device", "get_device_info") else arguments[name]
    keywords = {} if len(given) > len(arguments[name]) else {"device": device}
    return getattr(dy if hasattr(dy, name) else dy.ParameterCollection(), name)(*given, **keywords)


@pytest.mark.parametrize(
    "name",
    [
        *["add_parameters", "add_lookup_parameters", "parameters_from_numpy", "lookup_parameters_from_numpy"],
        *["scalarInput", "inputVector", "vecInput", "inputTensor", "one_hot", "to_device", "get_device_info"],
    ],
)
def test_device_arguments(name: str) -> None:
    dy.renew_cg()
    use_device(name, "")
    use_device(name, "CPU")
    with pytest.raises(RuntimeError, match=r"\w+: Invalid device name: gpu; devices are CPU, GPU:0, GPU:1 and so on"):
        use_device(name, "gpu")


@pytest.mark.parametrize("options", [["--dynet-seed", "3"], ["--dynet_mem=500"], ["--dynet-check"]])
def test_a_parser_of_the_program(tmp_path: Path, options: list[str]) -> None:
    """It does not know our options, and its error says how it does; that of another option is as it was."""
    code = "import argparse, dynet_cy; argparse.ArgumentParser().parse_args()"
    done = run_python(tmp_path, code, *options)
    assert done.returncode == 2
    assert f"unrecognized arguments: {' '.join(options)}; " in done.stderr
    assert "dynet_cy.config.add_options(parser)" in done.stderr
    assert "dynet_cy" not in run_python(tmp_path, code, "--other").stderr


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--dynet-gpu"], "--dynet-gpu: Invalid device name: GPU:0"),
        (["--dynet-gpus", "1"], "dynet_cy.config: requested_gpus=1: Invalid device name: GPU:0"),
        (["--dynet-gpu-ids", "0,1"], "--dynet-gpu-ids: Invalid device name: GPU:0"),
        (["--dynet-devices", "CPU,GPU:0"], "--dynet-devices: Invalid device name: GPU:0"),
    ],
)
def test_a_gpu_that_is_not_there(tmp_path: Path, options: list[str], where: str) -> None:
    """Requesting a GPU that is missing is an error that says what is missing, without a fallback."""
    done = in_a_process(tmp_path, *options, DYNET_CY_LIBCUDA="no-such-library.so")
    assert done.returncode == 1
    assert f"GpuUnavailable: {where}: NVIDIA's driver (libcuda.so.1) is needed for GPUs" in done.stderr
