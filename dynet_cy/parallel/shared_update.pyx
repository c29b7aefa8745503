"""Synchronous updates of processes that share memory.

The gradients of every rank live in shared memory.  Each rank sums one part of them over all ranks, updates that part of
the parameters, and publishes the new values, which the other ranks copy.  So all ranks have the same parameters to the
last bit, and no work is done twice.  In a lookup table, only the rows that some rank has used take part.  There is one
copy of the state of the rule (momentum, moments), in shared memory.

If the rule moves other rows too, these have the update later (see kernels/late_rows): all ranks note it.  Between
updates no states change, so a rank may read late rows at any time.  When states have to be brought up to date at last,
all ranks read what they need for their own values first; then each moves the states of a part of the rows (`settle`).
"""

import os

cimport cython
from libc.math cimport isfinite
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.unlocked cimport Unlocked, drop, take
from dynet_cy.kernels.kernels cimport K, dy_optim
from dynet_cy.kernels.late_rows cimport (
    can_be_late, catch_up_all, catch_up_shared, mark_moved, none_late_shared, note_late, rows_may_be_late,
)
from dynet_cy.memory.changes cimport see_whole
from dynet_cy.memory.storage cimport Param, Storage, forget_gradient, touch
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.parallel.board cimport Board
from dynet_cy.parallel.collective cimport CollectiveReducer, Entry, StepHeader, entries_of
from dynet_cy.parallel.shared_model cimport LINE, address, model_of, send_values, share_states
from dynet_cy.train.host cimport apply_weight_decay, in_one_pass, lock_gradient, step_part, unlock_gradient
from dynet_cy.train.interfaces cimport Backend
from dynet_cy.train.structs cimport FROZEN, MOVES, PART, GroupSettings, Update

from dynet_cy.parallel.collective import ADDED_ON_DEVICE
from dynet_cy.parallel.communicator import ParallelError


# All reducers of this process, as a list of borrowed pointers; read and changed under the lock.
cdef void* first_reducer = NULL
cdef Unlocked reducers_lock


def _read_before_fork():
    """Bring values up to date: a child has a copy of them, but reads the states that the ranks go on to change.

    It makes no Python object, since there may be no memory.
    """
    cdef void* x
    take(&reducers_lock)
    x = first_reducer
    while x != NULL:
        (<SharedReducer>x).read_tables()
        x = (<SharedReducer>x).following
    drop(&reducers_lock)


os.register_at_fork(before=_read_before_fork)


cdef struct Table:
    uint32_t* union_            # rows of which some rank has a gradient
    uint32_t n
    uint32_t* place             # for each row, its index in the union...
    uint32_t* round             # ... which is valid if it was set in this round
    bint late                   # whether rows outside of the union have this update later


