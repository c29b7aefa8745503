"""Updates that several processes make together, of parameters that live on devices.

Gradients are copied to the host in one copy, those of tables as rows.  There they are summed over all ranks by any
communicator, and clipped.  The sums are copied back in one copy, and the device of each rank makes the whole update.
"""

import numpy as np

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport size_of
from dynet_cy.kernels.kernels cimport K
from dynet_cy.memory.buffers cimport array_at, memory_of
from dynet_cy.memory.storage cimport Param, Plane, Storage, touch
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.parallel.steps cimport AllreduceStepper
from dynet_cy.train.trainers cimport MOVES, Update, update_on_device


cdef double squares_of(floats):
    cdef size_t n = floats.size
    return K.sumsq(n, <const float*>memory_of(floats)) if n else 0.0


cdef class DeviceAllreduceStepper(AllreduceStepper):
    """See above.  The arguments are those of `AllreduceStepper`."""

    cdef list stored, planes
    cdef object flat_buffer, update     # of dynet_cy.gpu, loaded where there is a device only
    cdef list sums                      # (parameter or table, None or rows, their sums): what goes back to the device
    cdef object back, numbers           # how, and these sums side by side

    def __cinit__(self, communicator, n, mean, *args):
        from dynet_cy.gpu import flat_buffer, update
        self.flat_buffer = flat_buffer
        self.update = update

    cdef int meet(self, object trainer, list stored, Update* u) except -1:
        self.stored = stored
        self.planes = trainer._states[:trainer._n_states]
        return AllreduceStepper.meet(self, trainer, stored, u)

    cdef int reduce(self, Update* u) except -1:
        cdef Py_ssize_t i
        cdef Param* p
        dense, tables = [], []
        self.sums = []
        for i in range(self.n):
            p = u.entries[i]
            if not self.any[i] or not (u.roles[i] == MOVES or u.measures):
                continue
            if p.rows:
                rows = array_at(p.touched, p.n_touched, np.uint32).copy()
                tables.append((i, rows))
            else:
                dense.append(i)
        parts = [(self.stored[i], None) for i in dense] + [(self.stored[i], rows) for i, rows in tables]
        buffer = self.flat_buffer.FlatBuffer(parts)
        floats = buffer.fetch((<_Stored>self.stored[0]).storage.grads) if parts else np.empty(0, np.float32)
        starts = [*buffer.starts, buffer.size]
        if dense:
            self.communicator.sum_floats(floats[:starts[len(dense)]])
            self.sent["dense_bytes"] += starts[len(dense)] * sizeof(float)
        for k, i in enumerate(dense):
            self.take(u, i, None, floats[starts[k]:starts[k + 1]])
        for k, (i, rows) in enumerate(tables, len(dense)):
            p = u.entries[i]
            values = floats[starts[k]:starts[k + 1]].reshape(-1, size_of(&p.dim))
            union, total = self.communicator.sum_rows(rows, values, p.rows)
            self.note_rows(p, len(union), len(rows))
            self.take(u, i, union, np.ascontiguousarray(total).reshape(-1))
        self.reduced = True
        return 0

    cdef int take(self, Update* u, Py_ssize_t i, rows, sums) except -1:
        """Have the sums of an entry."""
        if u.measures:
            u.squares[i] = squares_of(sums)
        if u.roles[i] == MOVES:
            self.sums.append((self.stored[i], rows, sums))
        return 0

    cdef int measure(self, Update* u) except -1:
        return self.add_up(u)

    cdef int prepare(self, object trainer, list stored, Update* u) except -1:
        if not self.reduced:
            self.add_up(u)
        if self.sums:
            self.back = self.flat_buffer.FlatBuffer([(x, rows) for x, rows, _ in self.sums])
            self.numbers = np.concatenate([sums for _, _, sums in self.sums])
        self.update.prepare(stored, u.n_groups)
        return 0

    cdef int apply(self, Storage storage, object trainer, Update* u) except -1:
        cdef _Stored x
        cdef uint32_t r
        if self.sums:
            self.back.send(storage.grads, self.numbers)
        for x, rows, _ in self.sums:
            x.p.has_gradient = 1
            for r in (rows if rows is not None else ()):
                touch(x.p, r)
        self.sums = []
        self.back = self.numbers = None
        return update_on_device(self.update, self.stored, u, self.planes)

    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1:
        self.update.axpby(stored, a, b, source, target)
        return 0
