"""The open graphs: all of them by slot, the current one, the nodes that they forget, and the devices of nodes."""

import contextvars
import os
import threading

from libc.stdint cimport SIZE_MAX, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memset

from dynet_cy.core.mutex cimport pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
from dynet_cy.core.tensor cimport total_of
from dynet_cy.core.threads cimport (
    ACQUIRE, HAS_GIL, RELEASE, Number, add_to, exchange_number, follows_dynet, set_number, try_acquire_lock,
)
from dynet_cy.graph.origin cimport explain
from dynet_cy.graph.structs cimport (
    COMPUTED, DROPPED, GRAPH_ARENAS, GRAPH_ARRAYS, MOVABLE, NO_BATCH, REVERT_BITS, RUNNING, SENT, Absorbed, Batch,
    Extra, Graph, Node, Use, args_of, batches_of, cut_regions, cut_stretches, drop_unneeded, forget_stretches,
    holder_in, nodes_of, origin_of, speculation_hooks, state_of, uses_of, value_leaves,
)
from dynet_cy.memory.arena cimport (
    Arena, arena_offset, arena_rewind, arena_trim, array_close, array_open, array_push, array_rewind, array_trim,
    has_room, out_of_memory, set_reclaim, shortages,
)
from dynet_cy.memory.storage cimport give_back_panels, see_whole
from dynet_cy.ops.registry cimport Op, op_at

from dynet_cy.core.devices import check_device


# ==== table =======================================================================================
#
# All open graphs, by slot, and the memory that they can free.

cdef Table table
table.n_slots = 0
cdef uint32_t first_free = 0         # all slots before it are taken
# Held while slots are taken and freed.
cdef pthread_mutex_t slots_lock
pthread_mutex_init(&slots_lock, NULL)


def _unlock():
    """In a child that was just forked: threads that no longer exist may have held locks."""
    cdef uint32_t slot
    pthread_mutex_init(&slots_lock, NULL)
    if not HAS_GIL:
        for slot in range(table.n_slots):
            memset(&table.guards[slot], 0, sizeof(Guard))


os.register_at_fork(after_in_child=_unlock)


cdef Table* graph_table() noexcept:
    return &table


cdef int enter_table(Graph* g, void* owner) except -1:
    """Put a graph into the first free slot."""
    global first_free
    cdef uint32_t slot
    pthread_mutex_lock(&slots_lock)
    slot = first_free
    while slot < table.n_slots and table.graphs[slot] != NULL:
        slot += 1
    first_free = slot
    if slot < <uint32_t>MAX_GRAPHS:
        first_free += 1
        g.slot = slot
        table.graphs[slot] = g
        table.owners[slot] = owner
        table.n_slots = max(table.n_slots, slot + 1)
    pthread_mutex_unlock(&slots_lock)
    if slot == <uint32_t>MAX_GRAPHS:
        raise RuntimeError(f"more than {MAX_GRAPHS} graphs are open")
    return 0


cdef void leave_table(Graph* g) noexcept:
    """Free the slot of a graph, if it has one.  Afterwards no other thread can find the graph."""
    global first_free
    hold(&table, g.slot)
    pthread_mutex_lock(&slots_lock)
    if table.graphs[g.slot] == g:
        table.graphs[g.slot] = NULL
        table.owners[g.slot] = NULL
        first_free = min(first_free, g.slot)
    pthread_mutex_unlock(&slots_lock)
    let_go(&table, g.slot)


# ---- one thread at a time ------------------------------------------------------

cdef int raise_running() except -1:
    raise RuntimeError("this graph is running in another thread, or in this one below the handler of a signal")


cdef int lock_graph(Graph* g) except -1:
    """Mark the graph as running: no other thread may use it."""
    cdef bint used
    if g.version == RUNNING:
        raise_running()
    see_whole()
    hold(&table, g.slot)
    used = is_used(&table, g) or exchange_number(&g.version, RUNNING, ACQUIRE) == RUNNING
    let_go(&table, g.slot)
    return raise_running() if used else 0           # another thread was faster


