"""Runs a function written for one example on many examples, and batches the values that the calls request.

`batched_map(function, items)` runs ``function(item)`` for each item as a fiber (a greenlet). When a call requests a
value, only that item waits. When no item can continue, one pass computes all the values that items wait for, so that
equal steps of different items run as one batch. Then all of them continue.

Items wait only for such passes and for maps that they have called themselves. So there is always an item that can
continue, or a pass to run, and there are no deadlocks.
"""

import atexit
import sys
import threading

import greenlet

cimport cython
from cpython.contextvars cimport PyContext_Copy, PyContext_CopyCurrent, PyContext_Enter, PyContext_Exit
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_Import
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc

from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.threads cimport add_to, now
from dynet_cy.execute.driver cimport end_passes_at
from dynet_cy.graph.expressions cimport ComputationGraph, Expression, SharedRequests, compute_all, number_in
from dynet_cy.graph.origin cimport current_scope, set_scope
from dynet_cy.graph.structs cimport COMPUTED, Graph, Node, args_of, nodes_of, state_of
from dynet_cy.kernels.kernels cimport DrawingItem, drawing_item
from dynet_cy.memory.storage cimport guard

from dynet_cy.core.items import check_no_table
from dynet_cy.graph.expressions import cg


# stub: (function: Callable[..., _Result], *iterables: Iterable[Any], width: int | None = None,
#     return_exceptions: Literal[False] = False) -> list[_Result]
# stub: (function: Callable[..., _Result], *iterables: Iterable[Any], width: int | None = None,
#     return_exceptions: bool) -> list[_Result | Exception]
def batched_map(function, *iterables, width=None, return_exceptions=False):
    """Call a function for each item, and compute the values that the calls request together.

    The function is written for one item, and may request values at any point to decide what to do next: with `value`,
    `npvalue`, `scalar_value`, `forward`, `values`, `tensor_value` or anything that calls these. Each request lets the
    other calls run until all of them wait; then all requested values are computed as one batch. All calls share the
    current graph, so the losses that they return can be summed, and one `backward` serves all of them. Calls may use
    `batched_map` themselves; the values that are requested there are computed together with the rest.

    Random numbers of a call (dropout, noise, samples) depend on the seed, the graph and the index of its item, not on
    `width` or on what the other calls do.

    Args:
        function: called with one argument from each iterable.
        iterables: the items; as with `map`, the shortest one ends it. An item is read when its call can begin.
        width: how many calls may run at once. None: all on a GPU and in a call of another map; else 64, as the values
            of more leave the cache, but first 8, and each of these computes its own values from the fourth pass on if
            they depend on so few numbers that batching gains nothing. They do not if the calls leave nodes behind that
            no value needs, such as losses, and the graph keeps these: batches then make backward faster. Counts decide
            that, so it is the same each time. Fewer calls need less memory.
        return_exceptions: return an exception as the result of its call, and let the others continue. If False, the
            first exception ends the others (with `GreenletExit`, which runs their ``finally`` blocks) and is raised; it
            says which item raised it. Default: False.

    Returns:
        The results, in the order of the items.

    Raises:
        TypeError: function is not callable, no iterable is given, or one is a table, whose items are columns.
        ValueError: width is less than 1.
        RuntimeError: from `renew_cg`, `cg_checkpoint`, `cg_revert` and `backward` in a call: the graph is not its own.
            From `set`, `set_index`, and from what changes parameters: other calls have begun and may have used the
            value before. A call may change what it has made itself, and everything with ``width=1``.
        RecursionError: the calls that wait for each other are deeper than `sys.getrecursionlimit` allows.

    Example:
        >>> import dynet_cy as dy
        >>> _ = dy.renew_cg()
        >>> def halvings(number):
        ...     x, steps = dy.scalarInput(number), 0
        ...     while x.value() > 1:  # for all calls that still run, together
        ...         x, steps = x * 0.5, steps + 1
        ...     return steps
        >>> dy.batched_map(halvings, [1, 8, 100])
        [0, 3, 7]

    Method: Looks, Herreshoff, Hutchins and Norvig 2017, "Deep learning with dynamic computation graphs", and Neubig,
    Goldberg and Dyer 2017, "On-the-fly operation batching in dynamic computation graphs", where a value ends a batch.
    """
    if not callable(function):
        raise TypeError(f"batched_map: function must be callable, not {type(function).__name__}")
    if not iterables:
        raise TypeError("batched_map: an iterable of items is needed")
    for items in iterables:
        check_no_table("batched_map", items, "items")
    if width is not None and width < 1:
        raise ValueError(f"batched_map: width must be at least 1, not {width}")
    cdef ComputationGraph graph = cg()
    cdef Fibers fibers = graph.requests
    cdef uint64_t key
    if fibers is not None and not fibers.inside():
        raise RuntimeError("batched_map: another call runs on this graph, and the caller is not one of its items")
    key = mixed(graph.g.draw_key, graph.g.draws)
    graph.g.draws += 1                              # the next map draws other numbers
    adapts = width is None and fibers is None and graph.g.device == 0 and not graph.g.multi_device
    own = _Map(function, zip(*iterables), width or (LOOKING_WIDTH if adapts else sys.maxsize), return_exceptions, key)
    own.adapts = adapts
    if fibers is not None:
        return fibers.run_inside(own)
    fibers = Fibers(graph)
    try:
        return fibers.run(own)
    finally:
        fibers.leave()


