"""The backends of updates: on the host, by rules in C and in Python, and on devices."""

import numpy as np

cimport cython
from libc.math cimport isfinite
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from dynet_cy.core.mutex cimport pthread_mutex_lock, pthread_mutex_unlock
from dynet_cy.core.tensor cimport size_of
from dynet_cy.core.threads cimport Interrupts, begin_interrupts, interrupted, raise_interrupt
from dynet_cy.kernels.kernels cimport K, squares_of
from dynet_cy.kernels.lazy_rows cimport can_defer, catch_up, catch_up_part, clear_deferred, defer_update, mark_moved
from dynet_cy.kernels.pool cimport enter_pool, leave_pool
from dynet_cy.memory.arena cimport arena_at
from dynet_cy.memory.bridge cimport array_at, memory_of
from dynet_cy.memory.storage cimport (
    Change, Param, Plane, Storage, forget_gradient, make_change, touch, value_changed,
)
from dynet_cy.model.parameters cimport _Stored, settle_here
from dynet_cy.train.interfaces cimport (
    FROZEN, KEPT, LEAST_SCALE, MOST_SPANS, MOST_STATES, MOVES, OWN, PART, STEP, Backend, GroupSettings, Outcome, Plan,
    Reducer, Span, TrainerFields, Update, plan_entry,
)


# ==== host ========================================================================================
#
# Updates of parameters that live in the memory of the host.
#
# An update is a `Change`: it is made piece by piece.  Signal handlers may run in between; if one of them looks at the
# parameters, the update is completed first.

# Parameters with fewer numbers are summed over ranks together, since each sum waits for all ranks.
cdef enum:
    LARGE = 1 << 16


cdef void lock_gradient(Param* p) noexcept nogil:
    pthread_mutex_lock(&p.lock)


cdef void unlock_gradient(Param* p) noexcept nogil:
    pthread_mutex_unlock(&p.lock)


cdef double squared_norm(Param* p) noexcept nogil:
    cdef size_t n = size_of(&p.dim)
    cdef double total = 0
    cdef uint32_t i
    if not p.has_gradient:
        return 0
    if not p.rows:
        return squares_of(p.size, p.grad)
    for i in range(p.n_touched):
        total += squares_of(n, p.grad + p.touched[i] * n)
    return total


@cython.final
cdef class HostUpdate(Change):
    """An update, piece by piece."""

    cdef Storage storage
    cdef Plan plan
    cdef Py_ssize_t i               # how far the update has come: the current entry,
    cdef Span[MOST_SPANS] spans     # its plan, made when it is locked first,
    cdef int n_spans                # -1: not made yet
    cdef int k                      # the current span,
    cdef size_t at                  # and the number in it, or the index in the list of rows
    cdef bint locked                # whether the entry is locked
    cdef bint stopped               # whether the lock has been released since the step began
    cdef bint counted

    def __cinit__(self, Storage storage, Plan plan):
        self.storage = storage
        self.plan = plan
        self.n_spans = -1

    cdef bint go_on(self, Interrupts* s) noexcept nogil:
        enter_pool()
        while self.i < self.plan.u.n:
            if interrupted(s, self.piece()):
                break
        if self.i < self.plan.u.n:
            self.let_go()
        elif not self.counted:
            self.counted = True
            self.storage.changes.n += 1
        leave_pool()
        return self.counted

    cdef size_t piece(self) noexcept nogil:
        """Do the next piece; returns its bytes.  The gradient of an entry stays locked until its last piece."""
        cdef Param* p = self.plan.u.entries[self.i]
        cdef const Span* span
        cdef size_t n
        if self.plan.u.roles[self.i] == FROZEN:
            self.i += 1
            return 0
        if not self.locked:
            lock_gradient(p)
            self.locked = True
        if self.n_spans < 0:
            self.n_spans = plan_entry(&self.plan.u, self.i, p.n_touched, OWN, self.spans)
        if self.k == self.n_spans:
            unlock_gradient(p)
            self.locked = False
            self.n_spans = -1
            self.k = 0
            self.i += 1
            return 0
        span = &self.spans[self.k]
        if span.kind == STEP:
            n = self.step(p, span)
        else:
            n = decay_part(p, span.before, self.at)
            self.at += n
        if self.at >= (p.n_touched if span.some else p.size):
            if span.kind == STEP:
                self.end_step(p, span)
            self.at = 0
            self.k += 1
        return n * sizeof(float)

    cdef size_t step(self, Param* p, const Span* span) noexcept nogil:
        """Apply the rule to a part of a parameter or some rows of a table; returns how many numbers."""
        cdef GroupSettings s = self.settings_of(p)
        cdef size_t n, row, done = 0
        if not span.some:
            n = min(PART, p.size - self.at)
            catch_up_part(p, self.at, n)
            step_part(p, &s, &self.plan.u, span, self.at, n)
            self.at += n
            return n
        if span.lazy and self.at == 0:          # begins to note, if weight decay has just caught up
            can_defer(p, self.plan.u.rule, &s.h, self.plan.u.states)
        n = size_of(&p.dim)
        while self.at < p.n_touched and done < PART:
            row = p.touched[self.at]
            catch_up(p, row, row + 1)
            step_part(p, &s, &self.plan.u, span, row * n, n)
            if span.lazy:
                mark_moved(p, <uint32_t>row)
            self.at += 1
            done += n
        return done

    cdef GroupSettings settings_of(self, Param* p) noexcept nogil:
        cdef GroupSettings s = self.plan.u.settings[self.plan.u.group[self.i]]
        s.h.step_scale = <float>(1 / p.factor)
        return s

    cdef void end_step(self, Param* p, const Span* span) noexcept nogil:
        """Record the update of a table: it is deferred for rows that were not visited."""
        cdef GroupSettings s = self.settings_of(p)
        if span.lazy:
            defer_update(p, &s.h)
        elif not span.some:
            clear_deferred(p)
        if not (self.stopped and p.pass_number):
            forget_gradient(p)
        self.stopped = False

    cdef void let_go(self) noexcept nogil:
        """Let running passes of other threads add to the gradient: this update or the next one will use it."""
        if not self.locked:
            return
        if self.k < self.n_spans and self.spans[self.k].kind == STEP:
            self.stopped = True
            self.plan.u.entries[self.i].pass_number = 0      # a pass that adds to the gradient sets it to its number
        unlock_gradient(self.plan.u.entries[self.i])
        self.locked = False


