"""Trainers: an update, moving averages and state, which all share, and a class for each rule."""

import sys
import warnings
from fnmatch import fnmatchcase
from threading import get_ident

import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.math cimport isfinite, sqrt
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from dynet_cy.core.threads cimport Number, Unlocked, acquire_lock, add_to, follows_dynet, raised_here, release_lock
from dynet_cy.kernels cimport kernels
from dynet_cy.kernels.lazy_rows cimport moves_all
from dynet_cy.kernels.pool cimport begin_arithmetic, end_arithmetic
from dynet_cy.memory.storage cimport (
    Plane, Storage, bad_gradients, check_change, keep_raised, raise_kept, see_whole, value_changed,
)
from dynet_cy.model.parameters cimport _Stored, zero_gradient
from dynet_cy.ops.inputs cimport whole
from dynet_cy.train.backends cimport HostBackend, apply_outcome, backend_of, poll_updates, wait_for_updates
from dynet_cy.train.interfaces cimport (
    FROZEN, KEPT, MOVES, Backend, GroupSettings, Outcome, Plan, Reducer, TrainerFields, TrainerSettings, Update,
    check_not_scheduled, checked_decay, checked_rate, n_states, number, restored_groups, stored_in,
)
from dynet_cy.watch.timeline cimport UPDATE, begin_span, end_span

from dynet_cy.hints.equivalents import KnownArguments
from dynet_cy.model.collection import ParameterCollection
from dynet_cy.model.given import collection_of
from dynet_cy.train.interfaces import ParameterGroup, check_constants
from dynet_cy.train.schedules import Pace


# ==== averages ====================================================================================
#
# Moving averages of parameters, kept in a plane of the storage and brought up to date after updates.

