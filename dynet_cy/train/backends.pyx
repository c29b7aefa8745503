"""Chooses the backend of a trainer, and collects the outcomes of its updates."""

from libc.string cimport memset

from dynet_cy.memory.storage cimport Storage
from dynet_cy.train.device cimport DeviceBackend
from dynet_cy.train.devices cimport DevicesBackend
from dynet_cy.train.host cimport HostBackend
from dynet_cy.train.interfaces cimport Reducer


cdef Backend backend_of(trainer):
    cdef Storage storage = trainer._collection.storage
    cdef Backend backend = trainer._backend
    if not storage.device and not storage.beside:
        return backend
    if type(backend) is DevicesBackend or (type(backend) is DeviceBackend and not storage.beside):
        return backend
    refuse_devices(trainer, (<Reducer>trainer._reducer).host_only)
    poll_all(trainer, backend)
    trainer._backend = DevicesBackend() if storage.beside else DeviceBackend()
    return trainer._backend


def refuse_devices(trainer, str reason):
    """Raise an error if a way of training needs the parameters in the memory of the host, and they are not there.

    This is the only place that refuses a way of training because of where the parameters live.

    Args:
        trainer: the trainer.
        reason: why the parameters must be in the memory of the host; None: they may live anywhere.

    Raises:
        RuntimeError: they live elsewhere.
    """
    cdef Storage storage = trainer._collection.storage
    if reason is not None and (storage.device or storage.beside):
        raise RuntimeError(f"{type(trainer).__name__}: {reason}")


cdef int take_outcome(trainer, const Outcome* found) except -1:
    if found.left_out:
        trainer._take_back(found.left_out)
    if found.dropped:
        trainer._uncount(found.dropped)
    if found.dropped or found.skipped:
        trainer._skipped += found.dropped + found.skipped
    if found.clipped:
        trainer._clips += found.clipped
    if found.measured:
        trainer._norm = found.norm
    return 0


cdef int poll_updates(trainer) except -1:
    cdef Outcome found
    cdef Backend backend = trainer._backend
    if type(backend) is HostBackend:
        return 0
    memset(&found, 0, sizeof(Outcome))
    backend.poll(&found)
    return take_outcome(trainer, &found)


cdef int wait_for_updates(trainer) except -1:
    return poll_all(trainer, backend_of(trainer))


cdef int poll_all(trainer, Backend backend) except -1:
    cdef Outcome found
    memset(&found, 0, sizeof(Outcome))
    try:
        return backend.wait(&found)
    finally:
        take_outcome(trainer, &found)
