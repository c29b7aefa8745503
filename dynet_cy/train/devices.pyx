"""Updates of parameters that live on several devices, of which the CPU may be one: a backend of its own for each.

No device knows the norm of all gradients.  So if gradients are clipped, the host waits for each GPU.

The functions at the end choose the backend of a trainer, and collect the outcomes of its updates.
"""

cimport cython
from libc.math cimport isfinite
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from dynet_cy.memory.storage cimport Plane, Storage
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.train.device cimport DeviceBackend
from dynet_cy.train.host cimport HostBackend, squared_norm
from dynet_cy.train.interfaces cimport Backend, Reducer
from dynet_cy.train.plan cimport FROZEN, Outcome, Plan, Update


@cython.final
cdef class Part:
    """What an update does on one device."""

    cdef Storage storage
    cdef Backend backend
    cdef list planes                # the state of the rule there
    cdef uint8_t* roles             # of all entries; those that live on other devices are FROZEN

    def __cinit__(self, Storage storage, Backend backend, list planes, Py_ssize_t n):
        self.storage, self.backend, self.planes = storage, backend, planes
        self.roles = <uint8_t*>malloc(n + 1)
        if self.roles == NULL:
            raise MemoryError("the list of parameters to update")

    def __dealloc__(self):
        free(self.roles)

    cdef Update of(self, const Update* u) noexcept:
        """This part of an update."""
        cdef Py_ssize_t i
        cdef Update own = u[0]
        own.roles = self.roles
        for i in range(u.n):
            self.roles[i] = u.roles[i] if u.entries[i].device == self.storage.device else <uint8_t>FROZEN
        for i in range(len(self.planes)):
            own.states[i] = (<Plane>self.planes[i]).memory()
        return own


cdef class DevicesBackend(Backend):
    """See above."""

    def __cinit__(self):
        from dynet_cy.gpu import clips, update
        self.update = update
        self.records = clips
        self.backends = {0: HostBackend()}

    cdef Backend on(self, int device):
        """The backend of one device."""
        if device not in self.backends:
            self.backends[device] = DeviceBackend()
        return self.backends[device]

    cdef int begin(self, list stored, list planes, bint measures, Outcome* found) except -1:
        cdef Backend backend
        cdef int device
        self.by_group = False
        self.parts = []
        for storage, _ in split(stored):
            device = (<Storage>storage).device
            own = [(<Plane>plane).on(device) for plane in planes]
            backend = self.on(device)
            if device:
                (<DeviceBackend>backend).attach(stored, own)
            self.parts.append(Part(storage, backend, own, len(stored)))
        self.records.settle_others(stored)
        return 0

    cdef int measure(self, Update* u) except -1:
        cdef Part part
        cdef Update own
        for part in self.parts:
            own = part.of(u)
            if part.storage.device:
                (<DeviceBackend>part.backend).measure_groups(&own)
            else:
                part.backend.measure(&own)
        self.by_group = True
        return 0

    cdef list not_finite(self, list stored, const Update* u):
        cdef _Stored x
        if not self.by_group:
            return Backend.not_finite(self, stored, u)
        return [x.full_name for x in stored
                if not isfinite(self.update.squared_norm([x]) if x.p.device else squared_norm(x.p))]

    cdef int sum_gradients(self, Reducer ranks, const uint8_t* any, Update* u) except -1:
        cdef Part part
        cdef Update own
        for part in self.parts:
            own = part.of(u)
            part.backend.sum_gradients(ranks, any, &own)
        return 0

    cdef int prepare(self, Update* u) except -1:
        cdef Part part
        cdef Update own
        for part in self.parts:
            own = part.of(u)
            part.backend.prepare(&own)
        return 0

    cdef int apply(self, Storage storage, Plan plan, list rates) except -1:
        cdef Part part
        for part in self.parts:
            part.backend.apply(part.storage, plan.on(part.storage.device, part.planes), rates)
        return 0

    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1:
        cdef int device
        for storage, own in split(stored):
            device = (<Storage>storage).device
            self.on(device).axpby(own, a, b, source.on(device), target.on(device))
        return 0


cdef list split(list stored):
    """For each device, its storage and its parameters.  The CPU comes last: signal handlers may run during changes
    there, and they must find the other devices' updates complete."""
    cdef _Stored x
    parts = {}
    for x in stored:
        parts.setdefault(x.p.device, (x.storage, []))[1].append(x)
    return [parts[device] for device in sorted(parts, reverse=True)]


# ---- the backend of a trainer, and the outcomes of its updates -------------------

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
