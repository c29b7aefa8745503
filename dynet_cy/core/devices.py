"""The devices of the machine: the CPU, named "CPU", and NVIDIA GPUs, "GPU:0" and so on.

Inside, devices are numbers: 0 is the CPU, 1 + n is GPU number n. GPUs need PyCUDA (``pip install 'dynet_cy[cuda]'``)
and a driver; neither is looked for until a program asks for a GPU or for the list of devices.
"""

from __future__ import annotations

import re
from typing import Protocol, cast

CPU = "CPU"


class _Backend(Protocol):
    """The functions that the module dynet_cy.gpu.backend provides for this one."""

    def device_count(self) -> int:
        """The number of GPUs; RuntimeError without PyCUDA or driver."""

    def open_device(self, number: int) -> None:
        """Open a GPU; RuntimeError where that is not possible."""


def _backend() -> _Backend:
    """The backend, loaded when it is first needed: programs that stay on the CPU never load it."""
    import importlib

    return cast(_Backend, importlib.import_module("dynet_cy.gpu.backend"))


def _have_cuda() -> bool:
    import importlib.util

    return importlib.util.find_spec("pycuda") is not None


# Whether PyCUDA is installed, which NVIDIA GPUs need.
HAVE_CUDA = _have_cuda()


class DeviceInfo:
    """Information about a device.

    Args:
        name: its name
        id: its number among the devices of its kind
        dtype: its kind: -1 for the CPU, 0 for a GPU

    Attributes:
        name, id: as above
        type: `dtype`

    Example:
        >>> dy.get_device_info("CPU").name
        'CPU'
    """

    def __init__(self, name: str, id: int, dtype: int) -> None:
        self.name = name
        self.id = id
        self.type = dtype

    def __repr__(self) -> str:
        return f"DeviceInfo({self.name!r}, {self.id}, {self.type})"


def device_name(number: int) -> str:
    """The name of a device number: "CPU" for 0, "GPU:n" for 1 + n."""
    return f"GPU:{number - 1}" if number else CPU


def count_gpus() -> int:
    """The number of usable GPUs; 0 without PyCUDA or driver."""
    try:
        return _backend().device_count()
    except (ImportError, RuntimeError):
        return 0


def available_devices() -> list[str]:
    """The names of the devices.

    Example:
        >>> "CPU" in dy.available_devices()
        True
    """
    return [CPU] + [device_name(1 + n) for n in range(count_gpus())]


def check_device(name: str, where: str) -> int:
    """The number of a device, which is opened if it is a GPU; "" stands for the default one, and gives 0.

    Raises:
        TypeError: `name` is not a string
        RuntimeError: there is no such device
    """
    if name == CPU or name == "":
        return 0
    if not isinstance(name, str):
        raise TypeError(f"{where}: a device is a string, not {name!r}")
    match = re.fullmatch(r"GPU:(\d+)", name)
    if match is None:
        raise RuntimeError(f"{where}: Invalid device name: {name}; devices are CPU, GPU:0, GPU:1 and so on")
    number = int(match[1])
    try:
        _backend().open_device(number)
    except RuntimeError as e:
        raise type(e)(f"{where}: Invalid device name: {name}: {e}") from None
    return 1 + number


def get_device_info(name: str) -> DeviceInfo:
    """Information about a device; "" stands for the CPU.

    Raises:
        TypeError: `name` is not a string
        RuntimeError: there is no such device

    Example:
        >>> dy.get_device_info("CPU").name
        'CPU'
    """
    number = check_device(name, "get_device_info")
    return DeviceInfo(name, number - 1, 0) if number else DeviceInfo(CPU, 0, -1)
