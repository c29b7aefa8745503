"""Trainers: rules that change parameters by their gradients.

The rule of each is one row in `include/dynet_cy/optim.def`; here is what they
share: clipping, sparse updates of lookup tables, and the state of the rules,
which lies in planes of the parameters' storage.
"""

import sys
import warnings

import numpy as np

cimport cython
from libc.math cimport isfinite, sqrt
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.interrupts cimport Interrupts, begin_interrupts, interrupted, raise_interrupt
from dynet_cy.core.tensor cimport size_of
from dynet_cy.graph.timeline cimport UPDATE, begin_span, end_span
from dynet_cy.kernels cimport kernels
from dynet_cy.kernels.kernels cimport K
from dynet_cy.kernels.pool cimport begin_arithmetic, end_arithmetic, enter_pool, leave_pool
from dynet_cy.memory.arena cimport arena_at
from dynet_cy.memory.changes cimport Change, make_change, raise_kept, see_whole
from dynet_cy.memory.storage cimport (
    Param, Plane, Storage, bad_gradients, forget_gradient, pthread_mutex_t, value_changed,
)
from dynet_cy.model.parameters cimport _Stored, fold_scale, zero_gradient

from dynet_cy.model.parameters import LEAST_DECAY, ParameterCollection
from dynet_cy.schedules import Pace


cdef extern from *:
    """
    static const int dy_states_of_rules[] = {
    #define OPTIM(name, states, rule) states,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    """
    const int* states_of_rules "dy_states_of_rules"

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t* m)
    int pthread_mutex_unlock(pthread_mutex_t* m)

# Parameters are updated in parts that stay in the cache from one loop to the next.
cdef size_t PART = 1 << 13

# A table whose factor is less than this is multiplied by it.
cdef double LEAST_FACTOR = 0.25


cdef void lock_gradient(Param* p) noexcept nogil:
    """Keep graphs of other threads from adding to it."""
    pthread_mutex_lock(&p.lock)


cdef void unlock_gradient(Param* p) noexcept nogil:
    pthread_mutex_unlock(&p.lock)


cdef double squared_norm(Param* p) noexcept nogil:
    """Sum of the squares of the gradient."""
    cdef size_t n = size_of(&p.dim)
    cdef double total = 0
    cdef uint32_t i
    if not p.has_gradient:
        return 0
    if not p.rows:
        return K.sumsq(p.size, p.grad)
    for i in range(p.n_touched):
        total += K.sumsq(n, p.grad + p.touched[i] * n)
    return total


cdef bint in_one_pass(const Update* u, Py_ssize_t i) noexcept nogil:
    """Whether an update goes over all numbers of an entry where they lie, and so decays them on its way."""
    return u.roles[i] == MOVES and u.entries[i].in_place and not (u.entries[i].rows and u.sparse)


# What is done to one parameter or table in an update, in this order.
cdef enum Phase:
    DECAYS_BEFORE
    STEPS
    DECAYS_AFTER


@cython.final
cdef class Step(Change):
    """An update of parameters that lie here, piece by piece."""

    cdef Storage storage
    cdef list planes                # of the state of the rule
    cdef Update u                   # with lists of its own
    cdef Py_ssize_t i               # where it is: the entry,
    cdef int phase
    cdef size_t at                  # the number in it, or for a table the place in the list of its rows
    cdef bint locked                # whether the entry is
    cdef bint stopped               # whether it was let go since the phase began
    cdef bint counted

    def __cinit__(self, Storage storage, list planes):
        self.storage = storage
        self.planes = planes

    def __dealloc__(self):
        free(self.u.entries)

    cdef int take_over(self, const Update* u) except -1:
        """Copy what the update is from; the lists in one block."""
        cdef size_t n = u.n
        cdef char* block = <char*>malloc(
            n * (sizeof(Param*) + sizeof(uint32_t) + sizeof(uint8_t)) + u.n_groups * sizeof(Settings) + 1)
        if block == NULL:
            raise MemoryError("the list of parameters to update")
        self.u = u[0]
        self.u.squares = NULL
        self.u.entries = <Param**>block
        self.u.settings = <Settings*>(block + n * sizeof(Param*))
        self.u.group = <uint32_t*>(self.u.settings + u.n_groups)
        self.u.roles = <uint8_t*>(self.u.group + n)
        memcpy(self.u.entries, u.entries, n * sizeof(Param*))
        memcpy(self.u.settings, u.settings, u.n_groups * sizeof(Settings))
        memcpy(self.u.group, u.group, n * sizeof(uint32_t))
        memcpy(self.u.roles, u.roles, n)
        return 0

    cdef bint go_on(self, Interrupts* s) noexcept nogil:
        enter_pool()
        while self.i < self.u.n:
            if interrupted(s, self.piece()):
                break
        if self.i < self.u.n:
            self.let_go()
        elif not self.counted:
            self.counted = True
            self.storage.changes += 1
        leave_pool()
        return self.counted

    cdef size_t piece(self) noexcept nogil:
        """Do the next piece; how many bytes that were.  The gradient of the entry is locked until its last one."""
        cdef const Update* u = &self.u
        cdef Param* p = u.entries[self.i]
        cdef const Settings* s = &u.settings[u.group[self.i]]
        cdef size_t n = 0
        if u.roles[self.i] == FROZEN:
            self.i += 1
            return 0
        if not self.locked:
            lock_gradient(p)
            self.locked = True
        if self.phase == STEPS:
            if u.roles[self.i] == MOVES:
                n = self.step(p, s)
        elif not in_one_pass(u, self.i):
            n = self.apply_weight_decay(p, s.decoupled if self.phase == DECAYS_BEFORE else s.decay)
        if n == 0:                              # that phase is through
            self.end_phase(p)
        return n * sizeof(float)

    cdef void end_phase(self, Param* p) noexcept nogil:
        if self.phase == STEPS and self.u.roles[self.i] == MOVES and not (self.stopped and p.pass_number):
            forget_gradient(p)
        if self.phase == STEPS:
            self.stopped = False
        self.at = 0
        self.phase += 1
        if self.phase > DECAYS_AFTER:
            unlock_gradient(p)
            self.locked = False
            self.phase = DECAYS_BEFORE
            self.i += 1

    cdef void let_go(self) noexcept nogil:
        """Let passes of other threads that run already add to the gradient: this or the next update takes it up."""
        if not self.locked:
            return
        if self.phase == STEPS:
            self.stopped = True
            self.u.entries[self.i].pass_number = 0      # one that does so leaves its number
        unlock_gradient(self.u.entries[self.i])
        self.locked = False

    cdef size_t step(self, Param* p, const Settings* settings) noexcept nogil:
        """Apply the rule to a part of a parameter, or to some rows of a table; to how many numbers, 0 at the end."""
        cdef Settings s = settings[0]
        cdef bint decays = in_one_pass(&self.u, self.i)
        cdef size_t n, done = 0
        s.h.step_scale = <float>(1 / p.factor)
        if not (p.rows and self.u.sparse):
            n = min(PART, p.size - self.at)
            if n:
                step_part(p, &s, &self.u, decays, self.at, n)
                self.at += n
            return n
        n = size_of(&p.dim)
        while self.at < p.n_touched and done < PART:
            step_part(p, &s, &self.u, decays, p.touched[self.at] * n, n)
            self.at += 1
            done += n
        return done

    cdef size_t apply_weight_decay(self, Param* p, double share) noexcept nogil:
        """Take that share off a part of the value; of how many numbers, 0 at the end."""
        cdef size_t n = min(PART, p.size - self.at), at = self.at
        if share == 0 or n == 0:
            return 0
        if not p.in_place and at == 0:
            p.factor *= 1 - share
            if p.factor >= LEAST_FACTOR:
                return 0
        if p.in_place:
            lower(n, share, p.value + at)
        else:
            K.scale(n, <float>p.factor, p.value + at, p.value + at)
            if at + n == p.size:
                p.factor = 1
        self.at += n
        return n if self.at < p.size else 0


