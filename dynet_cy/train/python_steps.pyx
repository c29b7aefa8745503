"""Updates whose steps are computed in Python: the backend of `dynet_cy.train.python_trainer`.

All steps are computed first, from copies, while signal handlers and all other Python code may run; an exception there
leaves everything as it was.  Then a `Change` adds them to the values, one parameter after the other.
"""

import numpy as np

cimport cython
from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from dynet_cy.core.interrupts cimport Interrupts, interrupted
from dynet_cy.core.tensor cimport size_of
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.late_rows cimport catch_up
from dynet_cy.kernels.pool cimport enter_pool, leave_pool
from dynet_cy.memory.buffers cimport array_at, memory_of
from dynet_cy.memory.changes cimport Change, make_change
from dynet_cy.memory.storage cimport Param, Plane, Storage, forget_gradient
from dynet_cy.model.leaves cimport settle_here
from dynet_cy.train.host cimport HostBackend, apply_weight_decay, lock_gradient, unlock_gradient
from dynet_cy.train.plan cimport FROZEN, MOVES, Outcome, Plan, Update


# What an update does with one parameter or table: the rows of a table lie one after the other, a parameter is one row.
cdef struct Step:
    Param* p                    # NULL: nothing
    double decoupled            # the share of weight decay taken off before the step...
    double decay                # ... and after it
    const float* change         # NULL: there is no step
    const float* gradient       # what the change was computed from, before it was scaled
    const float** states        # new numbers of each state...
    float** planes              # ... and where they belong
    const uint32_t* rows        # numbers of the rows that change; NULL: the first ones
    size_t n                    # how many
    size_t width                # numbers in a row


@cython.final
cdef class StepChange(Change):
    """Adds all steps to the values."""

    cdef Storage storage
    cdef list kept                  # arrays and planes that steps point into
    cdef Step* steps
    cdef const float** states
    cdef float** planes
    cdef Py_ssize_t n, i, n_states
    cdef bint counted

    def __cinit__(self, Storage storage, Py_ssize_t n, list planes):
        cdef Py_ssize_t i
        self.storage = storage
        self.kept = [planes]
        self.n = n
        self.n_states = len(planes)
        self.steps = <Step*>calloc(n + 1, sizeof(Step))
        self.states = <const float**>calloc(n * self.n_states + 1, sizeof(float*))
        self.planes = <float**>calloc(n * self.n_states + 1, sizeof(float*))
        if self.steps == NULL or self.states == NULL or self.planes == NULL:
            raise MemoryError("the list of steps")
        for i in range(n):
            self.steps[i].states = self.states + i * self.n_states
            self.steps[i].planes = self.planes + i * self.n_states

    def __dealloc__(self):
        free(self.steps)
        free(self.states)
        free(self.planes)

    cdef bint go_on(self, Interrupts* s) noexcept nogil:
        enter_pool()
        while self.i < self.n:
            self.i += 1
            if interrupted(s, make_step(&self.steps[self.i - 1], self.n_states)):
                break
        if self.i == self.n and not self.counted:
            self.counted = True
            self.storage.changes += 1
        leave_pool()
        return self.counted


cdef size_t make_step(const Step* s, Py_ssize_t n_states) noexcept nogil:
    """Change one parameter; returns the bytes of its value."""
    cdef Param* p = s.p
    cdef size_t k, row
    cdef bint added                 # whether a pass of another thread has added to the gradient meanwhile
    if p == NULL:
        return 0
    lock_gradient(p)
    apply_weight_decay(p, s.decoupled)
    if s.change != NULL:
        added = p.pass_number != 0
        for k in range(s.n):
            row = k if s.rows == NULL else s.rows[k]
            if p.rows:
                catch_up(p, row, row + 1)
            move_row(s, k, row, n_states, added)
        if not added:
            forget_gradient(p)
    apply_weight_decay(p, s.decay)
    unlock_gradient(p)
    return p.size * sizeof(float)


