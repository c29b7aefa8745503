"""Updates that all processes make together: what they compare, sums of gradients, and sums during backward."""

import os
import threading
import weakref

import numpy as np

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.threads cimport (
    RELAXED, Unlocked, acquire_lock, atomic_add, atomic_load, atomic_store, atomic_sub, now, release_lock,
)
from dynet_cy.execute.accumulation cimport gradient_hooks
from dynet_cy.kernels.kernels cimport squares_of
from dynet_cy.kernels.lazy_rows cimport are_states_behind
from dynet_cy.memory.bridge cimport array_at, memory_of
from dynet_cy.memory.storage cimport Param, Plane, Storage, note_gradient
from dynet_cy.model.parameters cimport _Stored, settle
from dynet_cy.train.backends cimport squared_norm, sum_table
from dynet_cy.train.interfaces cimport FROZEN, MOVES, Backend, Reducer, TrainerSettings, Update
from dynet_cy.watch.timeline cimport EXCHANGE, begin_span, end_span

from dynet_cy.parallel.communicator import ParallelError


# ==== collective ==================================================================================
#
# The base of all synchronous training in several processes: the ranks agree on each update before they make it.
#
# Each rank sends a header: the settings of its trainer, and for each parameter whether it has a gradient. A rank that
# has reached the end of a `join` adopts the settings of the others and has no weight in the mean. Then the gradients
# are summed, and all ranks make the same update.

# Parameters of interrupted updates, kept alive: a sum that was started may still write to their gradients.
cdef list broken_off = []


# Why a reducer that was chosen for parameters on the host cannot be used any more.
ADDED_ON_DEVICE: str = (
    "parameters were added on a device since the trainer was wrapped; call dy.parallel.wrap(trainer) again"
)


class AllDone(Exception):
    """No rank has any more updates to make."""


cdef int compare_settings(trainer, const TrainerSettings* a, int rank_of_a, const TrainerSettings* b,
                          int rank_of_b) except -1:
    """Raise an error that names the first setting that differs."""
    constants = [(f"constant {attribute.lstrip('_')}", a.constants[k], b.constants[k])
                 for k, attribute in trainer._constants_read]
    for what, x, y in (
            ("learning rate", a.learning_rate, b.learning_rate),
            ("clipping threshold", a.clip_threshold, b.clip_threshold),
            *constants,
            ("decoupled weight decay", a.decoupled_decay, b.decoupled_decay),
            ("weight decay", a.weight_decay, b.weight_decay),
            ("setting of sparse updates", bool(a.sparse), bool(b.sparse)),
            ("setting of skip_nonfinite", bool(a.skips), bool(b.skips)),
            ("number of updates made", a.steps, b.steps)):
        if x != y:
            raise ParallelError(
                f"{type(trainer).__name__}: the {what} is {x} on rank {rank_of_a} and {y} on rank {rank_of_b}; "
                "all ranks must make the same updates")
    return 0