@cython.final
cdef class Axpby(Change):
    """Numbers of parameters in a plane become a target + b source, piece by piece; where a is 0, it is not read."""

    cdef list stored
    cdef Plane source
    cdef Plane target
    cdef float a
    cdef float b
    cdef Param** entries
    cdef Py_ssize_t i
    cdef size_t at

    def __cinit__(self, list stored, float a, float b, Plane source, Plane target):
        cdef Py_ssize_t i
        self.stored = stored
        self.a, self.b, self.source, self.target = a, b, source, target
        self.entries = <Param**>malloc((len(stored) + 1) * sizeof(Param*))
        if self.entries == NULL:
            raise MemoryError("the list of parameters to average")
        for i in range(len(stored)):
            self.entries[i] = (<_Stored>stored[i]).p
        self.entries[len(stored)] = NULL

    def __dealloc__(self):
        free(self.entries)

    cdef bint go_on(self, Interrupts* s) noexcept nogil:
        while self.entries[self.i] != NULL:
            if interrupted(s, self.piece()):
                break
        return self.entries[self.i] == NULL

    cdef size_t piece(self) noexcept nogil:
        cdef Param* p = self.entries[self.i]
        cdef size_t n = min(PART, p.size - self.at)
        cdef float* into = <float*>arena_at(&self.target.arena, (p.offset + self.at) * sizeof(float))
        cdef const float* of = <float*>arena_at(&self.source.arena, (p.offset + self.at) * sizeof(float))
        if self.at == 0:
            fold_scale(p)
        if self.a == 0:
            K.scale(n, self.b, of, into)
        else:
            K.scale(n, self.a, into, into)
            K.axpy(n, self.b, of, into)
        self.at += n
        if self.at == p.size:
            self.at = 0
            self.i += 1
        return n * sizeof(float)


cdef void step_part(Param* p, const Settings* s, const Update* u, bint decays, size_t at,
                    size_t n) noexcept nogil:
    """Apply the rule to n numbers of a parameter, from `at` on; if it `decays`, decay them too."""
    cdef float* states[MOST_STATES]
    cdef int k
    for k in range(MOST_STATES):
        states[k] = NULL
        if u.states[k] != NULL:
            states[k] = <float*>arena_at(u.states[k], (p.offset + at) * sizeof(float))
    if decays:
        lower(n, s.decoupled, p.value + at)
    K.optim[u.rule](n, &s.h, p.grad + at, p.value + at, states[0], states[1], states[2])
    if decays:
        lower(n, s.decay, p.value + at)
    if p.has_gradient:
        memset(p.grad + at, 0, n * sizeof(float))


cdef void lower(size_t n, double share, float* values) noexcept nogil:
    if share != 0:
        K.axpy(n, <float>-share, values, values)


cdef void apply_weight_decay(Param* p, double share) noexcept nogil:
    """Take that share off the value."""
    if share == 0:
        return
    if p.in_place:
        lower(p.size, share, p.value)
        return
    p.factor *= 1 - share
    if p.factor < LEAST_FACTOR:
        fold_scale(p)


cdef void clip_groups(Update* u, double* norm, bint* clips) noexcept nogil:
    """Let the gradients of each group be scaled to its threshold.

    Args:
        u: `squares` are those of all entries.
        norm: becomes the norm of all gradients before that; nothing is scaled if it is not finite.
        clips: becomes whether one was larger than its threshold.
    """
    cdef double total = 0, own
    cdef uint32_t k
    cdef Py_ssize_t i
    cdef Settings* s
    for k in range(u.n_groups):
        u.settings[k].squares = 0
    for i in range(u.n):
        total += u.squares[i]
        s = &u.settings[u.group[i]]
        (s if s.own_norm else u.settings).squares += u.squares[i]
    norm[0] = u.scale * sqrt(total)
    clips[0] = False
    if not isfinite(norm[0]):
        return
    for k in range(u.n_groups):
        s = &u.settings[k]
        own = u.scale * sqrt((s if s.own_norm else u.settings).squares)
        if 0 < s.threshold < own:
            s.h.grad_scale = <float>(u.scale * (s.threshold / own))
            clips[0] = True


cdef class Stepper:
    """How a trainer makes its updates: alone, here; those of several processes together are derived from it."""

    def __cinit__(self, *args):
        self.least_decay = LEAST_DECAY
        self.alone = True

    cdef int meet(self, object trainer, list stored, Update* u) except -1:
        """Begin an update: learn what the others have.  May change settings of the trainer and roles."""
        u.scale = 1
        return 0

    cdef int clip(self, object trainer, list stored, Update* u) except -1:
        """See that gradients are scaled to the thresholds if their norms are larger.  Called if norms are asked for.

        Returns:
            Whether to go on; 0 if the update is dropped.
        """
        cdef double norm = 0
        cdef bint clips = False
        cdef Py_ssize_t i
        self.measure(u)
        clip_groups(u, &norm, &clips)
        trainer._norm = norm
        if isfinite(norm):
            trainer._clips += clips
            return 1
        if not u.skips:
            raise bad_gradients(norm, self.not_finite(stored, u), 1)
        for i in range(u.n):
            if u.roles[i] != FROZEN:
                zero_gradient(stored[i])
        trainer._skipped += 1
        return 0

    cdef int measure(self, Update* u) except -1:
        """Find the sum of the squares of each gradient, without the scale."""
        cdef Py_ssize_t i
        cdef Interrupts s
        begin_interrupts(&s)
        with nogil:
            enter_pool()
            for i in range(u.n):
                if u.roles[i] == FROZEN:
                    continue
                lock_gradient(u.entries[i])
                u.squares[i] = squared_norm(u.entries[i])
                unlock_gradient(u.entries[i])
                if interrupted(&s, u.entries[i].size * sizeof(float)):
                    break
            leave_pool()
        return raise_interrupt(&s)

    cdef list not_finite(self, list stored, Update* u):
        """Names of the parameters whose gradients are not finite, after `measure`."""
        return [(<_Stored>stored[i]).full_name for i in range(u.n) if not isfinite(u.squares[i])]

    cdef int prepare(self, object trainer, list stored, Update* u) except -1:
        """Have what the update needs.

        What can fail comes here, and all Python code, in which handlers of signals may run: from here to the end of
        `apply` there is none.
        """
        return 0

    cdef object count(self, object steps):
        """The number of this update, after those so far."""
        return steps + 1

    cdef int apply(self, Storage storage, object trainer, Update* u) except -1:
        """Change the parameters, and set the gradients of those that move to zero."""
        cdef Step change = Step(storage, trainer._states)
        change.take_over(u)
        return make_change(change)

    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1:
        """Let the numbers of parameters in a plane become a target + b source; where a is 0, it is not read."""
        return make_change(Axpby(stored, a, b, source, target))

    cdef bint was_made(self, object trainer, Update* u) except -1:
        """Whether the update that has just been applied was not dropped after all; handlers of signals do not run."""
        return True

    cdef int poll_errors(self, object trainer) except -1:
        """Let the trainer know of all updates that it has asked for: their clips, and whether they were made."""
        return 0

    cdef int reconcile(self, object trainer) except -1:
        """The same, as far as it is known without waiting."""
        return 0

    cdef int end(self, object error) except -1:
        """An update is over, perhaps by an error."""
        return 0


