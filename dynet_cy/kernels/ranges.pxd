# SPDX-License-Identifier: Apache-2.0
"""Loops over independent elements, columns or images, divided among threads; see ranges.pyx."""

ctypedef void (*RangeRun)(void* job, size_t first, size_t end) noexcept nogil
ctypedef void (*InRanges)(size_t n, size_t step, size_t cost, RangeRun run, void* job) noexcept nogil

cdef extern from "dynet_cy/ranges.h":
    size_t ELEMENT_COST "DY_ELEMENT_COST"

cdef void in_ranges(size_t n, size_t step, size_t cost, RangeRun run, void* job) noexcept nogil
