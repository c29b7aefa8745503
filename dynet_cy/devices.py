"""The devices that there are: one, the CPU, under the name "CPU"."""

from __future__ import annotations

__all__ = ["HAVE_CUDA", "DeviceInfo", "available_devices", "check_device", "get_device_info"]

CPU = "CPU"

# Whether operations can run on GPUs of NVIDIA.
HAVE_CUDA = False


class DeviceInfo:
    """What there is to say about a device.

    Args:
        name: its name
        id: its number among the devices of its kind
        dtype: its kind: -1 for the CPU

    Attributes:
        name, id: as above
        type: `dtype`
    """

    def __init__(self, name: str, id: int, dtype: int) -> None:
        self.name = name
        self.id = id
        self.type = dtype

    def __repr__(self) -> str:
        return f"DeviceInfo({self.name!r}, {self.id}, {self.type})"


def available_devices() -> list[str]:
    """The names of the devices."""
    return [CPU]


def check_device(name: str, where: str) -> None:
    """Raise an error unless `name` is that of a device, or "", which stands for the default one.

    Raises:
        TypeError: `name` is not a string
        RuntimeError: there is no such device
    """
    if name == CPU or name == "":
        return
    if not isinstance(name, str):
        raise TypeError(f"{where}: a device is a string, not {name!r}")
    raise RuntimeError(f"{where}: Invalid device name: {name}; there is only CPU so far")


def get_device_info(name: str) -> DeviceInfo:
    """What there is to say about a device; "" stands for the default one.

    Raises:
        TypeError: `name` is not a string
        RuntimeError: there is no such device
    """
    check_device(name, "get_device_info")
    return DeviceInfo(CPU, 0, -1)
