"""Arenas: reserved address ranges with a bump pointer."""

import os

from libc.string cimport memset
from posix.mman cimport (
    MAP_ANON, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap,
)
from posix.unistd cimport _SC_PAGESIZE, sysconf

cdef extern from *:
    """
    #ifndef MAP_NORESERVE
    #define MAP_NORESERVE 0
    #endif
    """
    int MAP_NORESERVE

cdef extern from "<unistd.h>":
    int _SC_PHYS_PAGES

# Smaller than this, a range is of no use to anyone.
cdef size_t SMALLEST_RESERVE = <size_t>1 << 26

cdef Budget budget              # a global of C: all 0

cdef bint poisoning = os.environ.get("DYNET_CY_POISON", "0") not in ("", "0")


def set_limit(size_t limit_bytes):
    """Limit what all graph arenas together may use.

    Args:
        limit_bytes: bytes; 0 sets no limit but the machine's memory.
    """
    budget_set_limit(&budget, limit_bytes)


def limit():
    """Limit in bytes that `set_limit` set; 0 when there is none."""
    return budget_limit(&budget)


def used_bytes():
    """Bytes that open arenas have ever used and so hold."""
    return budget_used(&budget)


cdef int arena_open(Arena* a, bint poison) except -1:
    # More address space than there is memory would never be used.
    cdef size_t reserve = <size_t>sysconf(_SC_PHYS_PAGES) * <size_t>sysconf(_SC_PAGESIZE)
    cdef void* base = MAP_FAILED
    while reserve >= SMALLEST_RESERVE:
        base = mmap(NULL, reserve, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0)
        if base != MAP_FAILED:
            break
        reserve //= 2
    if base == MAP_FAILED:
        raise MemoryError(
            f"the system refused to reserve {SMALLEST_RESERVE >> 20} MiB of address space; "
            "close graphs that are no longer needed, or raise the process's limit (ulimit -v)")
    a.base = <char*>base
    a.top = 0
    a.charged = 0
    a.reserved = reserve
    a.budget = &budget
    a.poison = poison and poisoning
    return 0


cdef void arena_close(Arena* a) noexcept nogil:
    if a.base != NULL:
        munmap(a.base, a.reserved)
        arena_discharge(a)
        a.base = NULL
        a.top = a.charged = a.reserved = 0


cdef void arena_rewind(Arena* a, size_t top) noexcept nogil:
    if a.poison and a.top > top:
        memset(a.base + top, 0xFF, a.top - top)      # all ones is a NaN
    a.top = top


cdef int out_of_memory(const Arena* a, str what, size_t needed) except -1:
    cdef size_t limited = budget_limit(&budget)
    if limited:
        left = max(<Py_ssize_t>limited - <Py_ssize_t>budget_used(&budget) + <Py_ssize_t>(a.charged - a.top), 0)
        raise MemoryError(
            f"out of memory for {what}: {needed:,} bytes needed, {left:,} left of the limit of "
            f"{limited >> 20} MiB; raise it with --dynet-mem MB or "
            "dynet_cy.config.set(mem=MB)")
    raise MemoryError(
        f"out of memory for {what}: {needed:,} bytes needed, {a.reserved - a.top:,} left of the "
        "address range; the graph is larger than this machine's memory")
