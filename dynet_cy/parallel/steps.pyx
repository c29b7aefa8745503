"""Updates that several processes make together.

Before each update the ranks tell each other what they have: settings of the trainer, and of each parameter whether it
has a gradient.  Who has reached the end of a `join` takes the settings of the others and no weight in the mean.  Then
gradients are added up, and all make the same update.
"""

import hashlib

import numpy as np

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.graph.timeline cimport EXCHANGE, begin_span, end_span
from dynet_cy.memory.buffers cimport array_at
from dynet_cy.memory.storage cimport Param, Plane, Storage, touch
from dynet_cy.model.parameters cimport _Stored, fold_scale
from dynet_cy.train.trainers cimport FROZEN, MOVES, Stepper, Update, restored_groups, squared_norm

from dynet_cy.parallel.communicator import ParallelError


# Parameters of updates that were broken off: sums that have begun may still be written to their gradients.
cdef list broken_off = []


class AllDone(Exception):
    """No rank has an update to make any more."""


cdef class CollectiveUpdate(Stepper):
    """What ranks do before all updates: see that they make the same one.

    Args:
        communicator: the connection of the ranks.
        n: number of parameters and tables of the trainer.
        mean: whether gradients are averaged, not added up.
    """

    def __cinit__(self, communicator, Py_ssize_t n, bint mean, *args):
        self.communicator = communicator
        self.rank = communicator.rank
        self.size = communicator.size
        self.n = n
        self.mean = mean
        self.active = True
        self.what = b"update"
        self.sent = dict.fromkeys(("updates", "dense_bytes", "rows", "row_bytes", "own_row_bytes", "table_bytes"), 0)
        self.header_bytes = (sizeof(StepHeader) + n * sizeof(Entry) + 63) // 64 * 64
        self.headers = <StepHeader**>calloc(self.size, sizeof(StepHeader*))
        self.any = <uint8_t*>calloc(n + 1, 1)
        if self.headers == NULL or self.any == NULL:
            raise MemoryError("what is known of the other ranks")

    def __dealloc__(self):
        free(self.headers)
        free(self.any)

    def set_number(self, int number):
        """Say which of the trainers that have been wrapped this is, from 1 on: ranks must update the same one."""
        self.what = b"update" if number == 1 else b"update of trainer %d" % number

    cdef int begin(self) except -1:
        """Set `own` to where this rank writes its header."""
        raise NotImplementedError

    cdef int swap(self, Update* u) except -1:
        """Send the own header, and receive those of all ranks into `headers`."""
        raise NotImplementedError

    cdef int reduce(self, Update* u) except -1:
        """Add up gradients of all ranks."""
        raise NotImplementedError

    cdef int add_up(self, Update* u) except -1:
        """`reduce`, as a span of the timeline."""
        cdef uint64_t span = begin_span()
        self.reduce(u)
        end_span(EXCHANGE, span)
        return 0

    cdef int meet(self, object trainer, list stored, Update* u) except -1:
        cdef Py_ssize_t i
        cdef Entry* entry
        cdef int r, active = 0
        cdef uint64_t span
        if u.n != self.n:
            raise ParallelError(
                f"{type(trainer).__name__}: the model had {self.n} parameters and tables when its trainer was wrapped, "
                f"and has {u.n} now; call dy.parallel.wrap(trainer) again after adding some")
        self.begin()
        memset(self.own, 0, self.header_bytes)
        self.own.lr = trainer.learning_rate
        self.own.threshold = trainer._clip_threshold
        self.own.weight_decay, self.own.decay_due = trainer.collection._decay_state()
        self.own.sparse = trainer._sparse
        self.own.skips = u.skips
        self.own.steps = trainer._steps
        self.own.groups = digest([group._state() for group in trainer._groups]) if trainer._groups else 0
        self.own.n = self.n
        self.own.active = self.active
        for i in range(self.n):
            entry = entries_of(self.own) + i
            entry.factor = u.entries[i].factor
            entry.has = u.entries[i].has_gradient
            entry.n_touched = u.entries[i].n_touched
            entry.role = u.roles[i]
            entry.in_place = u.entries[i].in_place
        self.together = True
        self.summed = stored
        span = begin_span()
        self.swap(u)
        end_span(EXCHANGE, span)
        for r in range(self.size):
            active += self.headers[r].active
        if not active:
            raise AllDone
        self.agree(trainer, stored, u)
        u.scale = 1.0 / active if self.mean else 1.0
        self.reduced = False
        self.sent["updates"] += 1
        return 0

    cdef int agree(self, object trainer, list stored, Update* u) except -1:
        """See that all ranks that have data make the same update; those that have none adopt it."""
        cdef StepHeader* lead = NULL
        cdef StepHeader* one
        cdef Py_ssize_t i
        cdef int r, leader = 0
        cdef Entry* a
        cdef Entry* b
        cdef bint folds, in_place
        for r in range(self.size):
            one = self.headers[r]
            if not one.active:
                continue
            if lead == NULL:
                lead, leader = one, r
                continue
            for what, x, y in (("learning rate", lead.lr, one.lr),
                               ("clipping threshold", lead.threshold, one.threshold),
                               ("weight decay", lead.weight_decay, one.weight_decay),
                               ("setting of sparse updates", bool(lead.sparse), bool(one.sparse)),
                               ("setting of skip_nonfinite", bool(lead.skips), bool(one.skips)),
                               ("number of updates made", lead.steps, one.steps)):
                if x != y:
                    raise ParallelError(
                        f"{type(trainer).__name__}: the {what} is {x} on rank {leader} and {y} on rank {r}; "
                        "all ranks must make the same updates")
            for i in range(self.n):
                if entries_of(lead)[i].role != entries_of(one)[i].role:
                    who, other = (leader, r) if entries_of(lead)[i].role == MOVES else (r, leader)
                    raise ParallelError(
                        f"{type(trainer).__name__}: {(<_Stored>stored[i]).full_name} is updated on rank {who} and not "
                        f"on rank {other}; all ranks must make the same updates")
        self.agree_on_groups(trainer, lead, leader)
        if not self.active:
            if trainer.schedule is None:        # which all ranks have alike
                trainer._learning_rate = lead.lr
            trainer._clip_threshold = lead.threshold
            trainer._sparse = bool(lead.sparse)
            u.skips = lead.skips
            trainer.collection._set_decay_state((lead.weight_decay, lead.decay_due))
        for i in range(self.n):
            a = entries_of(lead) + i
            u.roles[i] = a.role
            self.any[i] = 0
            folds = in_place = False
            for r in range(self.size):
                b = entries_of(self.headers[r]) + i
                self.any[i] |= b.has and a.role != FROZEN
                folds |= b.factor != a.factor
                in_place |= b.in_place
            # Where some rank has read a table where it lies, its factor has been multiplied in there.
            if folds or (in_place and not u.entries[i].in_place):
                fold_scale(u.entries[i])
            if in_place:
                u.entries[i].in_place = 1
        return 0

    cdef int agree_on_groups(self, object trainer, StepHeader* lead, int leader) except -1:
        """See that all ranks that have data have the same groups; those that have none adopt them."""
        cdef int r
        for r in range(self.size):
            if self.headers[r].groups != lead.groups:
                break
        else:
            return 0
        told = self.communicator.gather([group._state() for group in trainer._groups], "update")
        for r in range(self.size):
            if self.headers[r].active and told[r] != told[leader]:
                raise ParallelError(
                    f"{type(trainer).__name__}: the groups of parameters are {told[leader]} on rank {leader} and "
                    f"{told[r]} on rank {r}; all ranks must make the same updates")
        if not self.active:
            trainer._groups = restored_groups(trainer._groups, told[leader])
            trainer._follow(trainer._pace)
        return 0

    cdef int end(self, object error) except -1:
        """Where only this rank was taken out of the update, ranks may differ, and nothing is done together any more.

        Errors that concern the update itself are met by all ranks.
        """
        met_by_all = error is None or isinstance(error, (ParallelError, AllDone)) or type(error) is RuntimeError
        if self.together and not met_by_all:
            self.communicator.break_off()
            broken_off.append(self.summed)
        self.together = False
        return 0

    def shadow(self, trainer):
        """Take part in one update of the others, without gradients.

        Returns:
            False if none of the others has an update to make any more.
        """
        self.active = False
        try:
            trainer._compute_update(None, False)
        except AllDone:
            return False
        finally:
            self.active = True
        return True

    def traffic(self):
        """What updates have moved between ranks so far.

        Returns:
            The number of updates; bytes of gradients of parameters; rows of tables of which some rank has a gradient,
            and their bytes with the rows' numbers; bytes of those of this rank; and bytes of the whole of these
            tables, which would have been exchanged instead.
        """
        return dict(self.sent)

    cdef int note_rows(self, Param* p, size_t union_, size_t own) except -1:
        """Count the rows that an update sums of a table."""
        cdef size_t row = (size_of(&p.dim) + 1) * sizeof(float)
        self.sent["rows"] += union_
        self.sent["row_bytes"] += union_ * row
        self.sent["own_row_bytes"] += own * row
        self.sent["table_bytes"] += p.size * sizeof(float)
        return 0