cdef uint64_t mixed(uint64_t key, uint64_t number) noexcept:
    """A key that follows from another one and a number (SplitMix64: Steele, Lea and Flood 2014, "Fast splittable
    pseudorandom number generators")."""
    cdef uint64_t z = key + 0x9E3779B97F4A7C15u * (number + 1)
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu
    return z ^ (z >> 31)


# ---- greenlets -----------------------------------------------------------------------

# The functions that greenlet exports for C, at fixed places of a table.
ctypedef object (*NewFiber)(object run, object parent)
ctypedef object (*CurrentFiber)()
ctypedef object (*SwitchTo)(PyObject* fiber, PyObject* arguments, PyObject* keywords)
ctypedef int (*SetParent)(object fiber, object parent) except -1

cdef void** exported = <void**>PyCapsule_Import("greenlet._C_API", 0)
cdef NewFiber new_fiber = <NewFiber>exported[3]
cdef CurrentFiber current_fiber = <CurrentFiber>exported[4]
cdef SwitchTo switch_fiber = <SwitchTo>exported[6]
cdef SetParent set_parent = <SetParent>exported[7]
cdef object GreenletExit = greenlet.GreenletExit


cdef extern from "fibers.h":
    # Clear the address sanitizer's record of the stack, because greenlet copies it and puts another one there.
    void unpoison_stack "dy_unpoison_stack"() noexcept
    object call_on_fiber "dy_call_on_fiber"(object (*loop)(object first), object first)
    # derived: functions of recursion_depth
    int recursion_depth "dy_recursion_depth"()
    # end of functions
    int Py_GetRecursionLimit() noexcept


cdef inline object switch_to(PyObject* fiber, PyObject* arguments):
    unpoison_stack()
    return switch_fiber(fiber, arguments, NULL)


cdef enum:
    MOST_PARKED = 256               # fibers that a thread keeps for the next map
    CLOSE = 2048                    # bytes: greatest distance between the beginnings of stacks

_here = threading.local()           # parked: roughly where the stacks of the fibers begin, and the fibers
atexit.register(_here.__dict__.clear)


def _work(first):
    return call_on_fiber(work, first)


cdef object work(object first):
    """The loop of a fiber: one call after another.  Between calls it is parked, and holds no references."""
    cdef _Item item = (<list>first).pop()
    cdef Fibers fibers
    cdef PyObject* hub
    while True:
        fibers = item.fibers
        item.call()
        fibers.ended = item
        hub = <PyObject*>fibers.hub
        fibers = item = None
        item = switch_to(hub, NULL)


cdef list parked_fibers():
    """The fibers of this thread that wait for a call, if their stacks begin close to the current position.

    A switch copies the part of the stack from its beginning to the thread's current position.
    """
    cdef uintptr_t place = 0
    cdef uintptr_t begin
    place = <uintptr_t>&place
    if hasattr(_here, "parked"):
        begin, fibers = _here.parked
        if begin - CLOSE < place < begin + CLOSE:
            return fibers
        unpoison_stack()
    _here.parked = place, []
    return _here.parked[1]


# ---- items ----------------------------------------------------------------------------

# Endless recursion through maps of several items would double the number of items that wait at each depth, and never
# reach the greatest depth. From MANY_NESTED items of nested maps on, calls go into depth: nested maps run one item at
# a time, and a pass computes the values of the AT_ONCE items that have requested them last.
cdef enum:
    MANY_NESTED = 1 << 15           # about 8 KB each
    AT_ONCE = 64

cdef struct _Nodes:
    uint32_t begin
    uint32_t end


