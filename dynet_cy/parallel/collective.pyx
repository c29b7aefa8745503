"""The base of all synchronous training in several processes: the ranks agree on each update before they make it.

Each rank sends a header: the settings of its trainer, and for each parameter whether it has a gradient.  A rank that
has reached the end of a `join` adopts the settings of the others and has no weight in the mean.  Then the gradients are
summed, and all ranks make the same update.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.graph.timeline cimport EXCHANGE, begin_span, end_span
from dynet_cy.kernels.late_rows cimport is_behind
from dynet_cy.memory.storage cimport Param
from dynet_cy.model.leaves cimport settle
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.train.interfaces cimport Backend, Reducer
from dynet_cy.train.rules cimport constants_of
from dynet_cy.train.plan cimport FROZEN, MOVES, TrainerSettings, Update

from dynet_cy.parallel.communicator import ParallelError


# Parameters of interrupted updates, kept alive: a sum that was started may still write to their gradients.
cdef list broken_off = []


# Why a reducer that was chosen for parameters on the host cannot be used any more.
ADDED_ON_DEVICE = (
    "parameters were added on a device since the trainer was wrapped; call dy.parallel.wrap(trainer) again"
)


class AllDone(Exception):
    """No rank has any more updates to make."""


cdef int compare_settings(trainer, const TrainerSettings* a, int rank_of_a, const TrainerSettings* b,
                          int rank_of_b) except -1:
    """Raise an error that names the first setting that differs."""
    constants = [(f"constant {attribute.lstrip('_')}", a.constants[k], b.constants[k])
                 for k, attribute in enumerate(constants_of(trainer))]
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
        n: number of parameters and tables of the trainer.
        mean: whether gradients are averaged instead of summed.
    """

    def __cinit__(self, communicator, Py_ssize_t n, bint mean, *args):
        self.communicator = communicator
        self.rank = communicator.rank
        self.size = communicator.size
        self.n = n
        self.mean = mean
        self.active = True
        self.collective = True
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
        """Set the number of this trainer among those that have been wrapped, from 1: ranks must update the same one."""
        self.what = b"update" if number == 1 else b"update of trainer %d" % number

    cdef int begin(self) except -1:
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
        self.begin()
        memset(self.own, 0, self.header_bytes)
        self.own.settings = settings[0]
        self.own.n = self.n
        self.own.active = self.active
        for i in range(self.n):
            entry = entries_of(self.own) + i
            entry.factor = u.entries[i].factor
            if u.entries[i].late != NULL:
                entry.late = u.entries[i].late.n
                entry.behind = is_behind(u.entries[i], u.states)
                entry.read = u.entries[i].late.read
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
                settles |= b.factor != a.factor or b.late != a.late or b.read != a.read
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
        told = self.communicator.gather(groups, "update")
        for r in range(self.size):
            if self.headers[r].active and told[r] != told[leader]:
                raise ParallelError(
                    f"{trainer}: the groups of parameters are {told[leader]} on rank {leader} and "
                    f"{told[r]} on rank {r}; all ranks must make the same updates")
        return None if self.active else told[leader]

    cdef int end(self, object error) except -1:
        """After an error on this rank only, the ranks may differ, so no collective call is possible any more.

        Errors about the update itself are raised on all ranks.
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

    def traffic(self):
        """What updates have moved between ranks so far.

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