@cython.embedsignature(False)
class MovingAverages:
    """The part of trainers that handles moving averages.

    The average is kept in the plane after those of the rule's state.  While the parameters are set to it, their own
    values are saved in the next plane.
    """

    _swapped = ""               # while the parameters are set to the average: are their own values "kept" or "lost"?

    def exponential_moving_average(self, beta: float, update_freq=1):
        """Keep an average of the parameters in which older values count less and less.

        For values p_1, ..., p_n it is their mean with weights beta^(n-i): Polyak and
        Juditsky 1992 for averages of parameters, Kingma and Ba 2015 (section 7.2)
        for these weights.  The new average replaces one that the trainer has kept so far.

        Each value added to the average costs a pass over all parameters and tables.  The average of a parameter that is
        made later begins with its first value.

        Args:
            beta: at least 0 and less than 1; 0.999 looks back about a thousand values.
            update_freq: add the values to the average after every so many updates (default: 1).

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
        """Keep the mean of the values that the parameters have after each update from now on.

        See `exponential_moving_average`.

        Args:
            update_freq: add the values to the mean after every so many updates (default: 1).

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
            save_weights: keep the current values, for `swap_params_to_weights`.  If False,
                they are lost, and the trainer can make no more updates. Default: True.
            bias_correction: for an exponential average: scale its weights to sum up to 1.  If False,
                they are not scaled, as if there were zeros before the first value. Default: True.

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
        cdef Plane values = (<Storage>self._collection.storage).values
        cdef Backend backend = backend_of(self)
        self._check_alone("swap_params_to_moving_average")
        check_change(self._collection.storage, "swap_params_to_moving_average")
        wait_for_updates(self)
        if self._average is None or not self._average["values"]:
            raise RuntimeError(
                "swap_params_to_moving_average: there is no average: call exponential_moving_average "
                "or cumulative_moving_average before training")
        if self._swapped:
            raise RuntimeError("swap_params_to_moving_average: the parameters are set to it already")
        beta = self._average["beta"] if bias_correction else None
        average = self._states[self._n_states]
        if save_weights:
            kept = self._collection.storage.new_plane()
            try:
                backend.axpby(self._averaged(), 0, 1, values, kept)
            except BaseException:
                self._collection.storage.drop_plane(kept)
                raise
            self._states.append(kept)
        for n, stored in self._by_count().items():
            backend.axpby(stored, 0, 1 if beta is None else 1 / (1 - beta ** n), average, values)
        for x in self._averaged():
            value_changed(x.p)
        self._swapped = "kept" if save_weights else "lost"
        raise_kept()

    def swap_params_to_weights(self):
        """Set the parameters to the values that they had before `swap_params_to_moving_average`.

        Raises:
            RuntimeError: the parameters are not set to their average, or their own values were not saved.

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
        cdef list stored
        check_change(self._collection.storage, "swap_params_to_weights")
        if not self._swapped:
            raise RuntimeError("swap_params_to_weights: the parameters are not set to their moving average")
        if self._swapped == "lost":
            raise RuntimeError("swap_params_to_weights: the weights were not saved: save_weights was False")
        stored = self._averaged()
        backend_of(self).axpby(
            stored, 0, 1, self._states[self._n_states + 1], (<Storage>self._collection.storage).values)
        for x in stored:
            value_changed(x.p)
        self._collection.storage.drop_plane(self._states.pop())
        self._swapped = ""
        raise_kept()

    def _check_alone(self, what):
        if not (<Reducer>self._reducer).alone:
            raise RuntimeError(f"{what}: not in asynchronous training, where other processes use the parameters")

    def _start_average(self, beta, update_freq):
        self._check_alone("moving averages")
        wait_for_updates(self)
        if self._swapped:
            raise RuntimeError(
                "the parameters are set to their moving average; swap_params_to_weights comes "
                "before another average")
        if not update_freq == int(update_freq) or update_freq < 1:
            raise ValueError(f"update_freq must be a whole number of at least 1, not {update_freq}")
        for plane in self._states[self._n_states:]:
            self._collection.storage.drop_plane(plane)
        self._states[self._n_states:] = [self._collection.storage.new_plane()]
        self._average = {"beta": beta, "frequency": int(update_freq), "updates": 0, "values": 0, "since": {}}

    def _add_to_average(self):
        cdef _Stored x
        cdef double old
        average = self._average
        average["updates"] += 1
        if average["updates"] % average["frequency"]:
            return
        for x in self._collection._below():
            average["since"].setdefault(x.p.id, average["values"])
        average["values"] += 1
        for n, stored in self._by_count().items():
            old = 1 - 1.0 / n if average["beta"] is None else average["beta"]
            backend_of(self).axpby(
                stored, <float>old, <float>(1 - old), (<Storage>self._collection.storage).values,
                self._states[self._n_states])

    def _by_count(self):
        """The parameters and tables that have an average, listed by the number of their values in it."""
        cdef _Stored x
        counts = {}
        since, values = self._average["since"], self._average["values"]
        for x in self._collection._below():
            if since.get(x.p.id, values) < values:
                counts.setdefault(values - since[x.p.id], []).append(x)
        return counts

    def _averaged(self):
        """The parameters and tables that have an average; others were added since its last value."""
        return [x for stored in self._by_count().values() for x in stored]


# ==== state =======================================================================================
#
# Settings and state of trainers as plain data: for checkpoints, pickles and copies.

@cython.embedsignature(False)
class Restorable:
    """The part of trainers that saves and restores their state."""

    def _settings(self) -> dict[str, Any]:
        """All attributes, as plain data, except the collection, the state of the rule, backend and reducer."""
        wait_for_updates(self)
        cls = type(self)
        names = *cls._saved_fields, *[name for _, name in cls._constants_read]
        settings = {name: getattr(self, name) for name in names}
        settings.update((name, value) for name, value in self.__dict__.items() if name != "_backend")
        settings["_groups"] = [group._state() for group in self._groups]
        if self._pace is not None:
            settings["_schedule"] = self._pace.state()
        if self._average is not None:
            since, values = self._average["since"], self._average["values"]
            late = {name: since.get((<_Stored>x).p.id, values) for name, x in self._collection._full_names().items()}
            settings["_average"] = {**self._average, "since": {name: n for name, n in late.items() if n}}
        return settings

    def _n_planes(self, settings: dict[str, Any]) -> int:
        """How many planes of state belong to these settings."""
        return (self._n_states + (settings["_average"] is not None)
                + (settings["_swapped"] == "kept"))

    def _settle_rows(self) -> None:
        """Bring all rows of tables up to date, before the state of the rule is set."""
        (<Reducer>self._reducer).settle(self._collection)

    def _restore(self, settings: dict[str, Any], arrays: Iterable[list[Any] | None]) -> None:
        """Restore what `_settings` and `_state_arrays` returned."""
        settings = dict(settings)
        pace = settings.pop("_schedule", None)
        self._settle_rows()
        n = self._n_planes(settings)
        planes = self._states                           # keep them: they may be memory shared with other processes
        for plane in planes[n:]:
            self._collection.storage.drop_plane(plane)
        planes = planes[:n] + [self._collection.storage.new_plane() for _ in range(n - len(planes))]
        own = list(self._groups)
        for name, value in settings.items():
            setattr(self, name, value)
        if self._average is not None:                   # earlier versions did not average parameters that came later
            late = self._average.get("since", {})
            since = {(<_Stored>x).p.id: late.get(name, 0) for name, x in self._collection._full_names().items()}
            self._average = {**self._average, "since": since}
        self._states = planes
        self._groups = restored_groups(self._collection, own, settings["_groups"]) if "_groups" in settings else own
        self._follow(None if pace is None else self._pace.restored(pace, self._steps))
        for x, own in zip(self._collection._below(), arrays):
            for k, plane in enumerate(planes):
                if own is None and is_zero(x, plane):
                    continue
                array = np.zeros(x.shape(), np.float32) if own is None else own[k]
                (<_Stored>x).fill(array, (<Plane>plane).on((<_Stored>x).p.device))

    def _state_arrays(self) -> list[list[Any] | None]:
        """The state of the rule: for each parameter and table of the collection, one new array of its shape
        per plane of state; None for a frozen one that has never been trained."""
        catch_up_tables(self._collection)
        return [None if not x.is_updated() and all(is_zero(x, plane) for plane in self._states)
                else [(<_Stored>x).array((<Plane>plane).on((<_Stored>x).p.device)) for plane in self._states]
                for x in self._collection._below()]

    def __reduce_ex__(self, protocol):
        return object.__reduce_ex__(self, max(protocol, 2))     # older protocols take no object with fields of C

    def __getstate__(self):
        return self._collection, self._settings(), self._state_arrays(), self._pace

    def __setstate__(self, state):
        self._collection, settings, arrays, *pace = state
        self._pace = pace[0] if pace else None              # pickles of earlier versions do not have it
        self._restore(settings, arrays)


cdef int catch_up_tables(collection) except -1:
    """Apply all updates made so far to all rows of tables and their states."""
    see_whole()
    collection._catch_up()
    return 0


cdef bint is_zero(_Stored x, Plane plane) except -1:
    """Whether all numbers of a parameter are zero in a plane.  Reading pages that were never written allocates no
    memory."""
    cdef Plane own = plane.on(x.p.device)
    cdef float* v = own.at(x.p.offset)
    cdef size_t i
    own.pull(x.p.offset, x.p.size)
    for i in range(x.p.size):
        if v[i] != 0:
            return False
    return True


# ==== update ======================================================================================
#
# Makes one update of a trainer: lists what has to be done, and lets its reducer and its backend do it.

# Memory from which another process reads the number of updates; see `note_updates_in`.
cdef int64_t* made_updates = NULL
cdef Py_buffer made_updates_view
cdef Unlocked made_updates_lock       # of both


def note_updates_in(memory: Buffer | None):
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
    acquire_lock(&made_updates_lock)        # an update of another thread may be writing
    before = made_updates_view
    made_updates_view = view
    made_updates = <int64_t*>view.buf
    release_lock(&made_updates_lock)
    PyBuffer_Release(&before)


# Updates of all trainers of this process.
cdef Number n_updates = 0


def updates_made() -> int:
    """How many updates the trainers of this process have made."""
    return n_updates


cdef void note_steps(int64_t steps) noexcept:
    acquire_lock(&made_updates_lock)
    if made_updates != NULL:
        made_updates[0] = steps
    release_lock(&made_updates_lock)


cdef int make_update(TrainerFields trainer, object chosen, bint skips) except -1:
    """Update the parameters with these ids, or all if None."""
    cdef list stored = trainer._collection._below()
    cdef Plan plan = Plan(stored, trainer._states if trainer._average is None else trainer._states[:-1])
    cdef Update* u = &plan.u
    cdef Backend backend = backend_of(trainer)
    cdef Reducer reducer = trainer._reducer
    cdef Storage storage = trainer._collection.storage
    cdef TrainerSettings settings
    cdef Outcome found
    cdef Py_ssize_t i
    cdef list rates = None
    cdef bint made = True
    check_change(storage, "update of a trainer")
    see_whole()
    memset(&found, 0, sizeof(Outcome))
    for i in range(u.n):
        if u.entries[i].updated:
            u.roles[i] = MOVES if chosen is None or u.entries[i].id in chosen else KEPT
    read_settings(trainer, plan, skips, &settings)
    try:
        backend.begin_update(stored, plan.planes, u.measures, &found)
    finally:
        apply_outcome(trainer, &found)
    if found.dropped:                           # then the learning rate may be another one
        read_settings(trainer, plan, skips, &settings)
    if reducer.collective:
        agree(trainer, reducer, plan, &settings)
    trainer._norm = None
    reducer.reduce(backend, u)
    if u.measures and not u.deferred:
        memset(&found, 0, sizeof(Outcome))
        try:
            made = clip(backend, stored, u, &found)
        finally:
            apply_outcome(trainer, &found)
        if not made:
            return 0
    backend.prepare(u)
    trainer._steps = settings.steps = reducer.count(trainer._steps)
    set_rates(trainer, u, &settings, reducer.least_decay)
    if u.deferred:
        rates = rates_if_dropped(trainer, u, &settings, backend.undecided(u), reducer.least_decay)
    reducer.apply(backend, storage, plan, rates)
    if reducer.collective or not reducer.alone or storage.values.lent:
        see_whole()                             # others read the values
    if follows_dynet():
        note_decay(trainer._collection, stored, u)
    trainer._count()
    add_to(&n_updates, 1)
    note_steps(settings.steps)
    if u.skips and (trainer._average is not None or chosen is not None):
        made = backend.was_made(u)
    if made and trainer._average is not None:
        trainer._add_to_average()
    return 0


cdef int read_settings(TrainerFields trainer, Plan plan, bint skips, TrainerSettings* own) except -1:
    """The settings of an update: all that it reads of a trainer and its groups before it is made."""
    cdef Update* u = &plan.u
    cdef GroupSettings* s
    cdef Py_ssize_t i
    cdef uint32_t k
    memset(own, 0, sizeof(TrainerSettings))         # ranks compare all of its bytes
    own.learning_rate = trainer._rate(None, 0)
    own.clip_threshold = trainer._clip_threshold
    own.decoupled_decay = trainer._weight_decay
    own.steps = trainer._steps
    own.sparse = trainer._sparse
    own.skips = skips
    memcpy(own.constants, trainer.constants, sizeof(own.constants))
    plan.set_groups(1 + len(trainer._groups))
    s = u.settings
    s.weight_decay = own.decoupled_decay
    s.threshold = own.clip_threshold
    s.collected = trainer._decay_due
    numbers = {}
    for k, group in enumerate(trainer._groups, 1):
        numbers.update({(<_Stored>x).p.id: k for x in group._stored})
        s = &u.settings[k]
        s.own_rate = group._learning_rate is not None
        s.learning_rate = group._learning_rate if s.own_rate else 0
        s.own_decay = group.weight_decay is not None
        s.weight_decay = group.weight_decay if s.own_decay else own.decoupled_decay
        s.own_norm = group.clip_threshold is not None
        s.threshold = group.clip_threshold if s.own_norm else own.clip_threshold
        s.collected = group._decay_due
    memset(u.group, 0, u.n * sizeof(uint32_t))
    for i in range(u.n if numbers else 0):
        u.group[i] = numbers.get(u.entries[i].id, 0)
    u.rule = trainer.rule
    u.skips = skips
    # Gradients that are not finite are an error, but in programs of DyNet they are used if nothing is clipped.
    u.measures = skips or not follows_dynet()
    for k in range(u.n_groups):
        s = &u.settings[k]
        s.h.grad_scale = <float>u.scale
        s.h.b1, s.h.b2, s.h.eps = <float>own.constants[0], <float>own.constants[1], <float>own.constants[2]
        u.measures |= s.threshold > 0
    u.sparse = own.sparse or not moves_all(u.rule)
    # A moving average that reads all rows after each update would bring them up to date at once.
    u.lazy = not u.sparse and (trainer._average is None or trainer._average["frequency"] > 1)
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


cdef int agree(TrainerFields trainer, Reducer reducer, Plan plan, TrainerSettings* own) except -1:
    """Check that all ranks make the same update; a rank without data adopts the settings of the others."""
    cdef TrainerSettings settings
    groups = [group._state() for group in trainer._groups]
    own.weight_decay, own.decay_due = trainer._collection._decay_state()
    own.groups = digest(groups) if groups else 0
    settings = own[0]
    adopted = reducer.agree(trainer, plan.stored, &plan.u, &settings, groups)
    if adopted is not None:
        trainer._groups = restored_groups(trainer._collection, trainer._groups, adopted)
        trainer._follow(trainer._pace)
    if settings.learning_rate != own.learning_rate and trainer._pace is None:       # all ranks have one schedule
        trainer._learning_rate = settings.learning_rate
    trainer._clip_threshold = settings.clip_threshold
    trainer._weight_decay = settings.decoupled_decay
    memcpy(trainer.constants, settings.constants, sizeof(settings.constants))
    trainer._sparse = settings.sparse
    if (settings.weight_decay, settings.decay_due) != (own.weight_decay, own.decay_due):
        trainer._collection._set_decay_state((settings.weight_decay, settings.decay_due))
    return read_settings(trainer, plan, settings.skips, own)


cdef uint64_t digest(states):
    import hashlib      # with OpenSSL, it would add 8 ms to `import dynet_cy`

    return int.from_bytes(hashlib.blake2b(repr(states).encode(), digest_size=8).digest(), "little")


cdef int set_rates(TrainerFields trainer, Update* u, const TrainerSettings* own, double least) except -1:
    """Set everything that depends on the number of the update, and take the weight decay that is due."""
    cdef double shared = trainer._collection._take_decay(least)
    cdef double rate, due, correction, eps_scale
    cdef GroupSettings* s
    cdef uint32_t k
    correction, eps_scale = trainer._corrections(own.steps)
    for k in range(u.n_groups):
        s = &u.settings[k]
        rate = trainer._rate(s.learning_rate, 0) if s.own_rate else own.learning_rate
        s.h.lr, s.h.eps_scale = <float>(rate * correction), <float>eps_scale
        s.decay = 0 if s.own_decay else shared
        # Shares of weight decay less than `least` are collected.
        due = s.collected + rate * s.weight_decay - s.collected * (rate * s.weight_decay)
        s.decoupled = 0 if due < least else due
        if due - s.decoupled != s.collected:
            s.collected = due - s.decoupled
            if k:
                trainer._groups[<Py_ssize_t>k - 1]._decay_due = s.collected
            else:
                trainer._decay_due = s.collected
    return 0


cdef list rates_if_dropped(trainer, const Update* u, const TrainerSettings* own, Py_ssize_t coming, double least):
    """For each group, its learning rate, factor of eps and share of decoupled decay, for each possible number of
    dropped updates before this one, from 0 to `coming`."""
    cdef const GroupSettings* s
    cdef uint32_t k
    cdef Py_ssize_t back
    found = []
    for k in range(u.n_groups):
        s = &u.settings[k]
        learning_rate = s.learning_rate if s.own_rate else None
        assumed = trainer._rate(learning_rate, 0)
        rates = []
        for back in range(coming + 1):
            rate = trainer._rate(learning_rate, back)
            share = max(0.0, s.decoupled + (rate - assumed) * s.weight_decay)
            correction, eps_scale = trainer._corrections(max(own.steps - back, 1))
            rates.append((rate * correction, eps_scale, share if s.decoupled or share >= least else 0.0))
        found.append(rates)
    return found


# ==== trainer =====================================================================================
#
# The base class of all trainers: settings, groups, counts, and the public methods.

UPDATE_EPOCH: str = (
    "Trainer::update_epoch has been deprecated and doesn't do anything. Please remove it from your code, and control "
    "the learning rate of the trainer directly, for example by: 'trainer.learning_rate /= (1 - rate_decay)', see "
    "https://github.com/clab/dynet/pull/695 for details.\n"
)


# The first updates of a trainer are looked at: a program that trains nothing does so from the start.
cdef enum:
    LOOKED_AT = 10

# The trainers in the middle of an update, by `id`, and the threads that make it: no signal handler runs while a pair
# comes in or goes out.
cdef set updating = set()

cdef set warned = set()         # reasons that `note_nothing` has told


cdef int note_nothing(TrainerFields trainer) except -1:
    """Warn once if an update changes nothing, as no parameter has a gradient.

    Other processes may have gradients, and a program with frozen parameters knows what it does.
    """
    cdef _Stored x
    cdef list stored = trainer._collection._below()
    if follows_dynet() or trainer._reducer.collective:
        return 0
    for x in stored:
        if x.has_gradient() or not x.p.updated:
            return 0
    if not stored:
        reason = "the collection of the trainer has no parameters; `add_parameters` of that collection makes them"
    else:
        reason = ("no parameter has a gradient; `loss.backward()` comes before each update, and the loss has to depend "
                  "on parameters of the trainer's collection")
    if reason not in warned:
        warned.add(reason)
        warnings.warn(f"{type(trainer).__name__}.update: {reason}", RuntimeWarning, stacklevel=1)
    return 0


class Constant:
    """A constant of the rule as an attribute of a trainer."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __get__(self, trainer: object, owner: object) -> object:
        return self if trainer is None else (<TrainerFields>trainer).constants[<int>self.k]

    def __set__(self, trainer: object, value: float) -> None:
        (<TrainerFields>trainer).constants[<int>self.k] = value


