"""Memory of gradients during backward; see gradient_memory.pxd and include/dynet_cy/gradients.h."""

from dynet_cy.execute.accumulation cimport is_made
from dynet_cy.graph.structs cimport (
    MOST_PIECES, claim_gradients, donate, done_with, free_memory, gradient_bytes, is_donatable, last_joint, n_holes,
)
from dynet_cy.memory.arena cimport arena_alloc
from dynet_cy.schedule.transient cimport least_donated


cdef bint give(Graph* g, Lending* lending, Batch* batch) noexcept nogil:
    drop_spare(g, lending)
    come_back(g, lending)
    return claim_gradients(g, batch)


cdef void come_back(Graph* g, Lending* lending) noexcept nogil:
    cdef Lent* back = lending.first
    while back != NULL and is_back(lending, back):
        lending.bytes -= back.bytes
        free_lent(g, lending, back.p, back.bytes)
        back = back.next
    lending.first = back


cdef void close_lending(Graph* g, Lending* lending) noexcept nogil:
    drop_spare(g, lending)
    end_lending(lending)
    come_back(g, lending)


cdef inline void free_lent(Graph* g, Lending* lending, void* p, size_t bytes) noexcept nogil:
    if lending.spoil != NULL:                   # before its segment of the arena may become empty
        lending.spoil(lending.walk, p, bytes)
    free_memory(g, p, bytes)


cdef inline bint is_back(const Lending* lending, const Lent* x) noexcept nogil:
    return is_made(x.until) if x.until != NULL else x.group != lending.group


cdef inline void drop_spare(Graph* g, Lending* lending) noexcept nogil:
    if lending.spare.bytes:
        free_lent(g, lending, lending.spare.p, lending.spare.bytes)
        lending.spare.bytes = 0


cdef void free_gradients(Graph* g, Lending* lending, Batch* batch, const Addition* reader) noexcept nogil:
    cdef Batch* first = done_with(batch)
    cdef Batch* last
    cdef char* p
    cdef size_t bytes
    if first == NULL:
        return
    drop_spare(g, lending)
    last = last_joint(first)
    bytes = gradient_bytes(first, last)
    p = <char*>first.dy
    while first <= last:
        first.dy = NULL
        first += 1
    give_back(g, lending, p, bytes, reader)


cdef void give_back(Graph* g, Lending* lending, void* p, size_t n, const Addition* reader) noexcept nogil:
    if not lending.waiting and (reader == NULL or is_made(reader)):
        free_lent(g, lending, p, n)
    else:
        lend(g, lending, <char*>p, n, reader)


cdef void lend(Graph* g, Lending* lending, char* p, size_t bytes, const Addition* reader) noexcept nogil:
    """Free memory once an addition is made (NULL: the listed ones); if this cannot be noted, after the pass."""
    cdef Lent* lent = <Lent*>arena_alloc(&g.grads, sizeof(Lent))
    if lent == NULL:
        return
    lent.next = NULL
    lent.until = reader
    lent.group = lending.group
    lent.p = p
    lent.bytes = bytes
    lending.bytes += bytes
    if lending.first == NULL:
        lending.first = lent
    else:
        lending.last.next = lent
    lending.last = lent


cdef void donate_values(Graph* g, Lending* lending, Batch* batch, const Addition* reader) noexcept nogil:
    if batch.bytes >= least_donated and is_donatable(batch) and n_holes(&g.free_values) < MOST_PIECES:
        donate(g, batch)
        give_back(g, lending, batch.y, batch.bytes, reader)