cdef void unlock_graph(Graph* g) noexcept nogil:
    set_number(&g.version, g.renewal, RELEASE)


# ---- giving back memory --------------------------------------------------------

cdef enum:
    LEAST_FREED = 1 << 18           # bytes, of one arena


cdef void give_back_unused(const void* asking, bint own, size_t enough) noexcept with gil:
    """Free the memory above the bump pointers of all graphs that no other thread is running, and packed weights.

    `asking` is the arena or array that is full, perhaps of a running graph; with `own` only the graph of it frees
    memory, since its own limit is exceeded. If its graph can free enough bytes, it frees about as many, and
    nothing else
    is freed.
    """
    cdef Graph* g
    cdef uint32_t slot
    if not own:
        give_back_panels()                          # they are made again quickly
    for slot in range(table.n_slots):
        if is_part(table.graphs[slot], asking) and frees_enough(table.graphs[slot], asking, enough):
            return
    for slot in range(table.n_slots):
        if is_part(table.graphs[slot], asking):     # this thread owns it: it is running, or its slot is held
            trim(table.graphs[slot])
        # Waiting could deadlock; the lock is only held briefly.
        elif not own and try_acquire_lock(&table.guards[slot].lock):
            g = table.graphs[slot]
            if g != NULL and g.version != RUNNING:
                trim(g)
            let_go(&table, slot)


cdef bint frees_enough(Graph* g, const void* asking, size_t enough) noexcept:
    """Free bytes above the bump pointers of a graph, until its limits have room for enough.  False: that is
    not possible."""
    cdef Arena* order[4]                        # GRAPH_ARENAS
    cdef int i
    if enough == SIZE_MAX:
        return False
    if has_room(&g.memory, enough) and has_room(g.memory.around, enough):
        return True
    list_arenas(g, asking, order)
    for i in range(GRAPH_ARENAS):
        arena_trim(order[i], max(2 * enough, <size_t>LEAST_FREED))
        if has_room(&g.memory, enough) and has_room(g.memory.around, enough):
            return True
    return False


cdef void list_arenas(Graph* g, const void* asking, Arena** order) noexcept:
    """List the arenas, beginning with those that will need their memory last, since it takes a first touch again then.

    In forward, those are gradients, and in backward values.  Scratch grows and shrinks in both.
    """
    cdef bint backward = asking == &g.grads
    if asking == &g.scratch:                    # forward: gradients need less than they have, all of it later
        backward = unused_bytes(&g.values) > unused_bytes(&g.grads)
    order[0] = &g.values if backward else &g.grads
    order[1] = &g.tables
    order[2] = &g.scratch
    order[3] = &g.grads if backward else &g.values


cdef inline size_t unused_bytes(const Arena* a) noexcept nogil:
    """Bytes above the bump pointer, of the current segment."""
    return a.end - a.top


cdef void trim(Graph* g) noexcept:
    """Free the memory above the bump pointers, except that of a node that is being added beyond the last one."""
    cdef int i
    for i in range(GRAPH_ARRAYS):
        array_trim(&g.arrays[i])
    for i in range(GRAPH_ARENAS):
        arena_trim(&g.arenas[i], SIZE_MAX)


cdef inline bint is_part(const Graph* g, const void* p) noexcept nogil:
    return g != NULL and <const char*>g <= <const char*>p < <const char*>(g + 1)


cdef void give_back_all(Graph* g) noexcept:
    """Free all memory of a graph without nodes, after a shortage of memory."""
    cdef bint poison = g.nodes.poison
    cdef int i
    for i in range(GRAPH_ARRAYS):
        array_close(&g.arrays[i])
        array_open(&g.arrays[i], poison, &g.memory)
    for i in range(GRAPH_ARENAS):
        arena_trim(&g.arenas[i], SIZE_MAX)
    g.shortages = shortages()


set_reclaim(give_back_unused)


# ==== current =====================================================================================
#
# The current graph: that of the innermost `with` of a task or thread, else the thread's implicit graph.
#
# Programs written for DyNet have one implicit graph, which all threads share (`share_implicit_graph`).

