# Written by tools/derive.py

import numpy as np
import numpy.typing as npt

def table_of(isa: str) -> int:
    """The address of the kernels of an instruction set, for tests; 0 if this CPU does not have it."""

def bf16() -> int:
    """The address of the kernels in bfloat16, for tests; 0 if there are none."""

def bf16_missing() -> str:
    """The missing requirement of products in bfloat16; "" if there are kernels for them."""

def isa() -> str:
    """Name of the instruction set of the kernels in use."""

def openblas_config() -> str:
    """Build options of the OpenBLAS in use and the name of the kernels it chose."""

PRECISIONS: tuple[str, ...]

def check_precision(precision: str) -> None:
    """See that products can have a precision."""

def set_precision(precision: str) -> None:
    """Set the precision of products, for all threads; errors as of `check_precision`."""

def precision() -> str:
    """The precision of products: one of `PRECISIONS`."""

def random_bits() -> int:
    """An unpredictable number, for a seed."""

def set_rank(value: int) -> None:
    """Make graphs draw the numbers of this rank, different from those of other ranks with the same seed; rank 0 draws the numbers of a single process."""

def seed() -> int:
    """The seed of all random streams; drawn at random unless it was set."""

def set_seed(value: int) -> None:
    """Set the seed, and restart the stream of initial values."""

def host_position() -> int:
    """The number of draws from the stream of initial values."""

def set_host_position(value: int) -> None:
    """Make the stream of initial values continue after this many draws."""

class HostRandom:
    """Numbers from the stream of initial values."""
    def uniform(self, n: int) -> npt.NDArray[np.float32]:
        """The next n numbers, uniform in [0, 1), as float32 array."""
    def normal(self, n: int) -> npt.NDArray[np.float32]:
        """The next n standard normal numbers, as float32 array."""