@cython.final
cdef class SharedReducer(CollectiveReducer):
    """Synchronous updates in shared memory.  See `shared`."""

    cdef Board board
    cdef object model, region
    cdef float** grads                  # of each rank
    cdef float* fresh                   # new values, from which all ranks copy
    cdef char* headers_at
    cdef uint32_t* lists_at
    cdef size_t list_length             # rows of all tables
    cdef uint32_t* first                # for each entry, where its rows begin in a list
    cdef Table* tables
    cdef float* work
    cdef uint32_t round
    cdef void* following               # in the list of all reducers

    def __cinit__(self, communicator, n, mean, list stored, model, region):
        global first_reducer
        cdef Py_ssize_t i
        cdef _Stored x
        cdef int r
        cdef char* base
        self.board = communicator.board
        self.host_only = ADDED_ON_DEVICE
        self.model = model
        self.region = region
        self.grads = <float**>calloc(self.size, sizeof(float*))
        self.first = <uint32_t*>calloc(n + 1, sizeof(uint32_t))
        self.tables = <Table*>calloc(n + 1, sizeof(Table))
        self.work = <float*>malloc(PART * sizeof(float))
        if self.grads == NULL or self.first == NULL or self.tables == NULL or self.work == NULL:
            raise MemoryError("what ranks share of gradients")
        base = address(model.region)
        for r in range(self.size):
            self.grads[r] = <float*>(base + r * <size_t>model.plane_bytes)
        self.fresh = <float*>(base + self.size * <size_t>model.plane_bytes)
        for i in range(self.n):
            x = stored[i]
            self.first[i] = self.list_length
            self.list_length += x.p.rows
            if x.p.rows:
                self.tables[i].union_ = <uint32_t*>malloc(x.p.rows * sizeof(uint32_t))
                self.tables[i].place = <uint32_t*>malloc(x.p.rows * sizeof(uint32_t))
                self.tables[i].round = <uint32_t*>calloc(x.p.rows, sizeof(uint32_t))
                if self.tables[i].union_ == NULL or self.tables[i].place == NULL or self.tables[i].round == NULL:
                    raise MemoryError(f"rows of {x.full_name}")
        self.headers_at = address(region)
        self.lists_at = <uint32_t*>(self.headers_at + 2 * self.size * self.header_bytes)
        take(&reducers_lock)
        self.following = first_reducer
        first_reducer = <void*>self
        drop(&reducers_lock)

    def __dealloc__(self):
        global first_reducer
        cdef Py_ssize_t i
        cdef void** x = &first_reducer
        take(&reducers_lock)
        while x[0] != NULL and x[0] != <void*>self:
            x = &(<SharedReducer>x[0]).following
        if x[0] != NULL:
            x[0] = self.following
        drop(&reducers_lock)
        if self.tables != NULL:
            for i in range(self.n):
                free(self.tables[i].union_)
                free(self.tables[i].place)
                free(self.tables[i].round)
        free(self.grads)
        free(self.first)
        free(self.tables)
        free(self.work)

    # There are two sets of headers and lists, since a rank may still be reading those of the last update.

    cdef StepHeader* header_of(self, int r) noexcept nogil:
        return <StepHeader*>(self.headers_at + ((self.round & 1) * self.size + r) * self.header_bytes)

    cdef uint32_t* list_of(self, int r, Py_ssize_t i) noexcept nogil:
        return self.lists_at + ((self.round & 1) * self.size + r) * self.list_length + self.first[i]

    cdef int begin(self) except -1:
        self.round += 1
        self.own = self.header_of(self.rank)
        return 0

    cdef int swap(self, Update* u) except -1:
        cdef Py_ssize_t i
        cdef int r
        for i in range(self.n):
            if u.entries[i].n_touched:
                memcpy(self.list_of(self.rank, i), u.entries[i].touched, u.entries[i].n_touched * sizeof(uint32_t))
        for r in range(self.size):
            self.headers[r] = self.header_of(r)
        self.board.wait(self.what)
        return 0

    # ---- the part of each rank: a range of the floats of all parameters, and of the rows of each table ----

    cdef bint is_range(self, Update* u, Py_ssize_t i) noexcept nogil:
        """Whether an entry is a parameter, not a table, that takes part in this update."""
        return u.entries[i].rows == 0 and (u.roles[i] == MOVES or self.any[i])

    cdef void range_of(self, Update* u, size_t* low, size_t* high) noexcept nogil:
        """The part of this rank in the floats of all parameters, concatenated."""
        cdef size_t lines = 0
        cdef Py_ssize_t i
        for i in range(self.n):
            if self.is_range(u, i):
                lines += (u.entries[i].size + LINE - 1) // LINE
        low[0] = lines * self.rank // self.size * LINE
        high[0] = lines * (self.rank + 1) // self.size * LINE

    cdef size_t own_part(self, Param* p, size_t low, size_t high, size_t* at, size_t* end) noexcept nogil:
        """This rank's part of a parameter, as if it began at 0; returns where the next parameter begins."""
        cdef size_t whole = (p.size + LINE - 1) // LINE * LINE
        at[0] = min(low, p.size)
        end[0] = min(high, p.size)
        return whole

    cdef void share_of(self, size_t n, uint32_t* low, uint32_t* high) noexcept nogil:
        """The part of this rank in a table: of the n rows of the union, or of all n rows for those outside of it."""
        low[0] = <uint32_t>(n * self.rank // self.size)
        high[0] = <uint32_t>(n * (self.rank + 1) // self.size)

    cdef bint in_union(self, Py_ssize_t i, uint32_t row) noexcept nogil:
        return self.tables[i].round[row] == self.round

    cdef void unite(self, Update* u, Py_ssize_t i) noexcept nogil:
        """Find the rows of a table of which some rank has a gradient, in the same order on all ranks."""
        cdef Table* t = &self.tables[i]
        cdef uint32_t* rows
        cdef uint32_t k, n
        cdef int r
        t.n = 0
        for r in range(self.size):
            rows = self.list_of(r, i)
            n = entries_of(self.headers[r])[i].n_touched
            for k in range(n):
                if t.round[rows[k]] != self.round:
                    t.round[rows[k]] = self.round
                    t.place[rows[k]] = t.n
                    t.union_[t.n] = rows[k]
                    t.n += 1

    # ---- adding up ----

    cdef int sum_all(self, Backend backend, Update* u) except -1:
        cdef Py_ssize_t i
        cdef size_t low = 0, high = 0, at = 0, end = 0, whole
        cdef bint squares = u.measures
        cdef size_t floats = 0
        self.compare_late(u)
        with nogil:
            self.range_of(u, &low, &high)
            for i in range(self.n):
                if u.entries[i].rows:
                    self.tables[i].n = 0
                    if self.any[i]:
                        self.unite(u, i)
                        self.reduce_rows(u, i, squares)
                elif self.is_range(u, i):
                    whole = self.own_part(u.entries[i], low, high, &at, &end)
                    if self.any[i]:
                        self.reduce_range(u, i, at, end, squares)
                        floats += u.entries[i].size
                    low -= min(low, whole)
                    high -= min(high, whole)
        self.sent["dense_bytes"] += floats * sizeof(float)
        for i in range(self.n):
            if u.entries[i].rows and self.any[i]:
                self.note_rows(u.entries[i], self.tables[i].n, u.entries[i].n_touched)
        if u.measures:
            self.sum_squares(u)
        return 0

    cdef void reduce_range(self, Update* u, Py_ssize_t i, size_t at, size_t end, bint squares) noexcept nogil:
        cdef Param* p = u.entries[i]
        cdef float* total
        cdef size_t n
        cdef int r
        while at < end:
            n = min(PART, end - at)
            if u.roles[i] == MOVES:
                total = p.grad + at
                for r in range(self.size):
                    if r != self.rank and entries_of(self.headers[r])[i].has:
                        K.add(n, self.grads[r] + p.offset + at, total)
            else:
                # The parameter keeps its gradient: only the norm is needed.
                total = self.work
                memset(total, 0, n * sizeof(float))
                for r in range(self.size if squares else 0):
                    if entries_of(self.headers[r])[i].has:
                        K.add(n, self.grads[r] + p.offset + at, total)
            if squares:
                entries_of(self.own)[i].squares += K.sumsq(n, total)
            at += n

    cdef void reduce_rows(self, Update* u, Py_ssize_t i, bint squares) noexcept nogil:
        cdef Param* p = u.entries[i]
        cdef Table* t = &self.tables[i]
        cdef size_t n = size_of(&p.dim)
        cdef uint32_t low = 0, high = 0, k
        cdef uint32_t* rows
        cdef int r
        self.share_of(t.n, &low, &high)
        if u.roles[i] != MOVES:
            if squares:
                for k in range(low, high):
                    entries_of(self.own)[i].squares += self.squares_of_row(p, i, t.union_[k], n)
            return
        for r in range(self.size):
            if r == self.rank:
                continue
            rows = self.list_of(r, i)
            for k in range(entries_of(self.headers[r])[i].n_touched):
                if low <= t.place[rows[k]] < high:
                    K.add(n, self.grads[r] + p.offset + rows[k] * n, p.grad + rows[k] * n)
        if squares:
            for k in range(low, high):
                entries_of(self.own)[i].squares += K.sumsq(n, p.grad + t.union_[k] * n)

    cdef double squares_of_row(self, Param* p, Py_ssize_t i, uint32_t row, size_t n) noexcept nogil:
        """Sum of squares of a row of a table that keeps its gradients."""
        cdef double total = 0
        cdef size_t at = 0, m
        cdef int r
        while at < n:
            m = min(PART, n - at)
            memset(self.work, 0, m * sizeof(float))
            for r in range(self.size):
                if entries_of(self.headers[r])[i].has:
                    K.add(m, self.grads[r] + p.offset + row * n + at, self.work)
            total += K.sumsq(m, self.work)
            at += m
        return total

    cdef int sum_squares(self, Update* u) except -1:
        """Add up the squares of the gradients over ranks; each rank knows those of its part."""
        cdef Py_ssize_t i
        cdef int r
        cdef bint finite = True
        self.board.wait(b"update, clipping", True)
        for i in range(self.n):
            for r in range(self.size):
                u.squares[i] += entries_of(self.headers[r])[i].squares
            finite = finite and isfinite(u.squares[i])
        if not finite:
            self.note_sums(u)
        return 0

    cdef int note_sums(self, Update* u) except -1:
        """Mark gradients to which those of other ranks were added as present, since this update will not use them."""
        cdef Py_ssize_t i
        cdef uint32_t k
        for i in range(self.n):
            if u.roles[i] == MOVES and self.any[i]:
                u.entries[i].has_gradient = 1
                for k in range(self.tables[i].n if u.entries[i].rows else 0):
                    touch(u.entries[i], self.tables[i].union_[k])
        return 0

    # ---- updating ----

    cdef int apply(self, Backend backend, Storage storage, list planes, Update* u, list rates) except -1:
        cdef bint settles
        with nogil:
            settles = self.begin_tables(u)
        if settles:
            self.settle_tables(u.entries, u.n)
        with nogil:
            self.open_tables(u)
            self.pass_over(u, False)
        self.board.wait(b"update, values", True)
        with nogil:
            self.pass_over(u, True)
            storage.changes += 1
        return 0

    cdef void pass_over(self, Update* u, bint fetch) noexcept nogil:
        """Update this rank's part of all values, or copy the parts that other ranks have updated."""
        cdef Py_ssize_t i
        cdef size_t low = 0, high = 0, at = 0, end = 0, whole
        cdef bint moves, alone
        self.range_of(u, &low, &high)
        for i in range(self.n):
            if u.roles[i] == FROZEN:
                continue
            moves = u.roles[i] == MOVES
            alone = not in_one_pass(u, i)           # weight decay is a pass of its own
            lock_gradient(u.entries[i])
            if alone and not fetch and not u.entries[i].rows:
                apply_weight_decay(u.entries[i], u.settings[u.group[i]].decoupled)
            if u.entries[i].rows:
                if moves and fetch:
                    self.fetch_table(u, i)
                elif moves:
                    self.update_table(u, i)
            elif self.is_range(u, i):
                whole = self.own_part(u.entries[i], low, high, &at, &end)
                if moves and fetch:
                    self.fetch_range(u.entries[i], 0, at)
                    self.fetch_range(u.entries[i], end, u.entries[i].size)
                elif moves:
                    self.update_range(u, i, at, end)
                low -= min(low, whole)
                high -= min(high, whole)
            if fetch and moves:
                forget_gradient(u.entries[i])
            if alone and fetch:
                apply_weight_decay(u.entries[i], u.settings[u.group[i]].decay)
            unlock_gradient(u.entries[i])

    cdef void update_range(self, Update* u, Py_ssize_t i, size_t at, size_t end) noexcept nogil:
        """Update a part of a parameter or table, and publish it."""
        cdef Param* p = u.entries[i]
        cdef GroupSettings s = u.settings[u.group[i]]
        cdef uint8_t has = p.has_gradient
        cdef size_t n
        s.h.step_scale = <float>(1 / p.factor)
        p.has_gradient = self.any[i]            # so that this part of the gradient is set to zero
        while at < end:
            n = min(PART, end - at)
            step_part(p, &s, u, in_one_pass(u, i), at, n)
            memcpy(self.fresh + p.offset + at, p.value + at, n * sizeof(float))
            at += n
        p.has_gradient = has

    cdef void update_table(self, Update* u, Py_ssize_t i) noexcept nogil:
        cdef Param* p = u.entries[i]
        cdef size_t n = size_of(&p.dim)
        cdef uint32_t low = 0, high = 0, k, row
        cdef uint32_t* rows = self.tables[i].union_
        self.share_of(self.tables[i].n, &low, &high)
        for k in range(low, high):
            if self.tables[i].late:
                catch_up_shared(p, rows[k], rows[k] + 1)
            self.update_range(u, i, rows[k] * n, (rows[k] + 1) * n)
        if u.sparse or self.tables[i].late:
            return
        self.share_of(p.rows, &low, &high)
        row = low
        while row < high:                       # rows next to each other at once
            k = row
            while k < high and not self.in_union(i, k):
                k += 1
            self.update_range(u, i, row * n, k * n)
            row = k + 1

    cdef void fetch_range(self, Param* p, size_t at, size_t end) noexcept nogil:
        """Copy what other ranks have updated."""
        memcpy(p.value + at, self.fresh + p.offset + at, (end - at) * sizeof(float))
        if p.has_gradient:
            memset(p.grad + at, 0, (end - at) * sizeof(float))

    cdef void fetch_table(self, Update* u, Py_ssize_t i) noexcept nogil:
        cdef Param* p = u.entries[i]
        cdef size_t n = size_of(&p.dim)
        cdef uint32_t low = 0, high = 0, k
        cdef uint32_t* rows = self.tables[i].union_
        self.share_of(self.tables[i].n, &low, &high)
        for k in range(self.tables[i].n):
            if not low <= k < high:
                memcpy(p.value + rows[k] * n, self.fresh + p.offset + rows[k] * n, n * sizeof(float))
        if self.tables[i].late:
            self.note_table(u, i)
        elif not u.sparse:
            self.share_of(p.rows, &low, &high)
            memcpy(p.value, self.fresh + p.offset, low * n * sizeof(float))
            memcpy(p.value + high * n, self.fresh + p.offset + high * n, (p.rows - high) * n * sizeof(float))
        for k in range(p.n_touched):
            memset(p.grad + p.touched[k] * n, 0, n * sizeof(float))

    # ---- rows that have updates later ----

    cdef int compare_late(self, Update* u) except -1:
        """Check that the same updates are missing on all ranks, since they share the states that have not had them."""
        cdef Py_ssize_t i
        cdef int r
        cdef Entry* a
        cdef Entry* b
        for i in range(self.n):
            a = entries_of(self.headers[0]) + i
            for r in range(1, self.size):
                b = entries_of(self.headers[r]) + i
                if (a.behind or b.behind) and b.late != a.late:
                    raise ParallelError(
                        f"on rank 0, {a.late} updates have not reached all rows of {self.summed[i].name()}, and "
                        f"{b.late} on rank {r}: all ranks must set the state of a trainer (restart, load_safetensors)")
        return 0

    cdef bint begin_tables(self, Update* u) noexcept nogil:
        """Apply the weight decay that comes before the step, and decide which tables have late rows.

        Returns:
            Whether tables must be settled first.  All ranks decide the same.
        """
        cdef Py_ssize_t i
        cdef Param* p
        cdef Table* t
        cdef GroupSettings* s
        cdef bint settles = False, foreign
        cdef int r
        for i in range(self.n):
            p, t, s = u.entries[i], &self.tables[i], &u.settings[u.group[i]]
            if not p.rows or u.roles[i] == FROZEN:
                continue
            lock_gradient(p)
            if not in_one_pass(u, i):
                apply_weight_decay(p, s.decoupled)
            t.late = u.roles[i] == MOVES and u.late and rows_may_be_late(p, t.n)
            foreign = False                     # other states have not had all updates
            for r in range(self.size):
                foreign |= entries_of(self.headers[r])[i].late > 0 and not entries_of(self.headers[r])[i].behind
            if u.roles[i] == MOVES and (foreign or (p.late != NULL and p.late.n and (
                    not t.late or p.late.read or not can_be_late(p, u.rule, &s.h, u.states)))):
                settles = True
            unlock_gradient(p)
        return settles

    cdef int settle_tables(self, Param** entries, Py_ssize_t n) except -1:
        """Bring all rows, and the states that ranks share, up to date.  Collective."""
        cdef Py_ssize_t i
        cdef uint32_t low = 0, high = 0
        with nogil:
            for i in range(n):
                catch_up_all(entries[i])
        self.board.wait(b"update, rows", True)
        with nogil:
            for i in range(n):
                if entries[i].late != NULL and entries[i].late.n:
                    self.share_of(entries[i].rows, &low, &high)
                    catch_up_shared(entries[i], low, high)
        self.board.wait(b"update, states of rows", True)
        for i in range(n):
            none_late_shared(entries[i])
        return 0

    cdef void open_tables(self, Update* u) noexcept nogil:
        cdef Py_ssize_t i
        cdef Param* p
        for i in range(self.n):
            p = u.entries[i]
            if self.tables[i].late and can_be_late(p, u.rule, &u.settings[u.group[i]].h, u.states):
                p.late.shared = p.late.moving = 1

    cdef void note_table(self, Update* u, Py_ssize_t i) noexcept nogil:
        """Note that the rows of the union have had this update, and the others have not."""
        cdef Param* p = u.entries[i]
        cdef dy_optim h = u.settings[u.group[i]].h
        cdef uint32_t k
        for k in range(self.tables[i].n):
            mark_moved(p, self.tables[i].union_[k])
        h.step_scale = <float>(1 / p.factor)
        note_late(p, &h)
        p.late.moving = 0

    cdef void read_tables(self) noexcept:
        cdef Py_ssize_t i
        if self.summed is None or self.together:        # together: another thread makes an update
            return
        for i in range(len(self.summed)):
            catch_up_all((<_Stored>self.summed[i]).p)

    cdef int settle(self, collection) except -1:
        cdef list stored = collection._below()
        cdef Param** entries
        cdef Py_ssize_t i, n = len(stored)
        cdef bint pending = False
        see_whole()
        collection._catch_up()
        entries = <Param**>malloc((n + 1) * sizeof(Param*))
        if entries == NULL:
            raise MemoryError("the list of tables")
        try:
            for i in range(n):
                entries[i] = (<_Stored>stored[i]).p
                pending = pending or (entries[i].late != NULL and entries[i].late.n)
            if pending:
                self.settle_tables(entries, n)
        finally:
            free(entries)
        return 0


def shared(communicator, trainer, reduction):
    """The reducer for synchronous updates by processes on one machine.  Collective.

    Args:
        communicator: a SharedCommunicator.
        trainer: the trainer.  All its parameters and its state are copied from rank 0.
        reduction: "mean" or "sum".
    """
    cdef list stored = trainer.collection._below()
    cdef Storage storage = trainer.collection.storage
    cdef size_t n = len(stored), n_rows = 0, head
    cdef _Stored x
    cdef int size = communicator.size
    model = model_of(communicator, storage, size + 1)
    storage.move(storage.grads, model.plane(communicator.rank))
    for x in stored:
        catch_up_all(x.p)           # with the states that it has now
    for x in stored:
        n_rows += x.p.rows
    head = 2 * size * ((sizeof(StepHeader) + n * sizeof(Entry) + 63) // 64 * 64 + n_rows * sizeof(uint32_t))
    head = (head + 4095) // 4096 * 4096
    region = communicator.board.region(head + trainer._n_states * <size_t>model.plane_bytes)
    share_states(communicator, trainer, region, head, model.plane_bytes)
    reducer = SharedReducer(communicator, n, reduction == "mean", stored, model, region)
    send_values(communicator, storage, stored, (<SharedReducer>reducer).fresh)
    return reducer