cdef class CollectiveReducer(Reducer):
    """Ranks that agree on each update before they make it.

    Args:
        communicator: the connection of the ranks.
        stored: the parameters and tables of the trainer.
        mean: whether gradients are averaged instead of summed.
    """

    def __cinit__(self, communicator, list stored, bint mean, *args):
        cdef Py_ssize_t n = len(stored)
        self.communicator = communicator
        self.rank = communicator.rank
        self.size = communicator.size
        self.n = n
        self.stored = stored
        self.mean = mean
        self.active = True
        self.collective = True
        self.what = b"update"
        self.sent = dict.fromkeys(("updates", "dense_bytes", "rows", "row_bytes", "own_row_bytes", "table_bytes"), 0)
        self.header_bytes = header_bytes_of(n)
        self.headers = <StepHeader**>calloc(self.size, sizeof(StepHeader*))
        self.any = <uint8_t*>calloc(n + 1, 1)
        if self.headers == NULL or self.any == NULL:
            raise MemoryError("what is known of the other ranks")

    def __dealloc__(self):
        free(self.headers)
        free(self.any)

    def set_number(self, int number):
        """Set the number of this trainer among those that have been wrapped, from 1: ranks must update the same one."""
        self.what = b"update" if number == 1 else b"update of trainer %d" % number

    cdef int begin_update(self) except -1:
        """Set `own` to where this rank writes its header."""
        raise NotImplementedError

    cdef int swap(self, Update* u) except -1:
        """Send the header of this rank, and receive those of all ranks into `headers`."""
        raise NotImplementedError

    cdef int sum_all(self, Backend backend, Update* u) except -1:
        """Sum the gradients of all ranks: `reduce`, without its span in the timeline."""
        raise NotImplementedError

    cdef object agree(self, trainer, list stored, Update* u, TrainerSettings* settings, list groups):
        cdef Py_ssize_t i
        cdef Entry* entry
        cdef int r, active = 0
        cdef uint64_t span
        if u.n != self.n:
            raise ParallelError(
                f"{type(trainer).__name__}: the model had {self.n} parameters and tables when its trainer was wrapped, "
                f"and has {u.n} now; call dy.parallel.wrap(trainer) again after adding some")
        for i in range(self.n):
            if u.entries[i] != (<_Stored>self.stored[i]).p:
                raise ParallelError(
                    f"{type(trainer).__name__}: {(<_Stored>stored[i]).full_name} is not among the parameters and "
                    "tables that the model had when its trainer was wrapped; call dy.parallel.wrap(trainer) again "
                    "after replacing some")
        self.begin_update()
        memset(self.own, 0, self.header_bytes)
        self.own.settings = settings[0]
        self.own.n = self.n
        self.own.active = self.active
        for i in range(self.n):
            entry = entries_of(self.own) + i
            entry.factor = u.entries[i].factor
            if u.entries[i].lazy != NULL:
                entry.lazy = u.entries[i].lazy.n
                entry.behind = are_states_behind(u.entries[i], u.states)
                entry.read = u.entries[i].lazy.read
            entry.has = u.entries[i].has_gradient
            entry.n_touched = u.entries[i].n_touched
            entry.role = u.roles[i]
            entry.in_place = u.entries[i].in_place
        self.together = True
        span = begin_span()
        self.swap(u)
        end_span(EXCHANGE, span)
        for r in range(self.size):
            active += self.headers[r].active
        if not active:
            raise AllDone
        adopted = self.compare(trainer, stored, u, settings, groups)
        u.scale = 1.0 / active if self.mean else 1.0
        self.sent["updates"] += 1
        return adopted

    cdef int reduce(self, Backend backend, Update* u) except -1:
        cdef uint64_t span = begin_span()
        self.sum_all(backend, u)
        end_span(EXCHANGE, span)
        return 0

    cdef object compare(self, trainer, list stored, Update* u, TrainerSettings* settings, list groups):
        """Check that all ranks with data make the same update; ranks without data adopt it."""
        cdef StepHeader* lead = NULL
        cdef StepHeader* one
        cdef Py_ssize_t i
        cdef int r, leader = 0
        cdef Entry* a
        cdef Entry* b
        cdef bint settles, in_place
        cdef str name = type(trainer).__name__
        for r in range(self.size):
            one = self.headers[r]
            if not one.active:
                continue
            if lead == NULL:
                lead, leader = one, r
                continue
            if memcmp(&lead.settings, &one.settings, sizeof(TrainerSettings)):
                compare_settings(trainer, &lead.settings, leader, &one.settings, r)
            for i in range(self.n):
                if entries_of(lead)[i].role != entries_of(one)[i].role:
                    who, other = (leader, r) if entries_of(lead)[i].role == MOVES else (r, leader)
                    raise ParallelError(
                        f"{name}: {(<_Stored>stored[i]).full_name} is updated on rank {who} and not "
                        f"on rank {other}; all ranks must make the same updates")
        adopted = self.compare_groups(name, lead, leader, groups)
        if not self.active:
            settings[0] = lead.settings
        for i in range(self.n):
            a = entries_of(lead) + i
            u.roles[i] = a.role
            self.any[i] = 0
            settles = in_place = False
            for r in range(self.size):
                b = entries_of(self.headers[r]) + i
                self.any[i] |= b.has and a.role != FROZEN
                settles |= b.factor != a.factor or b.lazy != a.lazy or b.read != a.read
                in_place |= b.in_place
            # A rank that has read a table in place, or saved it, has multiplied its factor in.
            if settles or in_place:
                settle(u.entries[i])
            if in_place:
                u.entries[i].in_place = 1
        return adopted

    cdef object compare_groups(self, str trainer, StepHeader* lead, int leader, list groups):
        """Check that all ranks with data have the same groups; returns the groups to a rank without data."""
        cdef int r
        for r in range(self.size):
            if self.headers[r].settings.groups != lead.settings.groups:
                break
        else:
            return None
        settings = self.communicator.gather(groups, "update")
        for r in range(self.size):
            if self.headers[r].active and settings[r] != settings[leader]:
                raise ParallelError(
                    f"{trainer}: the groups of parameters are {settings[leader]} on rank {leader} and "
                    f"{settings[r]} on rank {r}; all ranks must make the same updates")
        return None if self.active else settings[leader]

    cdef int end(self, object error) except -1:
        """After an error on this rank only, the ranks may differ, so no collective call is possible any more.

        Errors about the update itself are raised on all ranks.
        """
        met_by_all = error is None or isinstance(error, (ParallelError, AllDone)) or type(error) is RuntimeError
        if self.together and not met_by_all:
            self.communicator.break_off()
            broken_off.append(self.stored)
        self.together = False
        return 0

    def shadow(self, trainer: Trainer) -> bool:
        """Take part in one update of the others, without gradients.

        Returns:
            False if no rank has any more updates to make.
        """
        self.active = False
        try:
            trainer._compute_update(None, False)
        except AllDone:
            return False
        finally:
            self.active = True
        return True

    def traffic(self) -> dict[str, int]:
        """The amounts of data that updates have moved between ranks so far.

        Returns:
            The number of updates; bytes of gradients of parameters; the number of rows of tables of which some rank
            has a gradient, and their bytes, row numbers included; the bytes of this rank's rows; and the bytes of the
            whole tables, which would otherwise have been exchanged.
        """
        return dict(self.sent)

    cdef int note_rows(self, const Param* p, size_t union_, size_t own) except -1:
        """Count the rows of a table that an update sums."""
        cdef size_t row = (size_of(&p.dim) + 1) * sizeof(float)
        self.sent["rows"] += union_
        self.sent["row_bytes"] += union_ * row
        self.sent["own_row_bytes"] += own * row
        self.sent["table_bytes"] += p.size * sizeof(float)
        return 0


