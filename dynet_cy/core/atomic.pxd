"""Words of the process that threads read while another one sets them: settings and counts.

Every read and every assignment of a variable of these types is atomic, so a thread sees the number before or the number
after.  A read costs what a plain one costs.  `x += 1` is a read and then an assignment: use `add_to`.
"""

from libc.stdint cimport uint64_t


cdef extern from *:
    """
    #include <stdatomic.h>
    typedef _Atomic int dy_setting;
    typedef _Atomic uint64_t dy_number;

    /* Both return the number before. */
    static inline int dy_change(dy_setting *x, int by) {
        return atomic_fetch_add_explicit(x, by, memory_order_relaxed);
    }
    static inline uint64_t dy_add_to(dy_number *x, uint64_t n) {
        return atomic_fetch_add_explicit(x, n, memory_order_relaxed);
    }
    """
    ctypedef bint Flag "dy_setting"
    ctypedef int Setting "dy_setting"
    ctypedef uint64_t Number "dy_number"
    int change "dy_change"(Setting* x, int by) noexcept nogil
    uint64_t add_to "dy_add_to"(Number* x, uint64_t n) noexcept nogil
