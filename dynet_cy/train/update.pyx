"""Makes one update of a trainer: lists what has to be done, and lets its reducer and its backend do it."""

import hashlib

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport isfinite, sqrt
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.atomic cimport Number, add_to
from dynet_cy.core.dynet_rules cimport follows_dynet
from dynet_cy.core.unlocked cimport Unlocked, drop, take
from dynet_cy.kernels.kernels cimport dy_optim
from dynet_cy.kernels.late_rows cimport moves_all
from dynet_cy.memory.changes cimport check_change
from dynet_cy.memory.storage cimport Storage, bad_gradients
from dynet_cy.model.parameters cimport _Stored, zero_gradient
from dynet_cy.train.devices cimport backend_of, take_outcome
from dynet_cy.train.groups cimport begin_groups, restored_groups
from dynet_cy.train.interfaces cimport Backend, Reducer
from dynet_cy.train.rules cimport constants_of
from dynet_cy.train.plan cimport FROZEN, KEPT, MOVES, GroupSettings, Outcome, Plan, TrainerSettings, Update


# Memory from which another process reads the number of updates; see `note_updates_in`.
cdef int64_t* made_updates = NULL
cdef Py_buffer made_updates_view
cdef Unlocked made_updates_lock       # of both


def note_updates_in(memory):
    """Let all trainers write their number of updates to shared memory after each update.

    Args:
        memory: a buffer that begins with an int64; None: stop writing.
    """
    global made_updates, made_updates_view
    cdef Py_buffer view, before
    memset(&view, 0, sizeof(Py_buffer))
    if memory is not None:
        PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE)
        if view.len < <Py_ssize_t>sizeof(int64_t):
            PyBuffer_Release(&view)
            raise ValueError("note_updates_in: the memory has no room for an int64")
    take(&made_updates_lock)                # an update of another thread may be writing
    before = made_updates_view
    made_updates_view = view
    made_updates = <int64_t*>view.buf
    drop(&made_updates_lock)
    PyBuffer_Release(&before)


# Updates of all trainers of this process.
cdef Number n_updates = 0


def updates_made():
    """How many updates the trainers of this process have made."""
    return n_updates


cdef void note_steps(int64_t steps) noexcept:
    take(&made_updates_lock)
    if made_updates != NULL:
        made_updates[0] = steps
    drop(&made_updates_lock)


cdef int make_update(trainer, object names, bint skips) except -1:
    cdef list stored = trainer._collection._below()
    cdef Plan plan = Plan(stored, trainer._states[:trainer._n_states])
    cdef Update* u = &plan.u
    cdef Backend backend = backend_of(trainer)
    cdef Reducer reducer = trainer._reducer
    cdef Storage storage = trainer._collection.storage
    cdef Outcome found
    cdef Py_ssize_t i
    cdef list rates = None
    cdef bint made = True
    check_change(storage, "update of a trainer")
    memset(&found, 0, sizeof(Outcome))
    for i in range(u.n):
        if u.entries[i].updated:
            u.roles[i] = MOVES if names is None or (<_Stored>stored[i]).full_name in names else KEPT
    u.rule = trainer._rule
    u.skips = skips
    u.sparse = trainer._sparse
    u.measures = trainer._measures(u.skips)
    try:
        backend.begin(stored, plan.planes, u.measures, &found)
    finally:
        take_outcome(trainer, &found)
    if reducer.collective:
        agree(trainer, reducer, stored, u)
    u.sparse = u.sparse or not moves_all(u.rule)
    # A moving average that reads all rows after each update would bring them up to date at once.
    u.late = not u.sparse and (trainer._average is None or trainer._average["frequency"] > 1)
    plan.set_groups(1 + len(trainer._groups))
    begin_groups(trainer, stored, u)
    trainer._norm = None
    reducer.reduce(backend, u)
    if u.measures and not u.deferred:
        memset(&found, 0, sizeof(Outcome))
        try:
            made = clip(backend, stored, u, &found)
        finally:
            take_outcome(trainer, &found)
        if not made:
            return 0
    backend.prepare(u)
    trainer._steps = reducer.count(trainer._steps)
    set_rates(trainer, u, reducer.least_decay)
    if u.deferred:
        rates = rates_if_dropped(trainer, u, backend.undecided(u), reducer.least_decay)
    reducer.apply(backend, storage, plan, rates)
    if follows_dynet():
        note_decay(trainer._collection, stored, u)
    trainer._count()
    add_to(&n_updates, 1)
    note_steps(trainer._steps)
    if u.skips and (trainer._average is not None or names is not None):
        made = backend.was_made(u)
    if made and trainer._average is not None:
        trainer._add_to_average()
    return 0


