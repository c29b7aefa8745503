"""Indices out of range, found by kernels.

An op does not wait for its kernels, so the error comes after the next wait.  The record is page-locked memory of the
host that kernels write only then, so that asking for it costs nothing.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.gpu.driver cimport MOST_GPUS, Gpu, failed
from dynet_cy.ops.positions cimport refusal

cdef extern from "dynet_cy/gpu_refused.h" nogil:
    # derived: structs of Refused = dy_refused_index
    ctypedef struct Refused "dy_refused_index":
        unsigned any
        uint32_t function
        uint32_t b
        uint32_t n
        uint64_t k
        double v
    # end of structs

cdef Refused* records[MOST_GPUS]
memset(records, 0, sizeof(records))


cdef void* refused_of(Gpu* gpu) noexcept nogil:
    cdef void* p = NULL
    cdef int error
    if records[gpu.number] == NULL and not gpu.error:
        error = gpu.driver.cuMemHostAlloc(&p, sizeof(Refused), 0)
        if error:
            failed(gpu, error, -1)
            return NULL
        memset(p, 0, sizeof(Refused))
        records[gpu.number] = <Refused*>p
    return records[gpu.number]


cdef int check_refused(Gpu* gpu) except -1:
    cdef Refused* x = records[gpu.number]
    if x == NULL or not x.any:
        return 0
    error = refusal(x.function, x.b, x.k, x.v, x.n)
    x.any = 0
    raise error