cdef extern from "contexts.h":
    object context_value "dy_context_value"(object variable)
    bint context_entered "dy_context_entered"() except -1


class _Local(threading.local):
    entered = None                          # the innermost graph that was entered in this thread
    implicit = None                         # its graph outside of those


_local = _Local()


class _Shared:
    """Data like `_local`, shared by all threads of a program written for DyNet."""

    implicit = None
    left_running = ()                       # implicit graphs that were replaced while another thread ran them


_shared = _Shared()
_making = threading.RLock()                 # held while a shared graph is made

# The innermost graph that was entered, or None.  Code in a context of its own, such as a task of asyncio, enters graphs
# here; they take precedence over those of the thread, in `_local.entered`.
_entered = contextvars.ContextVar("dynet_cy.entered", default=None)

cdef NewGraph new_graph = NULL
cdef Number changes = 0               # times that a graph was entered, left or closed, in any thread


cdef void set_new_graph(NewGraph make) noexcept:
    global new_graph
    new_graph = make


cdef class _Entered:
    """A graph that was entered, and the one around it."""

    cdef object owner
    cdef Graph* g
    cdef _Entered outer
    cdef bint left                          # it was left, but there was no memory to restore the outer one


cdef _Entered entering(object owner, Graph* g, _Entered outer):
    cdef _Entered x = _Entered.__new__(_Entered)
    x.owner = owner
    x.g = g
    x.outer = outer
    return x


cdef _Entered innermost(_Entered x):
    """The innermost of the graphs from x outwards that has not been left, or None."""
    while x is not None and x.left:
        x = x.outer
    return x


cdef void look_around(Seen* seen) noexcept:
    """Look up the current graph again; the context may have changed."""
    cdef _Entered inner
    seen.counter = &changes
    seen.changes = changes
    inner = innermost(context_value(_entered))
    if inner is None:
        inner = innermost(_local.entered)
    if inner is None:
        inner = home().implicit
    seen.graph = NULL if inner is None else inner.g
    seen.context_version = context_version_now()


cdef object home():
    """The object that keeps the implicit graph of this thread."""
    return _shared if follows_dynet() else _local


cdef Graph* make_implicit() except NULL:
    cdef _Entered made
    if not follows_dynet():
        made = new_implicit()
        _local.implicit = made                              # lives as long as the thread
    else:
        with _making:
            made = _shared.implicit
            if made is None:
                made = new_implicit()
                _shared.implicit = made
    changed()
    return made.g


cdef _Entered new_implicit():
    cdef Graph* g = NULL
    owner = new_graph(&g)
    return entering(owner, g, None)


def share_implicit_graph():
    """Make the implicit graph of this thread that of all threads; `follow_dynet` comes before this."""
    if _shared.implicit is None:
        _shared.implicit = _local.implicit
    changed()


def may_be_garbage() -> bool:
    """Whether there are graphs that were made since `note_referred_to`, besides the implicit one of this thread."""
    cdef _Entered own = home().implicit
    cdef Graph* g
    cdef uint32_t slot
    for slot in range(table.n_slots):
        g = table.graphs[slot]
        if g != NULL and not g.referred_to and (own is None or own.g != g):
            return True
    return False


def note_referred_to() -> None:
    """After a garbage collection: the program refers to the graphs that are left."""
    cdef uint32_t slot
    for slot in range(table.n_slots):
        if table.graphs[slot] != NULL:
            table.graphs[slot].referred_to = True


cdef int leave_running(Graph* g) except -1:
    """Replace the shared implicit graph, which another thread is running, by a new one.

    The other thread finds its expressions stale when it has finished.  The graph lives until the next one is replaced.
    """
    cdef _Entered left, x
    with _making:
        left = _shared.implicit
        if left is None or left.g != g:
            return 0
        made = new_implicit()
        running = [left]
        for x in _shared.left_running:
            if x.g.version == RUNNING:
                running.append(x)
        _shared.left_running = running
        _shared.implicit = made
    changed()
    return 0


cdef int enter_graph(object owner, Graph* g) except -1:
    outer = innermost(context_value(_entered))
    if outer is None and not context_entered():
        _local.entered = entering(owner, g, innermost(_local.entered))
    else:
        _entered.set(entering(owner, g, outer))
    changed()
    return 0