cdef bint clip(Backend backend, list stored, Update* u, Outcome* found) except -1:
    """Set the factors that scale gradients down to the thresholds, given the `squares` of their norms (Pascanu, Mikolov
    and Bengio 2013, On the difficulty of training recurrent neural networks).  The norm is that of all gradients
    together, except that groups with their own threshold are clipped by the norm of their own gradients.

    Returns:
        Whether to go on: 0 if the update is dropped, in which case the gradients have been set to zero.
    """
    cdef Py_ssize_t i
    found.norm = norm_of(u)
    found.measured = True
    if isfinite(found.norm):
        found.clipped += clip_groups(u)
        return True
    if not u.skips:
        raise bad_gradients(found.norm, backend.not_finite(stored, u), 1)
    for i in range(u.n):
        if u.roles[i] != FROZEN:
            zero_gradient(stored[i])
    found.skipped += 1
    return False


cdef double norm_of(Update* u) noexcept nogil:
    """The norm of all gradients; also sets the sum of squares of each group."""
    cdef double total = 0
    cdef uint32_t k
    cdef Py_ssize_t i
    cdef GroupSettings* s
    for k in range(u.n_groups):
        u.settings[k].squares = 0
    for i in range(u.n):
        total += u.squares[i]
        s = &u.settings[u.group[i]]
        (s if s.own_norm else u.settings).squares += u.squares[i]
    return u.scale * sqrt(total)


cdef bint clip_groups(Update* u) noexcept nogil:
    """Set the factor that scales each group down to its threshold; returns whether any group is clipped."""
    cdef double own
    cdef uint32_t k
    cdef GroupSettings* s
    cdef bint clips = False
    for k in range(u.n_groups):
        s = &u.settings[k]
        own = u.scale * sqrt((s if s.own_norm else u.settings).squares)
        if 0 < s.threshold < own:
            s.h.grad_scale = <float>(u.scale * (s.threshold / own))
            clips = True
    return clips


cdef int note_decay(collection, list stored, const Update* u) except -1:
    """Note the weight decay of an update of all parameters: see dynet_cy/model/dynet_decay.py."""
    cdef Py_ssize_t i
    if collection.name() == "/" and u.settings[0].decay:
        shares = [((<_Stored>stored[i]).p.id, u.settings[u.group[i]].decay)
                  for i in range(u.n) if u.roles[i] != FROZEN]
        collection._members.decay.updated(shares, u.settings[0].decay)
    return 0


