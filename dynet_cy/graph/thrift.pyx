"""How much memory passes may take while there is a limit on memory, and how much they have been found to take.

The plan of a pass says how many bytes its values have, and how many their gradients will take at a time, but not how
many saved values and gathered arguments will take. Values are assumed to take a multiple of their bytes with these, and
gradients another multiple of theirs, since some stay longer as factors of weights' gradients. Both multiples follow
what graphs have taken. If a pass runs out of memory all the same, that of values grows, in backward that of gradients,
and the pass is planned and run again, with fewer values that are kept (schedule/dropping).
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
    typedef struct { double ratio, floor; } dy_multiple;
    static dy_multiple dy_of_values = {1.5, 1}, dy_of_gradients = {1.25, 1};
    static inline double dy_load(double *x) { double r; __atomic_load(x, &r, __ATOMIC_RELAXED); return r; }
    static inline void dy_store(double *x, double r) { __atomic_store(x, &r, __ATOMIC_RELAXED); }
    static inline double dy_ratio_now(dy_multiple *x) { return dy_load(&x->ratio); }
    static inline double dy_floor_now(dy_multiple *x) { return dy_load(&x->floor); }
    static inline void dy_set_ratio(dy_multiple *x, double r) { dy_store(&x->ratio, r); }
    static inline void dy_set_floor(dy_multiple *x, double r) { dy_store(&x->floor, r); }

    static _Thread_local uint32_t dy_columns = 256;
    static inline uint32_t dy_columns_now(void) { return dy_columns; }
    static inline void dy_set_columns(uint32_t n) { dy_columns = n; }

    static _Thread_local size_t dy_expected;    /* bytes of gradients, by the last plan */
    static inline size_t dy_expected_now(void) { return dy_expected; }
    static inline void dy_expect(size_t bytes) { dy_expected = bytes; }
    """
    ctypedef struct Multiple "dy_multiple":
        pass
    Multiple of_values "dy_of_values"
    Multiple of_gradients "dy_of_gradients"
    void dy_note_kept(int kept) nogil
    int dy_last_kept() nogil
    bint dy_divides_now() nogil
    void dy_set_divides(bint x) nogil
    double dy_ratio_now(Multiple* x) nogil
    double dy_floor_now(Multiple* x) nogil      # the ratio does not fall below it: a lower one was too low
    void dy_set_ratio(Multiple* x, double r) nogil
    void dy_set_floor(Multiple* x, double r) nogil
    uint32_t dy_columns_now() nogil
    void dy_set_columns(uint32_t n) nogil
    size_t dy_expected_now() nogil
    void dy_expect(size_t bytes) nogil
    size_t atomic_load "__atomic_load_n"(const size_t* p, int order) nogil
    int RELAXED "__ATOMIC_RELAXED"

cdef double AT_FIRST = 1.25         # the multiple of gradients
cdef double GROWTH = 1.25
cdef double MOST = 40
cdef double SPARE = 0.97            # the share of the memory that plans count on
cdef double MARGIN = 1.05           # more than was measured
# Packed parameters give way where memory is short, and then sums round differently.  So memory is left for them, unless
# they would take more than this share of it.
cdef double SHARE_PACKED = 0.5

cdef enum:
    LEAST_MEASURED = 1 << 18        # bytes of values
    LEAST_PACKED = 8192             # elements of matrices that products pack
    LEAST_COLLECTED = 1024          # elements of matrices whose factors are collected
    LEAST_COLUMNS = 32              # of factors: fewer gain little
    SHARE_COLLECTED = 2             # of what is left: factors of all matrices take no more


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
    """Bytes that may still be allocated within one limit; infinite if there is none."""
    cdef size_t limit = atomic_load(&of.limit, RELAXED)
    return <double>limit - atomic_load(&of.used, RELAXED) if limit else INFINITY


cdef bint is_crowded(const Graph* g) noexcept nogil:
    return min(left_of(&g.memory), left_of(g.memory.around)) < g.values.top


cdef double memory_left(const Graph* g) noexcept nogil:
    cdef double unused = 0, of_process, of_graph
    cdef size_t packed
    cdef int i
    if not is_limited(g) or g.forward_only or g.immediate:
        return INFINITY
    for i in range(GRAPH_ARENAS):
        unused += unused_bytes(&g.arenas[i], 0 if &g.arenas[i] == &g.grads else g.arenas[i].top)
    of_process = SPARE * (left_of(g.memory.around) + unused)
    packed = 0 if g.device else bytes_to_pack(g)
    if packed <= SHARE_PACKED * of_process:
        of_process -= packed
    of_graph = SPARE * (left_of(&g.memory) + unused)
    return max(min(of_graph, of_process), 0)        # packed ones do not count for the graph's limit


