# SPDX-License-Identifier: Apache-2.0
"""Addresses of the kernels of each instruction set of this CPU, for tests that call them through ctypes.

Tests also build further tables, and get the addresses in these.
"""

from dynet_cy.kernels.kernels cimport (
    DY_BINARY_COUNT, DY_OPTIM_COUNT, DY_RNG_COUNT, DY_UNARY_COUNT, dy_binary_names, dy_conv_work, dy_conv_work_back,
    dy_bf16, dy_kernels, dy_optim_names, dy_optim_states, dy_rng_names, dy_unary_names, dy_window,
    dy_winograd_gains,
)

from dynet_cy.kernels.kernels import bf16 as bf16_table, table_of

cdef extern from *:
    """
    #include "dynet_cy/kernels.h"
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
    found = {isa: table_of(isa) for isa in ("baseline", "neon", "avx2", "avx512")}
    return {isa: kernels_at(table) for isa, table in found.items() if table}


def bf16() -> dict[str, int]:
    """Addresses of `pack` and `gemm` in bfloat16, and the rows of their panels; empty where this machine has none."""
    cdef const dy_bf16 *t = <const dy_bf16 *><size_t>bf16_table()
    if t is NULL:
        return {}
    return {"pack": address(&t.pack), "gemm": address(&t.gemm), "panel": t.panel}


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