cdef int leave_graph(object owner) except -1:
    cdef _Entered inner = innermost(context_value(_entered))
    cdef bint of_context = inner is not None
    if not of_context:
        inner = innermost(_local.entered)
    if inner is None or inner.owner is not owner:
        raise RuntimeError("graphs must be left in the reverse order of entering, "
                           "in the thread and the task that entered them")
    try:
        if of_context:
            _entered.set(inner.outer)
        else:
            _local.entered = inner.outer
    except MemoryError:
        inner.left = True
    changed()
    return 0


cdef void changed() noexcept:
    """Make all threads look up their current graph again."""
    add_to(&changes, 1)


cdef void forget_current() noexcept:
    changed()


# ==== forgetting ==================================================================================
#
# Release of nodes and values of a graph, and renumbering of the remaining nodes.

cdef int release_values(Graph* g) except -1:
    """Release all computed values, so that inputs may change."""
    if g.forward_only:
        raise RuntimeError("recalculate: a graph with forward_only=True does not keep the data for it")
    lock_graph(g)
    if g.speculation != NULL:
        speculation_hooks().cut(g, 0, False)
    if g.n_batches:             # otherwise nothing has been computed since the last time
        forget_batches(g)
    g.backward_from = -1
    g.n_forgets += 1
    unlock_graph(g)
    return 0


cdef void forget_batches(Graph* g) noexcept nogil:
    """Forget all batches and their values."""
    cdef uint32_t i
    cdef uint8_t* state = state_of(g)
    cdef Node* nodes = nodes_of(g)
    cdef size_t end, inputs_end = 0
    for i in range(g.n_nodes):
        if nodes[i].batch != NO_BATCH:
            value_leaves(&state[i])
            nodes[i].batch = NO_BATCH
            nodes[i].val = NULL
        elif nodes[i].val != NULL:
            state[i] &= <uint8_t>~SENT                  # its value may change
            end = arena_offset(&g.values, nodes[i].val)
            inputs_end = max(inputs_end, end + total_of(&nodes[i].dim) * sizeof(float))
    # The memory of values computed after the last input is free again, so that a graph can be run with new inputs
    # any number of times.
    forget_stretches(g)
    arena_rewind(&g.values, inputs_end)
    arena_rewind(&g.scratch, 0)
    arena_rewind(&g.tables, 0)
    g.n_batches = 0
    g.n_order = 0
    g.n_passes = 0
    array_rewind(&g.batches, 0)
    array_rewind(&g.order, 0)


cdef void release_values_since(Graph* g, uint32_t n_batches, uint32_t n_order, size_t values_top,
                               size_t scratch_top, size_t tables_top) noexcept:
    """Release the values that were computed after this many batches."""
    cdef uint32_t i
    cut_stretches(g, n_batches, values_top)
    g.stale_gradients = True
    g.n_batches = min(g.n_batches, n_batches)
    g.n_order = min(g.n_order, n_order)
    for i in range(g.n_nodes):
        if nodes_of(g)[i].batch != NO_BATCH and nodes_of(g)[i].batch >= g.n_batches:
            value_leaves(&state_of(g)[i])
            nodes_of(g)[i].batch = NO_BATCH
            nodes_of(g)[i].val = NULL
    array_rewind(&g.order, g.n_order * sizeof(uint32_t))
    array_rewind(&g.batches, g.n_batches * sizeof(Batch))
    arena_rewind(&g.values, min(g.values.top, values_top))
    arena_rewind(&g.scratch, min(g.scratch.top, scratch_top))
    arena_rewind(&g.tables, min(g.tables.top, tables_top))


cdef void truncate_nodes(Graph* g, size_t nodes_top, size_t args_top, size_t items_top) noexcept:
    """Free the memory of nodes beyond the last one."""
    g.nodes.top = nodes_top
    g.args.top = args_top
    g.items.top = items_top
    g.state.top = g.n_nodes
    g.uses.top = g.n_nodes * (sizeof(Use) if g.forward_only else 1)        # or of `held`
    g.devices.top = g.n_nodes if g.multi_device else 0
    g.origins.top = min(g.origins.top, g.n_nodes * sizeof(uint32_t))
    if g.regions.top:
        cut_regions(g)
    if not g.forward_only:
        drop_absorbed(g)