# ==== allreduce ===================================================================================
#
# Updates in which every rank updates all parameters, after any communicator has summed the gradients.

cdef class AllreduceReducer(CollectiveReducer):
    """See above.  The arguments are those of `CollectiveReducer`."""

    def __cinit__(self, *args):
        self.memory = bytearray(self.header_bytes)

    cdef int begin_update(self) except -1:
        self.own = <StepHeader*><char*>self.memory
        return 0

    cdef int swap(self, Update* u) except -1:
        cdef int r
        self.settings = self.communicator.gather_bytes(bytes(self.memory), self.what.decode())
        for r in range(self.size):
            if len(<bytes>self.settings[r]) != len(self.memory):
                raise ParallelError(f"rank {r} does not update the {self.n} parameters and tables of rank {self.rank}")
            self.headers[r] = <StepHeader*><char*>(<bytes>self.settings[r])
        return 0

    cdef int sum_all(self, Backend backend, Update* u) except -1:
        return backend.sum_gradients(self, self.any, u)

    cdef int sum_floats(self, object floats) except -1:
        self.sent["dense_bytes"] += floats.nbytes
        self.communicator.sum_floats(floats)
        return 0

    cdef tuple sum_rows(self, const Param* p, object rows, object values):
        union, total = self.communicator.sum_rows(rows, values, p.rows)
        union = np.ascontiguousarray(union, np.uint32)
        total = np.ascontiguousarray(total, np.float32)
        if total.shape != (len(union), values.shape[1]) or union.max(initial=0) >= p.rows:
            raise ValueError(
                f"{type(self.communicator).__name__}.sum_rows: sums of shape {total.shape} of {len(union)} rows up to "
                f"{union.max(initial=0)} do not fit a table of {p.rows} rows of {values.shape[1]} numbers")
        self.note_rows(p, len(union), len(rows))
        return union, total


