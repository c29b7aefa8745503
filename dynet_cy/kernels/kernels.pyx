# SPDX-License-Identifier: Apache-2.0
"""Kernels: loops over floats for this machine's instruction set, their precision and addresses, and random numbers for
the host."""

import os

import numpy as np

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.devices import count_gpus

from dynet_cy.core.threads cimport Number, add_to
from dynet_cy.memory.bridge cimport memory_of


# ==== kernels =====================================================================================
#
# Holds the kernel table of this process; other extension modules cimport `K`.

cdef extern:
    void scipy_openblas_set_num_threads(int n)
    const char *scipy_openblas_get_config()
    const char *scipy_openblas_get_corename()

cdef const char *missing = NULL

K = dy_kernels_get(NULL)
BF16 = dy_bf16_get(&missing)
# Products are split over threads by the caller, if at all; dy_kernels.sgemm itself is called from several threads.
scipy_openblas_set_num_threads(1)


def bf16_missing() -> str:
    """The missing requirement of products in bfloat16; "" if there are kernels for them."""
    return missing.decode() if BF16 == NULL else ""


def isa() -> str:
    """Name of the instruction set of the kernels in use."""
    return K.isa.decode()


def openblas_config() -> str:
    """Build options of the OpenBLAS in use and the name of the kernels it chose."""
    return scipy_openblas_get_config().decode() + " kernels " + scipy_openblas_get_corename().decode()


# ==== precision ===================================================================================
#
# The precision of products: float32, or factors in bfloat16 or, on GPUs, in TF32, where a program asks for them.

PRECISIONS: tuple[str, ...] = ("float32", "bf16", "tf32")


def check_precision(precision: str):
    """See that products can have a precision.

    Raises:
        ValueError: it is none of `PRECISIONS`.
        RuntimeError: neither the CPU of this machine nor a GPU has it.
    """
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(f"precision must be 'float32', 'bf16' or 'tf32', not {precision!r}")
    missing = {"bf16": bf16_missing(), "tf32": "only GPUs have it, and there is none"}.get(precision)
    if missing and not count_gpus():
        raise RuntimeError(f"precision={precision!r}: {missing}")


def set_precision(precision: str):
    """Set the precision of products, for all threads; errors as of `check_precision`.  A kind of device that does not
    have it computes in float32."""
    global chosen_precision, in_bf16
    check_precision(precision)
    chosen_precision = PRECISIONS.index(precision)
    in_bf16 = chosen_precision == BFLOAT16 and BF16 != NULL


def precision() -> str:
    """The precision of products: one of `PRECISIONS`."""
    return PRECISIONS[chosen_precision]


# ==== draws =======================================================================================
#
# The seed of all random streams, and numbers drawn outside graphs.
#
# Every random number is a function of the seed, a stream, a draw of the stream
# and an index in the draw (Philox: Salmon, Moraes, Dror and Shaw 2011, Parallel
# random numbers: as easy as 1, 2, 3).  Each graph has a stream of its own; this
# module has the one for initial values.

# Graphs count their streams up from 0.
cdef uint32_t HOST_STREAM = 0xFFFFFFFFu


def random_bits() -> int:
    """An unpredictable number, for a seed."""
    return int.from_bytes(os.urandom(4), "little")


cdef Number _seed = <uint64_t>random_bits()
cdef Number host_draws = 0


# Processes that train together draw different numbers in graphs, but the same initial values.
cdef Number _rank = 0


cdef uint64_t random_seed() noexcept nogil:
    return _seed + _rank * 0x9E3779B97F4A7C15u


def set_rank(uint64_t value):
    """Make graphs draw the numbers of this rank, different from those of other ranks with the same seed; rank 0 draws
    the numbers of a single process."""
    global _rank
    _rank = value


def seed() -> int:
    """The seed of all random streams; drawn at random unless it was set."""
    return _seed


def set_seed(value: int):
    """Set the seed, and restart the stream of initial values.

    Args:
        value: a whole number, of which the lowest 64 bits are used.
    """
    global _seed, host_draws
    _seed = <uint64_t>(int(value) & 0xFFFFFFFFFFFFFFFF)
    host_draws = 0


def host_position() -> int:
    """The number of draws from the stream of initial values."""
    return host_draws


def set_host_position(uint64_t value):
    """Make the stream of initial values continue after this many draws."""
    global host_draws
    host_draws = value


cdef extern from *:
    "static _Thread_local dy_drawing_item dy_item;"
    DrawingItem item "dy_item"


cdef DrawingItem* drawing_item() noexcept:
    return &item


