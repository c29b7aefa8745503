"""Checks for numbers that are not finite, and the errors that explain them.

Values are reported at the first op that produces them.  A NaN is always reported.  An infinity is not reported if it
comes from an input, such as the mask of an attention, or if the op produces infinities by design (`log_softmax` with
a restriction).  A parameter does not count as an input: if it is infinite, an update made it so.  The gradient of the
loss is 1, so every gradient that is not finite is reported.
"""

import linecache

from libc.math cimport isfinite, isnan
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from dynet_cy.core.atomic cimport change
from dynet_cy.core.mutex cimport pthread_mutex_lock, pthread_mutex_unlock
from dynet_cy.core.tensor cimport Dim, size_of, total_of
from dynet_cy.graph.computing cimport parameter_here
from dynet_cy.graph.messages cimport argument_names, describe_dim, made_at, source_of_node
from dynet_cy.graph.origin cimport origin_at, place_at
from dynet_cy.graph.structs cimport (
    LIVE, NEEDS_GRAD, SHARED, TRAINABLE, Node, args_of, gradient_at, items_of, nodes_of, order_of, origin_of,
    state_of, value_of,
)
from dynet_cy.kernels.kernels cimport K
from dynet_cy.ops.registry cimport Op, op_at

from dynet_cy.memory.storage import parameter_names


cdef enum:
    MOST_SHOWN = 12                 # arguments in a message


class AnomalyError(ValueError):
    """A value or a gradient is not finite: see `detect_anomaly`.

    Attributes:
        op: name of the operation that made it.
        number: of the expression, in the order of making.
        backward: whether it is a gradient.
        argument: name of the argument whose gradient it is; None for a value.
        origin: the line that made the expression, an Origin of file, line and function; None where it is not recorded.

    Example:
        >>> with dy.detect_anomaly():
        ...     dy.log(dy.inputVector([-1])).value()
        Traceback (most recent call last):
            ...
        dynet_cy.execute.anomaly.AnomalyError: log: a value of expression 1 {1} is not finite: 1 NaN of 1
    """

    op = number = backward = argument = origin = None


# ---- checks --------------------------------------------------------------------

cdef void examine(const float* v, size_t n, Contents* c) noexcept nogil:
    cdef size_t i
    cdef float x
    memset(c, 0, sizeof(Contents))
    c.n = n
    for i in range(n):
        x = v[i]
        if isfinite(x):
            if c.nan + c.up + c.down == i:              # the first finite number
                c.low = c.high = x
            c.low = min(c.low, x)
            c.high = max(c.high, x)
            c.zero += x == 0
        else:
            if c.nan + c.up + c.down == 0:
                c.first = i
            c.nan += isnan(x)
            c.up += not isnan(x) and x > 0
            c.down += not isnan(x) and x < 0


cdef bint came_in(const Graph* g, uint32_t number, const Contents* found) noexcept nogil:
    """Whether arguments other than parameters hold infinities of the same signs."""
    cdef const Node* x = &nodes_of(g)[number]
    cdef const Node* a
    cdef Contents c
    cdef size_t up = 0, down = 0
    cdef uint32_t i, arg
    for i in range(x.nargs):
        arg = args_of(g, x)[i]
        a = &nodes_of(g)[arg]
        if not state_of(g)[arg] & SHARED and not K.all_finite(total_of(&a.dim), value_of(a)):
            examine(value_of(a), total_of(&a.dim), &c)
            up += c.up
            down += c.down
    return (found.up == 0 or up != 0) and (found.down == 0 or down != 0)