cdef double memory_to_plan(const Graph* g) noexcept nogil:
    cdef double left = memory_left(g)
    cdef size_t of_column
    cdef uint32_t columns = MOST_COLUMNS
    if left != INFINITY and not g.device:
        of_column = bytes_of_column(g)
        while columns > LEAST_COLUMNS and columns * of_column * SHARE_COLLECTED > left:
            columns //= 2
    dy_set_columns(columns)
    return left


cdef size_t bytes_of_column(const Graph* g) noexcept nogil:
    """The bytes of one column of the factors of all weights' gradients."""
    cdef const Param* p
    cdef size_t n = 0
    cdef uint32_t i
    for i in range(g.n_nodes):
        if state_of(g)[i] & SHARED:
            p = <const Param*>nodes_of(g)[i].object
            if p.size >= LEAST_COLLECTED and p.dim.nd == 2 and p.updated:
                n += (p.dim.d[0] + p.dim.d[1]) * sizeof(float)
    return n


cdef uint32_t columns_collected() noexcept nogil:
    return dy_columns_now()


cdef size_t most_values(double left, size_t bytes, size_t gradients) noexcept nogil:
    cdef double most = (left - gradients * dy_ratio_now(&of_gradients)) / dy_ratio_now(&of_values)
    dy_expect(gradients)
    if most >= bytes:
        return 0
    return <size_t>most if most > 1 else 1


cdef size_t bytes_missing(size_t bytes, size_t most) noexcept nogil:
    return <size_t>((bytes - most) * dy_ratio_now(&of_values))


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
    cdef size_t taken = 0, grads
    cdef int i
    if g.values.top < LEAST_MEASURED:
        return
    for i in range(GRAPH_ARENAS):
        if &g.arenas[i] != &g.grads:
            taken += unused_bytes(&g.arenas[i], 0)
    follow(&of_values, taken, g.values.top)
    if g.n_passes == 1 and dy_expected_now():
        grads = unused_bytes(&g.grads, 0)       # factors are there too
        follow(&of_gradients, grads - min(grads, bytes_of_column(g) * dy_columns_now()), dy_expected_now())


cdef void follow(Multiple* x, size_t taken, size_t expected) noexcept nogil:
    """Let a multiple fall to what was taken."""
    dy_set_ratio(x, max(min(dy_ratio_now(x), MARGIN * taken / expected), dy_floor_now(x)))


cdef void note_kept(int kept) noexcept nogil:
    dy_note_kept(kept)


cdef bint divides() noexcept nogil:
    return dy_divides_now()


cdef bint save_more(bint backward) noexcept nogil:
    """Keep less by the next plans, then as little as they can, then divide them, then into more and more parts."""
    cdef int kept = dy_last_kept()
    cdef Multiple* x = &of_gradients if backward else &of_values
    dy_note_kept(ENOUGH)                        # the next pass may fail before it is planned
    if kept == LEAST_UNDIVIDED and not dy_divides_now():
        dy_set_divides(True)
        return True
    if kept == LEAST or dy_ratio_now(x) > MOST:
        return False
    dy_set_ratio(x, dy_ratio_now(x) * GROWTH)
    dy_set_floor(x, dy_ratio_now(x))
    return True


cdef Assumed assumed_now() noexcept nogil:
    return Assumed(dy_ratio_now(&of_values), dy_ratio_now(&of_gradients), dy_divides_now())


cdef void assume_ratio(Multiple* x, double ratio) noexcept nogil:
    dy_set_ratio(x, ratio)
    dy_set_floor(x, min(dy_floor_now(x), ratio))


cdef void assume_again(Assumed before) noexcept nogil:
    assume_ratio(&of_values, before.values)
    assume_ratio(&of_gradients, before.gradients)
    dy_set_divides(before.divides)


def set_ratio(double ratio) -> float:
    """Set how many bytes a pass is assumed to take for each byte of its values, and divide no plans yet: for tests.

    Args:
        ratio: the new number.

    Returns:
        The number before.
    """
    before = dy_ratio_now(&of_values)
    assume_again(Assumed(ratio, AT_FIRST, False))
    dy_set_floor(&of_values, 1)
    dy_set_floor(&of_gradients, 1)
    return before