class HostRandom:
    """Numbers from the stream of initial values."""

    def uniform(self, n: int) -> npt.NDArray[np.float32]:
        """The next n numbers, uniform in [0, 1), as float32 array."""
        return _fill(n, DY_RNG_uniform, 0, 1)

    def normal(self, n: int) -> npt.NDArray[np.float32]:
        """The next n standard normal numbers, as float32 array."""
        return _fill(n, DY_RNG_normal, 0, 1)


cdef _fill(size_t n, int kind, float p0, float p1):
    out = np.empty(n, np.float32)
    cdef float* to = <float*>memory_of(out, True)
    cdef uint64_t key = 0, draw
    if item.inside:
        key = item.key
        draw = item.draws
        item.draws += 1
    else:
        draw = add_to(&host_draws, 1)    # no two threads get the same
    if n:
        K.rng[kind](_seed ^ key, HOST_STREAM, draw, 0, n, p0, p1, to)
    return out


# ==== addresses ===================================================================================
#
# Addresses of the kernels of each instruction set of this CPU, for tests that call them through ctypes.
#
# Tests also build further tables, and get the addresses in these.

cdef extern from *:
    """
    static const struct { const char *name; size_t offset; } dy_members[] = {
    #define KERNEL(result, name, arguments) {#name, offsetof(dy_kernels, name)},
    #include "dynet_cy/kernels.def"
    #undef KERNEL
        {NULL, 0}};
    """
    cdef struct Member:
        const char *name
        size_t offset
    Member dy_members[]

cdef extern from *:
    """
    #ifndef DY_BUILD_FLAGS
    #define DY_BUILD_FLAGS ""
    #endif
    """
    const char *DY_BUILD_FLAGS


cdef address(const void *slot):
    return <size_t>(<const void *const *>slot)[0]


def optim_states() -> dict[str, int]:
    """Number of state arrays by optimiser name."""
    return {dy_optim_names[i].decode(): dy_optim_states[i] for i in range(DY_OPTIM_COUNT)}


def conv_work(size_t window, size_t outputs, size_t images, bint back=False) -> int:
    """Floats of working memory of a convolution; the window is given by its address."""
    cdef const dy_window *w = <const dy_window *>window
    return dy_conv_work_back(w, outputs, images) if back else dy_conv_work(w, outputs, images)


def winograd_gains(size_t window, size_t outputs, size_t images) -> bool:
    """Whether a convolution is computed by Winograd's method."""
    return bool(dy_winograd_gains(<const dy_window *>window, outputs, images))


def build_flags() -> list[str]:
    """Flags of the sanitizers, and the level of `DYNET_CY_OPT`, that the extension modules were built with."""
    return DY_BUILD_FLAGS.decode().split()


def tables() -> dict[str, dict[str, int]]:
    """Kernel addresses by name, by instruction set; array members are named like `unary_fwd.tanh`."""
    found = {isa: <size_t>dy_kernels_get(isa) for isa in (b"baseline", b"neon", b"avx2", b"avx512")}
    return {isa.decode(): kernels_at(table) for isa, table in found.items() if table}


def bf16_kernels() -> dict[str, int]:
    """Addresses of `pack` and `gemm` in bfloat16, and the rows of their panels; empty where this machine has none."""
    return {"pack": address(&BF16.pack), "gemm": address(&BF16.gemm), "panel": BF16.panel} if BF16 != NULL else {}


def kernels_at(size_t table) -> dict[str, int]:
    """The kernel addresses, by name, of a table at an address."""
    cdef const dy_kernels *t = <const dy_kernels *>table
    cdef int i = 0
    names = {}
    while dy_members[i].name is not NULL:
        names[dy_members[i].name.decode()] = address(<const char *>t + dy_members[i].offset)
        i += 1
    for i in range(DY_UNARY_COUNT):
        names["unary_fwd." + dy_unary_names[i].decode()] = address(&t.unary_fwd[i])
        names["unary_bwd." + dy_unary_names[i].decode()] = address(&t.unary_bwd[i])
    for i in range(DY_BINARY_COUNT):
        names["binary_fwd." + dy_binary_names[i].decode()] = address(&t.binary_fwd[i])
        names["binary_bwd_a." + dy_binary_names[i].decode()] = address(&t.binary_bwd_a[i])
        names["binary_bwd_b." + dy_binary_names[i].decode()] = address(&t.binary_bwd_b[i])
    for i in range(DY_OPTIM_COUNT):
        names["optim." + dy_optim_names[i].decode()] = address(&t.optim[i])
        names["idle." + dy_optim_names[i].decode()] = address(&t.idle[i])
    for i in range(DY_RNG_COUNT):
        names["rng." + dy_rng_names[i].decode()] = address(&t.rng[i])
    return names
