# Written by tools/derive.py
from typing import SupportsIndex

def flush_denormals(on: bool) -> None:
    """Set whether the engine treats denormal numbers, those below 1.2e-38, as 0."""

def flushes_denormals() -> bool:
    """Whether the engine treats denormal numbers as 0."""

def cpus() -> int:
    """Number of CPUs that this process may use."""

def default_threads() -> int:
    """The default number of threads: the CPUs that this process may use, at most ``OMP_NUM_THREADS``."""

def set_threads(threads: SupportsIndex) -> None:
    """Set the number of threads that compute one product."""

def share_cpus(processes: int) -> None:
    """Divide the CPUs among several processes, this one included; a number of threads that was set does not change."""

def threads() -> int:
    """The number of threads that compute one product."""

def is_far() -> bool:
    """Whether threads do only large jobs now."""

def stop() -> None:
    """End the threads."""
