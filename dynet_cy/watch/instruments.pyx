"""Instruments of passes: counts and times of calls, and checks for numbers that are not finite."""

import linecache
import sys
from typing import NamedTuple

from libc.math cimport isfinite, isnan
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from dynet_cy.core.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from dynet_cy.core.tensor cimport INTEGERS, Dim, size_of, total_of
from dynet_cy.core.threads cimport Number, Unlocked, acquire_lock, add_to, change, now, release_lock
from dynet_cy.graph.expressions cimport parameter_here
from dynet_cy.graph.origin cimport (
    argument_names, current_line, describe_dim, made_at, origin_at, place_at, release_code, scope_at, source_of_node,
)
from dynet_cy.graph.structs cimport (
    LIVE, NEEDS_GRAD, SHARED, TRAINABLE, Batch, Node, PassHooks, args_of, batches_of, gradient_of_node, is_dropped,
    items_of, nodes_of, order_of, origin_of, pass_hooks, state_of, value_of,
)
from dynet_cy.kernels.kernels cimport K
from dynet_cy.ops.registry cimport MAX_OPS, Op, op_at
from dynet_cy.schedule.speculation cimport track_requests, was_waiting
from dynet_cy.watch.lifetimes cimport note_lifetimes, recording
from dynet_cy.watch.timeline cimport BATCH, BATCH_AGAIN, BATCH_BACKWARD, WEIGHTS, end_span, span_of_call, tracing
from dynet_cy.watch.usage cimport note_level, note_peak

from dynet_cy.memory.storage import parameter_names
from dynet_cy.watch.usage import watch_peak