@cython.no_gc                       # like a waiting fiber: its references are dropped when it ends
cdef class _Item:
    """One call of a function: a fiber, and its random stream."""

    cdef _Owner owner
    cdef Fibers fibers
    cdef Py_ssize_t index                           # among the items of its owner
    cdef object function
    cdef tuple arguments
    cdef object context
    cdef uint64_t key
    cdef uint32_t draws
    cdef uint64_t host_draws
    cdef uint32_t scope
    cdef _Nodes* made                               # ranges of nodes that it and the items of its maps have made
    cdef uint32_t n_made, capacity                  # the number of ranges, and the capacity of the list
    cdef int depth                                  # of Python's calls, when it began
    cdef object wanted                              # the expression or list of expressions that it waits for
    cdef list storages                              # the storages of parameters that they have made; None: none
    cdef bint woken                                 # the values are computed, but the item has not continued yet
    cdef object raising                             # the exception to raise when it continues
    cdef _Map inner                                 # the map that it has called and waits for
    cdef bint begun
    cdef bint stopped
    cdef bint done
    cdef object fiber
    cdef object result                              # the result of the function
    cdef object error                               # its exception

    cdef int call(self) except -1:
        cdef Fibers fibers = self.fibers
        cdef bint nested = self.owner.waiter is not None
        self.depth = recursion_depth()
        self.begun = True
        fibers.n_nested += nested
        try:
            PyContext_Enter(self.context)
            try:
                self.result = self.function(*self.arguments)
            finally:
                PyContext_Exit(self.context)
        except BaseException as error:
            self.error = error
        fibers.n_nested -= nested
        self.done = True
        return 0

    cdef int inherit(self, _Item item) except -1:
        """Take what an item of its map has made."""
        cdef uint32_t i
        for i in range(item.n_made):
            self.note_made(item.made[i].begin, item.made[i].end)
        if item.storages is not None:
            self.storages = (self.storages or []) + item.storages
        return 0

    cdef bint has_made(self, uint32_t node):
        cdef uint32_t i
        for i in range(self.n_made):
            if self.made[i].begin <= node < self.made[i].end:
                return True
        return False

    cdef int note_made(self, uint32_t begin, uint32_t end) except -1:
        """Note that it has made the nodes from `begin` to before `end`."""
        cdef _Nodes* larger
        if begin == end:
            return 0
        if self.n_made and self.made[self.n_made - 1].end == begin:
            self.made[self.n_made - 1].end = end
            return 0
        if self.n_made == self.capacity:
            larger = <_Nodes*>realloc(self.made, (2 * self.capacity + 4) * sizeof(_Nodes))
            if larger == NULL:
                raise MemoryError("the nodes of an item of batched_map")
            self.made = larger
            self.capacity = 2 * self.capacity + 4
        self.made[self.n_made].begin = begin
        self.made[self.n_made].end = end
        self.n_made += 1
        return 0

    def __dealloc__(self):
        free(self.made)


cdef class _Owner:
    """The caller of items, which receives the results or exceptions of their functions."""

    cdef uint64_t key                               # the key of its items' random numbers
    cdef uint32_t scope                             # in which its items begin
    cdef _Item waiter                               # the item that called it; None: the program itself did
    cdef dict running                               # its items that have begun and not ended, by index

    cdef int depth                                  # of Python's calls that led to it

    cdef int receive(self, Fibers fibers, _Item item, object result, object error) except -1:
        raise NotImplementedError

    cdef bint alone(self, _Item maker, Py_ssize_t running):
        """Whether no items but one, its callers and `maker` run in the maps below `maker`; if so, it stays like that.

        `running`: how many of these items may run in this map, 0 or 1.
        """
        cdef _Map own
        cdef list maps = []
        cdef _Owner owner = self
        while True:
            if not isinstance(owner, _Map) or <Py_ssize_t>len(owner.running) > running:
                return False
            maps.append(owner)
            if owner.waiter is maker:
                break
            owner = owner.waiter.owner
            running = 1
        for own in maps:
            own.width = 1
        return True


# Calls that run at once, by default, and how long a map looks at what they read before it decides whether they wait for
# each other: passes, and numbers that a request reads on average. The first pass often reads the whole input. It has
# few calls, as values of many leave the cache for nothing if they do not wait, unless a request of it reads so much
# that they will.
cdef enum:
    USUAL_WIDTH = 64
    LOOKING_WIDTH = 8
    LOOKS_FROM = 1
    LOOKS_UNTIL = 4
    LEAST_READ = 1 << 16
    LEAST_READ_FIRST = 1 << 21


