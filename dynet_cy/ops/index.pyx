"""Indices from the graph, and ops that only move elements: the rows of `include/dynet_cy/index.def`."""

from collections.abc import Sequence
from typing import NamedTuple

from dynet_cy.ops.registry import DimensionError

import numpy as np
import numpy.typing as npt

from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint32_t
from libc.string cimport memset, strcmp

from dynet_cy.core.tensor cimport FLOATS, INTEGERS, Attr, Call, Dim, Tensor, number_at, size_of
from dynet_cy.kernels.kernels cimport K, dy_kernels
from dynet_cy.memory.bridge cimport dim_from_shape, memory_of
from dynet_cy.ops.loops cimport Split, split_at, without
from dynet_cy.ops.registry cimport (
    ALL, FIRST, LIST, MAX_OPS, SECOND, UNREAD, UNREAD_ODD, DimRule, Op, Shapes, need_d, register,
)


# ==== positions ===================================================================================
#
# Indices from the graph: errors for indices out of range.

cdef extern from "refusal.h":
    # derived: structs of Refusal
    ctypedef struct Refusal "dy_refusal":
        uint32_t function
        uint32_t b
        uint32_t n
        uint32_t any
        size_t k
        double v
        uint32_t node
    # end of structs
    # derived: variables of last = dy_refused
    Refusal last "dy_refused"
    # end of variables


cdef list functions = [None]                    # by number: a function from a refusal to its error


cdef uint32_t number_of(object function) except 0:
    if function not in functions:
        functions.append(function)
    return <uint32_t>functions.index(function)


cdef uint32_t function_number(str name, str barred=None) except 0:
    return number_of(_BadIndex(name, barred))


cdef uint32_t chooser_number(str name, str never=None, tuple arguments=("x",)) except 0:
    return number_of(_NoChoice(name, never, arguments))


class _BadIndex(NamedTuple):
    name: str
    barred: str                                 # what is wrong with the index BARRED, or None

    def error(self, k, batch, v, n):
        at = f"element {k}{batch}"
        if self.barred is not None and v == BARRED:
            return IndexError(f"{self.name}: {self.barred}, at {at}")
        value = str(int(v)) if v == v and abs(v) < 2**31 and v == int(v) else repr(float(v))
        needed = f"it must be a whole number from 0 to {n - 1}" if n else "there is nothing to choose from"
        return IndexError(f"{self.name}: the index is {value} at {at}; {needed}")


class _NoChoice(NamedTuple):
    name: str
    never: str                                  # what is said if the best is -inf; may have {k} and {batch}
    arguments: tuple                            # names

    def error(self, k, batch, v, n):
        if v < 0:
            return ValueError(f"{self.name}: {self.never.format(k=k, batch=batch)}")
        return ValueError(f"{self.name}: {self.arguments[n]} is {'NaN' if v != v else v} at element {k}{batch}")


cdef void refuse(uint32_t function, const Tensor* x, uint32_t b, size_t k, uint32_t n) noexcept nogil:
    refuse_number(function, number_at(x, b, k), b, k, n)


cdef void refuse_number(uint32_t function, double v, uint32_t b, size_t k, uint32_t n) noexcept nogil:
    global last
    if last.any:
        return
    last.any = True
    last.function = function
    last.b = b
    last.k = k
    last.v = v
    last.n = n


cdef void* refused() noexcept nogil:
    if not last.any:
        return NULL
    last.any = False
    return error_of_refusal()


cdef uint32_t refused_element() noexcept nogil:
    return last.b


cdef void locate(uint32_t node, uint32_t b) noexcept nogil:
    global last
    last.node = 1 + node
    last.b = b


cdef uint32_t located() noexcept nogil:
    cdef uint32_t node = last.node
    last.node = 0
    return node - 1


cdef object located_refusal():
    return refusal(last.function, last.b, last.k, last.v, last.n)


cdef void* error_of_refusal() noexcept with gil:
    error = refusal(last.function, last.b, last.k, last.v, last.n)
    Py_INCREF(error)
    return <void*>error


cdef object refusal(uint32_t function, uint32_t b, size_t k, double v, uint32_t n):
    return functions[function].error(k, f" of batch element {b}" if b else "", v, n)


cdef int need_positions(const Dim* indices, size_t n) except -1:
    if n > MOST_POSITIONS and indices.type == FLOATS:
        raise DimensionError(
            f"an index in floats reaches {<int>MOST_POSITIONS} elements (2^24), but there are {n}; integers reach all, "
            "such as those of argmax, input_indices and to_int")
    return 0


cdef void chooses(Op* op, const char* because) noexcept:
    op.result = INTEGERS
    op.raised = refused
    op.no_gradient_because = because


cdef int choice_dim(const Shapes* s, Dim* y) except -1:
    need_d(s)
    if s.x[0].d[s.attrs[0].u] == 0:
        raise DimensionError("x has no elements along d")
    without(s.x[0], <uint32_t>1 << s.attrs[0].u, y)
    return 0


cdef int need_one(const Shapes* s, uint32_t i) except -1:
    if size_of(s.x[i]) != 1:
        raise DimensionError("the index must be one number for each batch element")
    return 0


# ==== index =======================================================================================
#
# Ops that only move elements.

