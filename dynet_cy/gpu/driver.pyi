# Written by tools/derive.py

class GpuUnavailable(RuntimeError):
    """A GPU was requested, but there is none, or something that it needs is not installed."""

class GpuError(RuntimeError):
    """The driver, cuBLAS or a kernel reported an error."""

AFTER_FORK: str

def cublas_candidates() -> list[str]:
    """The places where cuBLAS is searched: its wheel, the loader's path, the usual folder of the toolkit."""

def device_count() -> int:
    """The number of GPUs that the driver reports."""

def open_device(number: int) -> None:
    """Open a device, if it is not open."""

def architecture(number: int) -> str:
    """The architecture of an open device, such as "sm_90"."""

def device_name(number: int) -> str:
    """The driver's name for the device."""

def memory_info(number: int) -> tuple[int, int]:
    """Bytes of device memory: free, and in total."""

def synchronize(number: int) -> None:
    """Wait until a device has finished all work."""
