"""How many nodes ran in how many calls, and for how long, by operation."""

from typing import NamedTuple

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memset

from dynet_cy.ops.registry cimport op_at


cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec* t)


cdef extern from *:
    """
    #define DY_COUNT(x, n) __atomic_add_fetch(&(x), (n), __ATOMIC_RELAXED)
    """
    uint64_t count "DY_COUNT"(uint64_t x, uint64_t n) nogil

cdef enum:
    MOST_OPS = 1024                 # the last place is for WEIGHT_GRADIENTS

# Graphs of several threads add to the same entry.
cdef struct Entry:
    uint64_t nodes
    uint64_t calls
    uint64_t nanoseconds

cdef Entry* entries = NULL          # for each op forward, then backward


class Counts(NamedTuple):
    """What an operation did in one direction."""

    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float


cdef uint64_t now() noexcept nogil:
    """Nanoseconds."""
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1000000000 + <uint64_t>t.tv_nsec


cdef void note(uint32_t op, bint backward, uint32_t nodes, uint64_t since) noexcept nogil:
    """Count one call of an op with that many nodes, which began at that time."""
    cdef Entry* e = entries + 2 * min(op, <uint32_t>(MOST_OPS - 1)) + backward
    count(e.nodes, nodes)
    count(e.calls, 1)
    count(e.nanoseconds, now() - since)


def counts():
    """What has been counted, as a list of Counts; what did not run is left out."""
    found = []
    if entries != NULL:
        for i in range(2 * MOST_OPS):
            if entries[i].calls:
                name = "weight gradients" if i // 2 == MOST_OPS - 1 else op_at(i // 2).name.decode()
                found.append(Counts(name, bool(i % 2), entries[i].nodes, entries[i].calls,
                                    entries[i].nanoseconds / 1e9))
    return found


def reset():
    """Count from zero again."""
    if entries != NULL:
        memset(entries, 0, 2 * MOST_OPS * sizeof(Entry))


def set_level(int level):
    """Measure (1), list every batch on stderr too (2), or do neither (0)."""
    global profiling, entries
    if level > 0 and entries == NULL:
        entries = <Entry*>calloc(2 * MOST_OPS, sizeof(Entry))
        if entries == NULL:
            raise MemoryError("the table of the profile")
    profiling = max(level, 0)


def level():
    """What `set_level` has set."""
    return profiling