cdef class DeviceStepper(Stepper):
    """Updates of one trainer whose parameters live on a device.

    The device clips by itself, so that nobody waits.  What it has found is
    learned later: clips and norms when they are asked for, and gradients that are not
    finite at the first of these: the next update, and whatever waits for the
    device, such as reading a value.  It stands in a record of the device's, from which
    this takes what it is to count.

    Where updates of such gradients are dropped, the number of an update depends on what
    became of those that are still under way, and with it the learning rate.  So the
    device is given one for each number of them that it may have dropped.
    """

    cdef list stored
    cdef list planes
    cdef object device              # the module of its updates, loaded where there is a device only
    cdef object records             # and that of what became of them
    cdef object clipping            # the record, from the first update with clipping on
    cdef bint waits                 # whether updates with clipping were asked for since `poll_errors`

    def __cinit__(self):
        from dynet_cy.gpu import clips, update
        self.device = update
        self.records = clips

    cdef int meet(self, object trainer, list stored, Update* u) except -1:
        u.scale = 1
        self.stored = stored
        self.planes = trainer._states[:trainer._n_states]
        self.records.settle_others(stored, self.clipping)
        if self.waits:
            if not trainer._measures(u.skips):      # nobody would leave this update out
                self.poll_errors(trainer)
            self.look(trainer)
            self.clipping.catch_up()
        return 0

    cdef int clip(self, object trainer, list stored, Update* u) except -1:
        if self.clipping is None:
            self.clipping = self.records.Clipping((<Storage>trainer.collection.storage).device - 1)
        self.waits = True
        return 1

    cdef int prepare(self, object trainer, list stored, Update* u) except -1:
        self.device.prepare(stored, u.n_groups)
        return 0

    cdef int apply(self, Storage storage, object trainer, Update* u) except -1:
        clipping, rates = None, []
        if u.measures:
            clipping = self.clipping
            rates = trainer._rates(clipping.coming() if u.skips else 0)
        update_on_device(self.device, self.stored, u, self.planes, clipping, rates)
        return 0

    cdef bint was_made(self, object trainer, Update* u) except -1:
        """Forget the gradients that are kept if the update was dropped, as they are zero then."""
        cdef Py_ssize_t i
        before = trainer._skipped
        self.clipping.wait(polls=False)
        self.reconcile(trainer)
        if trainer._skipped == before:
            return True
        for i in range(u.n):
            if u.roles[i] == KEPT:
                lock_gradient(u.entries[i])
                forget_gradient(u.entries[i])
                unlock_gradient(u.entries[i])
        return False

    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1:
        self.device.axpby(stored, a, b, source, target, self.clipping)
        return 0

    cdef int poll_errors(self, object trainer) except -1:
        if self.waits:
            self.clipping.wait()
            self.waits = False
            try:
                self.look(trainer)
            finally:
                trainer._norm = self.clipping.norm
        return 0

    cdef int look(self, object trainer) except -1:
        """Count what is known of updates, and raise if some were left out."""
        try:
            self.clipping.check()
        finally:
            self.reconcile(trainer)
        return 0

    cdef int reconcile(self, object trainer) except -1:
        if self.clipping is None:
            return 0
        trainer._take_back(self.clipping.left_out())
        dropped = self.clipping.dropped()
        trainer._uncount(dropped)
        trainer._skipped += dropped
        trainer._clips += self.clipping.clips()
        return 0


cdef int update_on_device(object device, list stored, const Update* u, list planes, clipping=None,
                          rates=None) except -1:
    """Make an update of parameters that live on one device.

    Args:
        device: the module `dynet_cy.gpu.update`.
        stored: the parameters and tables.
        u: what is to be done.
        planes: the state of the rule.
        clipping, rates: see `dynet_cy.gpu.update.update`.
    """
    cdef Py_ssize_t i
    cdef uint32_t k
    cdef Settings s
    groups = []
    for k in range(u.n_groups):
        s = u.settings[k]
        groups.append(s)
    there = [i for i in range(u.n) if u.roles[i] != FROZEN]
    device.update([stored[i] for i in there], [u.roles[i] == MOVES for i in there], [u.group[i] for i in there], groups,
                  u.rule, planes, u.sparse, clipping, u.scale, u.skips, rates)
    return 0


cdef class SeveralStepper(Stepper):
    """Updates of one trainer whose parameters live on several devices: those on each by themselves.

    The norm of all gradients is known here only, so there is a wait for each GPU
    where gradients are clipped.
    """

    cdef object device              # the module of updates on GPUs
    cdef object records             # and that of what became of those of single devices
    cdef list stored
    cdef list storages              # one for each device
    cdef list planes                # the state of the rule

    def __cinit__(self):
        from dynet_cy.gpu import clips, update
        self.device = update
        self.records = clips

    cdef list split(self, list stored):
        """For each device its storage, and those of the parameters that it has.  The CPU is the last one: handlers of
        signals may run in changes there, and what they look at is finished for them."""
        cdef _Stored x
        parts = {}
        for x in stored:
            parts.setdefault(x.p.device, (x.storage, []))[1].append(x)
        return [parts[device] for device in sorted(parts, reverse=True)]

    cdef int meet(self, object trainer, list stored, Update* u) except -1:
        self.stored = stored
        self.storages = [storage for storage, _ in self.split(stored)]
        self.records.settle_others(stored)
        self.planes = trainer._states[:trainer._n_states]
        return Stepper.meet(self, trainer, stored, u)

    cdef int own(self, Storage storage, const Update* u, Update* own) except -1:
        """What there is to do on the device of a storage: the rest is frozen; `roles` are to be freed."""
        cdef Py_ssize_t i
        cdef Plane plane
        own[0] = u[0]
        own.roles = <uint8_t*>malloc(u.n + 1)
        if own.roles == NULL:
            raise MemoryError("the list of parameters to update")
        for i in range(u.n):
            own.roles[i] = u.roles[i] if u.entries[i].device == storage.device else <uint8_t>FROZEN
        for i, plane in enumerate(self.planes):
            own.states[i] = plane.on(storage.device).memory()
        return 0

    cdef int measure(self, Update* u) except -1:
        cdef Update own
        cdef Py_ssize_t i
        for storage in self.storages:
            self.own(storage, u, &own)
            try:
                if not (<Storage>storage).device:
                    Stepper.measure(self, &own)
                    continue
                # One number for all of a group: that of each by itself would be a wait for each.
                by_group = {}
                for i in range(own.n):
                    if own.roles[i] != FROZEN:
                        by_group.setdefault(own.group[i], []).append(i)
                for members in by_group.values():
                    for i in members:
                        u.squares[i] = 0
                    u.squares[<Py_ssize_t>members[0]] = self.device.squared_norm([self.stored[i] for i in members])
            finally:
                free(own.roles)
        return 0

    cdef list not_finite(self, list stored, Update* u):
        cdef _Stored x
        return [x.full_name for x in stored
                if not isfinite(self.device.squared_norm([x]) if x.p.device else squared_norm(x.p))]

    cdef int prepare(self, object trainer, list stored, Update* u) except -1:
        for storage, own in self.split(stored):
            if (<Storage>storage).device:
                self.device.prepare(own, u.n_groups)
        return 0

    cdef int apply(self, Storage _, object trainer, Update* u) except -1:
        cdef Update own
        for storage in self.storages:
            self.own(storage, u, &own)
            try:
                if (<Storage>storage).device:
                    planes = [(<Plane>plane).on((<Storage>storage).device) for plane in self.planes]
                    update_on_device(self.device, self.stored, &own, planes)
                else:
                    Stepper.apply(self, storage, trainer, &own)
            finally:
                free(own.roles)
        return 0

    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1:
        cdef int device
        for storage, own in self.split(stored):
            device = (<Storage>storage).device
            if device:
                self.device.axpby(own, a, b, source.on(device), target.on(device))
            else:
                Stepper.axpby(self, own, a, b, source.on(device), target.on(device))
        return 0


# Where somebody else reads how far training is; see `note_updates_in`.
cdef int64_t* made_updates = NULL
cdef Py_buffer made_updates_view


def note_updates_in(memory):
    """Let all trainers write how many updates they have made to memory that others see, after each update.

    Args:
        memory: a buffer that begins with an int64; None: nobody looks.
    """
    global made_updates
    if made_updates != NULL:
        made_updates = NULL
        PyBuffer_Release(&made_updates_view)
    if memory is None:
        return
    PyObject_GetBuffer(memory, &made_updates_view, PyBUF_WRITABLE)
    if made_updates_view.len < <Py_ssize_t>sizeof(int64_t):
        PyBuffer_Release(&made_updates_view)
        raise ValueError("note_updates_in: the memory has no room for an int64")
    made_updates = <int64_t*>made_updates_view.buf


cdef Stepper stepper_of(trainer):
    """How a trainer makes its updates."""
    cdef Storage storage = trainer._collection.storage
    cdef Stepper stepper = trainer._stepper
    if storage.beside and type(stepper) is not SeveralStepper:
        if type(stepper) is not Stepper and type(stepper) is not DeviceStepper:
            raise NotImplementedError(
                f"{type(trainer).__name__}: training in several processes is not done for parameters on several "
                "devices yet")
        stepper.poll_errors(trainer)
        trainer._stepper = SeveralStepper()
    elif storage.device and type(stepper) is Stepper:
        trainer._stepper = DeviceStepper()
    return trainer._stepper


