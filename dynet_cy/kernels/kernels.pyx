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

K = dy_kernels_get(NULL)
# Products are split over threads by the caller, if at all; dy_kernels.sgemm itself is called from several threads.
scipy_openblas_set_num_threads(1)


def table_of(isa):
    """The address of the kernels of an instruction set, for tests; 0 if this CPU does not have it."""
    return <size_t>dy_kernels_get(isa.encode())


def isa():
    """Name of the instruction set of the kernels in use."""
    return K.isa.decode()


def openblas_config():
    """Build options of the OpenBLAS in use and the name of the kernels it chose."""
    return scipy_openblas_get_config().decode() + " kernels " + scipy_openblas_get_corename().decode()
