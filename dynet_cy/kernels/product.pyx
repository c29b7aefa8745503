# SPDX-License-Identifier: Apache-2.0
# Used from Cython only.
"""Products with a parameter, whose packed form is kept while its values stay."""

from libc.stdint cimport uint64_t

from dynet_cy.core.tensor cimport Packed
from dynet_cy.kernels.kernels cimport K, dy_panels
from dynet_cy.memory.arena cimport arena_alloc
from dynet_cy.memory.storage cimport Pack, Panels, pthread_mutex_t


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)

# Smaller matrices stay in the first-level cache as they are; with more columns
# the packing that BLAS does in each call is a small part of it.
cdef enum:
    LEAST_PACKED = 8192
    MOST_COLUMNS = 512


cdef void product(bint ta, size_t m, size_t n, size_t k, const float* a, Packed* pack,
                  const float* b, float beta, float* c) noexcept nogil:
    """C = op(A) B + beta C: op(A) is m x k, B k x n.  All matrices are contiguous.

    `pack` belongs to the parameter that A is, or is NULL.
    """
    cdef const float* panels = NULL
    if pack != NULL and K.packs and m * k >= LEAST_PACKED and n <= MOST_COLUMNS:
        panels = panels_of(<Pack*>pack, ta, m, k, a)
    if panels != NULL:
        K.sgemm_packed(m, n, k, panels, b, k, beta, c, m)
    else:
        K.sgemm(ta, 0, m, n, k, 1, a, k if ta else m, b, k, beta, c, m)


cdef const float* panels_of(Pack* pack, bint ta, size_t m, size_t k,
                            const float* a) noexcept nogil:
    """The packed form, made at the second product with the same values; else NULL.

    What happens depends on the products since the last change only, so that a
    training that goes on from a file computes the same as one that never stopped.
    """
    cdef const float* panels = NULL
    cdef Panels* x = &pack.of[ta]
    cdef uint64_t now
    pthread_mutex_lock(pack.lock)
    now = pack.changes[0]
    if x.made == now:
        panels = x.panels
    elif x.asked != now:
        x.asked = now
    else:
        if x.panels == NULL:
            x.panels = <float*>arena_alloc(pack.arena, dy_panels(m, k) * sizeof(float))
        if x.panels != NULL:
            K.pack(ta, m, k, a, k if ta else m, x.panels)
            x.made = now
            panels = x.panels
    pthread_mutex_unlock(pack.lock)
    return panels