cdef void drop_absorbed(Graph* g) noexcept:
    """Drop the records of absorbed nodes that involve nodes beyond the last one."""
    cdef const Absorbed* all = <const Absorbed*>g.absorbed.base
    cdef Absorbed* to = <Absorbed*>g.absorbed.base
    cdef size_t i, n = g.absorbed.top // sizeof(Absorbed)
    for i in range(n):
        if all[i].part < g.n_nodes and all[i].sum < g.n_nodes:
            to[0] = all[i]
            to += 1
    g.absorbed.top = <char*>to - g.absorbed.base


cdef uint32_t* compact_nodes(Graph* g, Renumber renumber) noexcept:
    """Renumber the needed nodes of a forward-only graph without gaps, so that it can run forever.

    Returns the new number of each node, or 0xFFFFFFFF for a dropped one, in memory that the caller frees; NULL if
    nothing was done.
    """
    cdef Use* uses = uses_of(g)
    cdef uint8_t* state = state_of(g)
    cdef uint32_t* numbers
    cdef uint32_t i, k, n_live = 0, n_args = 0, n_items = 0
    for k in range(g.n_nodes):
        i = g.n_nodes - 1 - k               # users of a node have greater numbers
        drop_unneeded(g, i)                 # its expression was deleted while the graph ran
        n_live += not state[i] & DROPPED
    g.compact_at = max(LEAST_TO_COMPACT, 2 * n_live)
    if g.n_nodes < g.compact_at or epochs_left(g) == 0:
        return NULL
    numbers = <uint32_t*>malloc(g.n_nodes * sizeof(uint32_t))
    if numbers == NULL:
        return NULL                         # it may succeed next time
    next_epoch(g)
    compact_batches(g)
    k = 0
    for i in range(g.n_nodes):
        if state[i] & DROPPED:
            numbers[i] = <uint32_t>-1
            continue
        move_node(g, i, k, numbers, &n_args, &n_items)
        state[k] = state[i]
        uses[k] = uses[i]
        if g.multi_device:
            g.devices.base[k] = g.devices.base[i]
        if (k + <size_t>1) * sizeof(uint32_t) <= g.origins.top:
            (<uint32_t*>g.origins.base)[k] = origin_of(g, i)
        if holder_in(&uses[k]) != NULL:
            renumber(holder_in(&uses[k]), k, g.version)
        numbers[i] = k
        k += 1
    if g.speculation != NULL:
        speculation_hooks().renumber(g, numbers)
    g.n_nodes = k
    truncate_nodes(g, k * sizeof(Node), n_args * sizeof(uint32_t), n_items * sizeof(uint32_t))
    return numbers


cdef void compact_batches(Graph* g) noexcept:
    """Renumber the batches that have live nodes."""
    cdef Node* nodes = nodes_of(g)
    cdef Batch* batches = batches_of(g)
    cdef uint32_t i, b, k = 0
    for b in range(g.n_batches):
        batches[b].first = k                # reused for the batch's new number: `first` is not needed again
        k += batches[b].live != 0
    for i in range(g.n_nodes):
        if not state_of(g)[i] & DROPPED and nodes[i].batch != NO_BATCH:
            nodes[i].batch = batches[nodes[i].batch].first
    k = 0
    for b in range(g.n_batches):
        if batches[b].live:
            batches[k] = batches[b]
            batches[k].first = batches[k].count = 0
            k += 1
    g.n_batches = k
    g.n_order = 0
    array_rewind(&g.batches, k * sizeof(Batch))
    array_rewind(&g.order, 0)


