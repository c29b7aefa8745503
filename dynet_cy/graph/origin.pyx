"""Origins of nodes: lines of the program and scopes; descriptions of nodes for messages."""

import os
from contextlib import ContextDecorator, contextmanager
from typing import NamedTuple

cimport cython
from cpython.ref cimport PyObject, Py_INCREF, Py_XDECREF
from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.tensor cimport INTEGERS, Dim
from dynet_cy.core.threads cimport Setting, Unlocked, acquire_lock, change, now, release_lock
from dynet_cy.graph.structs cimport SHARED, Graph, Node, device_of, nodes_of, origin_of, state_of
from dynet_cy.memory.storage cimport Param
from dynet_cy.ops.registry cimport Op, op_at

from dynet_cy.core.devices import device_name
from dynet_cy.memory.storage import parameter_names


# ==== origin ======================================================================================
#
# The origin of a node: the line of the program that made it, and the scopes around that line.
#
# The line is that of the innermost Python frame outside dynet_cy, so nodes that a builder makes belong to the line that
# called the builder. Finding it costs some tens of nanoseconds: the instruction of a code object is looked up in a
# small table, and only if it is missing there are file, line and function determined.
#
# A scope is a number too; each thread has a current one.  While nothing is recorded and no scope is open, a node only
# pays for the check that this is so.

cdef extern from "frames.h":
    ctypedef struct Frame "dy_frame":
        pass
    # derived: functions of current_frame, caller_of = dy_caller
    Frame* current_frame "dy_current_frame"()
    Frame* caller_of "dy_caller"(Frame* f)
    # end of functions
    PyObject* code_of "(PyObject *)dy_code"(Frame* f) noexcept
    # derived: functions of instruction
    int instruction "dy_instruction"(Frame* f)
    # end of functions
    size_t slot_of "dy_slot"(const PyObject* code, int at) noexcept
    int line_of "dy_line"(PyObject* code, int at) noexcept


cdef extern from *:
    "static _Thread_local uint32_t dy_scope = 0; static _Thread_local uint64_t dy_making = 0;"
    uint32_t scope "dy_scope"
    uint64_t making "dy_making"

cdef enum:
    KNOWN = 4096
    LINE_BITS = 16                  # of a node's number; the others are for its scope
    MOST_PLACES = 65535
    INSIDE = MOST_PLACES            # the instruction is in this package
    UNKNOWN = MOST_PLACES + 1       # the instruction is not in the table

# An instruction that has made nodes.  The code object is kept alive, so that no other one gets its address.
cdef struct Known:
    PyObject* code
    int at
    uint32_t number

cdef Known[KNOWN] known
cdef Unlocked known_lock            # the three fields of an entry must change together

# How often recording of lines was switched on, scopes were opened, and times were requested.
cdef Setting recording = 0, scopes_open = 0, timing = 0

# By number.  When the lists are full, further lines get no number, and further scopes that of the scope around them.
cdef Unlocked places_lock           # guards these four
cdef list places = [None]
cdef dict numbers = {}
cdef list scopes = [""]
cdef dict scope_numbers = {"": 0}

# While `watch_reads` runs: called with each expression whose value is read, and the line that reads it.
cdef object watcher = None

# Spelled as by the import system, and so as in code objects.
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Origin(NamedTuple):
    """A line of a program.

    Attributes:
        file: name of the file, as in tracebacks.
        line: number of the line.
        function: name of the function; "<module>" outside of any.
    """

    file: str
    line: int
    function: str

    def __str__(self):
        return f"{shown_file(self.file)}:{self.line} in {self.function}"


def shown_file(str file) -> str:
    """The name of a file as messages show it: relative to the working directory if it is in there."""
    try:
        here = os.getcwd()
    except OSError:                                     # the directory has been removed
        return file
    here = here if here.endswith(os.sep) else here + os.sep
    return file[len(here):] if file.startswith(here) else file


cdef uint32_t current_origin() noexcept:
    global making
    if timing and making == 0:
        making = now()
    return scope << LINE_BITS | (current_line() if recording else 0)


cdef uint32_t current_line() noexcept:
    cdef Frame* frame = current_frame()
    cdef PyObject* code
    cdef Known* k
    cdef uint32_t number
    cdef int at
    while frame != NULL:
        code = code_of(frame)
        at = instruction(frame)
        k = &known[slot_of(code, at) % KNOWN]
        acquire_lock(&known_lock)
        number = k.number if k.code == code and k.at == at else UNKNOWN
        release_lock(&known_lock)
        if number == UNKNOWN:
            number = learn(k, code, at)
        if number != INSIDE:
            return number
        frame = caller_of(frame)
    return 0


cdef uint32_t learn(Known* k, PyObject* code, int at) noexcept:
    """Enter an instruction into the table, replacing the old entry; returns its number."""
    cdef PyObject* before
    cdef uint32_t number = 0
    try:
        file = (<object>code).co_filename
        if file.startswith(_PACKAGE):
            number = INSIDE
        else:
            # Not Origin(...), which runs Python code: a signal handler could run there, and its exception would be lost
            # here.
            number = number_of(tuple.__new__(Origin, (file, line_of(code, at), (<object>code).co_name)))
    except Exception:                               # such as out of memory: the line is then unknown
        number = 0
    Py_INCREF(<object>code)
    acquire_lock(&known_lock)
    before = k.code
    k.code = code
    k.at = at
    k.number = number
    release_lock(&known_lock)
    Py_XDECREF(before)
    return number


