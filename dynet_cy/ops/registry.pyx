"""The table of ops, filled by the families when they are imported."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport INTEGERS, axis_of, same_shape, total_of

# Pointers to ops are kept by families and graphs, so the table never moves.
cdef Op table[MAX_OPS]
cdef uint32_t n_ops = 0

_by_name = {}


class DimensionError(ValueError):
    """Shapes of arguments that do not fit an op.

    The message gives the rule that was broken and every argument by name.

    Example:
        >>> dy.inputVector([1, 2]) + dy.inputVector([1, 2, 3])
        Traceback (most recent call last):
            ...
        dynet_cy.ops.registry.DimensionError: add: shapes do not fit
    """


cdef Op* register(const char* name, const char* args, DimRule dim, Forward forward, Backward backward, int traits=0,
                  Work work=NULL, Saved saved=NULL) except NULL:
    """Add an op.  `traits`: what backward does not read, ASSIGNS, RAGGED, RANDOM, BY_ELEMENT.  The caller sets its
    other fields, before its first use."""
    key = name.decode()
    if key in _by_name:
        raise RuntimeError(f"op {key} is registered twice")
    cdef Op* op = register_nameless(name, args, dim, forward, backward)
    op.unread = traits & UNREAD
    op.assigns = traits & ASSIGNS != 0
    op.ragged = traits & RAGGED != 0
    op.random = traits & RANDOM != 0
    op.batching = FLAT if traits & BY_ELEMENT else BATCH
    op.work = work
    op.saved = saved
    _by_name[key] = op.id
    return op


cdef Op* register_nameless(const char* name, const char* args, DimRule dim, Forward forward,
                           Backward backward) except NULL:
    """Add an op that `describe` does not know."""
    global n_ops
    if n_ops == MAX_OPS:
        raise RuntimeError(f"{name.decode()}: more than {MAX_OPS} ops are registered")
    cdef Op* op = &table[n_ops]
    memset(op, 0, sizeof(Op))
    op.name = name
    op.args = args
    op.id = n_ops
    op.dim = dim
    op.forward = forward
    op.backward = backward
    op.batching = BATCH
    op.needs[CPU].lists = True
    op.alone_because = b""
    op.no_gradient_because = b""
    n_ops += 1
    return op


cdef Op* op_at(uint32_t id) noexcept nogil:
    return &table[id]


cdef int need_d(const Shapes* s) except -1:
    """Attribute 0, named d, must be an axis of x."""
    if s.attrs[0].u >= s.x[0].nd:
        raise DimensionError(f"d must be an axis of x, from 0 to {<int>s.x[0].nd - 1}")
    return 0


cdef int need_axis(const Shapes* s) except -1:
    """Attribute 0 must be an axis of x; a number has one too."""
    if s.attrs[0].i < 0 or s.attrs[0].u >= max(s.x[0].nd, <uint32_t>1):
        raise DimensionError(f"x has no axis {s.attrs[0].i}")
    return 0


cdef int same_dim(const Shapes* s, Dim* y) except -1:
    """Shape rule of elementwise ops of one argument: y has the shape of x."""
    cdef uint32_t i
    y.nd = s.x[0].nd
    for i in range(y.nd):
        y.d[i] = s.x[0].d[i]
    return 0


cdef int equal_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i
    for i in range(1, s.n):
        if not same_shape(s.x[i], s.x[0]):
            raise DimensionError(f"xs[{i}] differs in shape from xs[0]")
    return same_dim(s, y)


cdef int broadcast_dim(const Shapes* s, Dim* y) except -1:
    """Shape rule of elementwise ops of two arguments: an axis of size 1 is repeated to match the other one."""
    cdef uint32_t i, m, n
    y.nd = max(s.x[0].nd, s.x[1].nd)
    for i in range(y.nd):
        m = axis_of(s.x[0], i)
        n = axis_of(s.x[1], i)
        if m != n and m != 1 and n != 1:
            raise DimensionError(f"a has {m} elements along axis {i} but b has {n}")
        y.d[i] = n if m == 1 else m
    return 0


cdef size_t as_many_as_y(const Call* c) noexcept nogil:
    """The size of what an op saves: a number for each of y."""
    return total_of(&c.y.dim)


cdef size_t twice_as_many(const Call* c) noexcept nogil:
    return 2 * total_of(&c.y.dim)


# stub: (name: None = None) -> list[dict[str, Any]]
# stub: (name: str) -> dict[str, Any]
def describe(name=None):
    """Facts about one op, or about all of them, as dictionaries.

    Args:
        name: name of an op; all ops when omitted.

    Returns:
        A dictionary, or a list of them in order of registration, with the keys
        name, args, batching, rules, columns, ragged, gradient (True, or why there
        is none), alone_because; integers and moves: for arguments 0, 1 3 5..., 2 4 6...
        whether they may be integers, and whether the result has their type; and result,
        the type of other results.

    Raises:
        KeyError: there is no op of that name.
    """
    if name is not None:
        return _describe(_by_name[name])
    return [_describe(i) for i in _by_name.values()]


cdef _describe(uint32_t i):
    cdef Op* op = &table[i]
    rules = {STACK: "stack", LIST: "list", SHARE: "share"}
    return {
        "name": op.name.decode(),
        "args": op.args.decode(),
        "batching": {BATCH: "batch", FLAT: "flat", ALONE: "alone"}[op.batching],
        "rules": [rules[op.rule[k]] for k in range(3)],
        "columns": bool(op.columns),
        "ragged": bool(op.ragged),
        "gradient": op.backward != NULL or op.no_gradient_because.decode(),
        "alone_because": op.alone_because.decode(),
        "integers": [bool(op.integers >> k & 1) for k in range(3)],
        "moves": [bool(op.moves >> k & 1) for k in range(3)],
        "result": "int32" if op.result == INTEGERS else "float32",
    }
