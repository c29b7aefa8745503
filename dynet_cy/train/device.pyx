"""Updates of parameters on devices, and the device of each parameter."""

import numpy as np

cimport cython
from libc.math cimport isfinite
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.kernels.kernels cimport squares_of
from dynet_cy.memory.bridge cimport array_at, memory_of
from dynet_cy.memory.storage cimport Param, Plane, Storage, forget_gradient, touch
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.train.host cimport HostBackend, lock_gradient, squared_norm, unlock_gradient
from dynet_cy.train.interfaces cimport FROZEN, KEPT, MOVES, Backend, Outcome, Plan, Reducer, TrainerFields, Update


# ==== device ======================================================================================
#
# Updates of parameters that live on one device.
#
# The device clips by itself, so the host does not wait for it. It writes the outcome to a record, which the host reads
# later: clips and norms when the program asks for them, and gradients that are not finite at the next update, or
# whenever the host waits for the device before that, for example to read a value.
#
# If updates with such gradients are dropped, the number of an update, and so its learning rate, depends on how many
# of the updates still in flight are dropped. So the device gets a learning rate for each possible number of them.
#
# If gradients are summed over ranks, one copy brings them to the host, those of tables as rows. On the host, any
# reducer sums and clips the gradients. One copy brings the sums back, and the device of each rank makes the whole
# update.

cdef class DeviceBackend(Backend):
    """See above."""

    def __cinit__(self):
        from dynet_cy.gpu import memory, update
        self.update = update
        self.records = memory
        self.flat_buffer = update
        self.sums = []

    cdef int attach(self, list stored, list planes) except -1:
        self.stored = stored
        self.planes = planes
        self.sums = []
        return 0

    cdef int begin_update(self, list stored, list planes, bint measures, Outcome* found) except -1:
        self.attach(stored, planes)
        self.records.settle_others(stored, self.clipping)
        if self.waits:
            if not measures:                    # without clipping, the device would not skip this update
                self.wait(found)
            self.look(found)
            self.clipping.catch_up()
        return 0

    # ---- norms ----

    cdef int measure(self, Update* u) except -1:
        if u.n == 0:
            return 0
        if self.clipping is None:
            self.clipping = self.records.Clipping((<_Stored>self.stored[0]).storage.device - 1)
        self.waits = True
        u.deferred = True
        return 0

    cdef int measure_groups(self, Update* u) except -1:
        cdef Py_ssize_t i
        # One number for a whole group, since each number read means a wait for the device.
        by_group = {}
        for i in range(u.n):
            if u.roles[i] != FROZEN:
                by_group.setdefault(u.group[i], []).append(i)
        for members in by_group.values():
            for i in members:
                u.squares[i] = 0
            u.squares[<Py_ssize_t>members[0]] = self.update.squared_norm([self.stored[i] for i in members])
        return 0

    # ---- sums over ranks ----

    cdef int sum_gradients(self, Reducer ranks, const uint8_t* any, Update* u) except -1:
        cdef Py_ssize_t i
        cdef Param* p
        dense, tables = [], []
        self.sums = []
        for i in range(u.n):
            p = u.entries[i]
            if not any[i] or not (u.roles[i] == MOVES or (u.roles[i] == KEPT and u.measures)):
                continue
            if p.rows:
                rows = array_at(p.touched, p.n_touched, np.uint32).copy()
                tables.append((i, rows))
            else:
                dense.append(i)
        parts = [(self.stored[i], None) for i in dense] + [(self.stored[i], rows) for i, rows in tables]
        if not parts:
            return 0
        buffer = self.flat_buffer.FlatBuffer(parts)
        floats = buffer.fetch((<_Stored>parts[0][0]).storage.grads)
        starts = [*buffer.starts, buffer.size]
        if dense:
            ranks.sum_floats(floats[:starts[len(dense)]])
        for k, i in enumerate(dense):
            self.keep_sums(u, i, None, floats[starts[k]:starts[k + 1]])
        for k, (i, rows) in enumerate(tables, len(dense)):
            p = u.entries[i]
            values = floats[starts[k]:starts[k + 1]].reshape(-1, size_of(&p.dim))
            union, total = ranks.sum_rows(p, rows, values)
            self.keep_sums(u, i, union, np.ascontiguousarray(total).reshape(-1))
        return 0

    cdef int keep_sums(self, Update* u, Py_ssize_t i, object rows, object sums) except -1:
        """Keep the sums of an entry until they are sent to the device."""
        if u.measures:
            u.squares[i] = squares_in(sums)
        if u.roles[i] == MOVES:
            self.sums.append((self.stored[i], rows, sums))
        return 0

    cdef int send_sums(self, Storage storage) except -1:
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
        return 0

    # ---- updates ----

    cdef int prepare(self, Update* u) except -1:
        if self.sums:
            self.back = self.flat_buffer.FlatBuffer([(x, rows) for x, rows, _ in self.sums])
            self.numbers = np.concatenate([sums for _, _, sums in self.sums])
        Backend.prepare(self, u)
        self.update.prepare([self.stored[i] for i in range(u.n) if u.roles[i] != FROZEN], u.n_groups)
        return 0

    cdef Py_ssize_t undecided(self, const Update* u) except -1:
        return self.clipping.coming() if u.deferred and u.skips else 0

    cdef int apply(self, Storage storage, Plan plan, list rates) except -1:
        self.send_sums(storage)
        self.update.update(plan, self.clipping if plan.u.deferred else None, rates)
        return 0

    cdef bint was_made(self, const Update* u) except -1:
        """If the update was dropped, note that gradients kept by it are zero now."""
        cdef Py_ssize_t i
        if not u.deferred:
            return True
        self.clipping.wait(polls=False)
        if isfinite(<double>self.clipping.norm):
            return True
        for i in range(u.n):
            if u.roles[i] == KEPT:
                lock_gradient(u.entries[i])
                forget_gradient(u.entries[i])
                unlock_gradient(u.entries[i])
        return False

    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1:
        self.update.axpby(stored, a, b, source, target, self.clipping)
        return 0

    # ---- outcomes of updates ----

    cdef int poll(self, Outcome* found) except -1:
        cdef Py_ssize_t dropped
        if self.clipping is None:
            return 0
        dropped = self.clipping.dropped()
        found.left_out += self.clipping.left_out()
        found.dropped += dropped
        found.clipped += self.clipping.clips()
        return 0

    cdef int look(self, Outcome* found) except -1:
        """Add the outcomes known so far, and raise an error if updates were skipped."""
        try:
            self.clipping.check()
        finally:
            self.poll(found)
        return 0

    cdef int wait(self, Outcome* found) except -1:
        if self.waits:
            self.clipping.wait()
            self.waits = False
            try:
                self.look(found)
            finally:
                found.norm = self.clipping.norm
                found.measured = True
        return 0

    cdef int close(self) except -1:
        if self.waits:
            self.clipping.wait(polls=False)     # a signal handler must not raise here
            self.clipping.check()
        return 0


