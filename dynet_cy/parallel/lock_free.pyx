"""Updates without locks: all ranks change one copy of parameters and state, each using its own gradients (Recht, Re,
Wright and Niu 2011, Hogwild: a lock-free approach to parallelizing stochastic gradient descent).
"""

cimport cython
from libc.stdint cimport uint64_t

from dynet_cy.memory.storage cimport Storage
from dynet_cy.model.leaves cimport settle
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.parallel.board cimport dy_count_up
from dynet_cy.parallel.shared_model cimport address, model_of, share_states
from dynet_cy.train.interfaces cimport Reducer

from dynet_cy.train.devices import refuse_devices


ON_HOST = (
    "asynchronous training is for parameters in memory that all processes share, and these live on GPUs, where each "
    "process has its own: train with --mode sync, or on the CPU"
)


@cython.final
cdef class LockFreeReducer(Reducer):
    """Updates of one copy of the parameters by all ranks, without locks.  See `lock_free`."""

    cdef object model, region
    cdef uint64_t* counter

    def __cinit__(self, model, region):
        self.model = model
        self.region = region
        self.counter = <uint64_t*>address(region)
        # Each time weight decay is applied, it takes a pass over all tables.
        self.least_decay = 2.0 ** -10
        self.alone = False
        self.host_only = ON_HOST

    cdef object count(self, object steps):
        """The number of this update, counting those of all ranks."""
        return dy_count_up(self.counter, steps)


def lock_free(communicator, trainer):
    """Updates of one copy of parameters and state by all processes of a machine, without locks.  Collective.

    Args:
        communicator: a SharedCommunicator.
        trainer: the trainer.  All its parameters and its state are copied from rank 0.

    Raises:
        RuntimeError: some parameters live on devices.
    """
    refuse_devices(trainer, ON_HOST)
    cdef list stored = trainer.collection._below()
    cdef Storage storage = trainer.collection.storage
    cdef _Stored x
    model = model_of(communicator, storage, 1, with_children=True)
    for x in stored:
        settle(x.p)
        x.p.in_place = 1                # a factor could not change at the same moment as the rows
    for turn in (True, False):
        if (communicator.rank == 0) == turn:
            storage.move(storage.values, model.plane(0), turn)
        communicator.barrier("wrap")
    storage.changed()
    region = communicator.board.region(4096 + trainer._n_states * <size_t>model.plane_bytes, with_children=True)
    share_states(communicator, trainer, region, 4096, model.plane_bytes)
    return LockFreeReducer(model, region)