@cython.embedsignature(False)
class Trainer(KnownArguments, MovingAverages, Restorable, TrainerFields):
    """Base class of all trainers.  Use one of the derived classes.

    Gradients are clipped by default: if their global L2 norm exceeds 5, they
    are scaled to have norm 5 (Pascanu, Mikolov and Bengio 2013).  In lookup
    tables, only the rows used since the last update are changed.

    A trainer keeps a reference to its collection, so the parameters live as long as it does.

    Args:
        m: the ParameterCollection to train.; or a layer of `dy.nn`.
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

    _arguments = "keyword"      # of KnownArguments
    _rule: int | None = None    # number of a row of optim.def
    _constants = {}             # for each constant of the rule (b1, b2, eps): the trainer's attribute that holds it
    _constants_read = ()        # the same as pairs of a number and an attribute, see `check_constants`
    _backend: Backend = HostBackend()
    _saved_fields = (           # fields that are settings or state of the trainer
        "_learning_rate", "_clip_threshold", "_sparse", "_steps", "_decay_due", "_clips", "_updates", "_skipped",
        "_average")

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        cls._constants_read = check_constants(cls)
        for k, attribute in cls._constants_read:
            setattr(cls, attribute, Constant(k))

    def __init__(self, m: CollectionOrLayer, learning_rate: float) -> None:
        if self._rule is None:
            raise TypeError("Trainer is a base class: use one of its subclasses, such as AdamTrainer")
        self._collection = m = collection_of(m, type(self).__name__, "m")
        for _ in range(self._n_states):
            self._states.append(m.storage.new_plane())      # if one fails, those already made are freed
        self._clip_threshold = 5.0
        self._sparse = True
        self._swapped = ""
        self.learning_rate = learning_rate

    def __del__(self) -> None:
        if not sys.is_finalizing():
            try:
                (<Backend>self._backend).close()
            except RuntimeError as e:
                if type(e) is RuntimeError:             # not a failure of the device
                    warnings.warn(f"{type(self).__name__}: {e}", RuntimeWarning, stacklevel=1)
        states = self._states or ()                     # None if memory was short before they were made
        if states:                                      # deferred updates still need them
            raised = raised_here()
            try:
                catch_up_tables(self._collection)
            except BaseException as error:
                if raised_here() != raised or not isinstance(error, MemoryError):
                    keep_raised(error)                  # from a signal handler that ran while an update was completed
                catch_up_tables(self._collection)
        for plane in states:
            self._collection._clear_deferred(plane)
            self._collection.storage.drop_plane(plane)

    @property
    def collection(self) -> ParameterCollection:
        """The collection that it trains.

        Example:
            >>> dy.AdamTrainer(model).collection is model
            True
        """
        return self._collection

    @property
    def learning_rate(self) -> float:
        """Step size of the next update.

        Raises:
            ValueError: it is set to a number that is negative or not finite.

        Example:
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> trainer.learning_rate /= 2
            >>> trainer.learning_rate
            0.05
        """
        poll_updates(self)
        return self._learning_rate if self._pace is None else self._pace.scaled(self._learning_rate)

    @learning_rate.setter
    def learning_rate(self, value: float):
        check_not_scheduled(self._pace)
        self._learning_rate = checked_rate(value)

    @property
    def schedule(self) -> Schedule | None:
        """The schedule that changes the learning rate from update to update: a `Schedule`, or None (the default).

        A schedule begins when it is set.  For each update, it gives a factor by which the learning rates of the
        trainer and its groups are multiplied.  Learning rates cannot be set while there is a schedule.  Setting None
        restores their values from before.  Updates that `skip_nonfinite` drops do not count.  Checkpoints include the
        schedule's position and state.

        Raises:
            TypeError: the value is not a schedule.

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
    def schedule(self, value: Schedule | None):
        wait_for_updates(self)
        self._follow(None if value is None else Pace(value, self._steps))

    def _follow(self, pace):
        """Let a schedule, or None, scale the learning rates of the trainer and all its groups."""
        self._pace = pace
        for group in self._groups:
            group._pace = pace

    def set_learning_rate(self, value: float):
        """Set the step size; the same as ``trainer.learning_rate = value``.

        Example:
            >>> trainer = dy.SimpleSGDTrainer(model)
            >>> trainer.set_learning_rate(0.5)
            >>> trainer.learning_rate
            0.5
        """
        self.learning_rate = value

    def set_clip_threshold(self, thr: float):
        """Set the global norm beyond which gradients are scaled down; 0 or less: never.

        Without clipping the norm is computed too, so that an update with gradients that are not finite is an error.

        Args:
            thr: the norm.

        Example:
            >>> trainer = dy.SimpleSGDTrainer(model)
            >>> trainer.set_clip_threshold(1.0)
            >>> trainer.get_clip_threshold()
            1.0
        """
        self._clip_threshold = max(number(thr, "thr"), 0.0)
        self._clip_chosen = True

    def get_clip_threshold(self) -> float:
        """The global norm beyond which gradients are scaled down; 0: never.

        Example:
            >>> dy.SimpleSGDTrainer(model).get_clip_threshold()
            5.0
        """
        return self._clip_threshold

    def set_sparse_updates(self, su: bool):
        """Set whether only the used rows of lookup tables are changed (the default).

        If it is off, rules that move parameters even without a gradient (momentum, Adam) change all rows
        at every update, as PyTorch does by default.  In large tables, rows without a gradient get these
        updates all at once when they are next needed, so this costs little more than
        sparse updates; the numbers are the same up to rounding.  docs/memory.md says when an update visits
        whole tables instead.

        Args:
            su: True: only rows with a gradient change; False: all rows change.

        Example:
            >>> trainer = dy.AdamTrainer(model)
            >>> trainer.set_sparse_updates(False)
        """
        self._sparse = bool(su)

    def group(
        self, params: _Params, learning_rate: float | None = None, weight_decay: float | None = None,
        clip_threshold: float | None = None
    ) -> ParameterGroup:
        """Give some parameters a learning rate, weight decay or clipping of their own.

        A setting that is None follows the trainer's, also when that changes later.  The state of the rule and
        the number of updates do not depend on groups, so a group may be made at any time.

        Args:
            params: a parameter or table, a ParameterCollection or layer (all parameters that it has now), or a list of
                these.
            learning_rate: step size; changes that the trainer makes itself, such as the cycle of `CyclicalSGDTrainer`,
                do not affect it.
            weight_decay: each update takes the share learning_rate * weight_decay off the values, before
                the step (decoupled weight decay: Loshchilov and Hutter 2019).  For these parameters
                it replaces that of `AdamWTrainer` and of `ParameterCollection.set_weight_decay`,
                so 0 means no decay.
            clip_threshold: the gradients of these parameters are scaled down if their norm is larger than this;
                0: never.  Such parameters do not count in the norm by which the other parameters are clipped.

        Returns:
            ParameterGroup: its attributes are the settings, to be changed between updates.

        Raises:
            TypeError: params are something else, or a setting is not a number.
            ValueError: a parameter does not belong to the trainer, or is in another group; or a decay is negative.

        Example:
            >>> bias, table = model.add_parameters(3), model.add_lookup_parameters((10, 3))
            >>> trainer = dy.AdamWTrainer(model)
            >>> biases = [p for p in model.parameters_list() if len(p.shape()) == 1]
            >>> group = trainer.group(biases, weight_decay=0)
            >>> slow = trainer.group(table, learning_rate=1e-5)
            >>> slow.learning_rate /= 2
        """
        cdef _Stored x
        own = {(<_Stored>y).p.id for y in self._collection._below()}
        grouped = {(<_Stored>y).p.id for group in self._groups for y in group._stored}
        chosen = stored_in(params, "group")
        for x in chosen:
            if x.p.id not in own:
                raise ValueError(
                    f"group: {x.full_name} is not one of the parameters that this {type(self).__name__} trains")
            if x.p.id in grouped:
                raise ValueError(f"group: {x.full_name} is in a group already")
            grouped.add(x.p.id)
        made = ParameterGroup(self._collection, chosen, learning_rate, weight_decay, clip_threshold)
        self._groups = [*self._groups, made]
        made._pace = self._pace
        return made

    def group_by_name(self, rules: Mapping[str, Mapping[str, float | None]]) -> list[ParameterGroup]:
        """Make groups by names: each parameter gets the settings of the first pattern that matches its name.
        Those that are in a group already stay there.

        Args:
            rules: a mapping of patterns to settings, in order.  A pattern is a name as `named_parameters` of the
                trained layer has it, or a full name, in which ``*`` stands for any letters, ``?`` for one, and
                ``[ab]`` for one of these; "." and "/" are alike.  The settings are a mapping of what `group` takes:
                `learning_rate`, `weight_decay`, `clip_threshold`.

        Returns:
            The groups, one for each pattern: a list of `ParameterGroup`.

        Raises:
            ValueError: no name matches a pattern, or a setting is out of its range.
            TypeError: there is no such setting, or it is not a number.

        Example:
            >>> net = dy.nn.Sequential([(dy.nn.Linear, 3, 3), "tanh", (dy.nn.Linear, 3, 2)], model)
            >>> trainer = dy.AdamWTrainer(net, 1e-3)
            >>> groups = trainer.group_by_name({
            ...     "0.b": {"learning_rate": 1e-4, "weight_decay": 0},
            ...     "*.b": {"weight_decay": 0},
            ...     "0.*": {"learning_rate": 1e-4},
            ... })
            >>> [group.names for group in groups]
            [('/sequential/0/b',), ('/sequential/2/b',), ('/sequential/0/W',)]
        """
        full = self._collection._full_names()
        begin = len(self._collection.name())
        made = []
        for pattern, settings in dict(rules).items():
            wanted = pattern.replace(".", "/")
            matching = [
                x for name, x in full.items()
                if fnmatchcase(name.replace(".", "/"), wanted) or fnmatchcase(name[begin:].replace(".", "/"), wanted)]
            if not matching:
                known = [name[begin:] for name in full]
                from difflib import get_close_matches

                near = get_close_matches(wanted, known, 3) or known[:5]
                raise ValueError(f"group_by_name: no parameter matches {pattern!r}; there are {', '.join(near)}")
            grouped = {(<_Stored>x).p.id for group in self._groups for x in group._stored}
            made.append(self.group([x for x in matching if (<_Stored>x).p.id not in grouped], **settings))
        return made

    @property
    def groups(self) -> tuple[ParameterGroup, ...]:
        """The groups made by `group` and `group_by_name`, in the order in which they were made: a tuple.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> group = trainer.group([w], learning_rate=0.01)
            >>> [group.names for group in trainer.groups]
            [('/_0',)]
        """
        return tuple(self._groups)

    @property
    def updates(self) -> int:
        """How many updates the trainer has made, including those before the checkpoint that it was restored from.

        Updates that were dropped do not count. In training by several processes all of them have the same number, so
        that they can make a checkpoint after every so many updates. On a GPU this waits for the device.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model)
            >>> for _ in range(4):
            ...     _ = dy.renew_cg()
            ...     dy.squared_norm(w).backward()
            ...     trainer.update()
            ...     if trainer.updates % 2 == 0:
            ...         dy.save_safetensors(f"update-{trainer.updates}.safetensors", model, trainer)
            >>> trainer.updates
            4
        """
        wait_for_updates(self)
        return self._steps

    @property
    def gradient_norm(self) -> float | None:
        """The norm of all gradients in the last update, before they were clipped.

        It is infinite or NaN if the update was dropped, and None before the first update.  In programs of DyNet it is
        also None after an update without clipping and `skip_nonfinite`.  On a GPU this waits for the device.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update()
            >>> round(trainer.gradient_norm, 3)
            2.828
        """
        wait_for_updates(self)
        return self._norm

    @property
    def skipped_updates(self) -> int:
        """How many updates `skip_nonfinite` has dropped since the trainer was made, or since the last `status`.

        On a GPU this waits for the device.

        Example:
            >>> trainer = dy.SimpleSGDTrainer(model)
            >>> w = model.add_parameters(2, init=0.0)
            >>> _ = dy.renew_cg()
            >>> dy.sum_elems(dy.sqrt(w)).backward()         # the slope of a root at 0 is infinite
            >>> trainer.update(skip_nonfinite=True)
            >>> trainer.skipped_updates
            1
        """
        wait_for_updates(self)
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
        wait_for_updates(self)
        self._collection.zero_gradients()

    def update(self, skip_nonfinite=False):
        """Change all parameters by their gradients, and set the gradients to zero.

        Frozen parameters (`set_updated`) are not changed.

        Args:
            skip_nonfinite: drop the update, without an error, if a gradient is infinite or NaN:
                gradients become zero, nothing else is changed, and `skipped_updates` counts it.
                On a GPU the host does not wait for the outcome, except with a moving average and in
                `update_subset`. Default: False.

        Raises:
            RuntimeError: a gradient is infinite or NaN, and `skip_nonfinite` is False.  Nothing is changed then, not
                even the gradients: see `zero_gradients`.  In programs of DyNet such gradients are used, as there, if
                clipping is off.  On a GPU, neither this update nor later ones change
                anything; the error is raised by the next update, or earlier, when the
                host waits for the device, for example to read a value.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> dy.squared_norm(w).backward()
            >>> trainer.update(skip_nonfinite=True)
            >>> w.npvalue().round(3), round(trainer.gradient_norm, 3)
            (array([0.8, 0.8]), 2.828)
        """
        self._compute_update(None, skip_nonfinite)

    def update_subset(self, updated_params: Iterable[int], updated_lookups: Iterable[int], skip_nonfinite=False):
        """Like `update`, but for some parameters only; the others keep their gradients and make no step.

        All gradients count in the norm for clipping, and weight decay applies to all parameters.

        Args:
            updated_params: numbers of parameters, as in `parameters_list()` of the collection.
            updated_lookups: numbers of tables, as in `lookup_parameters_list()`.
            skip_nonfinite: see `update`; if the update is dropped, the gradients of all parameters become zero.

        Raises:
            TypeError: something else is among the numbers, such as a parameter itself.
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
        cdef Py_ssize_t k
        wanted = set()
        for numbers, of, what in (
                (updated_params, self._collection.parameters_list(), "parameter"),
                (updated_lookups, self._collection.lookup_parameters_list(), "lookup table")):
            for number in numbers:
                k = whole(number, "update_subset", f"the number of a {what}")
                if not 0 <= k < len(of):
                    raise IndexError(
                        f"update_subset: there is no {what} {number}; the collection has {len(of)}")
                wanted.add((<_Stored>of[k]).p.id)
        self._compute_update(wanted, skip_nonfinite)

    def _compute_update(self, chosen: set[int] | None, skip_nonfinite: bool) -> None:
        """Update the parameters with these ids, or all if None, with the engine's floating-point settings."""
        cdef uint64_t span = begin_span()
        own = id(self), get_ident()
        if own in updating:
            raise RuntimeError(f"{type(self).__name__}: an update was begun in the middle of another one")
        updating.add(own)
        begin_arithmetic()
        try:
            self._check_ready()
            if self._steps < LOOKED_AT:
                note_nothing(self)
            make_update(self, chosen, skip_nonfinite)
        except BaseException as error:
            (<Reducer>self._reducer).end(error)
            raise
        finally:
            end_arithmetic()
            updating.discard(own)
            raise_kept()
        (<Reducer>self._reducer).end(None)
        end_span(UPDATE, span)

    def _check_ready(self):
        """Raise errors that must not occur in the middle of an update."""
        if self._pace is not None:
            self._pace.scaled(1.0)
        if self._swapped:
            raise RuntimeError(
                f"{type(self).__name__}: the parameters are set to their moving average; "
                "swap_params_to_weights comes before the next update")

    def _count(self):
        """Count an update."""
        self._updates += 1
        if self._pace is not None:
            self._pace.updates = self._steps

    def _uncount(self, n):
        """Undo the count of the last n updates."""
        self._steps -= n
        self._updates -= n
        if self._pace is not None:
            self._pace.updates = self._steps

    def _roll_back(self, n: int) -> None:
        """`_uncount`, also in the moving average: the device has not made these updates."""
        self._uncount(n)
        if self._average is not None:
            self._average["updates"] -= n
            values = self._average["values"] = self._average["updates"] // self._average["frequency"]
            self._average["since"] = {own: min(n, values) for own, n in self._average["since"].items()}

    def _rate(self, own: float | None, back: int) -> float:
        """The learning rate of this update if the device has dropped `back` of the updates before it.

        Args:
            own: the learning rate of a group, or None.
            back: the number of dropped updates.
        """
        rate = self._learning_rate if own is None else own
        return rate if self._pace is None else self._pace.scaled(rate, back)

    def _corrections(self, steps):
        """The factors of the learning rate and of eps in the update with that number, as in Adam's bias correction."""
        return 1.0, 1.0

    @property
    def _n_states(self):
        """How many planes of state the rule has."""
        return n_states(self._rule)

    def update_epoch(self, r: object):
        """Only write to stderr that this does nothing; it exists for old programs.  Set `learning_rate` instead.

        Args:
            r: ignored.

        Example:
            >>> import contextlib, sys
            >>> with contextlib.redirect_stderr(sys.stdout):
            ...     dy.SimpleSGDTrainer(model).update_epoch(1)
            Trainer::update_epoch ...
        """
        sys.stderr.write(UPDATE_EPOCH)

    def restart(self, learning_rate: float | None = None):
        """Set the state of the rule (momentum, moments) to zero.

        In training by several processes all of them must call it.

        Args:
            learning_rate: the step size from now on; None: as before.

        Example:
            >>> trainer = dy.AdamTrainer(model)
            >>> trainer.restart(learning_rate=0.01)
            >>> trainer.learning_rate
            0.01
        """
        cdef Storage storage = self._collection.storage
        self._settle_rows()
        for plane in self._states[:self._n_states]:
            storage.zero(plane)
        if learning_rate is not None:
            self.learning_rate = learning_rate

    def status(self):
        """Write to stderr the learning rate, and how many updates were clipped, made and, if any, dropped since the
        last call: ``[lr=0.1 clips=2 updates=98 skipped=1]``.

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
        wait_for_updates(self)
        skipped = f" skipped={self._skipped}" if self._skipped else ""
        sys.stderr.write(f"[lr={self.learning_rate:g} clips={self._clips} updates={self._updates}{skipped}] ")
        self._clips = self._updates = self._skipped = 0

    def __repr__(self):
        return (f"<{type(self).__name__} of {self._collection!r}, learning_rate={self.learning_rate:g}, "
                f"{self._steps} updates>")

    def whoami(self) -> str:
        """Name of the class.

        Example:
            >>> dy.AdamTrainer(model).whoami()
            'AdamTrainer'
        """
        return type(self).__name__


# ==== rules =======================================================================================
#
# How parameters change by their gradients: the rule of each trainer is one row in `include/dynet_cy/optim.def`.

@cython.embedsignature(False)
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

    def __init__(self, m: CollectionOrLayer, learning_rate=0.1) -> None:
        super().__init__(m, learning_rate)


@cython.embedsignature(False)
class CyclicalSGDTrainer(Trainer):
    """Stochastic gradient descent with a cyclical learning rate
    (Smith 2017, Cyclical learning rates for training neural networks).

    Args:
        m: the ParameterCollection to train.
        learning_rate_min, learning_rate_max: bounds of the learning rate (defaults: 0.01 and 0.1).
        step_size: updates from one bound to the other (default: 2000).
        gamma: each update multiplies the height of the cycle by this (default: 1).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.CyclicalSGDTrainer(model, learning_rate_min=0.1, learning_rate_max=0.2)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_sgd

    def __init__(
        self, m: CollectionOrLayer, learning_rate_min=0.01, learning_rate_max=0.1, step_size: float = 2000,
        gamma=1.0
    ) -> None:
        super().__init__(m, learning_rate_min)
        if not step_size > 0:
            raise ValueError(f"CyclicalSGDTrainer: step_size must be positive, not {step_size}")
        self._bounds = (
            checked_rate(learning_rate_min, "learning_rate_min"), checked_rate(learning_rate_max, "learning_rate_max"))
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
        """The learning rate after this many updates."""
        low, high = self._bounds
        k = max(updates - 1, 0)
        cycle = 1 + k // (2 * self._step_size)
        x = abs(k / self._step_size - 2 * cycle + 1)
        return low + (high - low) * max(0.0, 1 - x) * self._gamma ** k