cdef double number(object value, str name) except? -1:
    """A hyper-parameter; text is none, even if it reads like a number."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a number, not {value!r}")
    return float(value)


cdef int check_not_scheduled(object pace) except -1:
    if pace is not None:
        raise RuntimeError(
            f"learning_rate is set by {pace.schedule!r}; set the trainer's schedule to None first, or to another one")
    return 0


cdef list stored_in(object params, str op):
    """Parameters and tables: one, all of a collection, or those of a list of these."""
    if isinstance(params, _Stored):
        return [params]
    if isinstance(params, ParameterCollection):
        return params._below()
    if isinstance(params, (str, bytes)) or not hasattr(params, "__iter__"):
        raise TypeError(
            f"{op}: parameters, a ParameterCollection or a list of these is needed, not {type(params).__name__}")
    return [x for several in params for x in stored_in(several, op)]


class ParameterGroup:
    """Parameters of a trainer that have settings of their own.  Made by `Trainer.group`.

    Each setting may be changed between updates; None is for what holds for the trainer.

    Attributes:
        names: full names of the parameters and tables.
        learning_rate, weight_decay, clip_threshold: see `Trainer.group`.
    """

    _SETTINGS = ("learning_rate", "weight_decay", "clip_threshold")
    _pace = None                # of the trainer's schedule, if it has one

    def __init__(self, names, learning_rate=None, weight_decay=None, clip_threshold=None):
        self.names = tuple(names)
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.clip_threshold = clip_threshold
        self._decay_due = 0.0

    @property
    def learning_rate(self):
        """Step size of the next update."""
        return self._learning_rate if None in (self._learning_rate, self._pace) else self._pace.scaled(
            self._learning_rate)

    @learning_rate.setter
    def learning_rate(self, value):
        check_not_scheduled(self._pace)
        self._learning_rate = None if value is None else number(value, "learning_rate")

    @property
    def weight_decay(self):
        """Share that the values lose in an update, by the learning rate."""
        return self._weight_decay

    @weight_decay.setter
    def weight_decay(self, value):
        self._weight_decay = None if value is None else checked_decay(value)

    @property
    def clip_threshold(self):
        """Norm of the gradients of the group beyond which they are scaled down; 0: never."""
        return self._clip_threshold

    @clip_threshold.setter
    def clip_threshold(self, value):
        self._clip_threshold = None if value is None else max(number(value, "clip_threshold"), 0.0)

    def _state(self):
        """Plain data."""
        settings = {k: getattr(self, "_" + k) for k in self._SETTINGS}
        return {"names": list(self.names), **settings, "decay_due": self._decay_due}

    def _restore(self, state):
        """Put back what `_state` has returned, of a group of the same parameters."""
        self._pace = None
        for k in self._SETTINGS:
            setattr(self, k, state[k])
        self._decay_due = state["decay_due"]

    def __repr__(self):
        settings = ", ".join(f"{k}={getattr(self, k)}" for k in self._SETTINGS if getattr(self, k) is not None)
        return f"<ParameterGroup of {', '.join(self.names)}: {settings or 'as the trainer'}>"


cdef int begin_groups(object trainer, list stored, Update* u) except -1:
    """Say which group each entry is in, and how it is clipped."""
    cdef uint32_t k
    cdef Py_ssize_t i
    for k in range(u.n_groups):
        u.settings[k].h.grad_scale = <float>u.scale
        u.settings[k].threshold = trainer._clip_threshold
    if u.n_groups == 1:
        return 0
    numbers = {}
    for k, group in enumerate(trainer._groups, 1):
        numbers.update(dict.fromkeys(group.names, k))
        if group.clip_threshold is not None:
            u.settings[k].threshold = group.clip_threshold
            u.settings[k].own_norm = True
    for i in range(u.n):
        u.group[i] = numbers.get((<_Stored>stored[i]).full_name, 0)
    return 0


cdef int set_rates(object trainer, Update* u, double least) except -1:
    """Set all that depends on the number of the update, and take what is due of decay."""
    cdef double shared = trainer._collection._take_decay(least)
    cdef double correction = trainer._correction(trainer._steps)
    cdef double rate
    cdef Settings* s
    cdef uint32_t k
    constants = trainer._hyperparameters()
    for k in range(u.n_groups):
        group = trainer._groups[k - 1] if k else None
        decay = group.weight_decay if k else None
        decoupled = trainer._weight_decay if decay is None else decay
        s = &u.settings[k]
        rate = trainer._rate(group._learning_rate if k else None, 0)
        s.h.lr = <float>(rate * correction)
        s.h.b1 = constants.get("b1", 0.0)
        s.h.b2 = constants.get("b2", 0.0)
        s.h.eps = constants.get("eps", 0.0)
        s.decoupled = due_now(group if k else trainer, rate * decoupled, least)
        s.decay = shared if decay is None else 0
    return 0


cdef bint is_zero(_Stored x, Plane plane) except -1:
    """Whether all numbers of a parameter are zero in a plane.  Reading takes no memory where nothing was written."""
    cdef Plane own = plane.on(x.p.device)
    cdef float* v = own.at(x.p.offset)
    cdef size_t i
    own.pull(x.p.offset, x.p.size)
    for i in range(x.p.size):
        if v[i] != 0:
            return False
    return True


cdef list restored_groups(object own, object states):
    """The groups with what `_state` has returned; those of the same parameters stay the objects that they are."""
    if [list(group.names) for group in own] != [list(state["names"]) for state in states]:
        own = [ParameterGroup(state["names"]) for state in states]
    for group, state in zip(own, states):
        group._restore(state)
    return list(own)


cdef double checked_decay(object value) except? -1:
    """A coefficient of weight decay."""
    cdef double decay = number(value, "weight_decay")
    if not (isfinite(decay) and decay >= 0):
        raise ValueError(f"weight_decay must be a number of at least 0, not {value!r}")
    return decay


cdef double due_now(object owner, double share, double least) except? -1:
    """What an update takes off of what is due to be taken off; shares less than `least` are collected."""
    cdef double due = owner._decay_due + share - owner._decay_due * share
    cdef double taken = 0 if due < least else due
    owner._decay_due = due - taken
    return taken


UPDATE_EPOCH = (
    "Trainer::update_epoch has been deprecated and doesn't do anything. Please remove it from your code, and control "
    "the learning rate of the trainer directly, for example by: 'trainer.learning_rate /= (1 - rate_decay)', see "
    "https://github.com/clab/dynet/pull/695 for details.\n"
)


class Trainer:
    """What all trainers share.  Use one of the classes below.

    Gradients are clipped by default: when their global L2 norm exceeds 5, they
    are scaled to have that norm (Pascanu, Mikolov and Bengio 2013).  Of lookup
    tables only the rows are changed that were used since the last update.

    A trainer holds its collection, so the parameters live as long as it does.

    Args:
        m: the ParameterCollection to train, with all below it.
        learning_rate: see each class.

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
        >>> isinstance(trainer, dy.Trainer)
        True
        >>> trainer.set_clip_threshold(1.0)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> round(trainer.gradient_norm, 3)
        2.828
    """

    _rule = None                # number of a row of optim.def
    _constants = {}             # of the rule: in which of the trainer's attributes each of b1, b2 and eps stands
    _stepper = Stepper()
    # What is not in a pickle or checkpoint of an earlier version.
    _groups = ()
    _weight_decay = 0.0
    _decay_due = 0.0
    _skipped = 0
    _norm = None
    _pace = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        unknown = sorted(cls._constants.keys() - {"b1", "b2", "eps"})
        if unknown:
            raise TypeError(f"{cls.__name__}: rules have no constant {unknown[0]!r}, only b1, b2 and eps")

    def __init__(self, m, learning_rate):
        if self._rule is None:
            raise TypeError("Trainer is a base class: use one of its subclasses, such as AdamTrainer")
        if not isinstance(m, ParameterCollection):
            raise TypeError(
                f"{type(self).__name__}: m must be a ParameterCollection, not {type(m).__name__}")
        self._collection = m
        self._states = []
        for _ in range(self._n_states):
            self._states.append(m.storage.new_plane())      # those that there is room for are given back if not for all
        self._clip_threshold = 5.0
        self._sparse = True
        self._steps = 0
        self._groups = []
        self._decay_due = 0.0
        self._clips = self._updates = self._skipped = 0
        self._average = None
        self._swapped = ""
        self.learning_rate = learning_rate

    def __del__(self):
        stepper = self._stepper
        if type(stepper) is DeviceStepper and not sys.is_finalizing():
            try:
                if (<DeviceStepper>stepper).waits:      # handlers that raise have no place here
                    (<DeviceStepper>stepper).clipping.wait(polls=False)
                (<DeviceStepper>stepper).poll_errors(self)
            except RuntimeError as e:
                if type(e) is RuntimeError:             # and not that the device has failed
                    warnings.warn(f"{type(self).__name__}: {e}", RuntimeWarning, stacklevel=1)
        for plane in getattr(self, "_states", ()):
            self._collection.storage.drop_plane(plane)

    @property
    def collection(self):
        """The collection that it trains.

        Example:
            >>> dy.AdamTrainer(model).collection is model
            True
        """
        return self._collection

    @property
    def learning_rate(self):
        """Step size of the next update.

        Example:
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> trainer.learning_rate /= 2
            >>> trainer.learning_rate
            0.05
        """
        (<Stepper>self._stepper).reconcile(self)
        return self._learning_rate if self._pace is None else self._pace.scaled(self._learning_rate)

    @learning_rate.setter
    def learning_rate(self, value):
        check_not_scheduled(self._pace)
        self._learning_rate = number(value, "learning_rate")

    @property
    def schedule(self):
        """What changes the learning rate from update to update: a `Schedule`, or None (the default).

        A schedule begins when it is set.  The learning rates that the trainer and its groups have then are
        multiplied by what it says for each update, and cannot be set while there is one.  With None they are again
        what they were before.  Updates that `skip_nonfinite` drops do not count.  Place and state of a
        schedule are part of checkpoints.

        Raises:
            TypeError: what is set is no schedule.

        Example:
            >>> trainer = dy.AdamTrainer(model, alpha=0.001)
            >>> trainer.schedule = dy.WarmupSchedule(100, then=dy.CosineSchedule(900))
            >>> round(trainer.learning_rate, 8)             # of the first update
            1e-05
            >>> trainer.schedule = None
            >>> trainer.learning_rate
            0.001
        """
        return None if self._pace is None else self._pace.schedule

    @schedule.setter
    def schedule(self, value):
        stepper_of(self).poll_errors(self)
        self._follow(None if value is None else Pace(value, self._steps))

    def _follow(self, pace):
        """Let this and all groups be scaled by a schedule, or by none."""
        self._pace = pace
        for group in self._groups:
            group._pace = pace

    def set_learning_rate(self, value):
        """Set the step size; the same as ``trainer.learning_rate = value``.

        Example:
            >>> trainer = dy.SimpleSGDTrainer(model)
            >>> trainer.set_learning_rate(0.5)
            >>> trainer.learning_rate
            0.5
        """
        self.learning_rate = value

    def set_clip_threshold(self, thr):
        """Set the global norm beyond which gradients are scaled down; 0 or less: never.

        Example:
            >>> trainer = dy.SimpleSGDTrainer(model)
            >>> trainer.set_clip_threshold(1.0)
            >>> trainer.get_clip_threshold()
            1.0
        """
        self._clip_threshold = max(number(thr, "thr"), 0.0)

    def get_clip_threshold(self):
        """The global norm beyond which gradients are scaled down; 0: never.

        Example:
            >>> dy.SimpleSGDTrainer(model).get_clip_threshold()
            5.0
        """
        return self._clip_threshold

    def set_sparse_updates(self, su):
        """Set whether only the used rows of lookup tables are changed (the default).

        With rules that keep moving without gradient (momentum, Adam), all rows
        are changed at every update when it is off.

        Example:
            >>> trainer = dy.AdamTrainer(model)
            >>> trainer.set_sparse_updates(False)
        """
        self._sparse = bool(su)

    def group(self, params, learning_rate=None, weight_decay=None, clip_threshold=None):
        """Give some parameters a learning rate, weight decay or clipping of their own.

        What is None is as for all others, also when that changes later.  The state of the rule and
        the number of updates do not depend on groups, so one may be made at any time.

        Args:
            params: a parameter or table, a ParameterCollection (for all that it has now), or a list of these.
            learning_rate: step size of these parameters.  A `schedule` of the trainer scales it; what the trainer
                itself changes, as the cycle of `CyclicalSGDTrainer`, does not.
            weight_decay: each update takes the share learning_rate * weight_decay off the values, before
                the step (decoupled weight decay: Loshchilov and Hutter 2019).  For these parameters
                it stands in place of that of `AdamWTrainer` and of `ParameterCollection.set_weight_decay`,
                so 0 leaves them as they are.
            clip_threshold: norm of the gradients of these parameters beyond which they are scaled
                down; 0: never.  They do not count for the norm that the other parameters are
                clipped by.

        Returns:
            ParameterGroup: its attributes are the settings, to be changed between updates.

        Raises:
            TypeError: params are something else, or a setting is no number.
            ValueError: a parameter is not one of the trainer's, or is in another group; or a decay is negative.

        Example:
            >>> bias, table = model.add_parameters(3), model.add_lookup_parameters((10, 3))
            >>> trainer = dy.AdamWTrainer(model)
            >>> biases = [p for p in model.parameters_list() if len(p.shape()) == 1]
            >>> group = trainer.group(biases, weight_decay=0)
            >>> slow = trainer.group(table, learning_rate=1e-5)
            >>> slow.learning_rate /= 2
        """
        cdef _Stored x
        own = {y.name(): y for y in self._collection._below()}
        taken = {name for group in self._groups for name in group.names}
        names = []
        for x in stored_in(params, "group"):
            name = x.name()
            if name not in own or (<_Stored>own[name]).p != x.p:
                raise ValueError(f"group: {name} is not one of the parameters that this {type(self).__name__} trains")
            if name in taken:
                raise ValueError(f"group: {name} is in a group already")
            taken.add(name)
            names.append(name)
        made = ParameterGroup(names, learning_rate, weight_decay, clip_threshold)
        self._groups = [*self._groups, made]
        made._pace = self._pace
        return made

    @property
    def groups(self):
        """The groups that `group` has made, in their order: a tuple.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> group = trainer.group([w], learning_rate=0.01)
            >>> [group.names for group in trainer.groups]
            [('/_0',)]
        """
        return tuple(self._groups)

    @property
    def gradient_norm(self):
        """The norm of all gradients in the last update, before they were clipped.

        It is infinite or not a number if the update was dropped, and None before the first update
        and after one that had no need of it: neither clipping nor `skip_nonfinite`.  With a
        threshold of ``math.inf`` it is measured, and nothing is clipped.  On a GPU it is waited for.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
            >>> round(trainer.gradient_norm, 3)
            2.828
        """
        stepper_of(self).poll_errors(self)
        return self._norm

    @property
    def skipped_updates(self):
        """How many updates `skip_nonfinite` has dropped since the trainer was made, or since `status` said so.

        On a GPU it is waited for.

        Example:
            >>> trainer = dy.SimpleSGDTrainer(model)
            >>> w = model.add_parameters(2, init=0.0)
            >>> _ = dy.renew_cg()
            >>> dy.sum_elems(dy.sqrt(w)).backward()         # the slope of a root at 0 is infinite
            >>> trainer.update(skip_nonfinite=True)
            >>> trainer.skipped_updates
            1
        """
        stepper_of(self).poll_errors(self)
        return self._skipped

    def zero_gradients(self):
        """Set the gradients of all parameters to zero: see `ParameterCollection.zero_gradients`.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> dy.squared_norm(w).backward()
            >>> trainer.zero_gradients()
            >>> w.grad_as_array()
            array([0., 0.], dtype=float32)
        """
        stepper_of(self).poll_errors(self)
        self._collection.zero_gradients()

    def update(self, skip_nonfinite=False):
        """Change all parameters by their gradients, and set the gradients to zero.

        Parameters that are frozen (`set_updated`) have no part in it.

        Args:
            skip_nonfinite: drop the update, without an error, if a gradient is infinite or not a
                number: gradients become zero, nothing else is changed, and `skipped_updates` counts it.
                On a GPU nobody waits for that, but with a moving average and in `update_subset`. Default: False.

        Raises:
            RuntimeError: a gradient is infinite or not a number, clipping is on, and the update
                is not to be dropped.  Nothing is changed then, gradients neither: see
                `zero_gradients`.  On a GPU nothing is changed either, by
                this update and later ones; the error is raised by the next one, or by
                what waits for the device before, such as reading a value.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update(skip_nonfinite=True)
            >>> w.npvalue().round(3), round(trainer.gradient_norm, 3)
            (array([0.8, 0.8]), 2.828)
        """
        self._compute_update(None, skip_nonfinite)

    def update_subset(self, updated_params, updated_lookups, skip_nonfinite=False):
        """`update` for some parameters; the others keep value and gradient.

        All gradients count for clipping, and weight decay is for all parameters.

        Args:
            updated_params: numbers of parameters, as in `parameters_list()` of the collection.
            updated_lookups: numbers of tables, as in `lookup_parameters_list()`.
            skip_nonfinite: see `update`; the gradients of all parameters become zero then.

        Raises:
            IndexError: there is no such parameter or table.
            RuntimeError: see `update`.

        Example:
            >>> w, v = model.add_parameters(1, init=1.0), model.add_parameters(1, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> (dy.squared_norm(w) + dy.squared_norm(v)).backward()
            >>> trainer.update_subset([0], [])
            >>> round(w.value(), 3), v.value()
            (0.8, 1.0)
        """
        wanted = set()
        for numbers, of, what in (
                (updated_params, self._collection.parameters_list(), "parameter"),
                (updated_lookups, self._collection.lookup_parameters_list(), "lookup table")):
            for number in numbers:
                if not 0 <= number < len(of):
                    raise IndexError(
                        f"update_subset: there is no {what} {number}; the collection has {len(of)}")
                wanted.add(of[number].name())
        self._compute_update(wanted, skip_nonfinite)

    def _compute_update(self, names, skip_nonfinite):
        """`_update`, with the arithmetic of the engine."""
        cdef uint64_t span = begin_span()
        begin_arithmetic()
        try:
            self._update(names, skip_nonfinite)
        except BaseException as error:
            (<Stepper>self._stepper).end(error)
            raise
        finally:
            end_arithmetic()
            raise_kept()
        (<Stepper>self._stepper).end(None)
        end_span(UPDATE, span)

    def _update(self, names, skip_nonfinite=False):
        """Update the parameters of these names, all if None."""
        if self._pace is not None:
            self._pace.scaled(1.0)                      # its errors come before anything is changed
        if self._swapped:
            raise RuntimeError(
                f"{type(self).__name__}: the parameters are set to their moving average; "
                "swap_params_to_weights comes before the next update")
        cdef list stored = self._collection._below()
        cdef Py_ssize_t i, n = len(stored)
        cdef Update u
        cdef Param* p
        cdef bint made = True
        cdef Stepper stepper = stepper_of(self)
        memset(&u, 0, sizeof(Update))
        u.n = n
        u.entries = <Param**>malloc((n + 1) * sizeof(Param*))
        u.roles = <uint8_t*>calloc(n + 1, sizeof(uint8_t))
        u.group = <uint32_t*>calloc(n + 1, sizeof(uint32_t))
        u.squares = <double*>calloc(n + 1, sizeof(double))
        try:
            if u.entries == NULL or u.roles == NULL or u.group == NULL or u.squares == NULL:
                raise MemoryError("the list of parameters to update")
            for i in range(n):
                u.entries[i] = p = (<_Stored>stored[i]).p
                if p.updated:
                    u.roles[i] = MOVES if names is None or (<_Stored>stored[i]).full_name in names else KEPT
            for i, plane in enumerate(self._states[:self._n_states]):
                u.states[i] = (<Plane>plane).memory()
            u.rule = self._rule
            u.skips = skip_nonfinite
            stepper.meet(self, stored, &u)
            u.sparse = self._sparse
            u.measures = self._measures(u.skips)
            u.n_groups = 1 + len(self._groups)
            u.settings = <Settings*>calloc(u.n_groups, sizeof(Settings))
            if u.settings == NULL:
                raise MemoryError("the settings of groups")
            begin_groups(self, stored, &u)
            self._norm = None
            if u.measures and not stepper.clip(self, stored, &u):
                return
            stepper.prepare(self, stored, &u)
            self._steps = stepper.count(self._steps)
            set_rates(self, &u, stepper.least_decay)
            stepper.apply(self._collection.storage, self, &u)
            self._count()
            if made_updates != NULL:
                made_updates[0] = self._steps
            if u.skips and (self._average is not None or names is not None):
                made = stepper.was_made(self, &u)
        finally:
            free(u.entries)
            free(u.roles)
            free(u.group)
            free(u.squares)
            free(u.settings)
        if self._average is not None and made:
            self._add_to_average()

    def _measures(self, skips):
        """Whether an update needs the norm of gradients."""
        return bool(skips) or self._clip_threshold > 0 or any((group.clip_threshold or 0) > 0 for group in self._groups)

    def _count(self):
        """Count an update that is made."""
        self._updates += 1
        if self._pace is not None:
            self._pace.updates = self._steps

    def _uncount(self, n):
        """Count the last n updates as not asked for."""
        self._steps -= n
        self._updates -= n
        if self._pace is not None:
            self._pace.updates = self._steps

    def _take_back(self, n):
        """`_uncount`, and the moving average too: the device has left them out."""
        self._uncount(n)
        if self._average is not None:
            self._average["updates"] -= n
            self._average["values"] = self._average["updates"] // self._average["frequency"]

    def _rate(self, own, back):
        """The learning rate of this update if the device has dropped so many of those before it.

        Args:
            own: that of a group, or None.
            back: how many.
        """
        rate = self._learning_rate if own is None else own
        return rate if self._pace is None else self._pace.scaled(rate, back)

    def _correction(self, steps):
        """What the rule multiplies the learning rate by in the update of that number."""
        return 1.0

    def _rates(self, coming):
        """For each group its learning rates for each number of updates before this one that the device may have
        dropped, up to `coming`."""
        corrections = [self._correction(max(self._steps - back, 1)) for back in range(coming + 1)]
        return [[self._rate(own, back) * correction for back, correction in enumerate(corrections)]
                for own in (None, *(group._learning_rate for group in self._groups))]

    def exponential_moving_average(self, beta, update_freq=1):
        """Keep an average of the parameters in which older values count less and less.

        Of values p_1, ..., p_n it is the mean with weights beta^(n-i): Polyak and
        Juditsky 1992 for averages of parameters, Kingma and Ba 2015 (section 7.2)
        for these weights.  An average kept so far is given up.

        Every value that is taken up costs a pass over all parameters and tables.

        Args:
            beta: from 0 to below 1; 0.999 looks back about a thousand values.
            update_freq: how many updates lie between values (default: 1).

        Raises:
            ValueError: beta or update_freq is out of range.
            RuntimeError: the parameters are set to their moving average, or training is asynchronous.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> trainer.exponential_moving_average(0.9)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
            >>> trainer.swap_params_to_moving_average()
            >>> trainer.swap_params_to_weights()
        """
        beta = number(beta, "beta")
        if not 0 <= beta < 1:
            raise ValueError(f"exponential_moving_average: beta must be from 0 to below 1, not {beta}")
        self._start_average(beta, update_freq)

    def cumulative_moving_average(self, update_freq=1):
        """Keep the mean of the values that the parameters have after updates from now on.

        See `exponential_moving_average`.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> trainer.cumulative_moving_average()
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
        """
        self._start_average(None, update_freq)

    def swap_params_to_moving_average(self, save_weights=True, bias_correction=True):
        """Set the parameters to their moving average, to evaluate or save a model.

        `update` is an error until `swap_params_to_weights` is called.

        Args:
            save_weights: keep the values, for `swap_params_to_weights`.  When False
                they are lost, and with them further updates. Default: True.
            bias_correction: of an exponential average.  When False its weights are
                not scaled to sum up to 1, as if there were zeros before the first value. Default: True.

        Raises:
            RuntimeError: there is no average yet, or the parameters are set to it already.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> trainer.exponential_moving_average(0.9)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
            >>> trainer.swap_params_to_moving_average()
            >>> trainer.swap_params_to_weights()
        """
        cdef _Stored x
        cdef Plane average, kept
        cdef float factor = 1
        cdef Plane values = (<Storage>self._collection.storage).values
        cdef Stepper stepper = stepper_of(self)
        cdef list stored = self._collection._below()
        self._check_alone("swap_params_to_moving_average")
        stepper.poll_errors(self)
        if self._average is None or not self._average["values"]:
            raise RuntimeError(
                "swap_params_to_moving_average: there is no average: call exponential_moving_average "
                "or cumulative_moving_average before training")
        if self._swapped:
            raise RuntimeError("swap_params_to_moving_average: the parameters are set to it already")
        if bias_correction and self._average["beta"] is not None:
            factor = 1 / (1 - self._average["beta"] ** self._average["values"])
        average = self._states[self._n_states]
        if save_weights:
            kept = self._collection.storage.new_plane()
            try:
                stepper.axpby(stored, 0, 1, values, kept)
            except BaseException:
                self._collection.storage.drop_plane(kept)
                raise
            self._states.append(kept)
        stepper.axpby(stored, 0, factor, average, values)
        for x in stored:
            value_changed(x.p)
        self._swapped = "kept" if save_weights else "lost"
        raise_kept()

    def swap_params_to_weights(self):
        """Set the parameters to the values that they had before `swap_params_to_moving_average`.

        Raises:
            RuntimeError: they are not set to their average, or the values were not saved.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> trainer.exponential_moving_average(0.9)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
            >>> trainer.swap_params_to_moving_average()
            >>> trainer.swap_params_to_weights()
        """
        cdef _Stored x
        cdef list stored = self._collection._below()
        if not self._swapped:
            raise RuntimeError("swap_params_to_weights: the parameters are not set to their moving average")
        if self._swapped == "lost":
            raise RuntimeError("swap_params_to_weights: the weights were not saved: save_weights was False")
        stepper_of(self).axpby(
            stored, 0, 1, self._states[self._n_states + 1], (<Storage>self._collection.storage).values)
        for x in stored:
            value_changed(x.p)
        self._collection.storage.drop_plane(self._states.pop())
        self._swapped = ""
        raise_kept()

    def _check_alone(self, what):
        if not (<Stepper>self._stepper).alone:
            raise RuntimeError(f"{what}: not in asynchronous training, where other processes use the parameters")

    def _start_average(self, beta, update_freq):
        self._check_alone("moving averages")
        stepper_of(self).poll_errors(self)
        if self._swapped:
            raise RuntimeError(
                "the parameters are set to their moving average; swap_params_to_weights comes "
                "before another average")
        if not update_freq == int(update_freq) or update_freq < 1:
            raise ValueError(f"update_freq must be a whole number of at least 1, not {update_freq}")
        for plane in self._states[self._n_states:]:
            self._collection.storage.drop_plane(plane)
        self._states[self._n_states:] = [self._collection.storage.new_plane()]
        self._average = {"beta": beta, "frequency": int(update_freq), "updates": 0, "values": 0,
                         "parameters": len(self._collection._below())}

    def _add_to_average(self):
        cdef list stored = self._collection._below()
        cdef double old
        average = self._average
        if len(stored) != average["parameters"]:
            raise RuntimeError(
                f"{type(self).__name__}: parameters were added since the moving average began; it "
                "would be wrong for them.  The update is made; begin the average anew")
        average["updates"] += 1
        if average["updates"] % average["frequency"]:
            return
        average["values"] += 1
        old = 1 - 1.0 / average["values"] if average["beta"] is None else average["beta"]
        stepper_of(self).axpby(
            stored, <float>old, <float>(1 - old), (<Storage>self._collection.storage).values,
            self._states[self._n_states])

    def _settings(self):
        """All but the collection, the state of the rule, and who makes the updates: plain data."""
        stepper_of(self).poll_errors(self)
        settings = {k: v for k, v in self.__dict__.items() if k not in (
            "_collection", "_states", "_stepper", "_norm", "_pace")}
        settings["_groups"] = [group._state() for group in self._groups]
        if self._pace is not None:
            settings["_schedule"] = self._pace.state()
        if self._average is not None:
            settings["_average"] = dict(self._average)
        return settings

    def _n_planes(self, settings):
        """How many planes of state belong to these settings."""
        return (self._n_states + (settings["_average"] is not None)
                + (settings["_swapped"] == "kept"))

    def _restore(self, settings, arrays):
        """Put back what `_settings` and `_state_arrays` have returned."""
        settings = dict(settings)
        pace = settings.pop("_schedule", None)
        see_whole()
        n = self._n_planes(settings)
        planes = self.__dict__.get("_states", [])       # they may be memory that is shared with others
        for plane in planes[n:]:
            self._collection.storage.drop_plane(plane)
        planes = planes[:n] + [self._collection.storage.new_plane() for _ in range(n - len(planes))]
        own = list(self._groups)
        self.__dict__.update(settings)
        self._states = planes
        self._groups = restored_groups(own, settings["_groups"]) if "_groups" in settings else own
        self._follow(None if pace is None else self._pace.restored(pace, self._steps))
        for x, own in zip(self._collection._below(), arrays):
            for k, plane in enumerate(planes):
                if own is None and is_zero(x, plane):
                    continue
                array = np.zeros(x.shape(), np.float32) if own is None else own[k]
                (<_Stored>x).fill(array, (<Plane>plane).on((<_Stored>x).p.device))

    def _state_arrays(self):
        """The state of the rule: for each parameter and table of the collection, as many new arrays
        of its shape as the rule has; None for a frozen one that has never been trained."""
        see_whole()
        return [None if not x.is_updated() and all(is_zero(x, plane) for plane in self._states)
                else [(<_Stored>x).array((<Plane>plane).on((<_Stored>x).p.device)) for plane in self._states]
                for x in self._collection._below()]

    def __getstate__(self):
        return self._collection, self._settings(), self._state_arrays(), self._pace

    def __setstate__(self, state):
        self._collection, settings, arrays, *pace = state
        self._pace = pace[0] if pace else None              # nothing in pickles of earlier versions
        self._restore(settings, arrays)

    def _hyperparameters(self):
        """Constants of the rule for this update; those that it has not are 0."""
        return {constant: getattr(self, attribute) for constant, attribute in self._constants.items()}

    @property
    def _n_states(self):
        """How many planes of state the rule has."""
        return states_of_rules[<int>self._rule]

    def update_epoch(self, r):
        """Say on stderr that this does nothing; here for old programs.  Set `learning_rate` instead.

        Example:
            >>> import contextlib, sys
            >>> with contextlib.redirect_stderr(sys.stdout):
            ...     dy.SimpleSGDTrainer(model).update_epoch(1)
            Trainer::update_epoch ...
        """
        sys.stderr.write(UPDATE_EPOCH)

    def restart(self, learning_rate=None):
        """Set the state of the rule (momentum, moments) to zero.

        Args:
            learning_rate: the step size from now on; as before when None.

        Example:
            >>> trainer = dy.AdamTrainer(model)
            >>> trainer.restart(learning_rate=0.01)
            >>> trainer.learning_rate
            0.01
        """
        cdef Storage storage = self._collection.storage
        for plane in self._states[:self._n_states]:
            storage.zero(plane)
        if learning_rate is not None:
            self.learning_rate = learning_rate

    def status(self):
        """Write learning rate, clipped updates and updates since the last call to stderr, and how many were
        dropped if there are any: ``[lr=0.1 clips=2 updates=98 skipped=1]``.

        Example:
            >>> import contextlib, sys
            >>> W = model.add_parameters(2)
            >>> trainer = dy.SimpleSGDTrainer(model, 0.1)
            >>> dy.squared_norm(W).backward()
            >>> trainer.update()
            >>> with contextlib.redirect_stderr(sys.stdout):
            ...     trainer.status()
            [lr=0.1 clips=0 updates=1]
        """
        stepper_of(self).poll_errors(self)
        skipped = f" skipped={self._skipped}" if self._skipped else ""
        sys.stderr.write(f"[lr={self.learning_rate:g} clips={self._clips} updates={self._updates}{skipped}] ")
        self._clips = self._updates = self._skipped = 0

    def __repr__(self):
        return (f"<{type(self).__name__} of {self._collection!r}, learning_rate={self.learning_rate:g}, "
                f"{self._steps} updates>")

    def whoami(self):
        """Name of the class.

        Example:
            >>> dy.AdamTrainer(model).whoami()
            'AdamTrainer'
        """
        return type(self).__name__


class SimpleSGDTrainer(Trainer):
    """Stochastic gradient descent: p -= learning_rate g.

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.1).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_sgd

    def __init__(self, m, learning_rate=0.1):
        super().__init__(m, learning_rate)


