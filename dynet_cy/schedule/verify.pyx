"""Checks that each value is there when a batch of a plan reads it, forward and backward.

Passes over the plan choose lifetimes (schedule/transient, schedule/dropping), each by rules of its own. This one knows
no rules. It looks at every argument of every node, also where the loss does not depend on the node, since a batch runs
as a whole. If a value is not there when it is read, the pass fails before anything has run.
"""

from cpython.ref cimport Py_INCREF

from libc.stdint cimport uint32_t

from dynet_cy.core.engine cimport add_count
from dynet_cy.core.threads cimport Number, add_to
from dynet_cy.graph.structs cimport (
    IN_FUSION, IN_STRETCH, MAY_DONATE, VIEWS, Batch, Node, args_of, batches_of, is_dropped, nodes_of, order_of,
)
from dynet_cy.memory.arena cimport arena_rewind
from dynet_cy.ops.registry cimport Op, op_at, reads, reads_result
from dynet_cy.schedule.facts cimport NONE, PlanFacts, batch_of, open_facts
from dynet_cy.schedule.transient cimport is_of_parts, reads_parts

cdef Number verified = 0
add_count("schedule.verify.plans", &verified)

# How a batch reads a value.
cdef enum:
    FORWARD
    BACKWARD

cdef dict WORDS = {FORWARD: "reads", BACKWARD: "reads in backward"}

# What is looked at: a batch.
cdef struct Reader:
    const PlanFacts* facts
    const Batch* batch
    uint32_t number
    uint32_t runs                   # the batch with which it runs
    size_t most_along


cdef void* verify(Graph* g, uint32_t n, size_t most_along) noexcept nogil:
    cdef size_t top = g.scratch.top
    cdef PlanFacts facts
    cdef Reader r
    cdef uint32_t of = NONE
    cdef int way = -1
    r.facts = &facts
    r.most_along = most_along
    r.number = g.n_batches
    if n and open_facts(&facts, g, g.n_batches, n):
        while r.number < facts.begin + n and way < 0:
            way = misread(g, &r, &of)
            r.number += way < 0
    arena_rewind(&g.scratch, top)
    add_to(&verified, 1)
    return NULL if way < 0 else error_of(g, r.number, of, way)


# ---- what is there -------------------------------------------------------------------------

cdef inline bint is_there(const Graph* g, const Reader* r, uint32_t of, int way) noexcept nogil:
    """Whether the values of a batch are there when another one of the plan reads them.  Only this function knows what
    levels mean: backward over a stretch has all computed again that it reads, forward and backward."""
    cdef const Batch* batch = &batches_of(g)[of]
    if batch.level == 0:                        # gradients may be written over it when `reader` runs backward
        return way != BACKWARD or of == r.number or not batch.lifetime & MAY_DONATE or batch.reader <= r.number + 1
    if way == FORWARD:
        return batch.last >= r.runs
    return r.batch.lifetime & IN_STRETCH


cdef int misread(const Graph* g, Reader* r, uint32_t* of) noexcept nogil:
    """How a batch reads a value that is not there, of a batch `of`; -1: it does not."""
    cdef const Batch* batch = &batches_of(g)[r.number]
    cdef const Op* op = op_at(nodes_of(g)[order_of(g)[batch.first]].op)
    cdef uint32_t i, n_args = nodes_of(g)[order_of(g)[batch.first]].nargs
    cdef int way
    r.batch = batch
    r.runs = r.number
    while batches_of(g)[r.runs].form == IN_FUSION:
        r.runs += 1
    if batch.cell:
        r.runs = batch.cell - 1
    of[0] = r.number
    if reads_result(op) and batch.form != VIEWS and not is_there(g, r, r.number, BACKWARD):
        return BACKWARD
    for i in range(n_args):
        way = misread_argument(g, r, op, i, of)
        if way >= 0:
            return way
    return -1


cdef int misread_argument(const Graph* g, const Reader* r, const Op* op, uint32_t i, uint32_t* of) noexcept nogil:
    cdef uint32_t j, arg, last = NONE
    cdef bint back = reads(op, i) and r.batch.form != VIEWS
    for j in range(r.batch.count):
        arg = args_of(g, &nodes_of(g)[order_of(g)[r.batch.first + j]])[i]
        of[0] = batch_of(r.facts, arg)
        if of[0] == NONE:
            if is_dropped(g, arg):
                of[0] = nodes_of(g)[arg].batch
                return FORWARD
        elif of[0] == last:
            continue
        elif not is_there(g, r, of[0], FORWARD):
            return FORWARD
        elif r.batch.form == VIEWS and is_gone_first(&batches_of(g)[of[0]], r.batch):
            return FORWARD
        elif back and not is_there(g, r, of[0], BACKWARD) and not are_parts_there(g, r, op, i, arg, of):
            return BACKWARD
        last = of[0]
    return -1


cdef inline bint is_gone_first(const Batch* of, const Batch* view) noexcept nogil:
    """Whether the values of a batch may go before those that are parts of them."""
    return of.level > view.level or of.level and of.last < view.last


cdef bint are_parts_there(const Graph* g, const Reader* r, const Op* op, uint32_t i, uint32_t arg,
                          uint32_t* of) noexcept nogil:
    """Whether backward makes a copy of an argument from the arguments of that, and these are there."""
    cdef const Node* x = &nodes_of(g)[arg]
    cdef uint32_t k, part
    if not is_of_parts(g, arg) or not reads_parts(r.facts, r.batch, op, i, r.most_along):
        return False
    for k in range(x.nargs):
        part = batch_of(r.facts, args_of(g, x)[k])
        if part != NONE and not is_there(g, r, part, BACKWARD):
            of[0] = part
            return False
    return True


# ---- the error -------------------------------------------------------------------------------

cdef void* error_of(const Graph* g, uint32_t reader, uint32_t of, int way) noexcept with gil:
    names = [op_at(nodes_of(g)[order_of(g)[batches_of(g)[b].first]].op).name.decode() for b in (reader, of)]
    error = RuntimeError(
        f"internal error of dynet_cy: batch {reader} ({names[0]}) {WORDS[way]} the values of batch {of} ({names[1]}), "
        "which are gone by then.  Nothing was computed; please report it, with the output of python -m dynet_cy info")
    Py_INCREF(error)
    return <void*>error
