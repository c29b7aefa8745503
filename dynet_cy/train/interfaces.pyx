"""The base classes of backends, and the reducer of a process that trains alone; see interfaces.pxd."""

from libc.math cimport isfinite

from dynet_cy.kernels.late_rows cimport open_late
from dynet_cy.memory.changes cimport see_whole
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.train.plan cimport MOVES

from dynet_cy.model.weight_decay import LEAST_DECAY


cdef class Backend:
    cdef int begin(self, list stored, list planes, bint measures, Outcome* found) except -1:
        return 0

    cdef int measure(self, Update* u) except -1:
        raise NotImplementedError

    cdef list not_finite(self, list stored, const Update* u):
        return [(<_Stored>stored[i]).full_name for i in range(u.n) if not isfinite(u.squares[i])]

    cdef int sum_gradients(self, Reducer ranks, const uint8_t* any, Update* u) except -1:
        raise NotImplementedError

    cdef int prepare(self, Update* u) except -1:
        cdef Py_ssize_t i
        for i in range(u.n if u.late else 0):
            if u.roles[i] == MOVES:
                open_late(u.entries[i])
        return 0

    cdef Py_ssize_t undecided(self, const Update* u) except -1:
        return 0

    cdef int apply(self, Storage storage, Plan plan, list rates) except -1:
        raise NotImplementedError

    cdef bint was_made(self, const Update* u) except -1:
        return True

    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1:
        raise NotImplementedError

    cdef int poll(self, Outcome* found) except -1:
        return 0

    cdef int wait(self, Outcome* found) except -1:
        return 0

    cdef int close(self) except -1:
        return 0


cdef class Reducer:
    def __cinit__(self, *args):
        self.least_decay = LEAST_DECAY
        self.alone = True

    cdef object agree(self, trainer, list stored, Update* u, TrainerSettings* settings, list groups):
        return None

    cdef int reduce(self, Backend backend, Update* u) except -1:
        return backend.measure(u) if u.measures else 0

    cdef object count(self, object steps):
        return steps + 1

    cdef int apply(self, Backend backend, Storage storage, Plan plan, list rates) except -1:
        return backend.apply(storage, plan, rates)

    cdef int end(self, object error) except -1:
        return 0

    cdef int settle(self, collection) except -1:
        see_whole()
        collection._catch_up()
        return 0

    cdef int sum_floats(self, object floats) except -1:
        return 0

    cdef tuple sum_rows(self, const Param* p, object rows, object values):
        return rows, values