# ==== anomaly =====================================================================================
#
# Checks for numbers that are not finite, and the errors that explain them.
#
# Values are reported at the first op that produces them.  A NaN is always reported.  An infinity is not reported if it
# comes from an input, such as the mask of an attention, or if the op produces infinities by design (`log_softmax` with
# a restriction).  A parameter does not count as an input: if it is infinite, an update made it so.  The gradient of the
# loss is 1, so every gradient that is not finite is reported.

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
        dynet_cy.AnomalyError: log: a value of expression 1 {1} is not finite: 1 NaN of 1
    """

    op: str | None = None
    number: int | None = None
    backward: bool | None = None
    argument: str | None = None
    origin: Origin | None = None


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
        if not state_of(g)[arg] & SHARED and not is_finite(g, arg):
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
    if nodes_of(g)[ids[0]].dim.type == INTEGERS or K.all_finite(batch.bytes // sizeof(float), y):
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
            elif state[arg] & LIVE and not K.all_finite(total_of(&a.dim), gradient_of_node(g, a)):
                bad = True
                examine(gradient_of_node(g, a), total_of(&a.dim), &f.contents)
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
    return is_dropped(g, number) or x.dim.type == INTEGERS or K.all_finite(total_of(&x.dim), value_of(x))


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
    """The range of the numbers, and the count of those that are not finite."""
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
    """Every argument with its shape, its source and its contents."""
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
        if not f.contents.nan and (op.infinite or came_in(g, f.node, &f.contents)):
            whose = f"{name} returns infinities on purpose" if op.infinite else "the infinity comes from an argument"
            lines.append(f"    {whose}: check_validity accepts none, while --dynet-check and dy.detect_anomaly() do")
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
                     f"{contents_of(gradient_of_node(g, x), total_of(&x.dim))}")
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


def switch(on: bool):
    """Switch the checks on or off.  Checks stay on until they have been switched off as often as on."""
    if not on and checking == 0:
        raise RuntimeError("checks of values were switched off more often than on")
    change(&checking, 1 if on else -1)


def is_checking() -> bool:
    """Whether values and gradients are checked."""
    return checking > 0


# ==== profile =====================================================================================
#
# Counts of nodes and calls, and the time they took, by operation and, if lines are recorded, by line.

cdef enum:
    PLACES = MAX_OPS + 1            # the last one is for WEIGHT_GRADIENTS

# Graphs of several threads add to the same entry.
cdef struct Entry:
    Number nodes
    Number calls
    Number nanoseconds

cdef Entry* entries = NULL          # for each op, those of each way

# Counts of one line for one operation in one way.
cdef struct Line:
    uint64_t key                    # number of line and scope, op, way; 0: the slot is empty
    uint64_t last_call              # the last call that was counted, since a call counts once for each line
    Entry of

# A hash table, at most half full. The lock is held while it is read or changed.
cdef Line* lines = NULL
cdef size_t n_lines = 0, line_capacity = 0
cdef uint64_t n_calls = 0
cdef pthread_mutex_t lines_lock
pthread_mutex_init(&lines_lock, NULL)


class Counts(NamedTuple):
    """Counts for an operation in one direction."""

    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float
    again: bool


class LineCounts(NamedTuple):
    """Counts for an operation in one direction, made by one line of the program within one scope."""

    origin: Origin | None
    scope: str
    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float
    again: bool


class RequestCounts(NamedTuple):
    """The passes that a line of the program asked for."""

    origin: Origin | None
    passes: int
    values: int
    nodes: int
    seconds: float
    waited: int
    graphs: int
    of_map: bool


cdef class _Requests:
    """The passes that one line asked for."""

    cdef uint64_t passes, values, nodes, nanoseconds, waited, graphs, renewal
    cdef bint of_map

cdef dict requests = {}             # by the number of the line
cdef Unlocked requests_lock


cdef void note_time(uint32_t op, int way, uint32_t nodes, uint64_t duration) noexcept nogil:
    cdef Entry* e = entries + WAYS * min(op, <uint32_t>(PLACES - 1)) + way
    add_to(&e.nodes, nodes)
    add_to(&e.calls, 1)
    add_to(&e.nanoseconds, duration)


cdef void note(uint32_t op, int way, uint32_t nodes, uint64_t since) noexcept nogil:
    """Count one call of an op with `nodes` nodes, which began at time `since`."""
    note_time(op, way, nodes, now() - since)
    if tracing and op == <uint32_t>WEIGHT_GRADIENTS:
        end_span(WEIGHTS, since)


cdef inline Kind kind_of(int way) noexcept nogil:
    return BATCH if way == FORWARDS else BATCH_BACKWARD if way == BACKWARDS else BATCH_AGAIN


cdef void note_call(const Graph* g, uint32_t first, uint32_t count, int way, uint32_t nodes,
                    uint64_t since) noexcept nogil:
    cdef const uint32_t* ids = order_of(g) + first
    cdef uint32_t op = nodes_of(g)[ids[0]].op
    cdef uint64_t ended = now(), duration
    cdef Line* line
    cdef uint32_t j, n = 0
    note_time(op, way, nodes, ended - since)
    note_level(g)
    if tracing:
        span_of_call(g, first, count, kind_of(way), nodes, since, ended)
    if recording:
        note_lifetimes(g, first, count, way == BACKWARDS)
    if g.origins.top == 0 or nodes == 0:
        return
    duration = (ended - since) // nodes
    pthread_mutex_lock(&lines_lock)
    add_call()
    for j in range(count):
        if n == nodes or (way == BACKWARDS and not state_of(g)[ids[j]] & LIVE):
            continue
        n += 1
        line = line_for(<uint64_t>origin_of(g, ids[j]) << 32 | op << 2 | way)
        if line == NULL:                # no memory: not counted
            continue
        line.of.nodes += 1
        line.of.nanoseconds += duration
        line.of.calls += line.last_call != n_calls
        line.last_call = n_calls
    pthread_mutex_unlock(&lines_lock)


cdef void add_call() noexcept nogil:
    global n_calls
    n_calls += 1


cdef Line* place_of(Line* table, size_t capacity, uint64_t key) noexcept nogil:
    cdef size_t i = (key * 0x9E3779B97F4A7C15u >> 32) & (capacity - 1)
    while table[i].key and table[i].key != key:
        i = (i + 1) & (capacity - 1)
    return &table[i]


cdef Line* line_for(uint64_t key) noexcept nogil:
    """The entry of a line, made if there is none; NULL if there is no memory, or if no line was recorded."""
    global lines, n_lines, line_capacity
    cdef Line* found
    cdef Line* more
    cdef size_t i, capacity
    if key >> 32 == 0:
        return NULL
    if 2 * n_lines >= line_capacity:
        capacity = max(2 * line_capacity, <size_t>256)
        more = <Line*>calloc(capacity, sizeof(Line))
        if more == NULL:
            return NULL
        for i in range(line_capacity):
            if lines[i].key:
                place_of(more, capacity, lines[i].key)[0] = lines[i]
        free(lines)
        lines = more
        line_capacity = capacity
    found = place_of(lines, line_capacity, key)
    n_lines += found.key == 0
    found.key = key
    return found


cdef void note_pass(Graph* g, uint32_t targets, uint32_t nodes, bint of_map, uint64_t begun) noexcept:
    cdef uint64_t duration = now() - begun
    cdef uint32_t line = current_line()
    cdef bint waited = targets == 1 and not of_map and was_waiting(g)
    cdef _Requests x
    acquire_lock(&requests_lock)
    try:
        x = requests.get(line)
        if x is None:
            x = _Requests()
            requests[line] = x
        x.passes += 1
        x.values += targets
        x.nodes += nodes
        x.nanoseconds += duration
        x.waited += waited
        x.graphs += x.renewal != g.renewal
        x.renewal = g.renewal
        x.of_map = x.of_map or of_map
    finally:
        release_lock(&requests_lock)


cdef PassHooks* hooks = pass_hooks()
hooks.begin_pass = now
hooks.end = note_pass


cdef int end_pass(const Graph* g, Kind kind, uint64_t span) except -1:
    end_span(kind, span)
    return note_peak(g) if profiling else 0


cdef int list_batches(Graph* g, uint32_t first) except -1:
    """Write the batches that have run, from number `first` on, to stderr, one per line."""
    cdef const Batch* batch
    cdef const Node* node
    lines = ["Forward Call"]
    for i in range(first, g.n_batches):
        batch = &batches_of(g)[i]
        node = &nodes_of(g)[order_of(g)[batch.first]]
        lines.append(f"BatchSize:{batch.count} {op_at(node.op).name.decode()} {describe_dim(&node.dim)}"
                     f"{made_at(g, order_of(g)[batch.first])}")
    print("\n".join(lines), file=sys.stderr)
    return 0


def request_counts() -> list[RequestCounts]:
    """The passes that each line has asked for, as a list of RequestCounts."""
    found = []
    for line, counted in list(requests.items()):
        x = <_Requests>counted
        found.append(RequestCounts(
            origin_at(<uint32_t>line), x.passes, x.values, x.nodes, x.nanoseconds / 1e9, x.waited, x.graphs, x.of_map))
    return found


def line_counts() -> list[LineCounts]:
    """The counts by line, as a list of LineCounts."""
    cdef size_t i, capacity
    cdef Line* x
    cdef Line* all
    found = []
    pthread_mutex_lock(&lines_lock)
    capacity = line_capacity
    all = <Line*>calloc(capacity + 1, sizeof(Line))
    if all != NULL and capacity:
        memcpy(all, lines, capacity * sizeof(Line))     # making objects may run any code, which may change the table
    pthread_mutex_unlock(&lines_lock)
    if all == NULL:
        raise MemoryError("the profile by line")
    try:
        for i in range(capacity):
            x = &all[i]
            if x.key:
                found.append(LineCounts(
                    origin_at(<uint32_t>(x.key >> 32)), scope_at(<uint32_t>(x.key >> 32)),
                    op_at(<uint32_t>x.key >> 2).name.decode(), (x.key & 3) == BACKWARDS,
                    x.of.nodes, x.of.calls, x.of.nanoseconds / 1e9, (x.key & 3) == AGAIN))
    finally:
        free(all)
    return found


def counts() -> list[Counts]:
    """The counts by operation, as a list of Counts, without operations that did not run."""
    found = []
    if entries != NULL:
        for i in range(WAYS * PLACES):
            if entries[i].calls:
                name = "weight gradients" if i // WAYS == PLACES - 1 else op_at(i // WAYS).name.decode()
                found.append(Counts(name, i % WAYS == BACKWARDS, entries[i].nodes, entries[i].calls,
                                    entries[i].nanoseconds / 1e9, i % WAYS == AGAIN))
    return found


def reset():
    """Count from zero again."""
    global n_lines
    for i in range(WAYS * PLACES if entries != NULL else 0):
        entries[i].nodes = entries[i].calls = entries[i].nanoseconds = 0
    requests.clear()
    watch_peak()
    pthread_mutex_lock(&lines_lock)
    if line_capacity:
        memset(lines, 0, line_capacity * sizeof(Line))
    n_lines = 0
    pthread_mutex_unlock(&lines_lock)


def set_level(int level):
    """Measure (1), list every batch on stderr too (2), or do neither (0)."""
    global profiling, entries
    if level > 0 and entries == NULL:
        entries = <Entry*>calloc(WAYS * PLACES, sizeof(Entry))
        if entries == NULL:
            raise MemoryError("the table of the profile")
    profiling = max(level, 0)
    hooks.on = profiling > 0
    track_requests(profiling > 0)
    release_code()


def level() -> int:
    """The level that `set_level` has set."""
    return profiling