cdef class _Map(_Owner):
    """One call of batched_map."""

    cdef object function
    cdef object arguments                           # an iterator; None: all items have begun
    cdef Py_ssize_t width
    cdef bint adapts                                # decides whether its items wait for each other
    cdef bint return_exceptions
    cdef object context                             # each item gets a copy of it
    cdef bint is_open                               # items of it are to begin; it is in the list of such maps
    cdef list results
    cdef object failed                              # the exception that ended it

    def __init__(self, function, arguments, width, return_exceptions, key):
        self.function = function
        self.arguments = arguments
        self.width = width
        self.return_exceptions = return_exceptions
        self.key = key
        self.scope = current_scope()
        self.context = PyContext_CopyCurrent()
        self.results = []
        self.running = {}

    cdef bint has_capacity(self, Fibers fibers):
        if self.arguments is None:
            return False
        if self.waiter is not None and fibers.n_nested >= MANY_NESTED:
            return not self.running
        return <Py_ssize_t>len(self.running) < self.width

    cdef bint done(self):
        return self.arguments is None and not self.running

    cdef _Item begin_item(self, Fibers fibers):
        """Begin the next item; returns None if there is none."""
        cdef _Item item
        try:
            arguments = next(self.arguments)
        except StopIteration:
            self.arguments = None
            return None
        item = fibers.item_of(self, len(self.results), self.function, arguments, PyContext_Copy(self.context))
        self.results.append(None)
        self.running[item.index] = item
        return item

    cdef int receive(self, Fibers fibers, _Item item, object result, object error) except -1:
        del self.running[item.index]
        if self.waiter is not None:
            self.waiter.inherit(item)
        if error is not None:
            if isinstance(error, Exception):
                name_item(error, item)
                if not self.return_exceptions:
                    return fibers.fail(self, error)
            else:                                   # KeyboardInterrupt, SystemExit: end all items
                return fibers.fail(self, error)
            result = error
        self.results[item.index] = result
        # The next ones begin together, so that their first computations, such as the states of a BiLSTM, can batch.
        if self.arguments is not None and len(self.running) <= self.width - self.width // 8:
            fibers.open_up(self)
        return fibers.finish_if_done(self)


cdef class _Calls(_Owner):
    """Calls that begin one by one, each with its own function that receives its result or exception."""

    cdef Py_ssize_t begun
    cdef dict receivers                             # by index of the item

    def __init__(self, key):
        self.key = key
        self.running = {}
        self.receivers = {}

    cdef _Item begin_call(self, Fibers fibers, function, tuple arguments, context, receiver):
        cdef _Item item = fibers.item_of(self, self.begun, function, arguments, context)
        self.begun += 1
        self.running[item.index] = item
        self.receivers[item.index] = receiver
        return item

    cdef int receive(self, Fibers fibers, _Item item, object result, object error) except -1:
        del self.running[item.index]
        self.receivers.pop(item.index)(result, error)
        return 0


# The state of an item while others run: it waits for values, it can continue, or it is in neither list.
# A frame that waits holds no list: it would keep the items, and their results.
cdef enum _Queue:
    WAITING
    READY
    NOWHERE


