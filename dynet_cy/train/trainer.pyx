"""What all trainers share: settings, groups, counts, and the public methods."""

import inspect
import sys
import warnings

from libc.stdint cimport uint64_t

from dynet_cy.core.dynet_rules cimport follows_dynet
from dynet_cy.graph.timeline cimport UPDATE, begin_span, end_span
from dynet_cy.kernels.pool cimport begin_arithmetic, end_arithmetic
from dynet_cy.memory.changes cimport keep_raised, raise_kept
from dynet_cy.memory.storage cimport Storage
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.ops.indices cimport whole
from dynet_cy.train.devices cimport poll_updates, wait_for_updates
from dynet_cy.train.groups cimport check_not_scheduled, checked_rate, number, stored_in
from dynet_cy.train.host cimport HostBackend
from dynet_cy.train.interfaces cimport Backend, Reducer
from dynet_cy.train.rules cimport n_states
from dynet_cy.train.state cimport catch_up_tables
from dynet_cy.train.update cimport make_update

from dynet_cy.equivalents import advice
from dynet_cy.model.collection import ParameterCollection
from dynet_cy.model.whole import as_collection
from dynet_cy.schedules import Pace
from dynet_cy.train.averages import MovingAverages
from dynet_cy.train.groups import ParameterGroup
from dynet_cy.train.rules import check_constants
from dynet_cy.train.state import Restorable


UPDATE_EPOCH = (
    "Trainer::update_epoch has been deprecated and doesn't do anything. Please remove it from your code, and control "
    "the learning rate of the trainer directly, for example by: 'trainer.learning_rate /= (1 - rate_decay)', see "
    "https://github.com/clab/dynet/pull/695 for details.\n"
)


# The first updates of a trainer are looked at: a program that trains nothing does so from the start.
cdef enum:
    LOOKED_AT = 10

cdef set said = set()


cdef int note_nothing(object trainer) except -1:
    """Warn once if an update changes nothing, as no parameter has a gradient.

    Other processes may have gradients, and a program with frozen parameters knows what it does.
    """
    cdef _Stored x
    cdef list stored = trainer._collection._below()
    if follows_dynet() or (<Reducer>trainer._reducer).collective:
        return 0
    for x in stored:
        if x.has_gradient() or not x.p.updated:
            return 0
    if not stored:
        reason = "the collection of the trainer has no parameters; `add_parameters` of that collection makes them"
    else:
        reason = ("no parameter has a gradient; `loss.backward()` comes before each update, and the loss has to depend "
                  "on parameters of the trainer's collection")
    if reason not in said:
        said.add(reason)
        warnings.warn(f"{type(trainer).__name__}.update: {reason}", RuntimeWarning, stacklevel=1)
    return 0


class _Settings:
    """Raises an error for arguments that other libraries' trainers have, unless a derived class has them too."""

    def __new__(cls, *args, **settings):
        for name in settings:
            said = advice("keyword", name)
            if said:
                own = inspect.signature(cls.__init__).parameters
                if name not in own and not any([p.kind is p.VAR_KEYWORD for p in own.values()]):
                    raise TypeError(f"{cls.__name__}: there is no argument {name}{said}")
        return super().__new__(cls)


