"""Updates in which every rank updates all parameters, after any communicator has summed the gradients."""

import numpy as np

from dynet_cy.memory.buffers cimport array_at
from dynet_cy.memory.storage cimport Param, Plane, Storage
from dynet_cy.model.leaves cimport settle
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.parallel.collective cimport StepHeader
from dynet_cy.train.interfaces cimport Backend
from dynet_cy.train.plan cimport Update

from dynet_cy.parallel.communicator import ParallelError


cdef class AllreduceReducer(CollectiveReducer):
    """See above.  The arguments are those of `CollectiveReducer`."""

    def __cinit__(self, communicator, n, mean, *args):
        self.memory = bytearray(self.header_bytes)

    cdef int begin(self) except -1:
        self.own = <StepHeader*><char*>self.memory
        return 0

    cdef int swap(self, Update* u) except -1:
        cdef int r
        self.told = self.communicator.gather_bytes(bytes(self.memory), self.what.decode())
        for r in range(self.size):
            self.headers[r] = <StepHeader*><char*>(<bytes>self.told[r])
            if self.headers[r].n != self.own.n:
                raise ParallelError(f"rank {r} updates {self.headers[r].n} parameters, rank {self.rank} {self.n}")
        return 0

    cdef int sum_all(self, Backend backend, Update* u) except -1:
        return backend.sum_gradients(self, self.any, u)

    cdef int sum_floats(self, object floats) except -1:
        self.sent["dense_bytes"] += floats.nbytes
        self.communicator.sum_floats(floats)
        return 0

    cdef tuple sum_rows(self, const Param* p, object rows, object values):
        union, total = self.communicator.sum_rows(rows, values, p.rows)
        self.note_rows(p, len(union), len(rows))
        return union, total


def adopt(communicator, trainer):
    """Copy the parameters and the state of the rule from rank 0.  Collective."""
    cdef Storage storage = trainer.collection.storage
    cdef Plane plane
    cdef _Stored x
    for x in trainer.collection._below():
        settle(x.p)
        for plane in (storage.values, *trainer._states[:trainer._n_states]):
            plane = plane.on(x.p.device)
            plane.pull(x.p.offset, x.p.size)
            communicator.broadcast_floats(array_at(plane.at(x.p.offset), x.p.size, np.float32))
            plane.push(x.p.offset, x.p.size)
    for storage in (storage, *storage.beside.values()):
        storage.changed()


def allreduce(communicator, trainer, reduction):
    """The reducer of a trainer over any communicator.  Collective: parameters and state are copied from rank 0.

    Args:
        communicator: the connection of the ranks.
        trainer: the trainer.
        reduction: "mean" or "sum".
    """
    adopt(communicator, trainer)
    return AllreduceReducer(communicator, len(trainer.collection._below()), reduction == "mean")
