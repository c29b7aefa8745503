"""What all trainers share: settings, groups, counts, and the public methods."""

import sys
import warnings

from libc.stdint cimport uint64_t

from dynet_cy.graph.timeline cimport UPDATE, begin_span, end_span
from dynet_cy.kernels.pool cimport begin_arithmetic, end_arithmetic
from dynet_cy.memory.changes cimport keep_raised, raise_kept
from dynet_cy.memory.storage cimport Storage
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.train.backends cimport poll_updates, wait_for_updates
from dynet_cy.train.groups cimport check_not_scheduled, number, stored_in
from dynet_cy.train.host cimport HostBackend
from dynet_cy.train.interfaces cimport Backend, Reducer
from dynet_cy.train.rules cimport n_states
from dynet_cy.train.state cimport catch_up_tables
from dynet_cy.train.update cimport make_update

from dynet_cy.model.collection import ParameterCollection
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


class Trainer(MovingAverages, Restorable):
    """Base class of all trainers.  Use one of the derived classes.

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
    _backend = HostBackend()
    _reducer = Reducer()
    # What is not in a pickle or checkpoint of an earlier version.
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
        if not sys.is_finalizing():
            try:
                (<Backend>self._backend).close()
            except RuntimeError as e:
                if type(e) is RuntimeError:             # and not that the device has failed
                    warnings.warn(f"{type(self).__name__}: {e}", RuntimeWarning, stacklevel=1)
        states = getattr(self, "_states", ())
        if states:                                      # rows that are late need them
            try:
                catch_up_tables(self._collection)
            except BaseException as error:              # of a handler that ran in an update that was being finished
                keep_raised(error)
                catch_up_tables(self._collection)
        for plane in states:
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
        poll_updates(self)
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
        wait_for_updates(self)
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

        When it is off, all rows are changed at every update by rules that keep moving without a
        gradient (momentum, Adam), as PyTorch does by default.  In large tables rows without a gradient have
        such updates when they are next needed, all at once, so it costs little more than
        sparse updates; the numbers are the same up to rounding.  docs/memory.md says where whole tables are
        gone over instead.

        Args:
            su: True: only rows with a gradient change; False: all rows do.

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
        wait_for_updates(self)
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
        """Update the parameters of these names, all if None, with the arithmetic of the engine."""
        cdef uint64_t span = begin_span()
        begin_arithmetic()
        try:
            self._check_ready()
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
        """Raise what must not come in the middle of an update."""
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

    @property
    def _n_states(self):
        """How many planes of state the rule has."""
        return n_states(self._rule)

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
        catch_up_tables(self._collection)
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
