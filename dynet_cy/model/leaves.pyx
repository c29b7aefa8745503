"""Leaves of graphs that belong to parameters: values of parameters, and rows of lookup tables."""

import numbers

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from dynet_cy.core.dynet_rules cimport follows_dynet
from dynet_cy.core.tensor cimport Call, Dim, dim_with_rows, size_of
from dynet_cy.core.unlocked cimport Unlocked, drop, take
from dynet_cy.graph.computing cimport forget_to_set
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.graph cimport ComputationGraph, owner_of
from dynet_cy.graph.making cimport claim_current, leaf_index, release_current, wrap
from dynet_cy.graph.structs cimport COMPUTED, SHARED, TRAINABLE, Extra, Graph, Node, items_of, no_extra, nodes_of
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.late_rows cimport all_current, catch_up_all, is_late, read_late
from dynet_cy.memory.storage cimport Param, Storage, touch, value_changed
from dynet_cy.ops.registry cimport Op, register

from dynet_cy.memory.storage import parameter_names


cdef extern from *:
    void fence "__atomic_thread_fence"(int order) nogil
    int RELEASE "__ATOMIC_RELEASE"

cdef Unlocked settling


# ---- parameters --------------------------------------------------------------

# A parameter's node need not run: its value is in the storage.
cdef Op* PARAMETER_LEAF = register(b"parameter", b"", NULL, NULL, NULL)
PARAMETER_LEAF.no_gradient_because = b"a leaf: gradients are added to its storage"


cdef uint32_t parameter_leaf(Param* p, Storage storage, bint update) except? 0xFFFFFFFF:
    cdef Graph* g = claim_current()
    try:
        return leaf_in(owner_of(g), p, storage, update)
    finally:
        release_current(g)


cdef uint32_t constant_leaf(Param* p, Storage storage) except? 0xFFFFFFFF:
    """A constant; in a program written for DyNet each has a gradient of its own."""
    cdef Graph* g
    if not follows_dynet():
        return parameter_leaf(p, storage, False)
    g = claim_current()
    try:
        return new_leaf_in(owner_of(g), p, storage, False)
    finally:
        release_current(g)


cdef uint32_t leaf_in(ComputationGraph graph, Param* p, Storage storage, bint update) except? 0xFFFFFFFF:
    key = (p.id, update)
    index = graph.leaves.get(key)
    if index is None:
        index = graph.leaves[key] = new_leaf_in(graph, p, storage, update)
    return index


cdef uint32_t new_leaf_in(ComputationGraph graph, Param* p, Storage storage, bint update) except? 0xFFFFFFFF:
    cdef Dim dim = dim_with_rows(&p.dim, p.rows)
    cdef uint32_t index
    cdef Extra extra = no_extra()
    extra.attrs[0].u = update
    extra.object = p
    extra.state = COMPUTED | SHARED | (TRAINABLE if update else 0)
    extra.device = 1 + p.device
    settle(p)
    p.in_place = 1
    index = leaf_index(&graph.g, PARAMETER_LEAF, &dim, &extra)
    graph.keep.setdefault(storage)
    return index


# ---- rows of tables ----------------------------------------------------------

# With weight decay, every update multiplies all values by 1 - lambda.  For parameters this happens in the
# pass over the values that an update makes anyway.  In a table, an update visits only a few rows, so the
# table has a factor instead, by which values are multiplied when they are read.

cdef int settle(Param* p) except -1:
    if p.device:                        # there, rows are late with weight decay, too: the factor stays 1
        return all_current(p)
    settle_here(p)
    return 0


cdef void settle_here(Param* p) noexcept nogil:
    catch_up_all(p)
    if p.factor == 1:
        return
    take(&settling)                     # of several threads that read it, one does it
    if p.factor != 1:
        K.scale(p.size, <float>p.factor, p.value, p.value)
        fence(RELEASE)
        p.factor = 1
        value_changed(p)
    drop(&settling)