cdef int agree(trainer, Reducer reducer, list stored, Update* u) except -1:
    """Check that all ranks make the same update; a rank without data adopts the settings of the others."""
    cdef TrainerSettings own, settings
    cdef list constants = constants_of(trainer)
    memset(&own, 0, sizeof(own))            # ranks compare all of its bytes
    own.learning_rate = trainer.learning_rate
    own.clip_threshold = trainer._clip_threshold
    own.weight_decay, own.decay_due = trainer._collection._decay_state()
    own.decoupled_decay = trainer._weight_decay
    for k, attribute in enumerate(constants):
        own.constants[k] = getattr(trainer, attribute)
    own.steps = trainer._steps
    groups = [group._state() for group in trainer._groups]
    own.groups = digest(groups) if groups else 0
    own.sparse = u.sparse
    own.skips = u.skips
    settings = own
    adopted = reducer.agree(trainer, stored, u, &settings, groups)
    if adopted is not None:
        trainer._groups = restored_groups(trainer._groups, adopted)
        trainer._follow(trainer._pace)
    if settings.learning_rate != own.learning_rate and trainer._pace is None:       # all ranks have one schedule
        trainer._learning_rate = settings.learning_rate
    trainer._clip_threshold = settings.clip_threshold
    if settings.decoupled_decay != own.decoupled_decay:
        trainer._weight_decay = settings.decoupled_decay
    for k, attribute in enumerate(constants):
        if settings.constants[k] != own.constants[k]:
            setattr(trainer, attribute, settings.constants[k])
    trainer._sparse = u.sparse = settings.sparse
    u.skips = settings.skips
    if (settings.weight_decay, settings.decay_due) != (own.weight_decay, own.decay_due):
        trainer._collection._set_decay_state((settings.weight_decay, settings.decay_due))
    u.measures = trainer._measures(u.skips)
    return 0


cdef uint64_t digest(states):
    return int.from_bytes(hashlib.blake2b(repr(states).encode(), digest_size=8).digest(), "little")


cdef int set_rates(trainer, Update* u, double least) except -1:
    """Set everything that depends on the number of the update, and take the weight decay that is due."""
    cdef double shared = trainer._collection._take_decay(least)
    cdef double correction = trainer._correction(trainer._steps)
    cdef double rate
    cdef GroupSettings* s
    cdef uint32_t k
    for k in range(u.n_groups):
        group = trainer._groups[k - 1] if k else None
        s = &u.settings[k]
        rate = trainer._rate(group._learning_rate if k else None, 0)
        s.h.lr = <float>(rate * correction)
        set_constants(trainer, &s.h)
        s.decoupled = due_now(group if k else trainer, rate * decoupled_decay(trainer, group), least)
        s.decay = shared if group is None or group.weight_decay is None else 0
    return 0


cdef list rates_if_dropped(trainer, const Update* u, Py_ssize_t coming, double least):
    """For each group, its learning rate and its share of decoupled decay, for each possible number of dropped updates
    before this one, from 0 to `coming`."""
    cdef uint32_t k
    cdef Py_ssize_t back
    found = []
    for k in range(u.n_groups):
        group = trainer._groups[k - 1] if k else None
        own = group._learning_rate if k else None
        decay = decoupled_decay(trainer, group)
        taken = u.settings[k].decoupled
        assumed = trainer._rate(own, 0)
        rates = []
        for back in range(coming + 1):
            rate = trainer._rate(own, back)
            share = max(0.0, taken + (rate - assumed) * decay)
            correction = trainer._correction(max(trainer._steps - back, 1))
            rates.append((rate * correction, share if taken or share >= least else 0.0))
        found.append(rates)
    return found


cdef double decoupled_decay(trainer, group) except -1:
    return trainer._weight_decay if group is None or group.weight_decay is None else group.weight_decay


cdef int set_constants(trainer, dy_optim* h) except -1:
    """Set the constants of the rule from the trainer's attributes; see `check_constants`."""
    for constant, attribute in (<dict>trainer._constants).items():
        if constant == "b1":
            h.b1 = getattr(trainer, attribute)
        elif constant == "b2":
            h.b2 = getattr(trainer, attribute)
        elif constant == "eps":
            h.eps = getattr(trainer, attribute)
        else:
            raise TypeError(f"{type(trainer).__name__}: rules have no constant {constant!r}")
    return 0


cdef double due_now(object owner, double share, double least) except? -1:
    """The share of decay that an update takes off, of what is due; shares less than `least` are collected."""
    cdef double due = owner._decay_due + share - owner._decay_due * share
    cdef double taken = 0 if due < least else due
    owner._decay_due = due - taken
    return taken