@cython.final
cdef class HostAxpby(Change):
    """Set numbers in a plane to a target + b source, piece by piece.  If a is 0, the target is not read."""

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
            settle_here(p)
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


cdef void step_part(Param* p, const GroupSettings* s, const Update* u, const Span* span, size_t at,
                    size_t n) noexcept nogil:
    cdef float* states[MOST_STATES]
    cdef int k
    for k in range(MOST_STATES):
        states[k] = NULL
        if u.states[k] != NULL:
            states[k] = <float*>arena_at(u.states[k], (p.offset + at) * sizeof(float))
    lower(n, span.before, p.value + at)
    K.optim[u.rule](n, &s.h, p.grad + at, p.value + at, states[0], states[1], states[2])
    lower(n, span.after, p.value + at)
    if p.has_gradient:
        memset(p.grad + at, 0, n * sizeof(float))


cdef void lower(size_t n, double share, float* values) noexcept nogil:
    if share != 0:
        K.axpy(n, <float>-share, values, values)


cdef size_t decay_part(Param* p, double share, size_t at) noexcept nogil:
    """Take this share off the next numbers of a value, or at 0 off its factor; returns how many numbers are done."""
    cdef size_t n = min(PART, p.size - at)
    if p.in_place:
        lower(n, share, p.value + at)
        return n
    if at == 0:
        p.factor *= 1 - share
        if p.factor >= LEAST_SCALE:
            return p.size
    catch_up_part(p, at, n)
    K.scale(n, <float>p.factor, p.value + at, p.value + at)
    if at + n == p.size:
        clear_deferred(p)
        p.factor = 1
        value_changed(p)
    return n


cdef void apply_weight_decay(Param* p, double share) noexcept nogil:
    cdef size_t at = 0
    while share != 0 and at < p.size:
        at += decay_part(p, share, at)


cdef class HostBackend(Backend):
    """See above."""

    cdef int measure(self, Update* u) except -1:
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

    cdef int sum_gradients(self, Reducer ranks, const uint8_t* any, Update* u) except -1:
        cdef Py_ssize_t i
        cdef size_t n = 0
        together = []
        for i in range(u.n):
            if not any[i] or not (u.roles[i] == MOVES or (u.roles[i] == KEPT and u.measures)):
                continue
            if u.entries[i].rows:
                sum_table(ranks, u, i)
            elif u.entries[i].size >= LARGE:
                sum_parameters(ranks, u, [i])
            else:
                together.append(i)
                n += u.entries[i].size
                if n >= LARGE:
                    sum_parameters(ranks, u, together)
                    together, n = [], 0
        if together:
            sum_parameters(ranks, u, together)
        for i in range(u.n if u.measures else 0):
            if u.roles[i] == MOVES:
                u.squares[i] = squared_norm(u.entries[i])
        return 0

    cdef int apply(self, Storage storage, Plan plan, list rates) except -1:
        return make_change(HostUpdate(storage, plan))

    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1:
        return make_change(HostAxpby(stored, a, b, source, target))