class Trainer(_Settings, MovingAverages, Restorable):
    """Base class of all trainers.  Use one of the derived classes.

    Gradients are clipped by default: if their global L2 norm exceeds 5, they
    are scaled to have norm 5 (Pascanu, Mikolov and Bengio 2013).  In lookup
    tables, only the rows used since the last update are changed.

    A trainer keeps a reference to its collection, so the parameters live as long as it does.

    Args:
        m: the ParameterCollection to train, with its sub-collections; or a layer of `dy.nn`.
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
    _constants = {}             # for each constant of the rule (b1, b2, eps): the trainer's attribute that holds it
    _backend = HostBackend()
    _reducer = Reducer()
    # Attributes that pickles and checkpoints of earlier versions do not have.
    _groups = ()
    _weight_decay = 0.0
    _decay_due = 0.0
    _skipped = 0
    _norm = None
    _pace = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        check_constants(cls)

    def __init__(self, m, learning_rate):
        if self._rule is None:
            raise TypeError("Trainer is a base class: use one of its subclasses, such as AdamTrainer")
        m = as_collection(m)
        if not isinstance(m, ParameterCollection):
            raise TypeError(
                f"{type(self).__name__}: m must be a ParameterCollection or a layer, not {type(m).__name__}")
        self._collection = m
        self._states = []
        for _ in range(self._n_states):
            self._states.append(m.storage.new_plane())      # if one fails, those already made are freed
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
        if not sys.is_finalizing():
            try:
                (<Backend>self._backend).close()
            except RuntimeError as e:
                if type(e) is RuntimeError:             # not a failure of the device
                    warnings.warn(f"{type(self).__name__}: {e}", RuntimeWarning, stacklevel=1)
        states = getattr(self, "_states", ())
        if states:                                      # late rows still need them
            try:
                catch_up_tables(self._collection)
            except BaseException as error:              # from a signal handler that ran while an update was completed
                keep_raised(error)
                catch_up_tables(self._collection)
        for plane in states:
            self._collection._leave_late(plane)
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
    def learning_rate(self, value):
        check_not_scheduled(self._pace)
        self._learning_rate = checked_rate(value)

    @property
    def schedule(self):
        """What changes the learning rate from update to update: a `Schedule`, or None (the default).

        A schedule begins when it is set.  For each update, it gives a factor by which the learning rates of the
        trainer and its groups are multiplied.  They cannot be set while there is a schedule.  Setting None restores
        their values from before.  Updates that `skip_nonfinite` drops do not count.  Checkpoints include the
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
    def schedule(self, value):
        wait_for_updates(self)
        self._follow(None if value is None else Pace(value, self._steps))

    def _follow(self, pace):
        """Let a schedule, or None, scale the learning rates of the trainer and all its groups."""
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

    def group(self, params, learning_rate=None, weight_decay=None, clip_threshold=None):
        """Give some parameters a learning rate, weight decay or clipping of their own.

        A setting that is None follows the trainer's, also when that changes later.  The state of the rule and
        the number of updates do not depend on groups, so a group may be made at any time.

        Args:
            params: a parameter or table, a ParameterCollection or layer (all parameters that it has now), or a list of
                these.
            learning_rate: step size of these parameters.  A `schedule` of the trainer scales it; changes that the
                trainer makes itself, such as the cycle of `CyclicalSGDTrainer`, do not affect it.
            weight_decay: each update takes the share learning_rate * weight_decay off the values, before
                the step (decoupled weight decay: Loshchilov and Hutter 2019).  For these parameters
                it replaces that of `AdamWTrainer` and of `ParameterCollection.set_weight_decay`,
                so 0 means no decay.
            clip_threshold: the gradients of these parameters are scaled down if their norm is larger than this;
                0: never.  They do not count in the norm by which the other parameters are clipped.

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
        """The groups made by `group`, in the order in which they were made: a tuple.

        Example:
            >>> w = model.add_parameters(2, init=1.0)
            >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
            >>> group = trainer.group([w], learning_rate=0.01)
            >>> [group.names for group in trainer.groups]
            [('/_0',)]
        """
        return tuple(self._groups)

    @property
    def updates(self):
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
    def gradient_norm(self):
        """The norm of all gradients in the last update, before they were clipped.

        It is infinite or NaN if the update was dropped, and None before the first update
        and after an update that did not need it: one without clipping and `skip_nonfinite`.  With a
        threshold of ``math.inf`` it is computed, but nothing is clipped.  On a GPU this waits for the device.

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
    def skipped_updates(self):
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
            RuntimeError: a gradient is infinite or NaN, clipping is on, and `skip_nonfinite` is False.
                Nothing is changed then, not even the gradients: see
                `zero_gradients`.  On a GPU, neither this update nor later ones change
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

    def update_subset(self, updated_params, updated_lookups, skip_nonfinite=False):
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
                wanted.add(of[k].name())
        self._compute_update(wanted, skip_nonfinite)

    def _compute_update(self, names, skip_nonfinite):
        """Update the parameters with these names, or all if None, with the engine's floating-point settings."""
        cdef uint64_t span = begin_span()
        begin_arithmetic()
        try:
            self._check_ready()
            if self._steps < LOOKED_AT:
                note_nothing(self)
            make_update(self, names, skip_nonfinite)
        except BaseException as error:
            (<Reducer>self._reducer).end(error)
            raise
        finally:
            end_arithmetic()
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

    def _measures(self, skips):
        """Whether an update needs the norm of gradients."""
        return bool(skips) or self._clip_threshold > 0 or any((group.clip_threshold or 0) > 0 for group in self._groups)

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

    def _take_back(self, n):
        """`_uncount`, also in the moving average: the device has not made these updates."""
        self._uncount(n)
        if self._average is not None:
            self._average["updates"] -= n
            self._average["values"] = self._average["updates"] // self._average["frequency"]

    def _rate(self, own, back):
        """The learning rate of this update if the device has dropped `back` of the updates before it.

        Args:
            own: the learning rate of a group, or None.
            back: the number of dropped updates.
        """
        rate = self._learning_rate if own is None else own
        return rate if self._pace is None else self._pace.scaled(rate, back)

    def _correction(self, steps):
        """The factor of the learning rate in the update with that number, such as Adam's bias correction."""
        return 1.0

    @property
    def _n_states(self):
        """How many planes of state the rule has."""
        return n_states(self._rule)

    def update_epoch(self, r):
        """Only write to stderr that this does nothing; it exists for old programs.  Set `learning_rate` instead.

        Example:
            >>> import contextlib, sys
            >>> with contextlib.redirect_stderr(sys.stdout):
            ...     dy.SimpleSGDTrainer(model).update_epoch(1)
            Trainer::update_epoch ...
        """
        sys.stderr.write(UPDATE_EPOCH)

    def restart(self, learning_rate=None):
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

    def whoami(self):
        """Name of the class.

        Example:
            >>> dy.AdamTrainer(model).whoami()
            'AdamTrainer'
        """
        return type(self).__name__
