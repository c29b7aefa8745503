"""Programs that ask for a GPU on a machine without one: those written for DyNet go on on the CPU, others do not."""

from __future__ import annotations

import pytest

import dynet_cy as dy

pytestmark = pytest.mark.skipif(len(dy.available_devices()) > 1, reason="there is a GPU")

TAIL = """
import dynet as dy
m = dy.ParameterCollection()
w = m.add_parameters((1, 2), init=dy.ConstInitializer(1.0))
print((w * dy.inputVector([1, 2])).value(), dy.dynet_config.get()["requested_gpus"])
"""
PARAMS = "import _dynet; p = _dynet.DynetParams(); p.from_args(); p.{}; p.init()"

# Code, options, environment.
WAYS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "set_gpu": ("import dynet_config; dynet_config.set_gpu()", [], {}),
    "set_gpu later": ("import dynet, dynet_config; dynet_config.set_gpu(True)", [], {}),
    "set mask": ("import dynet_config; dynet_config.set(mem=512, gpu_mask=[0, 1])", [], {}),
    "params mask": (PARAMS.format("set_gpu_mask([1])"), [], {}),
    "gpu": ("", ["--dynet-gpu"], {}),
    "gpu_ids": ("", ["--dynet_gpu_ids=0,1"], {}),
    "devices with CPU": ("", ["--dynet-devices", "CPU,GPU:0"], {}),
    "variable gpus": ("", [], {"DYNET_CY_GPUS": "1"}),
    "added": ("import sys; sys.argv.append('--dynet-gpu')", [], {}),
    "several": ("import dynet_config; dynet_config.set_gpu(); dynet_config.set_gpu()", ["--dynet-gpus=1"], {}),
}


# How the rules of DyNet begin to hold, and ways to ask for a GPU.
STARTS = [*[("module", way) for way in WAYS], ("install", "set_gpu"), ("import_module", "gpu")]


@pytest.mark.parametrize(("start", "way"), STARTS)
def test_goes_on_with_one_warning(run, start: str, way: str) -> None:
    code, options, variables = WAYS[way]
    head = {
        "module": "",
        "install": "import dynet_cy.compat; dynet_cy.compat.install()\n",
        "import_module": "import importlib; importlib.import_module('dynet_cy.compat').install()\n",
    }[start]
    how = ("-m", "dynet_cy.compat") if start == "module" else ()
    done = run(*how, "program.py", *options, program=head + code + TAIL, **variables)
    assert (done.returncode, done.stdout) == (0, "3.0 0\n"), done.stderr
    assert done.stderr.count("RuntimeWarning: ") == 1
    assert "The program goes on on the CPU" in done.stderr
    assert "libcuda" in done.stderr or "PyCUDA" in done.stderr


@pytest.mark.parametrize("way", ["set_gpu", "gpu", "devices with CPU", "variable gpus"])
def test_other_programs_get_an_error(run, way: str) -> None:
    code, options, variables = WAYS[way]
    code = code.replace("dynet_config", "dynet_cy.config").replace("import _dynet", "import dynet_cy as _dynet")
    code = code.replace("import dynet,", "import")
    done = run("program.py", *options, program=code + "\nimport dynet_cy", **variables)
    assert done.returncode == 1
    assert "GpuUnavailable: " in done.stderr


USES = (
    "m.add_parameters(2, device='GPU:0')",
    "dy.to_device(dy.inputVector([1]), 'GPU:0')",
    "dy.get_device_info('GPU:0')",
    "dy.inputVector([1], device='GPU:0')",
)


def test_what_names_a_device_is_an_error_as_in_dynet(run) -> None:
    tried = "".join(f"try:\n    {use}\nexcept RuntimeError as error:\n    print(error)\n" for use in USES)
    done = run("-m", "dynet_cy.compat", "program.py", program=f"import dynet as dy; m = dy.Model()\n{tried}")
    assert done.stdout.count("Invalid device name: GPU:0") == len(USES), done.stdout + done.stderr


def test_a_wrong_name_is_an_error(run) -> None:
    done = run("-m", "dynet_cy.compat", "program.py", "--dynet-devices", "TPU:0", program="import dynet")
    assert "Invalid device name: TPU:0" in done.stderr