class CyclicalSGDTrainer(Trainer):
    """Stochastic gradient descent with a learning rate that goes up and down
    (Smith 2017, Cyclical learning rates for training neural networks).

    Args:
        m: the ParameterCollection to train.
        learning_rate_min, learning_rate_max: bounds of the learning rate (defaults: 0.01 and 0.1).
        step_size: updates from one bound to the other (default: 2000).
        gamma: factor per update on the height of the cycle (default: 1).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.CyclicalSGDTrainer(model, learning_rate_min=0.1, learning_rate_max=0.2)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_sgd

    def __init__(self, m, learning_rate_min=0.01, learning_rate_max=0.1, step_size=2000,
                 gamma=1.0):
        super().__init__(m, learning_rate_min)
        if not step_size > 0:
            raise ValueError(f"CyclicalSGDTrainer: step_size must be positive, not {step_size}")
        self._bounds = number(learning_rate_min, "learning_rate_min"), number(learning_rate_max, "learning_rate_max")
        self._step_size = number(step_size, "step_size")
        self._gamma = number(gamma, "gamma")
        self._iteration = 0

    def _count(self):
        super()._count()
        self._iteration += 1
        self._learning_rate = self._rate_after(self._iteration)

    def _uncount(self, n):
        super()._uncount(n)
        self._iteration -= n
        if n:
            self._learning_rate = self._rate_after(self._iteration)

    def _rate(self, own, back):
        return super()._rate(self._rate_after(self._iteration - back) if own is None and back else own, back)

    def _rate_after(self, updates):
        """The learning rate after so many updates."""
        low, high = self._bounds
        k = max(updates - 1, 0)
        cycle = 1 + k // (2 * self._step_size)
        x = abs(k / self._step_size - 2 * cycle + 1)
        return low + (high - low) * max(0.0, 1 - x) * self._gamma ** k


class MomentumSGDTrainer(Trainer):
    """Gradient descent with momentum: v = mom v - learning_rate g; p += v.

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.01).
        mom: momentum (default: 0.9).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.MomentumSGDTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_momentum
    _constants = {"b1": "_mom"}

    def __init__(self, m, learning_rate=0.01, mom=0.9):
        super().__init__(m, learning_rate)
        self._mom = number(mom, "mom")