cdef void move_row(const Step* s, size_t k, size_t row, Py_ssize_t n_states, bint added) noexcept nogil:
    cdef float* gradient = s.p.grad + row * s.width
    cdef Py_ssize_t state
    K.axpy(s.width, <float>(1 / s.p.factor), s.change + k * s.width, s.p.value + row * s.width)
    for state in range(n_states):
        memcpy(s.planes[state] + row * s.width, s.states[state] + k * s.width, s.width * sizeof(float))
    if added:
        K.axpy(s.width, -1, s.gradient + k * s.width, gradient)
    elif s.p.has_gradient:
        memset(gradient, 0, s.width * sizeof(float))


cdef class PythonBackend(HostBackend):
    """The backend of one update of a `PythonTrainer`."""

    cdef object trainer
    cdef list stored, planes
    cdef StepChange change

    def __cinit__(self, trainer):
        self.trainer = trainer

    cdef int begin(self, list stored, list planes, bint measures, Outcome* found) except -1:
        self.stored = stored
        self.planes = planes
        return 0

    cdef int prepare(self, Update* u) except -1:
        cdef Py_ssize_t i
        self.change = StepChange(self.trainer.collection.storage, u.n, self.planes)
        settings = self.trainer._step_settings()
        for i in range(u.n):
            if u.roles[i] == MOVES:
                self.compute(u, i, settings[u.group[i]])
        return 0

    cdef int compute(self, Update* u, Py_ssize_t i, object settings) except -1:
        """Let the trainer compute the step of one parameter or table."""
        cdef Param* p = u.entries[i]
        cdef Step* s = &self.change.steps[i]
        cdef Plane plane
        cdef Py_ssize_t k
        rows = None
        s.width = size_of(&p.dim)
        s.n = p.rows or 1
        if p.rows and self.trainer._sparse:
            rows = array_at(p.touched, p.n_touched, np.uint32).copy()
            rows.sort()
            s.n = len(rows)
            s.rows = <const uint32_t*>memory_of(rows)
        begin_step(s, p)
        if s.n == 0:
            return 0
        gradient = copy_of(p.grad, p, rows)
        value = copy_of(p.value, p, rows)
        if p.factor != 1:
            value *= np.float32(p.factor)
        states = [copy_of(plane.at(p.offset), p, rows) for plane in self.planes]
        scale = np.float32(u.settings[u.group[i]].h.grad_scale)
        change, states = self.trainer._changes(
            self.stored[i], rows, value, gradient * scale, states, settings)
        for k, state in enumerate(states):
            plane = self.planes[k]
            s.planes[k] = plane.at(p.offset)
            s.states[k] = <const float*>memory_of(state)
        s.gradient = <const float*>memory_of(gradient)
        s.change = <const float*>memory_of(change)
        self.change.kept.append((rows, gradient, states, change))
        return 0

    cdef int apply(self, Storage storage, Plan plan, list rates) except -1:
        cdef const Update* u = &plan.u
        cdef Py_ssize_t i
        cdef Step* s
        for i in range(u.n):
            if u.roles[i] == FROZEN:
                continue
            s = &self.change.steps[i]
            s.p = u.entries[i]
            s.decoupled = u.settings[u.group[i]].decoupled
            s.decay = u.settings[u.group[i]].decay
        return make_change(self.change)


cdef void begin_step(const Step* s, Param* p) noexcept nogil:
    """Bring the rows up to date.  A pass of another thread that adds to the gradient from now on sets `pass_number`;
    its part of the gradient is left for the next update."""
    cdef size_t k
    lock_gradient(p)
    p.pass_number = 0
    if p.rows and s.rows == NULL and s.n:
        settle_here(p)
    for k in range(s.n if s.rows != NULL else 0):
        catch_up(p, s.rows[k], s.rows[k] + 1)
    unlock_gradient(p)


cdef object copy_of(float* base, Param* p, object rows):
    """Numbers of a parameter, or of these rows of a table, as a new array: rows x numbers of a row."""
    table = array_at(base, p.size, np.float32).reshape(p.rows or 1, size_of(&p.dim))
    return table.copy() if rows is None else table[rows]