cdef extern from "dynet_cy/index.h" nogil:
    int (*dy_index_find)(const Call* c, const Dim* all, uint32_t* items) noexcept nogil
    # derived: constants of READS = DY_INDEX_READS, TURNS = DY_INDEX_TURNS, ADDS = DY_INDEX_ADDS, LAYS = DY_INDEX_LAYS,
    #     COUNT = DY_INDEX_COUNT
    int READS "DY_INDEX_READS"
    int TURNS "DY_INDEX_TURNS"
    int ADDS "DY_INDEX_ADDS"
    int LAYS "DY_INDEX_LAYS"
    int COUNT "DY_INDEX_COUNT"
    # end of constants
    # derived: structs of Row = dy_index_row
    ctypedef struct Row "dy_index_row":
        const char* name
        int way
        int positions
        void (*places)(const Call* c, uint32_t i, Places* p) noexcept nogil
        void (*forward)(const Call* c) noexcept nogil
        void (*backward)(const Call* c, uint32_t i) noexcept nogil
        size_t (*work)(const Call* c, int i) noexcept nogil
        size_t (*part)(const Call* c, uint32_t i) noexcept nogil
    # end of structs
    # derived: variables of dy_index_kernels, dy_index_rows
    const dy_kernels* dy_index_kernels
    const Row dy_index_rows[]
    # end of variables


ctypedef const Row* RowOf

cdef RowOf[MAX_OPS] rows                        # by number of the op


cdef int find(const Call* c, const Dim* all, uint32_t* items) noexcept nogil:
    """Write the positions of argument 1 as items; those of each element as places in one long vector."""
    cdef Split s = split_at(all, c.attrs[0].u)
    cdef size_t n = size_of(&c.x[1].dim), k, line, column
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        for k in range(n):
            if not is_position(&c.x[1], b, k, <uint32_t>s.len, &items[k]):
                refuse(c.attrs[3].u, &c.x[1], b, k, <uint32_t>s.len)
                return False
        k = 0
        for line in range(s.post if c.attrs[1].u == <uint32_t>OWN_POSITIONS else 0):
            while k < n // s.post * (line + 1):
                for column in range(s.pre):
                    items[k] = <uint32_t>((line * s.len + items[k]) * s.pre + column)
                    k += 1
        items += n
    return True


dy_index_kernels = K
dy_index_find = find


# Of each op: "reads" if its result is a part of its argument, or else "turns", "adds" or "lays", as in index.def.
ways: dict[str, str] = {}


cdef const Row* row_of(const char* name) except NULL:
    cdef int i
    for i in range(COUNT):
        if strcmp(dy_index_rows[i].name, name) == 0:
            return &dy_index_rows[i]
    raise RuntimeError(f"index.def has no row {name.decode()}")


cdef Op* index_op(const char* name, const char* args, DimRule dim) except NULL:
    cdef const Row* row = row_of(name)
    cdef Op* op = register(name, args, dim, row.forward, row.backward)
    rows[op.id] = row
    ways[name.decode()] = {READS: "reads", TURNS: "turns", ADDS: "adds", LAYS: "lays"}[row.way]
    op.unread = UNREAD
    if row.way != ADDS:
        op.moves = ALL if row.way == LAYS else FIRST
    if row.way != READS:
        op.assigns = True
    if row.way == READS or row.way == LAYS:
        op.rule[0] = LIST
    if row.way == LAYS:
        op.part = row.part
        op.rule[1] = op.rule[2] = LIST
    if row.way == ADDS or row.positions:
        op.work = row.work
    if row.positions:
        op.unread = UNREAD & ~UNREAD_ODD
        op.integers = SECOND
        op.raised = refused
    return op


cdef void places_of(uint32_t op, const Call* c, uint32_t i, Places* p) noexcept nogil:
    memset(p, 0, sizeof(Places))                    # records of launches are compared byte by byte
    rows[op].places(c, i, p)


cdef bint has_positions(uint32_t op) noexcept nogil:
    return rows[op].positions


cdef int set_tensor(Tensor* x, tuple dim, object numbers) except -1:
    memset(x, 0, sizeof(Tensor))
    dim_from_shape(dim[0], &x.dim, "read_places")
    x.dim.bd = dim[1]
    x.bstride = size_of(&x.dim) if x.dim.bd > 1 else 0
    x.v = <float*>memory_of(numbers)
    return 0


def read_places(
    name: str, x: tuple[tuple[int, ...], int], y: tuple[tuple[int, ...], int], attrs: Sequence[int],
    items: npt.NDArray[np.int64],
) -> npt.NDArray[np.int32]:
    """Which elements of its argument an op reads, counted over all batch elements: one number for each of its result.

    Args:
        name: of the op.
        x, y: shape and batch size of the argument and of the result.
        attrs, items: those of the node; a row of items for each batch element.
    """
    cdef Tensor source
    cdef Attr[4] words
    cdef Call c
    cdef int k
    memset(&c, 0, sizeof(Call))
    listed = np.ascontiguousarray(items.ravel(), np.uint32)
    numbers = np.arange(np.prod(x[0], dtype=np.int64) * x[1], dtype=np.int32)
    found = np.empty(np.prod(y[0], dtype=np.int64) * y[1], np.int32)
    set_tensor(&source, x, numbers)
    set_tensor(&c.y, y, found)
    for k in range(4):
        words[k].u = attrs[k]
    c.n = 1
    c.x = &source
    c.attrs = words
    c.items = <uint32_t*>memory_of(listed)
    c.item_count = items.shape[1]
    if len(found):
        row_of(name.encode()).forward(&c)               # bit by bit
    return found