cdef uint64_t digest(states):
    return int.from_bytes(hashlib.blake2b(repr(states).encode(), digest_size=8).digest(), "little")


cdef object floats_at(float* base, size_t n):
    return array_at(base, n, np.float32)


cdef class AllreduceStepper(CollectiveUpdate):
    """Updates over any communicator: gradients are added up, then each rank makes the whole update.

    Args:
        communicator: the connection of the ranks.
        trainer: whose updates.
        reduction: "mean" or "sum".
    """

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

    cdef int reduce(self, Update* u) except -1:
        cdef Py_ssize_t i = 0, j
        cdef size_t end
        while i < self.n:
            j = i + 1
            if not self.any[i]:
                pass
            elif u.entries[i].rows:
                self.reduce_table(u, i)
            else:
                # Parameters that lie side by side are one range.
                end = u.entries[i].offset + u.entries[i].size
                while (j < self.n and self.any[j] and not u.entries[j].rows and u.roles[j] == u.roles[i]
                       and u.entries[j].offset < end + 16):
                    end = u.entries[j].offset + u.entries[j].size
                    j += 1
                self.reduce_range(u, i, j, end - u.entries[i].offset)
            i = j
        self.reduced = True
        return 0

    cdef int reduce_range(self, Update* u, Py_ssize_t i, Py_ssize_t j, size_t n) except -1:
        """Add up the gradients of parameters i to j, n floats."""
        cdef Py_ssize_t k
        floats = floats_at(u.entries[i].grad, n)
        self.sent["dense_bytes"] += n * sizeof(float)
        if u.roles[i] == MOVES:
            self.communicator.sum_floats(floats)
            for k in range(i, j):
                u.entries[k].has_gradient = 1
        elif u.measures:
            floats = floats.copy()
            self.communicator.sum_floats(floats)
            for k in range(i, j):
                own = floats[u.entries[k].offset - u.entries[i].offset:][:u.entries[k].size]
                u.squares[k] = float(np.dot(own, own))
        return 0

    cdef int reduce_table(self, Update* u, Py_ssize_t i) except -1:
        """Add up the gradients of the rows of a table."""
        cdef Param* p = u.entries[i]
        cdef size_t n = size_of(&p.dim)
        cdef uint32_t r
        if u.roles[i] != MOVES and not u.measures:
            return 0
        rows = array_at(p.touched, p.n_touched, np.uint32).copy()
        table = floats_at(p.grad, p.size).reshape(p.rows, n)
        union, total = self.communicator.sum_rows(rows, table[rows], p.rows)
        self.note_rows(p, len(union), len(rows))
        if u.roles[i] == MOVES:
            table[union] = total
            for r in union:
                touch(p, r)
            p.has_gradient = 1
        else:
            u.squares[i] = float(np.vdot(total, total))
        return 0

    cdef int measure(self, Update* u) except -1:
        cdef Py_ssize_t i
        self.add_up(u)
        for i in range(self.n):
            if u.roles[i] == MOVES:
                u.squares[i] = squared_norm(u.entries[i])
        return 0

    cdef int apply(self, Storage storage, object trainer, Update* u) except -1:
        if not self.reduced:
            self.add_up(u)
        return Stepper.apply(self, storage, trainer, u)