@cython.embedsignature(False)
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

    def __init__(self, m: CollectionOrLayer, learning_rate=0.01, mom=0.9) -> None:
        super().__init__(m, learning_rate)
        self._mom = number(mom, "mom")


@cython.embedsignature(False)
class NesterovSGDTrainer(Trainer):
    """Gradient descent with the momentum of Nesterov (1983), as Bengio, Boulanger-Lewandowski and Pascanu (2013,
    Advances in optimizing recurrent networks) put it: v = mom v - learning_rate g; p += mom v - learning_rate g.

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.01).
        mom: momentum (default: 0.9).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.NesterovSGDTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_nesterov
    _constants = {"b1": "_mom"}

    def __init__(self, m: CollectionOrLayer, learning_rate=0.01, mom=0.9) -> None:
        super().__init__(m, learning_rate)
        self._mom = number(mom, "mom")


@cython.embedsignature(False)
class SignumTrainer(Trainer):
    """Signum (Bernstein, Wang, Azizzadenesheli and Anandkumar 2018, signSGD: compressed optimisation for non-convex
    problems): with the mean m of g, p -= learning_rate sign(m).

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.0001).
        mom: decay of the mean of g (default: 0.9); 0: signSGD.

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.SignumTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> w.npvalue().round(3)
        array([0.9, 0.9])
    """

    _rule = kernels.DY_OPTIM_signum
    _constants = {"b1": "_mom"}

    def __init__(self, m: CollectionOrLayer, learning_rate=0.0001, mom=0.9) -> None:
        super().__init__(m, learning_rate)
        self._mom = number(mom, "mom")


@cython.embedsignature(False)
class LionTrainer(Trainer):
    """Lion (Chen et al. 2023, Symbolic discovery of optimization algorithms): with the mean m of g from the update
    before, p -= alpha sign(beta_1 m + (1 - beta_1) g).

    A step is larger than one of `AdamTrainer` at the same rate: the authors take a rate 3 to 10 times smaller, and
    a decoupled weight decay (see `Trainer.group`) as many times larger.

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.0001).
        beta_1: share of the mean in the step (default: 0.9).
        beta_2: decay of the mean of g (default: 0.99).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.LionTrainer(model, alpha=0.1)
        >>> group = trainer.group(w, weight_decay=1.0)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> w.npvalue().round(3)
        array([0.8, 0.8])
    """

    _rule = kernels.DY_OPTIM_lion
    _constants = {"b1": "_beta_1", "b2": "_beta_2"}

    def __init__(self, m: CollectionOrLayer, alpha=0.0001, beta_1=0.9, beta_2=0.99) -> None:
        super().__init__(m, alpha)
        self._beta_1 = number(beta_1, "beta_1")
        self._beta_2 = number(beta_2, "beta_2")


@cython.embedsignature(False)
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

    def __init__(self, m: CollectionOrLayer, learning_rate=0.1, eps=1e-20) -> None:
        super().__init__(m, learning_rate)
        self._eps = number(eps, "eps")


@cython.embedsignature(False)
class AdadeltaTrainer(Trainer):
    """Adadelta (Zeiler 2012).  The rule does not use a learning rate.

    Args:
        m: the ParameterCollection to train.
        eps: keeps the divisor from zero (default: 1e-6).
        rho: decay of the mean of squares (default: 0.95).

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

    def __init__(self, m: CollectionOrLayer, eps=1e-6, rho=0.95) -> None:
        super().__init__(m, 1.0)
        self._eps = number(eps, "eps")
        self._rho = number(rho, "rho")