class AdagradTrainer(Trainer):
    """Adagrad (Duchi, Hazan and Singer 2011): v += g²; p -= learning_rate g / sqrt(v + eps).

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.1).
        eps: keeps the divisor from zero (default: 1e-20).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.AdagradTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_adagrad
    _constants = {"eps": "_eps"}

    def __init__(self, m, learning_rate=0.1, eps=1e-20):
        super().__init__(m, learning_rate)
        self._eps = number(eps, "eps")


class AdadeltaTrainer(Trainer):
    """Adadelta (Zeiler 2012).  It has no use for a learning rate.

    Args:
        m: the ParameterCollection to train.
        eps: keeps divisors from zero (default: 1e-6).
        rho: decay of the means of squares (default: 0.95).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.AdadeltaTrainer(model, rho=0.9)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_adadelta
    _constants = {"eps": "_eps", "b1": "_rho"}

    def __init__(self, m, eps=1e-6, rho=0.95):
        super().__init__(m, 1.0)
        self._eps = number(eps, "eps")
        self._rho = number(rho, "rho")


class RMSPropTrainer(Trainer):
    """RMSProp (Tieleman and Hinton 2012): v = rho v + (1 - rho) g²;
    p -= learning_rate g / sqrt(v + eps).

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.001).
        eps: keeps the divisor from zero (default: 1e-8).
        rho: decay of the mean of squares (default: 0.9).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.RMSPropTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_rmsprop
    _constants = {"eps": "_eps", "b1": "_rho"}

    def __init__(self, m, learning_rate=0.001, eps=1e-8, rho=0.9):
        super().__init__(m, learning_rate)
        self._eps = number(eps, "eps")
        self._rho = number(rho, "rho")


class AdamTrainer(Trainer):
    """Adam (Kingma and Ba 2015): with means m of g and v of g²,
    p -= alpha sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + eps).

    Rows of lookup tables that were not used keep their means too, unless
    sparse updates are off.

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.001).
        beta_1, beta_2: decay of the means of g and of g² (defaults: 0.9 and 0.999).
        eps: keeps the divisor from zero (default: 1e-8).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.AdamTrainer(model, alpha=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_adam
    _constants = {"b1": "_beta_1", "b2": "_beta_2", "eps": "_eps"}

    def __init__(self, m, alpha=0.001, beta_1=0.9, beta_2=0.999, eps=1e-8):
        super().__init__(m, alpha)
        self._beta_1 = number(beta_1, "beta_1")
        self._beta_2 = number(beta_2, "beta_2")
        self._eps = number(eps, "eps")

    def _correction(self, steps):
        return sqrt(1 - self._beta_2 ** steps) / (1 - self._beta_1 ** steps)


class AdamWTrainer(AdamTrainer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): before the step of `AdamTrainer`,
    p -= alpha weight_decay p.

    All rows of lookup tables decay in each update, those too that were not used.  Frozen
    parameters (`set_updated`) do not.

    Unlike `ParameterCollection.set_weight_decay`, which takes the share lambda itself off and
    which would come on top of this, the decay is times the learning rate: with the defaults an update
    takes 0.001 * 0.01 of a value.

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.001).
        beta_1, beta_2: decay of the means of g and of g² (defaults: 0.9 and 0.999).
        eps: keeps the divisor from zero (default: 1e-8).
        weight_decay: what a value loses in an update, by the learning rate; at least 0. Default: 0.01.
        exclude: what does not decay, such as biases and gains: a parameter or table, a ParameterCollection,
            or a list of these.  It is short for ``group(exclude, weight_decay=0)``, see `Trainer.group`.

    Raises:
        ValueError: weight_decay is negative or not finite, or a parameter is not one of m.

    Example:
        >>> bias, table = model.add_parameters(3), model.add_lookup_parameters((10, 3))
        >>> biases = [p for p in model.parameters_list() if len(p.shape()) == 1]
        >>> trainer = dy.AdamWTrainer(model, 1e-3, weight_decay=0.05, exclude=[*biases, table])
    """

    def __init__(self, m, alpha=0.001, beta_1=0.9, beta_2=0.999, eps=1e-8, weight_decay=0.01, exclude: _Params = ()):
        super().__init__(m, alpha, beta_1, beta_2, eps)
        self.weight_decay = weight_decay
        excluded = stored_in(exclude, "AdamWTrainer: exclude")
        if excluded:
            self.group(excluded, weight_decay=0.0)

    @property
    def weight_decay(self):
        """What a value loses in an update, by the learning rate.

        Raises:
            ValueError: it is set to a number that is negative or not finite.

        Example:
            >>> trainer = dy.AdamWTrainer(model)
            >>> trainer.weight_decay = 0.05
            >>> trainer.weight_decay
            0.05
        """
        return self._weight_decay

    @weight_decay.setter
    def weight_decay(self, value):
        self._weight_decay = checked_decay(value)


class AmsgradTrainer(AdamTrainer):
    """Adam with the greatest mean of g² so far in place of the current one
    (Reddi, Kale and Kumar 2018).

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.001).
        beta_1, beta_2: decay of the means of g and of g² (defaults: 0.9 and 0.999).
        eps: keeps the divisor from zero (default: 1e-8).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.AmsgradTrainer(model, alpha=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_amsgrad
