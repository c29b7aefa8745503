# Written by tools/derive.py

import numpy as np
import numpy.typing as npt

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

def optim_states() -> dict[str, int]:
    """Number of state arrays by optimiser name."""

def conv_work(window: int, outputs: int, images: int, back: bool = False) -> int:
    """Floats of working memory of a convolution; the window is given by its address."""

def winograd_gains(window: int, outputs: int, images: int) -> bool:
    """Whether a convolution is computed by Winograd's method."""

def build_flags() -> list[str]:
    """Flags of the sanitizers, and the level of `DYNET_CY_OPT`, that the extension modules were built with."""

def tables() -> dict[str, dict[str, int]]:
    """Kernel addresses by name, by instruction set; array members are named like `unary_fwd.tanh`."""

def bf16_kernels() -> dict[str, int]:
    """Addresses of `pack` and `gemm` in bfloat16, and the rows of their panels; empty where this machine has none."""

def kernels_at(table: int) -> dict[str, int]:
    """The kernel addresses, by name, of a table at an address."""