def adopt(communicator: Communicator, trainer: Trainer):
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
    for storage in (storage, *storage.other_devices.values()):
        storage.changed()


def allreduce(communicator: Communicator, trainer: Trainer, reduction: str) -> AllreduceReducer:
    """The reducer of a trainer over any communicator.  Collective: parameters and state are copied from rank 0.

    Args:
        communicator: the connection of the ranks.
        trainer: the trainer.
        reduction: "mean" or "sum".
    """
    adopt(communicator, trainer)
    return AllreduceReducer(communicator, trainer.collection._below(), reduction == "mean")


# ==== overlap =====================================================================================
#
# Gradients that are summed over all processes while the rest of backward runs.
#
# MPI requires all ranks to start the sums in the same order. So parameters are put into buckets, in the order in which
# their gradients were complete in the first backward of rank 0. A bucket is sent when all gradients in it are complete
# and all buckets before it have been sent. A parameter that the graph of a rank does not use counts as complete from
# the start. The update sends the buckets that are left. If a gradient has changed after it was sent (by a second
# backward, or because the program scaled it or set it to zero), all gradients are sent again. So the result never
# depends on what was sent early.
#
# A backward on a GPU sends nothing early: its gradients are complete only at its end.
#
# MPI transfers data only while it is called, so it is called between the batches of backward.
#
# Buckets in a fixed order: Li et al. (PyTorch Distributed: experiences on accelerating data parallel training, VLDB
# 2020).

# Smaller messages cost more in latency than they gain by being sent earlier.
DEFAULT_BUCKET: int = 1 << 18

# Nanoseconds between two calls of MPI in backward.
cdef enum:
    PAUSE = 100000

cdef list listeners = []            # weak references to Overlaps
cdef Unlocked listeners_lock
cdef size_t n_open = 0              # sums under way
cdef size_t last_call = 0


def _stop_in_child():
    """Prevent sums in this process, which was forked from a rank."""
    global n_open
    n_open = 0
    listeners.clear()
    remove_hooks()


os.register_at_fork(after_in_child=_stop_in_child)


cdef int remove_hooks() except -1:
    gradient_hooks().begin_pass = NULL
    gradient_hooks().complete = NULL
    gradient_hooks().progress = NULL
    return 0