cdef object floats_at(float* base, size_t n):
    return array_at(base, n, np.float32)


cdef int sum_parameters(Reducer ranks, Update* u, list entries) except -1:
    """Replace the gradients of these parameters by their sums over all ranks.

    Several are copied into one array. Where parameters lie in memory may differ between ranks, so it does not matter.
    """
    cdef Py_ssize_t i
    own = [floats_at(u.entries[i].grad, u.entries[i].size) for i in entries]
    copied = len(entries) > 1 or u.roles[<Py_ssize_t>entries[0]] != MOVES
    floats = np.concatenate(own) if copied else own[0]
    ranks.sum_floats(floats)
    sums = np.split(floats, np.cumsum([len(x) for x in own[:-1]], dtype=np.intp))
    for i, gradient, total in zip(entries, own, sums):
        if u.roles[i] == MOVES:
            if copied:
                gradient[:] = total
            u.entries[i].has_gradient = 1
        else:
            u.squares[i] = float(np.dot(total, total))
    return 0


cdef int sum_table(Reducer ranks, Update* u, Py_ssize_t i) except -1:
    cdef Param* p = u.entries[i]
    cdef size_t n = size_of(&p.dim)
    cdef uint32_t r
    if u.roles[i] != MOVES and not u.measures:
        return 0
    rows = array_at(p.touched, p.n_touched, np.uint32).copy()
    table = floats_at(p.grad, p.size).reshape(p.rows, n)
    union, total = ranks.sum_rows(p, rows, table[rows])
    if u.roles[i] == MOVES:
        table[union] = total
        for r in union:
            touch(p, r)
        p.has_gradient = 1
    else:
        u.squares[i] = float(np.vdot(total, total))
    return 0


# ==== python steps ================================================================================
#
# Updates whose steps are computed in Python: the backend of `dynet_cy.train.python_trainer`.
#
# All steps are computed first, from copies, while signal handlers and all other Python code may run; an exception there
# leaves everything as it was.  A `Change` then adds the steps to the values, one parameter after the other.

# The update of one parameter or table: the rows of a table lie one after the other, a parameter is one row.
cdef struct ParameterStep:
    Param* p                    # NULL: nothing
    double decoupled            # the share of weight decay taken off before the step...
    double decay                # ... and after it
    const float* change         # NULL: there is no step
    const float* gradient       # what the change was computed from, before it was scaled
    const float** states        # new numbers of each state...
    float** planes              # ... and where they belong
    const uint32_t* rows        # numbers of the rows that change; NULL: the first ones
    size_t n                    # how many
    size_t width                # numbers in a row


@cython.final
cdef class StepChange(Change):
    """Adds all steps to the values."""

    cdef Storage storage
    cdef list kept                  # arrays and planes that steps point into
    cdef ParameterStep* steps
    cdef const float** states
    cdef float** planes
    cdef Py_ssize_t n, i, n_states
    cdef bint counted

    def __cinit__(self, Storage storage, Py_ssize_t n, list planes):
        cdef Py_ssize_t i
        self.storage = storage
        self.kept = [planes]
        self.n = n
        self.n_states = len(planes)
        self.steps = <ParameterStep*>calloc(n + 1, sizeof(ParameterStep))
        self.states = <const float**>calloc(n * self.n_states + 1, sizeof(float*))
        self.planes = <float**>calloc(n * self.n_states + 1, sizeof(float*))
        if self.steps == NULL or self.states == NULL or self.planes == NULL:
            raise MemoryError("the list of steps")
        for i in range(n):
            self.steps[i].states = self.states + i * self.n_states
            self.steps[i].planes = self.planes + i * self.n_states

    def __dealloc__(self):
        free(self.steps)
        free(self.states)
        free(self.planes)

    cdef bint go_on(self, Interrupts* s) noexcept nogil:
        enter_pool()
        while self.i < self.n:
            self.i += 1
            if interrupted(s, make_step(&self.steps[self.i - 1], self.n_states)):
                break
        if self.i == self.n and not self.counted:
            self.counted = True
            self.storage.changes.n += 1
        leave_pool()
        return self.counted


cdef size_t make_step(const ParameterStep* s, Py_ssize_t n_states) noexcept nogil:
    """Change one parameter; returns the bytes of its value."""
    cdef Param* p = s.p
    cdef size_t k, row
    cdef bint added                 # whether a pass of another thread has added to the gradient meanwhile
    if p == NULL:
        return 0
    lock_gradient(p)
    apply_weight_decay(p, s.decoupled)
    if s.change != NULL:
        added = p.pass_number != 0
        for k in range(s.n):
            row = k if s.rows == NULL else s.rows[k]
            if p.rows:
                catch_up(p, row, row + 1)
            move_row(s, k, row, n_states, added)
        if not added:
            forget_gradient(p)
    apply_weight_decay(p, s.decay)
    unlock_gradient(p)
    return p.size * sizeof(float)


