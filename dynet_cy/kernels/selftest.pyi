# Written by tools/derive.py

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

def bf16() -> dict[str, int]:
    """Addresses of `pack` and `gemm` in bfloat16, and the rows of their panels; empty where this machine has none."""

def kernels_at(table: int) -> dict[str, int]:
    """The kernel addresses, by name, of a table at an address."""
