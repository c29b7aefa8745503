# Used from Cython only.
"""Brings the arguments of batches into the form that ops need.

If the arguments of a batch are contiguous in memory already, the call reads them in place.  Otherwise they are copied
side by side first, or the call reads a list of pointers to them.
"""

from libc.string cimport memcpy

from dynet_cy.core.tensor cimport size_of
from dynet_cy.execute.walk cimport place_of, settle, take, take_table
from dynet_cy.graph.structs cimport COLUMNS, Laid, items_of, state_of
from dynet_cy.ops.registry cimport LIST


cdef inline bint may_list(const Batch* batch, const Op* op, uint32_t i) noexcept nogil:
    """Whether argument i of a batch may be a list of pointers."""
    return rule_of(op, i) == LIST and batch.form != COLUMNS         # a matrix of columns cannot be a list


cdef int arrange(Walk* w, Batch* batch, const Op* op) noexcept nogil:
    """Bring the arguments and items of a batch into the form that its call needs.

    Leaves batch.x[i] empty for an argument that all nodes share.
    """
    cdef Graph* g = w.g
    cdef Node* node = &nodes_of(g)[order_of(g)[batch.first]]
    cdef uint32_t* args = args_of(g, node)
    cdef uint32_t i
    if not w.at_once and w.device.send_arguments(w, batch):
        return -1
    if lay_items(w, batch):
        return -1
    if batch.count == 1 or node.nargs == 0:
        return 0
    batch.x = <Laid*>take(w, node.nargs * sizeof(Laid))
    if batch.x == NULL:
        return -1
    for i in range(node.nargs):
        batch.x[i].v = NULL
        batch.x[i].list = NULL
        if not is_shared(state_of(g), op, i, args[i]) and lay(w, batch, op, i):
            return -1
    for i in range(node.nargs):                 # all copies come after all lists, so that they run together
        if batch.x[i].v != NULL and batch.x[i].v != nodes_of(g)[args[i]].val and gather(w, batch, i):
            return -1
    return settle(w)


cdef int lay_items(Walk* w, Batch* batch) noexcept nogil:
    """Copy the items of the nodes of a call side by side.  A single node's are already, but a GPU needs a copy."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* node = &nodes_of(g)[ids[0]]
    cdef uint32_t j
    cdef size_t n = 0
    if node.item_count == 0 or (batch.count == 1 and w.at_once):
        return 0
    batch.items = <uint32_t*>take_table(w, <size_t>batch.bd * node.item_count * sizeof(uint32_t))
    if batch.items == NULL:
        return -1
    for j in range(batch.count):
        node = &nodes_of(g)[ids[j]]
        memcpy(batch.items + n, items_of(g, node), <size_t>node.dim.bd * node.item_count * sizeof(uint32_t))
        n += <size_t>node.dim.bd * node.item_count
    return 0


cdef int lay(Walk* w, Batch* batch, const Op* op, uint32_t i) noexcept nogil:
    """Decide how several nodes get argument i: in place, as a list, or copied by `gather` to memory allocated here."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Laid* x = &batch.x[i]
    cdef Node* a = &nodes[args_of(g, &nodes[ids[0]])[i]]
    cdef uint32_t j
    cdef size_t n = 0, stride
    cdef float* at
    cdef bint listable = may_list(batch, op, i)
    x.v = a.val
    if side_by_side(g, batch, i, listable):
        return 0
    if listable and op.needs[w.kind].lists:
        x.v = NULL
        x.list = <float**>take_table(w, batch.bd * sizeof(float*))
        if x.list == NULL:
            return -1
        for j in range(batch.count):
            a = &nodes[args_of(g, &nodes[ids[j]])[i]]
            at = place_of(w, a.val)
            stride = size_of(&a.dim) if a.dim.bd > 1 else 0
            for _ in range(nodes[ids[j]].dim.bd):
                x.list[n] = at
                at += stride
                n += 1
        return 0
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        n += total_of(&a.dim) * uses_in(batch, a, &nodes[ids[j]])
    x.v = <float*>take(w, n * sizeof(float))
    return 0 if x.v != NULL else -1


cdef int gather(Walk* w, const Batch* batch, uint32_t i) noexcept nogil:
    """Copy argument i of the nodes of a batch to the memory that `lay` has allocated."""
    cdef Graph* g = w.g
    cdef uint32_t* ids = order_of(g) + batch.first
    cdef Node* nodes = nodes_of(g)
    cdef Node* a
    cdef float* to = batch.x[i].v
    cdef uint32_t j
    cdef size_t n
    for j in range(batch.count):
        a = &nodes[args_of(g, &nodes[ids[j]])[i]]
        n = total_of(&a.dim)
        for _ in range(uses_in(batch, a, &nodes[ids[j]])):
            if w.at_once:
                memcpy(to, a.val, n * sizeof(float))
            elif w.device.copy(w, to, a.val, n):
                return -1
            to += n
    return 0