cdef uint32_t number_of(object place) except? 0:
    acquire_lock(&places_lock)
    try:
        number = numbers.get(place)
        if number is None:
            if len(places) == MOST_PLACES:
                return 0
            number = len(places)
            places.append(place)
            numbers[place] = number
    finally:
        release_lock(&places_lock)
    return number


cdef object origin_at(uint32_t number):
    return places[number & (1 << LINE_BITS) - 1]


cdef str scope_at(uint32_t number):
    return scopes[number >> LINE_BITS]


cdef str place_at(uint32_t number):
    line, path = origin_at(number), scope_at(number)
    return (f" at {line}" if line else "") + (f" in scope {path}" if path else "")


cdef int note_read(object x) except -1:
    if watcher is not None:
        watcher(x, origin_at(current_line()))
    return 0


cdef void note_why(Setting* reason, bint on) noexcept:
    """Count one more reason of a kind, or one fewer."""
    cdef int more = 1 if on else -1
    change(reason, more)
    change(&noting, more)


# ---- scopes --------------------------------------------------------------------------------------------------------

cdef uint32_t current_scope() noexcept:
    return scope


cdef void set_scope(uint32_t number) noexcept:
    global scope
    scope = number


cdef uint32_t enter_scope(str name) except? 0xFFFFFFFF:
    global scope
    cdef uint32_t before = scope
    path = f"{scopes[before]}/{name}" if before else name
    acquire_lock(&places_lock)
    try:
        number = scope_numbers.get(path)
        if number is None:
            if len(scopes) > MOST_PLACES:
                return before
            number = len(scopes)
            scopes.append(path)
            scope_numbers[path] = number
    finally:
        release_lock(&places_lock)
    scope = number
    return before


@cython.embedsignature(False)
class name_scope(ContextDecorator):
    """Label the nodes made in a block with the name of a part of the network.

        with dy.name_scope("encoder"):
            states = rnn.transduce(words)

    Drawings can show each scope as one box (`draw`, ``collapse=True``), profiles add up the cost of each scope, and
    errors that name a node name its scope: `detect_anomaly`, `record_lines`.  Nested blocks have names such as
    ``encoder/attention``.  It is also a decorator: ``@dy.name_scope("encoder")``.  Within a scope, or while lines are
    recorded, the nodes of each builder and of each layer get a scope of their own, named after its collection of
    parameters, and so after the attribute that holds it (``hidden``); in a list, after the class and the place in it
    (``Linear.0``).

    A node costs a few nanoseconds more within a scope, and nothing otherwise.  Each thread has its own scopes, and so
    does each call of a function by `batched_map`.

    Args:
        name: not empty, and without "/"

    Raises:
        TypeError: the name is not a str
        ValueError: it is empty, or has a "/"

    Example:
        >>> with dy.name_scope("encoder"):
        ...     h = dy.tanh(dy.inputVector([1, 2]))
        >>> h
        <expression 1 tanh {2}, made in scope encoder>
    """

    name: str

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name_scope: the name must be a str, not {type(name).__name__}")
        if not name or "/" in name:
            raise ValueError(f'name_scope: the name must not be empty nor have a "/" in it: {name!r}')
        self.name = name
        self._before = []

    def _recreate_cm(self):
        return name_scope(self.name)                    # a decorated function may recurse, and run in several threads

    def __enter__(self) -> name_scope:
        self._before.append(enter_scope(self.name))
        note_why(&scopes_open, True)
        return self

    def __exit__(self, *error: BaseException | None) -> None:
        note_why(&scopes_open, False)
        set_scope(self._before.pop())


# ---- times ---------------------------------------------------------------------------------------------------------

cdef uint64_t making_since() noexcept:
    global making
    cdef uint64_t since = making
    making = 0
    return since


cdef int time_making(bint on) except -1:
    note_why(&timing, on)
    return 0


cdef void release_code() noexcept:
    cdef int i
    cdef PyObject* code
    if recording:
        return
    for i in range(KNOWN):
        acquire_lock(&known_lock)
        code = known[i].code
        known[i].code = NULL
        release_lock(&known_lock)
        Py_XDECREF(code)


def origin(number: int) -> Origin | None:
    """The Origin with a number; None for 0, which means none."""
    return origin_at(number)


def count() -> int:
    """How many lines have a number."""
    return len(places) - 1


def is_recording() -> bool:
    """Whether lines of new nodes are recorded."""
    return recording > 0


def switch(on: bool):
    """Switch recording on or off; it stops when it has been switched off as often as on."""
    if not on and recording == 0:
        raise RuntimeError("recording of lines was switched off more often than on")
    note_why(&recording, bool(on))
    release_code()