cdef class Overlap:
    """Sums the gradients of the parameters of a collection, but not of its lookup tables.

    Args:
        collection: with all its parameters.
        communicator: with the methods `start_sum(send, receive)`, which returns a request; `progress(requests)`;
            `wait(requests, what)`; `start_any(flag)`, which starts an in-place sum of an array of one number; and
            `broadcast`.
        bucket_bytes: a bucket is closed when it holds at least this many bytes.

    Attributes:
        early: whether sums start during backward; becomes False if gradients change after they were sent.
        started_early: number of buckets sent during backward since the last update.
        n_buckets: number of buckets.
    """

    cdef object __weakref__
    cdef object communicator, error, lock
    cdef list stored, offsets, requests, ends, completed
    cdef size_t bucket_bytes, size
    cdef Py_ssize_t n_sent
    cdef object send, receive
    cdef float* sending
    cdef float* received
    cdef dict places                # number of a parameter -> its place in the order
    cdef set open                   # places that are not complete
    cdef bint ordered
    cdef public bint early
    cdef readonly Py_ssize_t started_early

    def __init__(self, collection: ParameterCollection, communicator: Any, bucket_bytes: int = DEFAULT_BUCKET) -> None:
        self.lock = threading.RLock()
        self.communicator = communicator
        self.bucket_bytes = bucket_bytes
        self.early = True
        # A guess until the order is known: the parameter made last is often used last, so its gradient completes first.
        self.arrange(collection.parameters_list()[::-1])
        acquire_lock(&listeners_lock)
        try:
            listeners.append(weakref.ref(self, listeners.remove))
            gradient_hooks().begin_pass = begins
            gradient_hooks().complete = complete
            gradient_hooks().progress = advance
        finally:
            release_lock(&listeners_lock)

    def close(self):
        """Stop listening to backward passes."""
        acquire_lock(&listeners_lock)
        try:
            listeners[:] = [of for of in listeners if of() is not self]
            if not listeners:
                remove_hooks()
        finally:
            release_lock(&listeners_lock)
        if self.requests:
            self.communicator.wait(self.requests, "sum of gradients")
            atomic_sub(&n_open, len(self.requests), RELAXED)
            self.requests = []

    @property
    def n_buckets(self) -> int:
        return len(self.ends)

    cdef arrange(self, list stored):
        """Divide the parameters, in this order, into buckets."""
        cdef _Stored x
        cdef size_t begun = 0
        self.stored = stored
        self.places = {}
        self.offsets = [0]
        self.ends = []
        self.size = 0
        for place, x in enumerate(stored):
            self.places[x.p.number] = place
            self.size += x.p.size
            self.offsets.append(self.size)
            if (self.size - begun) * sizeof(float) >= self.bucket_bytes or place == len(stored) - 1:
                self.ends.append(place + 1)
                begun = self.size
        self.send = np.empty(self.size, np.float32)
        self.receive = np.empty(self.size, np.float32)
        if self.size:
            self.sending = <float*>memory_of(self.send, True)
            self.received = <float*>memory_of(self.receive, True)
        self.begin_update()

    cdef begin_update(self):
        """Prepare for the next update."""
        self.requests = []
        self.completed = []
        self.open = set()
        self.n_sent = 0
        self.started_early = 0
        self.error = None

    cdef bint holds(self, Param* p):
        place = self.places.get(p.number)
        return place is not None and (<_Stored>self.stored[place]).p == p

    cdef push(self, bint early):
        """Send buckets in order: while `early`, only those that are complete."""
        while self.n_sent < len(self.ends):
            first, last = self.n_sent_parameters(), self.ends[self.n_sent]
            if early and not self.open.isdisjoint(range(first, last)):
                break
            self.requests.append(self.start_sum(first, last))
            atomic_add(&n_open, 1, RELAXED)
            self.n_sent += 1
            self.started_early += early

    cdef Py_ssize_t n_sent_parameters(self):
        return self.ends[self.n_sent - 1] if self.n_sent else 0

    cdef object start_sum(self, Py_ssize_t first, Py_ssize_t last):
        """Send the gradients of some parameters as they are now."""
        cdef Py_ssize_t place
        cdef Param* p
        for place in range(first, last):
            p = (<_Stored>self.stored[place]).p
            memcpy(self.sending + <size_t>self.offsets[place], p.grad, p.size * sizeof(float))
        part = slice(self.offsets[first], self.offsets[last])
        return self.communicator.start_sum(self.send[part], self.receive[part])

    cdef finish(self):
        """Have the sums over all ranks in `received`, until `begin`."""
        cdef Py_ssize_t place, sent_early
        cdef Param* p
        cdef bint differs = False
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if not self.size:
            return
        sent_early = self.n_sent_parameters()
        self.push(False)
        for place in range(sent_early):
            p = (<_Stored>self.stored[place]).p
            if memcmp(self.sending + <size_t>self.offsets[place], p.grad, p.size * sizeof(float)):
                differs = True
                self.early = False  # in the next updates it would probably differ again
                break
        changed = np.array([differs], np.float32)
        flag = self.communicator.start_any(changed)
        self.communicator.wait([*self.requests, flag], "sum of gradients")
        atomic_sub(&n_open, len(self.requests), RELAXED)
        self.requests = []
        if changed[0]:              # differences would not do if the values that were sent are not finite
            self.communicator.wait([self.start_sum(0, len(self.stored))], "sum of gradients")

    cdef next(self):
        """Called when the sums have been used."""
        completed = self.completed
        self.begin_update()
        if not self.ordered:
            self.ordered = True
            self.reorder(completed)

    cdef float* sums_of(self, Param* p) except NULL:
        """The sums of a parameter, between `finish` and `next`."""
        return self.received + <size_t>self.offsets[self.places[p.number]]

    def make_sums(self):
        """Replace the gradients on all ranks by their sums over all ranks."""
        cdef _Stored x
        self.finish()
        for x in self.stored:
            memcpy(x.p.grad, self.sums_of(x.p), x.p.size * sizeof(float))
            note_gradient(x.p)
        self.next()

    cdef reorder(self, list completed):
        """Adopt the order in which gradients became complete on rank 0; parameters that it did not use come first."""
        places = list(dict.fromkeys(self.communicator.broadcast(completed)))
        unused = sorted(set(range(len(self.stored))) - set(places))
        self.arrange([self.stored[place] for place in unused + places])


