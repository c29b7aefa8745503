"""Devices of tests: GPU:0 where there is one, and tests that run on the CPU and on it.

With DYNET_CY_GPU_EMULATED=1, GPU:0 is the emulated driver (`tools/gpu`), which needs PyCUDA, the CUDA headers and g++,
and no GPU; it has to be requested, since a process has one driver only.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import cannot_run
import pytest

import dynet_cy as dy
from dynet_cy.graph.expressions import set_autobatching, set_default_device

if os.environ.get("DYNET_CY_GPU_EMULATED", "0") not in ("", "0"):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools" / "gpu"))
    from emulate import environment

    os.environ.update(environment())
    os.environ.setdefault("EMU_DEVICES", "2")


@functools.cache
def why_not() -> str:
    """Why there is no device, or ""."""
    try:
        dy.get_device_info("GPU:0")
    except RuntimeError as e:
        return f"{e}; DYNET_CY_GPU_EMULATED=1 takes the emulated driver"
    return ""


cannot_run.NEEDED["device"] = why_not


@pytest.fixture(scope="session")
def device() -> str:
    """The name of the device; tests that use it are left out where there is none (cannot_run.py)."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    return "GPU:0"


@pytest.fixture
def on_device(device):
    """GPU:0 is the default device during the test."""
    set_default_device(1)
    dy.renew_cg()
    yield device
    set_default_device(0)
    dy.renew_cg()


@pytest.fixture(params=["CPU", pytest.param("GPU:0", marks=pytest.mark.gpu)])
def on_each_device(request):
    """The test runs on the CPU and, where there is one, on a GPU: its graphs and parameters are there."""
    if request.param == "GPU:0":
        request.getfixturevalue("on_device")
    return request.param


@pytest.fixture
def on_the_cpu_again(device):
    """For tests that set device and batching themselves."""
    yield
    set_default_device(0)
    set_autobatching(1)
    dy.renew_cg()