cdef class Fibers(SharedRequests):
    """Calls that run as fibers on one graph, and the values they wait for, which `Expression.value` and others request.

    `batched_map` makes one for as long as it runs. `begin`, `stop` and `turn` are for servers, whose calls come and go.
    The methods must be called from the thread that made the object, outside all calls, while the graph is the current
    one.

    Args:
        graph: the graph they run on.
        longest_pass: seconds after which a pass ends early, between two batches, so that calls whose values have been
            computed continue, and others begin; the next pass computes the rest, together with what has been requested
            by then. 0, the default: passes never end early. On a device they never do.

    Raises:
        RuntimeError: other fibers run on the graph.
    """

    cdef ComputationGraph graph
    cdef object hub                                 # the greenlet that switches to the others
    cdef list parked                                # fibers that wait for an item
    cdef _Item current                              # the item that is running
    cdef uint32_t n_before                          # nodes when it went on
    cdef _Item ended                                # the item that has returned or raised
    cdef list waiting                               # items that wait for a pass
    cdef Py_ssize_t n_nested                        # items of nested maps that have begun and not ended
    cdef list ready                                 # items that can continue;
    cdef Py_ssize_t n_resumed                       # the number of items that already have values,
    cdef Py_ssize_t n_woken                         # and how many have values to read
    cdef list callers                               # items whose maps have ended; they continue first, the last first
    cdef list open                                  # maps with items that have not begun, the innermost last
    cdef _Map reading                               # the map whose next item is being read
    cdef _Map outermost                             # the map that the program itself has called
    cdef size_t read                                # numbers that the values of its first requests depend on,
    cdef size_t requests                            # and how many these were
    cdef size_t left                                # nodes that they made and that no request needed
    cdef bint at_once                               # its items do not wait for each other
    cdef _Calls calls
    cdef int64_t n_known                            # nodes after the last pass
    cdef readonly uint64_t passes
    cdef readonly uint64_t nodes                    # nodes made for these passes
    cdef readonly bint cut                          # the last pass has not computed all requested values
    cdef uint64_t longest                           # nanoseconds

    def __init__(self, ComputationGraph graph, double longest_pass=0) -> None:
        if graph.requests is not None:
            raise RuntimeError("Fibers: others run on this graph")
        self.graph = graph
        self.hub = current_fiber()
        self.parked = parked_fibers()
        self.longest = <uint64_t>(longest_pass * 1e9)
        self.waiting = []
        self.ready = []
        self.callers = []
        self.open = []
        self.calls = _Calls(mixed(graph.g.draw_key, graph.g.draws))
        self.n_known = graph.g.n_nodes
        graph.g.draws += 1
        graph.requests = self
        if not hasattr(_here, "running"):
            _here.running = []
        _here.running.append(self)
        add_to(&guard.users, 1)

    def leave(self):
        """Make the graph an ordinary one again, which computes values when they are requested."""
        self.graph.requests = None
        _here.running.remove(self)
        add_to(&guard.users, <uint64_t>-1)
        unpoison_stack()                            # greenlet switches to fibers that are freed, to end them
        del self.parked[MOST_PARKED:]
        self.parked = None

    cdef bint inside(self) except -1:
        return self.current is not None and current_fiber() is self.current.fiber

    cdef bint wait_for(self, object wanted) except -1:
        cdef _Item item = self.current
        if not self.inside():
            return False
        if item.stopped:
            raise GreenletExit
        if self.at_once and item.owner is self.outermost:
            return False
        item.wanted = wanted
        self.pause(item, WAITING)
        item.wanted = None
        return True

    cdef int pause(self, _Item item, _Queue queue) except -1:
        """Let others run until the running item can continue.

        `queue`: of which it is then the last.  If there is no memory for the queue, the item continues at once, with a
        MemoryError, and is in no queue.
        """
        cdef _Item other
        cdef bint woken, queued = False
        self.note_made(item)
        other = self.next_item()
        woken = other is not None and other.woken
        try:
            if queue == WAITING:
                self.waiting.append(item)
            elif queue == READY:
                self.ready.append(item)
            queued = True
            self.put_away(item)
            if other is None:
                switch_to(<PyObject*>self.hub, NULL)
            else:
                self.bring(other)
                switch_to(<PyObject*>other.fiber, NULL)
        except MemoryError:
            if not queued:
                self.put_back(other)
            elif self.current is not item:          # of the switch itself
                self.stay(item, queue, other, woken)
            raise
        if item.raising is not None:
            error, item.raising = item.raising, None
            raise error
        return 0

    cdef int stay(self, _Item item, _Queue queue, _Item other, bint woken) except -1:
        """Undo a pause whose switch has failed."""
        if other is not None:
            self.put_away(other)
            other.woken = woken
            self.n_woken += woken
            self.put_back(other)
        if queue == WAITING:
            self.waiting.pop()
        elif queue == READY:
            self.ready.pop()
        return self.bring(item)

    cdef int put_back(self, _Item other) except -1:
        """Undo `next_item`."""
        if self.n_resumed and other is not None:    # the place of the last one that was taken from there
            self.n_resumed -= 1
            self.ready[self.n_resumed] = other
        elif other is not None:
            self.callers.append(other)              # from which the call was removed, so that it is not full
        return 0

    # ---- changes of what others may read

    cdef int let_read(self) except -1:
        """Let the items that were woken read their values, before the running item drops all values of the graph.

        Items that wait together continue only after all of them have read, so that their next requests batch again.
        """
        cdef _Item item = self.current
        if self.n_woken and self.inside() and not item.stopped:
            self.pause(item, READY)
        return 0

    cdef int check_set(self, uint32_t node, str what) except -1:
        """Raise if items may have read a node that is about to change; see `check_change`."""
        cdef _Item item = self.current if self.inside() else None
        cdef _Item maker = item
        if item is not None:
            self.note_made(item)
        while maker is not None and not maker.has_made(node):
            maker = maker.owner.waiter
        return self.check_change(item, maker, what)

    cdef int check_change(self, _Item item, _Item maker, str what) except -1:
        """Raise if items may have read what is about to change, because then some get other values than from `map`.

        `item`: what changes it; None: no item.
        `maker`: the item that has made it, and shares it with the items of its maps; None: all items share it.

        If no other item that shares it has begun, the next ones wait until the running one has ended.
        """
        cdef _Owner owner = None
        cdef Py_ssize_t running = 1
        if item is not None:
            if item is maker:
                return 0
            owner = item.owner
        elif self.reading is not None and current_fiber() is self.hub:
            owner = self.reading
            running = 0
        if owner is None:                           # another thread
            if not self.calls.running and (self.outermost is None or not self.outermost.running):
                return 0
        else:
            if owner.alone(maker, running):
                return 0
        raise RuntimeError(
            f"{what}: other items of batched_map, or calls of a Server, have begun, and may have used the value "
            "before; let each item change only what it has made itself, or use width=1")

    # ---- calls that come and go

    def begin_call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], context: Context,
        receiver: Callable[[Any, BaseException | None], object]
    ) -> Any:
        """Call a function as a fiber, up to the first value that it requests.

        Args:
            function: what to call.
            arguments: a tuple of what to call it with.
            context: a `contextvars.Context` that it runs in, its own.
            receiver: is called with the function's result and its exception, one of which is None.

        Returns:
            The argument of `stop`.
        """
        cdef _Item item = self.calls.begin_call(self, function, arguments, context, receiver)
        self.resume(item)
        return item

    def stop(self, _Item item: Any):
        """End a call with `GreenletExit`, which runs its ``finally`` blocks; its receiver is not called."""
        if not item.done and not item.stopped:
            self.calls.receivers.pop(item.index, None)
            self.calls.running.pop(item.index, None)
            self.stop_all(_waited_for([item]))

    def turn(self):
        """Run all items that can continue, and then compute the values they wait for in one pass."""
        cdef _Item item
        cdef _Map own
        while True:
            item = self.next_item()
            if item is not None:
                self.resume(item)
                continue
            own = self.innermost_open()             # the most recent call first, while its values are in the cache
            if own is None:
                break
            self.begin_next(own)
        if self.waiting and not self.widen():
            self.compute(self.longest)

    def finish(self):
        """Compute what a pass that ended early has left."""
        if self.cut:
            self.compute(0)

    # ---- maps

    cdef list run_inside(self, _Map own):
        """The results of a map that the running item has called."""
        cdef _Item item = self.current
        if item.stopped:
            raise GreenletExit
        own.depth = item.owner.depth + recursion_depth() - item.depth + 1
        if own.depth > Py_GetRecursionLimit():
            raise RecursionError("batched_map: maximum recursion depth exceeded: calls wait for each other")
        own.waiter, item.inner = item, own
        self.open_up(own)
        try:
            self.pause(item, NOWHERE)
        except BaseException:
            own.arguments = None                    # no more of its items begin
            raise
        finally:
            item.inner = None
        return own.results

    cdef list run(self, _Map own):
        """The results of a map that the program itself has called."""
        own.depth = recursion_depth()
        self.outermost = own
        self.open_up(own)
        try:
            while not own.done():
                self.turn()
        except BaseException:
            self.stop_map(own)
            raise
        if own.failed is not None:
            raise own.failed
        return own.results

    cdef int begin_next(self, _Map own) except -1:
        """Let the next item of a map begin."""
        cdef _Item item
        failed = item = None
        self.reading = own
        # Not within `except`: a return there crashes in Cython if there was no memory for the traceback.
        try:
            item = own.begin_item(self)
        except Exception as error:
            failed = error
        finally:
            self.reading = None
        if failed is not None:
            return self.fail(own, failed)
        if item is None:
            return self.finish_if_done(own)
        return self.resume(item)

    cdef int fail(self, _Map own, object error) except -1:
        """End a map with an error."""
        self.stop_map(own)
        own.failed = error
        return self.finish_if_done(own)

    cdef int finish_if_done(self, _Map own) except -1:
        if own.waiter is not None and own.done():
            own.waiter.raising = own.failed
            self.callers.append(own.waiter)
        return 0

    cdef int stop_map(self, _Map own) except -1:
        """End all items of a map, and the maps that these have called."""
        own.arguments = None
        self.stop_all(_waited_for(list(own.running.values())))
        own.running.clear()
        return 0

    cdef int open_up(self, _Map own) except -1:
        """Let items of a map begin."""
        if not own.is_open:
            own.is_open = True
            self.open.append(own)
        return 0

    cdef _Map innermost_open(self):
        """The most recent of the maps with an item that can begin; None if there is none."""
        cdef _Map own
        while self.open:
            own = self.open[-1]
            if own.has_capacity(self):
                return own
            own.is_open = False
            self.open.pop()
        return None

    # ---- items

    cdef _Item item_of(self, _Owner owner, Py_ssize_t index, function, tuple arguments, context):
        """A call that has not begun."""
        cdef _Item item = _Item()
        item.owner = owner
        item.fibers = self
        item.index = index
        item.function = function
        item.arguments = arguments
        item.context = context
        item.key = mixed(owner.key, index)
        item.scope = owner.scope
        return item

    cdef int stop_all(self, list items) except -1:
        """End items, in this order."""
        cdef _Item item
        for item in items:
            item.stopped = True
        for item in items:
            if not item.begun:
                item.done = True
            elif not item.done:
                item.raising = GreenletExit()
                self.resume(item)
        return 0

    cdef _Item next_item(self):
        """The item that continues next; None if others begin first, or if there is none.

        An error has precedence: it ends the map around the caller, of which no more items need to begin.
        """
        if self.innermost_open() is None or (self.callers and (<_Item>self.callers[-1]).raising is not None):
            return self.next_ready()
        return None

    cdef _Item next_ready(self):
        """The next item that can continue; None if there is none."""
        cdef _Item item
        while self.callers:
            item = self.callers.pop()
            if not item.stopped:
                return item
        while self.n_resumed < len(self.ready):
            item = self.ready[self.n_resumed]
            self.ready[self.n_resumed] = None       # so that its objects are freed when it ends
            self.n_resumed += 1
            if not item.stopped:
                return item
        if self.n_resumed:
            self.ready = []
            self.n_resumed = 0
        return None

    cdef int bring(self, _Item item) except -1:
        """Restore an item's own state: its random stream and scope."""
        cdef Graph* g = &self.graph.g
        cdef DrawingItem* drawing = drawing_item()
        set_scope(item.scope)
        g.draw_key, g.draws = item.key, item.draws
        drawing.key, drawing.draws, drawing.inside = item.key, item.host_draws, True
        if item.woken:
            item.woken = False
            self.n_woken -= 1
        self.n_before = g.n_nodes
        self.current = item
        return 0

    cdef int note_made(self, _Item item) except -1:
        """Note which nodes the running item has made.  Forward-only graphs have no nodes that can be set."""
        cdef Graph* g = &self.graph.g
        if not g.forward_only:
            item.note_made(self.n_before, g.n_nodes)
            self.n_before = g.n_nodes
        return 0

    cdef int put_away(self, _Item item) except -1:
        """Save an item's own state."""
        self.note_made(item)
        item.scope = current_scope()
        item.draws = self.graph.g.draws
        item.host_draws = drawing_item().draws
        self.current = None
        return 0

    cdef int resume(self, _Item item) except -1:
        """Continue an item, and then all others that can run, until one of them ends or all wait."""
        cdef Graph* g = &self.graph.g
        cdef DrawingItem* drawing = drawing_item()
        cdef DrawingItem outer = drawing[0]
        cdef uint32_t outside = current_scope()
        key, drawn = g.draw_key, g.draws
        self.bring(item)
        try:
            if item.fiber is not None:
                switch_to(<PyObject*>item.fiber, NULL)
            elif self.parked:
                item.fiber = self.parked.pop()
                set_parent(item.fiber, self.hub)
                begun = item,
                switch_to(<PyObject*>item.fiber, <PyObject*>begun)
            else:
                item.fiber = new_fiber(_work, self.hub)
                begun = [item],                     # a fiber keeps a reference to its first argument
                switch_to(<PyObject*>item.fiber, <PyObject*>begun)
        finally:
            self.current = None
            g.draw_key, g.draws = key, drawn
            drawing[0] = outer
            set_scope(outside)
            if not item.begun:                      # there was no memory for the switch
                item.fiber = None
            item, self.ended = self.ended, None
        if item is None:
            return 0
        self.note_made(item)
        self.parked.append(item.fiber)
        item.fiber = item.fibers = None
        return 0 if item.stopped else item.owner.receive(self, item, item.result, item.error)

    cdef int compute(self, uint64_t longest) except -1:
        """Run one pass for all values that items wait for.  `longest`: nanoseconds that it may take, or 0."""
        cdef list waiting = self.waiting, wanted = []
        cdef _Item item
        self.waiting = []
        if self.n_nested >= MANY_NESTED:
            self.waiting, waiting = waiting[:-AT_ONCE], waiting[-AT_ONCE:]
        for item in waiting:
            if not item.stopped:
                if type(item.wanted) is list:
                    wanted += <list>item.wanted
                else:
                    wanted.append(item.wanted)
        looks = self.outermost is not None and self.outermost.adapts and LOOKS_FROM <= self.passes < LOOKS_UNTIL
        if looks:
            self.read += self.newly_read()
            self.requests += len(waiting)
        self.passes += 1
        self.nodes += max(self.graph.g.n_nodes - self.n_known, 0)
        self.cut = False
        if longest:
            end_passes_at(now() + longest)
        try:
            compute_all(wanted, "forward", False)
        except Exception:      # one item caused it: the others are computed
            end_passes_at(0)
            for item in waiting:
                try:
                    if not item.stopped:
                        compute_all(item.wanted if type(item.wanted) is list else (item.wanted,), "forward", False)
                except Exception as error:
                    item.raising = error
            self.wake(waiting)
        else:
            if longest:
                left = [item for item in waiting if not item.stopped and not self.computed(item)]
                self.waiting += left
                self.cut = bool(left)
                if self.cut:
                    waiting = [item for item in waiting if item.stopped or self.computed(item)]
            self.wake(waiting)
        finally:
            end_passes_at(0)
        if looks:
            self.decide()
        self.n_known = self.graph.g.n_nodes
        return 0

    cdef size_t newly_read(self):
        """How many numbers the nodes read that were made since the last pass."""
        cdef Graph* g = &self.graph.g
        cdef const Node* nodes = nodes_of(g)
        cdef uint32_t i, j
        cdef size_t read = 0
        for i in range(<uint32_t>min(self.n_known, g.n_nodes), g.n_nodes):
            for j in range(nodes[i].nargs):
                read += size_of(&nodes[args_of(g, &nodes[i])[j]].dim)
        return read

    cdef int decide(self) except -1:
        """After the last of the passes that a map looks at: whether its items wait for each other.

        Where the graph keeps all nodes and each request leaves some that no value needs, such as losses, backward will
        follow, which gains by batches even where forward does not.
        """
        cdef Graph* g = &self.graph.g
        cdef uint32_t i
        for i in range(<uint32_t>min(self.n_known, g.n_nodes), g.n_nodes):
            self.left += not state_of(g)[i] & COMPUTED
        if self.passes == LOOKS_UNTIL and not self.n_nested:
            self.at_once = (self.read < LEAST_READ * self.requests
                            and (g.forward_only or self.left < self.requests))
        return 0

    cdef bint widen(self) except -1:
        """Let more items of a map begin before a pass, once it is known that they will wait for each other."""
        cdef _Map own = self.outermost
        if own is None or own.width != LOOKING_WIDTH or not own.adapts or self.at_once:
            return False
        if self.passes < LOOKS_UNTIL and (
                self.passes or self.newly_read() < LEAST_READ_FIRST * <size_t>len(self.waiting)):
            return False
        own.width = USUAL_WIDTH
        if own.arguments is not None:
            self.open_up(own)
        return own.arguments is not None

    cdef int wake(self, list items) except -1:
        """Let items continue that have waited for a pass."""
        cdef _Item item
        for item in items:
            if not item.stopped:
                item.woken = True
                self.n_woken += 1
                self.ready.append(item)
        return 0

    cdef bint computed(self, _Item item):
        """Whether the values that an item waits for have been computed."""
        cdef Expression x
        for x in item.wanted if type(item.wanted) is list else (item.wanted,):
            if not state_of(&self.graph.g)[number_in(&self.graph.g, x)] & COMPUTED:
                return False
        return True