cdef void move_node(Graph* g, uint32_t i, uint32_t to, const uint32_t* numbers, uint32_t* n_args,
                    uint32_t* n_items) noexcept:
    """Give a node another number, and its arguments and items the places after those of the nodes before it."""
    cdef uint32_t* args = <uint32_t*>g.args.base
    cdef uint32_t* items = <uint32_t*>g.items.base
    cdef Node* x = nodes_of(g) + to
    cdef uint32_t n, own
    x[0] = nodes_of(g)[i]
    if state_of(g)[i] & COMPUTED:               # its arguments may have been dropped
        x.nargs = x.item_count = 0
    for n in range(x.nargs):
        args[n_args[0] + n] = numbers[args[x.args + n]]
    x.args = n_args[0]
    n_args[0] += x.nargs
    own = x.item_count * x.dim.bd
    for n in range(own):
        items[n_items[0] + n] = items[x.items + n]
    x.items = n_items[0]
    n_items[0] += own


cdef uint64_t epochs_left(const Graph* g) noexcept:
    """The number of times that expressions can still be made stale before the graph must be renewed."""
    return ~g.version & ((<uint64_t>1 << REVERT_BITS) - 1)


cdef void next_epoch(Graph* g) noexcept:
    """Force a check of each expression of the graph at its next use."""
    g.version += 1
    g.renewal = g.version


# ==== placing =====================================================================================
#
# The placement of nodes on devices. A node runs on the device of its graph, unless another one was requested for the
# node or its arguments.

cdef int asked_device(object name, str where) except -1:
    return 0 if name == "" else 1 + check_device(name, where)


cdef int place_node(Graph* g, const Op* op, const uint32_t* args, uint32_t n, const Extra* extra) except -1:
    """The device of a new node: the one that was requested, or that of its arguments.

    Inputs without a device of their own follow the other arguments; so do random numbers that have not been drawn.
    """
    cdef uint8_t* devices
    cdef bint asked = extra != NULL and extra.device
    cdef int device = -1
    cdef uint32_t i
    if not g.multi_device:
        mix(g)
    devices = <uint8_t*>g.devices.base
    if n == 0 and not asked:
        return g.device | (MOVABLE if op.random or extra != NULL and extra.val != NULL else 0)
    for i in range(n if not asked else 0):
        if not is_movable(g, args[i]):
            if device >= 0 and devices[args[i]] & ~MOVABLE != device:
                raise ValueError(explain(
                    op, "the arguments are on different devices; to_device brings one to another", args, n, g))
            device = devices[args[i]] & ~MOVABLE
    if device < 0:
        device = g.device
    for i in range(n):
        if is_movable(g, args[i]):
            devices[args[i]] = <uint8_t>device
    return extra.device - 1 if asked else device


cdef inline bint is_movable(const Graph* g, uint32_t node) noexcept:
    return g.devices.base[node] & MOVABLE and nodes_of(g)[node].batch == NO_BATCH


cdef int mix(Graph* g) except -1:
    """Make a graph a multi-device one; its nodes so far are on the device of the graph."""
    cdef uint8_t* devices
    hold(&table, g.slot)
    devices = <uint8_t*>array_push(&g.devices, g.n_nodes)
    let_go(&table, g.slot)
    if devices == NULL:
        out_of_memory("the devices of a graph")
    memset(devices, g.device, g.n_nodes)
    let_move(g)
    g.multi_device = True
    return 0


cdef void let_move(Graph* g) noexcept:
    """Make inputs and random numbers that no node uses, and for which no device was requested, movable again."""
    cdef uint8_t* devices = <uint8_t*>g.devices.base
    cdef Node* x
    cdef uint32_t i, k
    for i in range(g.n_nodes):
        x = &nodes_of(g)[i]
        if x.nargs == 0 and x.batch == NO_BATCH and (x.val != NULL and x.attrs[0].u == 0 or op_at(x.op).random):
            devices[i] |= <uint8_t>MOVABLE
        for k in range(x.nargs):
            devices[args_of(g, x)[k]] &= <uint8_t>~MOVABLE
    for i in range(g.n_nodes):
        if devices[i] & MOVABLE and devices[i] != (g.device | MOVABLE):
            devices[i] = <uint8_t>(g.device | MOVABLE)
            state_of(g)[i] &= <uint8_t>~SENT