cdef bint bad_values(const Graph* g, const Batch* batch, bint strict, Finding* f) noexcept nogil:
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const float* y = batch.y
    cdef const Node* x
    cdef size_t n
    cdef uint32_t j
    if K.all_finite(batch.bytes // sizeof(float), y):
        return False
    for j in range(batch.count):
        x = &nodes_of(g)[ids[j]]
        n = total_of(&x.dim)
        if not K.all_finite(n, y):
            examine(y, n, &f.contents)
            if strict or f.contents.nan or not (op_at(x.op).infinite or came_in(g, ids[j], &f.contents)):
                f.kind = VALUE
                f.node = ids[j]
                f.together = batch.count
                return True
        y += n
    return False


cdef bint bad_parameter(Param* p, Finding* f) noexcept nogil:
    cdef bint bad
    pthread_mutex_lock(&p.lock)
    bad = not K.all_finite(p.size, p.grad)
    if bad:
        examine(p.grad, p.size, &f.contents)
    pthread_mutex_unlock(&p.lock)
    return bad


cdef bint bad_gradients(const Graph* g, const Batch* batch, Finding* f) noexcept nogil:
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const uint8_t* state = state_of(g)
    cdef const Node* a
    cdef uint32_t i, j, arg, before
    cdef bint bad
    for i in range(nodes_of(g)[ids[0]].nargs):
        before = 0xFFFFFFFF
        for j in range(batch.count):
            arg = args_of(g, &nodes_of(g)[ids[j]])[i]
            if arg == before or not state[arg] & NEEDS_GRAD:    # several nodes often share one
                continue
            before = arg
            a = &nodes_of(g)[arg]
            bad = False
            if a.val == NULL:
                bad = state[arg] & TRAINABLE and bad_parameter(<Param*>a.object, f)
            elif state[arg] & LIVE and not K.all_finite(total_of(&a.dim), gradient_at(g, a.val)):
                bad = True
                examine(gradient_at(g, a.val), total_of(&a.dim), &f.contents)
            if bad:
                f.kind = GRADIENT
                f.node = suspect(g, batch, i, j)
                f.argument = i
                f.together = batch.count
                return True
    return False


cdef uint32_t suspect(const Graph* g, const Batch* batch, uint32_t i, uint32_t j) noexcept nogil:
    """Of the nodes of a batch that share argument i with node j, the first whose numbers are not all finite."""
    cdef const uint32_t* ids = order_of(g) + batch.first
    cdef const uint32_t* args
    cdef uint32_t k, m, arg = args_of(g, &nodes_of(g)[ids[j]])[i]
    cdef const Node* x
    for k in range(j, batch.count):
        x = &nodes_of(g)[ids[k]]
        args = args_of(g, x)
        if args[i] != arg:
            break
        if not is_finite(g, ids[k]):
            return ids[k]
        for m in range(x.nargs):
            if not is_finite(g, args[m]):
                return ids[k]
    return ids[j]


cdef bint is_finite(const Graph* g, uint32_t number) noexcept nogil:
    cdef const Node* x = &nodes_of(g)[number]
    return K.all_finite(total_of(&x.dim), value_of(x))


cdef bint bad_collected(const Graph* g, Param* p, Finding* f) noexcept nogil:
    """Reports the last node that uses the parameter and has an argument that is not finite, or else the last user."""
    cdef const Node* x
    cdef uint32_t i, k, m, arg
    if not bad_parameter(p, f):
        return False
    f.kind = COLLECTED
    f.together = 1
    f.node = 0xFFFFFFFF
    for m in range(g.n_nodes):
        i = g.n_nodes - 1 - m
        x = &nodes_of(g)[i]
        if not state_of(g)[i] & LIVE:
            continue
        for k in range(x.nargs):
            arg = args_of(g, x)[k]
            if nodes_of(g)[arg].object == p and state_of(g)[arg] & SHARED:
                if f.node == <uint32_t>0xFFFFFFFF:
                    f.node = i
                    f.argument = k
                if not is_finite(g, args_of(g, x)[0]) or not is_finite(g, args_of(g, x)[x.nargs - 1]):
                    f.node = i
                    f.argument = k
                    return True
    return True


cdef int check_before(const Graph* g, uint32_t target) except -1:
    cdef Finding f
    cdef Param* p
    cdef uint32_t i
    memset(&f, 0, sizeof(Finding))
    for i in range(target + 1):
        if (state_of(g)[i] & (SHARED | TRAINABLE)) == (SHARED | TRAINABLE):
            p = <Param*>nodes_of(g)[i].object
            parameter_here(p, True)
            if bad_parameter(p, &f):
                f.kind = BEFORE
                f.node = i
                raise_anomaly(g, &f)
    return 0


# ---- error messages ------------------------------------------------------------

cdef str kinds(const Contents* c):
    found = [f"{count} {name}" for count, name in ((c.nan, "NaN"), (c.up, "inf"), (c.down, "-inf")) if count]
    return ", ".join(found)


cdef str described(const Contents* c):
    """The range of the numbers, and how many are not finite."""
    cdef size_t strange = c.nan + c.up + c.down
    parts = [f"{kinds(c)} of {c.n}"] if strange else []
    if strange + 1 == c.n:
        parts.append(f"{'the other ' if strange else ''}{c.low:.6g}")
    elif strange < c.n:
        span = f"from {c.low:.6g} to {c.high:.6g}" if c.low < c.high else f"{c.low:.6g}"
        parts.append(f"the others {span}" if strange else span if c.low < c.high else f"all {span}")
    if c.zero and c.low < c.high:
        parts.append(f"{c.zero} {'zero' if c.zero == 1 else 'zeros'}")
    return ", ".join(parts)


cdef str contents_of(const float* v, size_t n):
    cdef Contents c
    examine(v, n, &c)
    return described(&c)


cdef str trouble(const Contents* c, const Dim* d):
    """How many numbers are not finite, of what kind, and where the first one is."""
    cdef size_t at = c.first % size_of(d)
    cdef uint32_t i
    place = []
    for i in range(d.nd):
        place.append(str(at % d.d[i]))
        at //= d.d[i]
    text = f"{kinds(c)} of {c.n}"
    if c.n > 1:
        text += f", the first is element [{', '.join(place)}]"
        if d.bd > 1:
            text += f" of batch element {c.first // size_of(d)}"
    return text


cdef list line_of(const Graph* g, uint32_t number):
    """The line of the program that made a node."""
    origin = origin_at(origin_of(g, number))
    if origin is None:
        return ["    made before lines were recorded (dy.detect_anomaly, dy.record_lines)"]
    source = linecache.getline(origin.file, origin.line).strip()
    return [f"    made{place_at(origin_of(g, number))}"] + ([f"        {source}"] if source else [])


cdef list lines_of_arguments(const Graph* g, uint32_t number):
    """Every argument with its shape, its source and what it holds."""
    cdef const Node* x = &nodes_of(g)[number]
    cdef const Node* a
    cdef uint32_t i, arg
    rows, odd = [], []
    for i in range(x.nargs):
        arg = args_of(g, x)[i]
        a = &nodes_of(g)[arg]
        rows.append((describe_dim(&a.dim), f"{source_of_node(g, arg)}: "
                     f"{contents_of(value_of(a), total_of(&a.dim))}{made_at(g, arg)}"))
        if not K.all_finite(total_of(&a.dim), value_of(a)):
            odd.append(i)
    names = argument_names(op_at(x.op), x.nargs)
    shown = list(range(len(rows)))
    if len(rows) > MOST_SHOWN:                          # those that are not finite first
        shown = (odd + [i for i in shown if i not in odd])[:MOST_SHOWN]
        shown.sort()
    name_width = max([len(names[i]) for i in shown], default=0)
    width = max([len(rows[i][0]) for i in shown], default=0)
    lines = [f"    {names[i]:{name_width}}  {rows[i][0]:{width}}  {rows[i][1]}" for i in shown]
    if len(shown) < len(rows):
        lines.append(f"    and {len(rows) - len(shown)} arguments more")
    return lines


cdef list advice(const Graph* g, uint32_t number):
    """A hint if an argument is a parameter that is not finite."""
    cdef const Node* x = &nodes_of(g)[number]
    cdef uint32_t i, arg
    for i in range(x.nargs):
        arg = args_of(g, x)[i]
        if state_of(g)[arg] & SHARED and not is_finite(g, arg):
            return [f"    {source_of_node(g, arg)} is not finite itself: an update made it so (is the learning rate "
                    "too large?), or it had that value when it was set or loaded"]
    return []


cdef str table_of(const Graph* g, uint32_t number, const Contents* c):
    """For a row of a lookup table: the number of the row and the name of the table."""
    cdef Node* x = &nodes_of(g)[number]
    if x.nargs or x.object == NULL or state_of(g)[number] & SHARED or x.item_count != 1:
        return ""
    row = items_of(g, x)[c.first // size_of(&x.dim)]
    return f", row {row} of {parameter_names.get((<Param*>x.object).id, '?')}"


cdef int raise_anomaly(const Graph* g, const Finding* f) except -1:
    cdef const Node* x = &nodes_of(g)[f.node]
    cdef const Op* op = op_at(x.op)
    cdef const Dim* of = &x.dim
    cdef uint32_t arg
    name = op.name.decode()
    argument = None
    what = f"expression {f.node} {describe_dim(&x.dim)}"
    if f.kind == BEFORE:
        error = AnomalyError(
            f"backward: the gradient of {source_of_node(g, f.node)} was not finite before: {trouble(&f.contents, of)}; "
            "an earlier backward left it, and zero_gradients() of collections and trainers clears it")
    elif f.kind == VALUE:
        lines = [f"{name}: a value of {what} is not finite: {trouble(&f.contents, of)}"
                 f"{table_of(g, f.node, &f.contents)}"]
        lines += line_of(g, f.node) + lines_of_arguments(g, f.node) + advice(g, f.node)
    else:
        arg = args_of(g, x)[f.argument]
        of = &nodes_of(g)[arg].dim
        argument = argument_names(op, x.nargs)[f.argument]
        whose = argument
        if state_of(g)[arg] & SHARED:
            whose += f" ({source_of_node(g, arg)})"
        sums = ", a sum over all that use it" if f.kind == COLLECTED else ""
        lines = [f"backward of {name}: the gradient of {whose} is not finite: {trouble(&f.contents, of)}{sums}"]
        lines.append(f"    in {what}, whose value is {contents_of(value_of(x), total_of(&x.dim))} and its gradient "
                     f"{contents_of(gradient_at(g, x.val), total_of(&x.dim))}")
        lines += line_of(g, f.node) + lines_of_arguments(g, f.node) + advice(g, f.node)
    if f.kind != BEFORE:
        if f.together > 1:
            lines.append(f"    it ran in one batch with {f.together - 1} more of {name}")
        error = AnomalyError("\n".join(lines))
    error.op = name
    error.number = f.node
    error.backward = f.kind != VALUE
    error.argument = argument
    error.origin = origin_at(origin_of(g, f.node))
    raise error


def switch(on):
    """Switch the checks on or off.  They stay on until they have been switched off as often as on."""
    if not on and checking == 0:
        raise RuntimeError("checks of values were switched off more often than on")
    change(&checking, 1 if on else -1)


def is_checking():
    """Whether values and gradients are checked."""
    return checking > 0