cdef void move_row(const ParameterStep* s, size_t k, size_t row, Py_ssize_t n_states, bint added) noexcept nogil:
    cdef float* gradient = s.p.grad + row * s.width
    cdef Py_ssize_t state
    K.axpy(s.width, <float>(1 / s.p.factor), s.change + k * s.width, s.p.value + row * s.width)
    for state in range(n_states):
        memcpy(s.planes[state] + row * s.width, s.states[state] + k * s.width, s.width * sizeof(float))
    if added:
        K.axpy(s.width, -1, s.gradient + k * s.width, gradient)
    elif s.p.has_gradient:
        memset(gradient, 0, s.width * sizeof(float))


cdef class PythonBackend(HostBackend):
    """The backend of one update of a `PythonTrainer`."""

    cdef object trainer
    cdef list stored, planes
    cdef StepChange change

    def __cinit__(self, trainer: PythonTrainer) -> None:
        self.trainer = trainer

    cdef int begin_update(self, list stored, list planes, bint measures, Outcome* found) except -1:
        self.stored = stored
        self.planes = planes
        return 0

    cdef int prepare(self, Update* u) except -1:
        cdef Py_ssize_t i
        self.change = StepChange(self.trainer.collection.storage, u.n, self.planes)
        settings = self.trainer._step_settings()
        for i in range(u.n):
            if u.roles[i] == MOVES:
                self.compute(u, i, settings[u.group[i]])
        return 0

    cdef int compute(self, Update* u, Py_ssize_t i, object settings) except -1:
        """Let the trainer compute the step of one parameter or table."""
        cdef Param* p = u.entries[i]
        cdef ParameterStep* s = &self.change.steps[i]
        cdef Plane plane
        cdef Py_ssize_t k
        rows = None
        s.width = size_of(&p.dim)
        s.n = p.rows or 1
        if p.rows and self.trainer._sparse:
            rows = array_at(p.touched, p.n_touched, np.uint32).copy()
            rows.sort()
            s.n = len(rows)
            s.rows = <const uint32_t*>memory_of(rows)
        begin_step(s, p)
        if s.n == 0:
            return 0
        gradient = copy_of(p.grad, p, rows)
        value = copy_of(p.value, p, rows)
        if p.factor != 1:
            value *= np.float32(p.factor)
        states = [copy_of(plane.at(p.offset), p, rows) for plane in self.planes]
        scale = np.float32(u.settings[u.group[i]].h.grad_scale)
        # The program may write to all arrays that it gets.
        change, states = self.trainer._changes(
            self.stored[i], None if rows is None else rows.copy(), value, gradient * scale, states, settings)
        for k, state in enumerate(states):
            plane = self.planes[k]
            s.planes[k] = plane.at(p.offset)
            s.states[k] = <const float*>memory_of(state)
        s.gradient = <const float*>memory_of(gradient)
        s.change = <const float*>memory_of(change)
        self.change.kept.append((rows, gradient, states, change))
        return 0

    cdef int apply(self, Storage storage, Plan plan, list rates) except -1:
        cdef const Update* u = &plan.u
        cdef Py_ssize_t i
        cdef ParameterStep* s
        for i in range(u.n):
            if u.roles[i] == FROZEN:
                continue
            s = &self.change.steps[i]
            s.p = u.entries[i]
            s.decoupled = u.settings[u.group[i]].decoupled
            s.decay = u.settings[u.group[i]].decay
        return make_change(self.change)


cdef void begin_step(const ParameterStep* s, Param* p) noexcept nogil:
    """Bring the rows up to date.  A pass of another thread that adds to the gradient from now on sets `pass_number`;
    its part of the gradient is left for the next update."""
    cdef size_t k
    lock_gradient(p)
    p.pass_number = 0
    if p.rows and s.rows == NULL and s.n:
        settle_here(p)
    for k in range(s.n if s.rows != NULL else 0):
        catch_up(p, s.rows[k], s.rows[k] + 1)
    unlock_gradient(p)


cdef object copy_of(float* base, Param* p, object rows):
    """Numbers of a parameter, or of these rows of a table, as a new array: rows x numbers of a row."""
    table = array_at(base, p.size, np.float32).reshape(p.rows or 1, size_of(&p.dim))
    return table.copy() if rows is None else table[rows]


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
