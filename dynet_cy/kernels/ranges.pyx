# SPDX-License-Identifier: Apache-2.0
# Used from Cython only.
"""Loops over independent elements, columns or images, divided among threads.

Nothing is summed up across ranges, so the results are the same on any number of threads.
"""

from dynet_cy.kernels.product cimport in_parts

# Of a call; a thread that is late, or interrupted, does fewer of them.
cdef enum:
    MOST_RANGES = 16

cdef struct Ranges:
    RangeRun run
    void* job
    size_t n
    size_t step
    size_t parts


cdef inline size_t begin(const Ranges* r, size_t i) noexcept nogil:
    """Where range i begins."""
    return min((r.n + r.step - 1) // r.step * i // r.parts * r.step, r.n)


cdef void run_range(void* job, size_t i) noexcept nogil:
    cdef const Ranges* r = <const Ranges*>job
    r.run(r.job, begin(r, i), begin(r, i + 1))


cdef void in_ranges(size_t n, size_t step, size_t cost, RangeRun run, void* job) noexcept nogil:
    """Call run(job, first, end) for ranges that together are 0 to n, on several threads where that is quicker.

    Args:
        step: ranges begin at multiples of it, so that vectors and cache lines are not cut.
        cost: what one of the n takes, in multiplications of a product (`in_parts`).  An element of a simple loop takes
            as long as some 16: 0.1 to 0.2 ns.
    """
    cdef Ranges r = Ranges(run, job, n, step, min((n + step - 1) // step, <size_t>MOST_RANGES))
    if r.parts < 2 or not in_parts(r.parts, n * cost, run_range, &r):
        run(job, 0, n)