@contextmanager
def record_lines() -> AbstractContextManager[None]:
    """While the block runs, record which line of the program makes each node, in all threads.

    Shape errors name the line of each argument; `Expression`'s repr, drawings and dumps of graphs, and
    `dynet_cy.profiling` show lines too.  For nodes that a builder makes, it is the line that called the builder.

        with dy.record_lines():
            loss = network(example)
            dy.print_graphviz()

    Example:
        >>> with dy.record_lines():
        ...     x = dy.inputVector([1, 2])
        >>> repr(x).startswith("<expression 0 input {2}, made at ")
        True
    """
    switch(True)
    try:
        yield
    finally:
        switch(False)


@contextmanager
def watch_reads(watch not None: Callable[[object, Origin | None], object]) -> AbstractContextManager[None]:
    """While the block runs, call a function with each expression before its value is read, in all threads.

    Args:
        watch: a function of the expression and the `Origin` of the line that reads it, which is None where no line is
            known. The reader raises its exceptions.
    """
    global watcher
    with record_lines():
        watcher = watch
        try:
            yield
        finally:
            watcher = None


# ==== messages ====================================================================================
#
# Descriptions of nodes and shapes, for messages.

cdef str describe_dim(const Dim* d):
    text = "{" + ",".join([str(d.d[i]) for i in range(d.nd)]) + "}"
    if d.bd > 1:
        text = f"{text} x {d.bd}"
    return f"{text} int32" if d.type == INTEGERS else text


cdef list argument_names(const Op* op, uint32_t n):
    names = op.args.decode().split()
    if names and names[-1].endswith("..."):
        stem = names.pop()[:-3]
        names += [f"{stem}[{i}]" for i in range(n - len(names))]
    return names


cdef str source_of_node(const Graph* g, uint32_t index):
    cdef const Node* x = &nodes_of(g)[index]
    if state_of(g)[index] & SHARED:
        return "parameter " + parameter_names.get((<Param*>x.object).id, "?")
    return op_at(x.op).name.decode()


cdef uint32_t made_in(const Graph* g, uint32_t index) noexcept nogil:
    return 0 if state_of(g)[index] & SHARED else origin_of(g, index)        # parameters have names


cdef str made_by(uint32_t origin):
    return f", made{place_at(origin)}" if origin else ""


cdef str made_at(const Graph* g, uint32_t index):
    return made_by(made_in(g, index))


cdef explain(const Op* op, str reason, const uint32_t* args, uint32_t n, Graph* g):
    """The reason, and every argument by name, with its shape, its source and, on a multi-device graph, its device."""
    names = argument_names(op, n)
    shapes, sources = [], []
    for i in range(n):
        shapes.append(describe_dim(&nodes_of(g)[args[i]].dim))
        sources.append(source_of_node(g, args[i]))
        if g.multi_device:
            sources[i] += " on " + device_name(device_of(g, args[i]))
        sources[i] += made_at(g, args[i])
    if n > 12:                                      # long lists: both ends are enough
        shown = list(range(6)) + list(range(n - 6, n))
    else:
        shown = list(range(n))
    name_width = max([len(names[i]) for i in shown], default=0)
    width = max([len(shapes[i]) for i in shown], default=0)
    lines = [f"{op.name.decode()}: {reason}"]
    lines += [f"    {names[i]:{name_width}}  {shapes[i]:{width}}  {sources[i]}" for i in shown]
    return "\n".join(lines)


# ==== layers ======================================================================================
#
# While something watches, the nodes of a layer are in a scope with its name.

# The C functions that Python calls for `layer(x)`. They are slots of the class, since a method that wraps `__call__`
# would cost every call more than a layer such as `Dropout` takes.
cdef extern from *:
    ctypedef PyObject* (*Call "ternaryfunc")(PyObject* layer, PyObject* args, PyObject* kwargs) noexcept
    ctypedef struct ClassObject "PyTypeObject":
        Call tp_call

cdef Call plain = NULL              # calls the method `__call__`


cdef PyObject* call(PyObject* layer, PyObject* args, PyObject* kwargs) noexcept:
    return call_in_scope(layer, args, kwargs) if noting else plain(layer, args, kwargs)


cdef PyObject* call_in_scope(PyObject* layer, PyObject* args, PyObject* kwargs) noexcept:
    cdef uint32_t outside = current_scope()
    cdef PyObject* result
    try:
        enter_scope(name_of_layer(<object>layer))
    except Exception:               # a layer that is not finished has no name
        pass
    result = plain(layer, args, kwargs)
    set_scope(outside)
    return result


cdef str name_of_layer(layer):
    """The name of a layer's collection, which is that of its attribute; the class where that is only a number."""
    name = layer.collection.name().rstrip("/").rpartition("/")[2]
    return f"{type(layer).__name__}.{name}".rstrip(".") if name.isdigit() or not name else name


def open_scopes(cls: type):
    """Let the calls of the instances of a class, which has a method `__call__`, open scopes."""
    global plain
    cdef ClassObject* of = <ClassObject*><PyObject*>cls
    if not isinstance(cls, type):
        raise TypeError(f"open_scopes: expected a class, got {type(cls).__name__}")
    if plain == NULL:
        plain = of.tp_call
    if of.tp_call == plain:
        of.tp_call = call
