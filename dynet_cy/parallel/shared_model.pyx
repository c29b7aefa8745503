"""Memory of models that the processes of one machine share."""

import weakref

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy

from dynet_cy.memory.storage cimport Storage
from dynet_cy.model.leaves cimport settle
from dynet_cy.model.parameters cimport _Stored


# Spare room for parameters that are added later, in floats, in addition to the size of the present ones.
cdef size_t ROOM = 1 << 20


cdef object part_of(object region, size_t start, size_t size):
    return memoryview(region)[start:start + size]


cdef char* address(object region) except NULL:
    cdef Py_buffer view
    PyObject_GetBuffer(region, &view, PyBUF_WRITABLE)
    cdef char* at = <char*>view.buf
    PyBuffer_Release(&view)
    return at


class SharedModel:
    """The memory that ranks share for one root collection, whatever its trainers.  Collective.

    Args:
        communicator: the connection of the ranks.
        storage: the storage of the collection.
        parts: the number of ranges of floats, each as large as a plane.
        with_children: see `Board.region`.
    """

    def __init__(self, communicator, storage, parts, with_children):
        self.storage = storage
        capacity = (storage.n_bytes() // sizeof(float) * 2 + ROOM) // LINE * LINE
        self.plane_bytes = capacity * sizeof(float)
        self.region = communicator.board.region(self.plane_bytes * parts, with_children)

    def plane(self, part):
        """The memory of one range."""
        return part_of(self.region, part * self.plane_bytes, self.plane_bytes)


# By the id of the storage, which the model keeps alive.
models = weakref.WeakValueDictionary()


cdef object model_of(communicator, Storage storage, parts, with_children=False):
    known = models.get(id(storage))
    known = known if known is not None and known.plane_bytes >= storage.n_bytes() else None
    if not all(communicator.gather(known is not None, "wrap")):
        known = models[id(storage)] = SharedModel(communicator, storage, parts, with_children)
    return known


cdef int send_values(communicator, Storage storage, list stored, float* through) except -1:
    cdef _Stored x
    for x in stored:
        settle(x.p)
    if communicator.rank == 0:
        for x in stored:
            memcpy(through + x.p.offset, x.p.value, x.p.size * sizeof(float))
    communicator.barrier("wrap")
    if communicator.rank:
        for x in stored:
            memcpy(x.p.value, through + x.p.offset, x.p.size * sizeof(float))
    communicator.barrier("wrap")
    storage.changed()
    return 0


cdef int share_states(communicator, trainer, region, size_t start, size_t plane_bytes) except -1:
    storage = trainer.collection.storage
    for turn in (True, False):
        if (communicator.rank == 0) == turn:
            for k in range(trainer._n_states):
                storage.move(trainer._states[k], part_of(region, start + k * plane_bytes, plane_bytes), turn)
        communicator.barrier("wrap")
    return 0
