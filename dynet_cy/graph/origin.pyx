"""Which line of the program made a node.

The line is that of the innermost frame of Python outside dynet_cy, so what a builder makes belongs to the line that
called the builder.  Finding it costs a few ten nanoseconds: an instruction of a code object is looked up in a small
table, and only one that is not there is made into a file, a line and a function.
"""

import os
from contextlib import contextmanager
from typing import NamedTuple

from cpython.ref cimport Py_INCREF, PyObject, Py_XDECREF
from libc.stdint cimport uint32_t

cdef extern from "frames.h":
    ctypedef struct Frame "dy_frame":
        pass
    Frame* current_frame "dy_current_frame"() noexcept
    Frame* caller_of "dy_caller"(Frame* f) noexcept
    PyObject* code_of "(PyObject *)dy_code"(Frame* f) noexcept
    int instruction "dy_instruction"(Frame* f) noexcept

cdef extern from *:
    """
    /* Where in a table an instruction is looked for. */
    static inline size_t dy_slot(const PyObject *code, int at) {
        return ((uintptr_t)code >> 4) * 31 + (size_t)at / 2 * 7;
    }

    static inline int dy_line(PyObject *code, int at) { return PyCode_Addr2Line((PyCodeObject *)code, at); }
    """
    size_t slot_of "dy_slot"(const PyObject* code, int at) noexcept
    int line_of "dy_line"(PyObject* code, int at) noexcept

cdef enum:
    KNOWN = 4096
    MOST_PLACES = 65535
    INSIDE = MOST_PLACES            # of an instruction: it is in this package

# An instruction that has made nodes.  The code object is held, so that no other one gets its address.
cdef struct Known:
    PyObject* code
    int at
    uint32_t number

cdef Known[KNOWN] known

# By number; lines beyond the last that there is room for have no number.
cdef list places = [None]
cdef dict numbers = {}

# As the import system has it, which is how code objects have it.
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Origin(NamedTuple):
    """A line of a program.

    Attributes:
        file: name of the file, as tracebacks have it.
        line: its number.
        function: name of the function, "<module>" outside of all.
    """

    file: str
    line: int
    function: str

    def __str__(self):
        return f"{self.file}:{self.line} in {self.function}"


cdef uint32_t current_line() noexcept:
    cdef Frame* frame = current_frame()
    cdef PyObject* code
    cdef Known* k
    cdef int at
    while frame != NULL:
        code = code_of(frame)
        at = instruction(frame)
        k = &known[slot_of(code, at) % KNOWN]
        if k.code != code or k.at != at:
            learn(k, code, at)
        if k.number != INSIDE:
            return k.number
        frame = caller_of(frame)
    return 0


cdef void learn(Known* k, PyObject* code, int at) noexcept:
    """Let an instruction be known in the place of what was there."""
    cdef PyObject* before = k.code
    cdef uint32_t number = 0
    try:
        file = (<object>code).co_filename
        if file.startswith(_PACKAGE):
            number = INSIDE
        else:
            # Not Origin(...), which is a function in Python: a handler of a signal would run in it, and what it raises
            # would be lost here.
            number = number_of(tuple.__new__(Origin, (file, line_of(code, at), (<object>code).co_name)))
    except Exception:                               # out of memory, say: the line stays unknown
        number = 0
    Py_INCREF(<object>code)
    k.code = code
    k.at = at
    k.number = number
    Py_XDECREF(before)


cdef uint32_t number_of(object place) except? 0:
    number = numbers.get(place)
    if number is None:
        if len(places) == MOST_PLACES:
            return 0
        number = len(places)
        places.append(place)
        numbers[place] = number
    return number


cdef object origin_at(uint32_t number):
    return places[number]


cdef void release_code() noexcept:
    cdef int i
    cdef PyObject* code
    if recording:
        return
    for i in range(KNOWN):
        code = known[i].code
        known[i].code = NULL
        Py_XDECREF(code)


def origin(number):
    """The Origin that a number stands for; None for 0, which stands for none."""
    return places[number]


def count():
    """How many lines have a number."""
    return len(places) - 1


def is_recording():
    """Whether lines of new nodes are recorded."""
    return recording > 0


def switch(on):
    """Switch recording on, or off again: it goes on until it has been switched off as often as on."""
    global recording
    if not on and recording == 0:
        raise RuntimeError("recording of lines was switched off more often than on")
    recording += 1 if on else -1
    release_code()


@contextmanager
def record_lines():
    """Remember, while the block runs, which line of the program makes each node, in all threads.

    Lines are named by errors of shapes, for each argument, by `Expression`'s repr, by drawings and dumps of graphs and
    by `dynet_cy.profiling`.  Of nodes that builders of dynet_cy make it is the line that called the builder.

        with dy.record_lines():
            loss = network(example)
            dy.print_graphviz()
    """
    switch(True)
    try:
        yield
    finally:
        switch(False)
