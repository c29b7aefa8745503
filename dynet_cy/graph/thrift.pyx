"""How much memory passes may take while there is a limit on memory, and how much they have been found to take.

The plan of a pass says how many bytes its values have, and how many their gradients will take at a time, but not how
many saved values and gathered arguments will take. Values are assumed to take a multiple of their bytes with these,
which follows what graphs have taken. If a pass runs out of memory all the same, the multiple grows, and the pass is
planned and run again, with fewer values that are kept (schedule/dropping).
"""

from libc.math cimport INFINITY
from libc.stdint cimport uint32_t

from dynet_cy.graph.structs cimport GRAPH_ARENAS, SHARED, nodes_of, state_of
from dynet_cy.memory.arena cimport Arena, Memory
from dynet_cy.memory.storage cimport Param

cdef extern from *:
    """
    static _Thread_local int dy_kept;
    static inline void dy_note_kept(int kept) { dy_kept = kept; }
    static inline int dy_last_kept(void) { return dy_kept; }

    static int dy_divides;
    static inline int dy_divides_now(void) { return __atomic_load_n(&dy_divides, __ATOMIC_RELAXED); }
    static inline void dy_set_divides(int x) { __atomic_store_n(&dy_divides, x, __ATOMIC_RELAXED); }

    /* Races between threads lose at most one growth. */
    static double dy_ratio = 1.5, dy_floor = 1;
    static inline double dy_load(double *x) { double r; __atomic_load(x, &r, __ATOMIC_RELAXED); return r; }
    static inline void dy_store(double *x, double r) { __atomic_store(x, &r, __ATOMIC_RELAXED); }
    static inline double dy_ratio_now(void) { return dy_load(&dy_ratio); }
    static inline double dy_floor_now(void) { return dy_load(&dy_floor); }
    static inline void dy_set_ratio(double r) { dy_store(&dy_ratio, r); }
    static inline void dy_set_floor(double r) { dy_store(&dy_floor, r); }
    """
    void dy_note_kept(int kept) nogil
    int dy_last_kept() nogil
    bint dy_divides_now() nogil
    void dy_set_divides(bint x) nogil
    double dy_ratio_now() nogil
    double dy_floor_now() nogil                 # the ratio does not fall below it: a lower one was too low
    void dy_set_ratio(double r) nogil
    void dy_set_floor(double r) nogil
    size_t atomic_load "__atomic_load_n"(const size_t* p, int order) nogil
    int RELAXED "__ATOMIC_RELAXED"

cdef double GROWTH = 1.25
cdef double MOST = 40
cdef double SPARE = 0.97            # the share of the memory that plans count on
cdef double MARGIN = 1.05           # more than was measured
# Packed parameters give way where memory is short, and then sums round differently.  So memory is left for them, unless
# they would take more than this share of it.
cdef double SHARE_PACKED = 0.5

cdef enum:
    LEAST_MEASURED = 1 << 20        # bytes of values
    LEAST_PACKED = 8192             # elements of matrices that products pack


cdef size_t unused_bytes(const Arena* a, size_t top) noexcept nogil:
    """Bytes of an arena that count against the limit, above the offset `top`."""
    cdef size_t n = 0
    cdef uint32_t i
    for i in range(a.n):
        n += a.segments[i].charged
        if i <= a.now and top > a.segments[i].begin:
            n -= min(a.segments[i].charged, top - a.segments[i].begin)
    return n


cdef double left_of(const Memory* of) noexcept nogil:
    """Bytes that plans may count on within one limit; infinite if there is none."""
    cdef size_t limit = atomic_load(&of.limit, RELAXED)
    return SPARE * limit - atomic_load(&of.used, RELAXED) if limit else INFINITY


cdef double memory_left(const Graph* g) noexcept nogil:
    cdef double unused = 0, of_process
    cdef size_t packed
    cdef int i
    if not is_limited(g) or g.forward_only or g.immediate:
        return INFINITY
    for i in range(GRAPH_ARENAS):
        unused += unused_bytes(&g.arenas[i], 0 if &g.arenas[i] == &g.grads else g.arenas[i].top)
    of_process = left_of(g.memory.around) + unused
    packed = 0 if g.device else bytes_to_pack(g)
    if packed <= SHARE_PACKED * of_process:
        of_process -= packed
    return max(min(left_of(&g.memory) + unused, of_process), 0)     # packed ones do not count for the graph's limit


cdef size_t most_values(double left, size_t bytes, size_t gradients) noexcept nogil:
    cdef double most = (left - gradients) / dy_ratio_now()
    if most >= bytes:
        return 0
    return <size_t>most if most > 1 else 1


cdef size_t bytes_missing(size_t bytes, size_t most) noexcept nogil:
    return <size_t>((bytes - most) * dy_ratio_now())


cdef size_t bytes_to_pack(const Graph* g) noexcept nogil:
    """The most bytes that products of a graph may take for packed parameters.

    Of parameters that products have read before, those are packed that need it.  Others are not expected to be.
    """
    cdef const Param* p
    cdef size_t n = 0
    cdef uint32_t i
    for i in range(g.n_nodes):
        if state_of(g)[i] & SHARED:
            p = <const Param*>nodes_of(g)[i].object
            if p.size >= LEAST_PACKED and not p.device and not p.pack.of[0].asked and not p.pack.of[1].asked:
                n += 2 * p.size * sizeof(float)
    return n


cdef void note_taken(const Graph* g) noexcept nogil:
    cdef size_t taken = 0
    cdef int i
    if g.values.top < LEAST_MEASURED:
        return
    for i in range(GRAPH_ARENAS):
        if &g.arenas[i] != &g.grads:
            taken += unused_bytes(&g.arenas[i], 0)
    dy_set_ratio(max(min(dy_ratio_now(), MARGIN * taken / g.values.top), dy_floor_now()))


cdef void note_kept(int kept) noexcept nogil:
    dy_note_kept(kept)


cdef bint divides() noexcept nogil:
    return dy_divides_now()


cdef bint save_more() noexcept nogil:
    """Keep less by the next plans, then as little as they can, then divide them, then into more and more parts."""
    cdef int kept = dy_last_kept()
    dy_note_kept(ENOUGH)                        # the next pass may fail before it is planned
    if kept == LEAST_UNDIVIDED and not dy_divides_now():
        dy_set_divides(True)
        return True
    if kept == LEAST or dy_ratio_now() > MOST:
        return False
    dy_set_ratio(dy_ratio_now() * GROWTH)
    dy_set_floor(dy_ratio_now())
    return True


cdef Assumed assumed_now() noexcept nogil:
    return Assumed(dy_ratio_now(), dy_divides_now())


cdef void assume_again(Assumed before) noexcept nogil:
    dy_set_ratio(before.ratio)
    dy_set_floor(min(dy_floor_now(), before.ratio))
    dy_set_divides(before.divides)


def set_ratio(double ratio) -> float:
    """Set how many bytes a pass is assumed to take for each byte of its values, and divide no plans yet: for tests.

    Args:
        ratio: the new number.

    Returns:
        The number before.
    """
    before = dy_ratio_now()
    assume_again(Assumed(ratio, False))
    dy_set_floor(1)
    return before
