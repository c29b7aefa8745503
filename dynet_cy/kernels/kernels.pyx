# SPDX-License-Identifier: Apache-2.0
"""Holds the kernel table of this process; other extension modules cimport `K`."""

cdef extern from *:
    """
    extern void scipy_openblas_set_num_threads(int n);
    extern const char *scipy_openblas_get_config(void);
    extern const char *scipy_openblas_get_corename(void);
    """
    void scipy_openblas_set_num_threads(int n)
    const char *scipy_openblas_get_config()
    const char *scipy_openblas_get_corename()

cdef const char *missing = NULL

K = dy_kernels_get(NULL)
BF16 = dy_bf16_get(&missing)
# Products are split over threads by the caller, if at all; dy_kernels.sgemm itself is called from several threads.
scipy_openblas_set_num_threads(1)


def table_of(isa):
    """The address of the kernels of an instruction set, for tests; 0 if this CPU does not have it."""
    return <size_t>dy_kernels_get(isa.encode())


def bf16():
    """The address of the kernels in bfloat16, for tests; 0 if there are none."""
    return <size_t>BF16


def bf16_missing():
    """What is missing for products in bfloat16; "" where there are kernels for them."""
    return missing.decode() if BF16 == NULL else ""


def isa():
    """Name of the instruction set of the kernels in use."""
    return K.isa.decode()


def openblas_config():
    """Build options of the OpenBLAS in use and the name of the kernels it chose."""
    return scipy_openblas_get_config().decode() + " kernels " + scipy_openblas_get_corename().decode()