cdef int check_parameters(object storage, str what) except -1:
    """Raise if items of this thread may have used the parameters in a storage, which are about to change."""
    cdef Fibers fibers
    cdef _Item maker
    for fibers in getattr(_here, "running", ()):
        maker = fibers.current
        while maker is not None and not (maker.storages and storage in maker.storages):
            maker = maker.owner.waiter
        fibers.check_change(fibers.current, maker, what)
    return 0


cdef int note_storage(object storage) except -1:
    """Note that the running items of this thread have made a storage."""
    cdef Fibers fibers
    for fibers in getattr(_here, "running", ()):
        if fibers.current is not None:
            fibers.current.storages = (fibers.current.storages or []) + [storage]
    return 0


guard.check = check_parameters
guard.made = note_storage


cdef list _waited_for(list items):
    """Items and those of the maps that they have called, each after those that it waits for.  No more begin."""
    cdef list found = [], maps = []
    cdef _Map inner
    while True:
        for item in reversed(items):
            found.append(item)
            if (<_Item>item).inner is not None:
                maps.append((<_Item>item).inner)
        if not maps:
            return found[::-1]
        inner = maps.pop()
        inner.arguments = None
        items = list(inner.running.values())
        inner.running.clear()


cdef int name_item(object error, _Item item) except -1:
    """Add to the traceback of an error which item raised it."""
    shown = ", ".join(_shortened(argument) for argument in item.arguments)
    note = f"in item {item.index} of batched_map: {shown}"
    if hasattr(error, "add_note"):
        error.add_note(note)
    elif error.__cause__ is None:  # before Python 3.11
        error.__cause__ = RuntimeError(note)
    return 0


def _shortened(argument):
    try:
        text = repr(argument)
    except Exception:
        text = f"<{type(argument).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