@cython.final
cdef class OverlapReducer(AllreduceReducer):
    """Updates over a communicator that can sum gradients while backward runs.  See `overlapped`."""

    cdef Overlap overlap

    def __cinit__(self, *args):
        self.host_only = ADDED_ON_DEVICE

    cdef int sum_all(self, Backend backend, Update* u) except -1:
        cdef Py_ssize_t i
        cdef Param* p
        with self.overlap.lock:
            self.overlap.finish()
        self.sent["dense_bytes"] += self.overlap.size * sizeof(float)
        for i in range(self.n):
            p = u.entries[i]
            if not self.any[i]:
                continue
            if p.rows:
                sum_table(self, u, i)
            elif u.roles[i] == MOVES:
                memcpy(p.grad, self.overlap.sums_of(p), p.size * sizeof(float))
                p.has_gradient = 1
            elif u.measures:
                u.squares[i] = squares_of(p.size, self.overlap.sums_of(p))
        with self.overlap.lock:
            self.overlap.next()
        for i in range(self.n if u.measures else 0):
            if u.roles[i] == MOVES:
                u.squares[i] = squared_norm(u.entries[i])
        return 0


def overlapped(
    communicator: Any, trainer: Trainer, reduction: str, bucket_bytes: int = DEFAULT_BUCKET
) -> OverlapReducer:
    """The reducer of a trainer whose gradients are summed while backward runs.  Collective: all parameters and the
    trainer's state are copied from rank 0.

    Args:
        communicator: see `Overlap`.
        trainer: the trainer.
        reduction: "mean" or "sum".
        bucket_bytes: see `Overlap`.
    """
    adopt(communicator, trainer)
    reducer = OverlapReducer(communicator, trainer.collection._below(), reduction == "mean")
    (<OverlapReducer>reducer).overlap = Overlap(trainer.collection, communicator, bucket_bytes)
    return reducer


cdef list listening():
    return [overlap for overlap in [of() for of in listeners[:]] if overlap is not None]


# Several threads may run backward on graphs of the same parameters: each of these has the Overlap to itself meanwhile.

cdef void begins(Param* const* coming, uint32_t n) noexcept with gil:
    cdef Overlap overlap
    cdef uint32_t i
    for overlap in listening():
        with overlap.lock:
            if overlap.n_sent or not overlap.early or overlap.error is not None:
                continue
            try:
                overlap.open.clear()
                for i in range(n):
                    if overlap.holds(coming[i]):
                        overlap.open.add(overlap.places[coming[i].number])
                if overlap.open:                # else it is the backward of another model
                    overlap.push(True)
            except BaseException as error:      # no caller here could receive the exception
                overlap.error = error


cdef void complete(Param* p) noexcept with gil:
    cdef Overlap overlap
    for overlap in listening():
        with overlap.lock:
            if not overlap.holds(p) or overlap.error is not None:
                continue
            place = overlap.places[p.number]
            if not overlap.ordered:
                overlap.completed.append(place)
            if place not in overlap.open:       # sent already, or nothing is sent early
                continue
            overlap.open.discard(place)
            try:
                overlap.push(True)
            except BaseException as error:
                overlap.error = error


cdef void advance() noexcept nogil:
    if atomic_load(&n_open, RELAXED) == 0 or now() - atomic_load(&last_call, RELAXED) < PAUSE:
        return
    atomic_store(&last_call, now(), RELAXED)
    with gil:
        for overlap in listening():
            goes_on_for(overlap)


cdef goes_on_for(Overlap overlap):
    with overlap.lock:
        try:
            if overlap.requests and overlap.error is None:
                overlap.communicator.progress(overlap.requests)
        except BaseException as error:
            overlap.error = error