@cython.embedsignature(False)
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

    def __init__(self, m: CollectionOrLayer, learning_rate=0.001, eps=1e-8, rho=0.9) -> None:
        super().__init__(m, learning_rate)
        self._eps = number(eps, "eps")
        self._rho = number(rho, "rho")


@cython.embedsignature(False)
class AdamTrainer(Trainer):
    """Adam (Kingma and Ba 2015): with means m of g and v of g²,
    p -= alpha m' / (sqrt(v') + eps), where m' = m / (1 - beta_1^t) and v' = v / (1 - beta_2^t), as in PyTorch.

    Programs of DyNet add eps before the correction, as DyNet does: p -= alpha sqrt(1 - beta_2^t) / (1 - beta_1^t) m /
    (sqrt(v) + eps).  There eps counts 1 / sqrt(1 - beta_2^t) times as much, 32 times in the first update: a gradient of
    1e-6 moves 23 % less, one of 1e-8 94 % less.

    Rows of lookup tables that were not used keep their means unchanged, unless
    sparse updates are off.

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.001).
        beta_1, beta_2: decay of the means of g and of g² (defaults: 0.9 and 0.999).
        eps: keeps the divisor from zero (default: 1e-8).
        learning_rate: another name of alpha; if both are given, alpha is ignored (default: alpha).

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

    def __init__(
        self, m: CollectionOrLayer, alpha=0.001, beta_1=0.9, beta_2=0.999, eps=1e-8,
        learning_rate: float | None = None
    ) -> None:
        super().__init__(m, alpha if learning_rate is None else learning_rate)
        self._beta_1 = number(beta_1, "beta_1")
        self._beta_2 = number(beta_2, "beta_2")
        self._eps = number(eps, "eps")

    def _corrections(self, steps):
        root = sqrt(1 - self._beta_2 ** steps)
        return root / (1 - self._beta_1 ** steps), 1.0 if follows_dynet() else root


@cython.embedsignature(False)
class AdamWTrainer(AdamTrainer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): before the step of `AdamTrainer`,
    p -= alpha weight_decay p.

    All rows of lookup tables decay in each update, even those that were not used.  Frozen
    parameters (`set_updated`) do not decay.

    Here the decay is multiplied by the learning rate: with the defaults an update takes the share 0.001 * 0.01 off
    a value.  `ParameterCollection.set_weight_decay`, in contrast, takes off the share lambda itself.  If both are
    set, both apply.

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.001).
        beta_1, beta_2: decay of the means of g and of g² (defaults: 0.9 and 0.999).
        eps: keeps the divisor from zero (default: 1e-8).
        learning_rate: another name of alpha; if both are given, alpha is ignored (default: alpha).
        weight_decay: an update takes the share alpha * weight_decay off a value; at least 0. Default: 0.01.
        exclude: parameters that do not decay, such as biases and gains: a parameter or table, a
            ParameterCollection, or a list of these.  Short for ``group(exclude, weight_decay=0)``, see
            `Trainer.group`.

    Raises:
        ValueError: weight_decay is negative or not finite, or a parameter does not belong to m.

    Example:
        >>> bias, table = model.add_parameters(3), model.add_lookup_parameters((10, 3))
        >>> biases = [p for p in model.parameters_list() if len(p.shape()) == 1]
        >>> trainer = dy.AdamWTrainer(model, 1e-3, weight_decay=0.05, exclude=[*biases, table])
    """

    _saved_fields = (*AdamTrainer._saved_fields, "_weight_decay")

    def __init__(
        self, m: CollectionOrLayer, alpha=0.001, beta_1=0.9, beta_2=0.999, eps=1e-8, weight_decay=0.01,
        exclude: _Params = (), learning_rate: float | None = None
    ) -> None:
        super().__init__(m, alpha, beta_1, beta_2, eps, learning_rate)
        self.weight_decay = weight_decay
        excluded = stored_in(exclude, "AdamWTrainer: exclude")
        if excluded:
            self.group(excluded, weight_decay=0.0)

    @property
    def weight_decay(self) -> float:
        """Each update multiplies a value by 1 - learning_rate * weight_decay.

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
    def weight_decay(self, value: float):
        self._weight_decay = checked_decay(value)


@cython.embedsignature(False)
class AmsgradTrainer(AdamTrainer):
    """Adam with the maximum of all means of g² so far instead of the current one
    (Reddi, Kale and Kumar 2018).

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.001).
        beta_1, beta_2: decay of the means of g and of g² (defaults: 0.9 and 0.999).
        eps: keeps the divisor from zero (default: 1e-8).
        learning_rate: another name of alpha; if both are given, alpha is ignored (default: alpha).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.AmsgradTrainer(model, alpha=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_amsgrad