cdef void lookup_forward(const Call* c) noexcept nogil:
    cdef Param* p = <Param*>c.object
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        if is_late(p, c.items[b]):
            read_late(p, c.items[b], c.y.v + b * n)
            if p.factor != 1:
                K.scale(n, <float>p.factor, c.y.v + b * n, c.y.v + b * n)
        elif p.factor == 1:
            memcpy(c.y.v + b * n, p.value + c.items[b] * n, n * sizeof(float))
        else:
            K.scale(n, <float>p.factor, p.value + c.items[b] * n, c.y.v + b * n)


cdef void lookup_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Param* p = <Param*>c.object
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        touch(p, c.items[b])
    K.add_rows(c.y.dim.bd, n, c.items, c.dy.v, p.grad)


cdef Op* LOOKUP_LEAF = register(b"lookup", b"", NULL, lookup_forward, lookup_backward)


cdef class LookupExpression(Expression):
    """The result of `lookup` and `lookup_batch`, whose indices can be changed.

    Example:
        >>> table = model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4]]))
        >>> row = dy.lookup(table, 0)
        >>> row.set(1)
        >>> row.npvalue()
        array([3., 4.])
    """

    def set(self, index):
        """Look up other rows; values that depend on them are then computed again.

        Args:
            index: for `lookup`, the number of a row; for `lookup_batch`, a list with as many numbers as before.

        Raises:
            IndexError: there is no such row.
            ValueError: the list has more or fewer numbers than the expression has batch elements.

        Example:
            >>> table = model.lookup_parameters_from_numpy(np.array([[1, 2], [3, 4]]))
            >>> rows = dy.lookup_batch(table, [0, 0])
            >>> rows.set([1, 0])
            >>> rows.npvalue()
            array([[3., 1.],
                   [4., 2.]])
        """
        cdef Graph* g = self.graph()
        cdef Node* x = nodes_of(g) + self.index
        cdef Param* p = <Param*>x.object
        cdef uint32_t i, n = x.dim.bd
        cdef uint32_t* own
        several = hasattr(index, "__len__") and not isinstance(index, str)
        if several and len(index) != n:
            raise ValueError(f"set: {len(index)} indices given where {n} are needed")
        if not several and n > 1:
            raise TypeError(f"set: a list of {n} indices is needed, not {index!r}")
        rows = [row_number(p, parameter_names[p.id], row, "set") for row in (index if several else (index,))]
        forget_to_set(g, self.index, "set")
        own = items_of(g, &nodes_of(g)[self.index])         # other items may have added nodes
        for i in range(n):
            own[i] = rows[i]


cdef Expression lookup_rows(Param* p, Storage storage, const uint32_t* rows, uint32_t n, bint update):
    """Rows of a table as a node of the current graph; their numbers must be in range."""
    cdef Dim dim = p.dim
    cdef Graph* g = claim_current()
    cdef uint32_t index
    cdef LookupExpression x
    cdef Extra extra = no_extra()
    extra.attrs[0].u = update                   # constant rows do not batch with trained ones
    extra.items = rows
    extra.n_items = n
    extra.item_count = 1
    extra.object = p
    extra.state = TRAINABLE if update else 0
    extra.device = 1 + p.device
    dim.bd = n
    try:
        index = leaf_index(g, LOOKUP_LEAF, &dim, &extra)
        owner_of(g).keep.setdefault(storage)
        if g.forward_only:
            return wrap(g, index)
        x = LookupExpression.__new__(LookupExpression)
        x.version = g.version
        x.slot = g.slot
        x.index = index
        return x
    finally:
        release_current(g)


cdef uint32_t odd_row_number(const Param* p, str name, row, str op) except? 0xFFFFFFFF:
    """`row_number` for anything but a small int in range."""
    if not hasattr(row, "__index__") and not (isinstance(row, numbers.Real) and row == int(row)):
        raise TypeError(f"{op}: index {row!r} of {name} must be a whole number")
    r = int(row)
    if not 0 <= r < p.rows:
        raise IndexError(f"{op}: index {r} is out of range for {name} with {p.rows} rows")
    return r