def adopt(communicator, trainer):
    """Make parameters and state of the rule those of rank 0.  Collective."""
    cdef Storage storage = trainer.collection.storage
    cdef Plane plane
    cdef _Stored x
    for x in trainer.collection._below():
        fold_scale(x.p)
        for plane in (storage.values, *trainer._states[:trainer._n_states]):
            plane.pull(x.p.offset, x.p.size)
            communicator.broadcast_floats(floats_at(plane.at(x.p.offset), x.p.size))
            plane.push(x.p.offset, x.p.size)
    storage.changed()


def allreduce_stepper(communicator, trainer, reduction):
    """Updates of a trainer over any communicator.  Collective: all parameters and its state become those of rank 0.

    Raises:
        RuntimeError: training is asynchronous.
    """
    on_device = trainer.collection.storage.device
    if on_device and communicator.mode == "async":
        raise RuntimeError(
            "wrap: asynchronous training is for parameters in memory that all processes share, and these live on GPUs, "
            "where each process has its own: train with --mode sync, or on the CPU")
    adopt(communicator, trainer)
    n = len(trainer.collection._below())
    if on_device:
        from dynet_cy.parallel.device_steps import DeviceAllreduceStepper
        return DeviceAllreduceStepper(communicator, n, reduction == "mean")
    return AllreduceStepper(communicator, n, reduction == "mean")