cdef double squares_in(floats):
    cdef size_t n = floats.size
    return squares_of(n, <const float*>memory_of(floats)) if n else 0.0


# ==== devices =====================================================================================
#
# Updates of parameters that live on several devices, of which the CPU may be one: a backend of its own for each.
#
# No device knows the norm of all gradients.  So if gradients are clipped, the host waits for each GPU.
#
# The functions at the end choose the backend of a trainer, and collect the outcomes of its updates.

@cython.final
cdef class DevicePart:
    """The part of an update on one device."""

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
        """A part of an update."""
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
        from dynet_cy.gpu import memory, update
        self.update = update
        self.records = memory
        self.backends = {0: HostBackend()}

    cdef Backend on(self, int device):
        """The backend of one device."""
        if device not in self.backends:
            self.backends[device] = DeviceBackend()
        return self.backends[device]

    cdef int begin_update(self, list stored, list planes, bint measures, Outcome* found) except -1:
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
            self.parts.append(DevicePart(storage, backend, own, len(stored)))
        self.records.settle_others(stored)
        return 0

    cdef int measure(self, Update* u) except -1:
        cdef DevicePart part
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
        cdef DevicePart part
        cdef Update own
        for part in self.parts:
            own = part.of(u)
            part.backend.sum_gradients(ranks, any, &own)
        return 0

    cdef int prepare(self, Update* u) except -1:
        cdef DevicePart part
        cdef Update own
        for part in self.parts:
            own = part.of(u)
            part.backend.prepare(&own)
        return 0

    cdef int apply(self, Storage storage, Plan plan, list rates) except -1:
        cdef DevicePart part
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
    if not storage.device and not storage.other_devices:
        return backend
    if type(backend) is DevicesBackend or (type(backend) is DeviceBackend and not storage.other_devices):
        return backend
    refuse_devices(trainer, (<Reducer>trainer._reducer).host_only)
    poll_all(trainer, backend)
    trainer._backend = DevicesBackend() if storage.other_devices else DeviceBackend()
    return trainer._backend


def refuse_devices(trainer: Trainer, str reason: str | None):
    """Raise an error if a way of training needs the parameters in the memory of the host, and they are not there.

    Only this function refuses a way of training because of the device of the parameters.

    Args:
        trainer: the trainer.
        reason: why the parameters must be in the memory of the host; None: they may live anywhere.

    Raises:
        RuntimeError: they live elsewhere.
    """
    cdef Storage storage = trainer._collection.storage
    if reason is not None and (storage.device or storage.other_devices):
        raise RuntimeError(f"{type(trainer).__name__}: {reason}")


cdef int apply_outcome(TrainerFields trainer, const Outcome* found) except -1:
    if found.left_out:
        trainer._roll_back(found.left_out)
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
    return apply_outcome(trainer, &found)


cdef int wait_for_updates(trainer) except -1:
    return poll_all(trainer, backend_of(trainer))


cdef int poll_all(trainer, Backend backend) except -1:
    cdef Outcome found
    memset(&found, 0, sizeof(Outcome))
    try:
        return backend.wait(&found)
    finally:
        apply_outcome(trainer, &found)
