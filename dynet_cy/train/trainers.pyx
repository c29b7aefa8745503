"""Trainers: rules that change parameters by their gradients.

The rule of each is one row in `include/dynet_cy/optim.def`; here is what they
share: clipping, sparse updates of lookup tables, and the state of the rules,
which lies in planes of the parameters' storage.
"""

import sys
import warnings
import weakref

from libc.math cimport isfinite, sqrt
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from dynet_cy.core.tensor cimport size_of
from dynet_cy.kernels.kernels cimport (
    DY_OPTIM_adadelta, DY_OPTIM_adagrad, DY_OPTIM_adam, DY_OPTIM_amsgrad,
    DY_OPTIM_momentum, DY_OPTIM_rmsprop, DY_OPTIM_sgd, K, dy_optim,
)
from dynet_cy.kernels.pool cimport enter_pool, leave_pool
from dynet_cy.memory.mirror cimport after_waits
from dynet_cy.memory.storage cimport (
    Param, Plane, Storage, forget_gradient, pthread_mutex_t, touch, value_changed,
)
from dynet_cy.model.parameters cimport _Stored, settle

from dynet_cy.model.parameters import LEAST_DECAY, ParameterCollection


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


cdef void step(Param* p, int rule, const dy_optim* shared, float** states, bint sparse,
               double decay) noexcept nogil:
    """Apply the rule to one parameter, or to the rows of a table; then its gradient is zero."""
    cdef dy_optim h = shared[0]
    cdef size_t n = size_of(&p.dim), at
    cdef uint32_t i
    h.step_scale = <float>(1 / p.factor)
    if p.rows and sparse:
        for i in range(p.n_touched):
            step_part(p, rule, &h, states, p.touched[i] * n, n)
    else:
        at = 0
        while at < p.size:
            n = min(PART, p.size - at)
            step_part(p, rule, &h, states, at, n)
            if decay != 0 and p.in_place:
                K.axpy(n, <float>-decay, p.value + at, p.value + at)
            at += n
    forget_gradient(p)


cdef void step_part(Param* p, int rule, const dy_optim* h, float** states, size_t at,
                    size_t n) noexcept nogil:
    """Apply the rule to n numbers of a parameter, from `at` on."""
    cdef float* s[MOST_STATES]
    cdef int k
    for k in range(MOST_STATES):
        s[k] = states[k] + p.offset + at if states[k] != NULL else NULL
    K.optim[rule](n, h, p.grad + at, p.value + at, s[0], s[1], s[2])
    if p.has_gradient:
        memset(p.grad + at, 0, n * sizeof(float))


cdef void take_off(Param* p, double decay, bint passed) noexcept nogil:
    """Take that share off the value, unless `step` has done so in a pass over all of it."""
    if not p.in_place:
        p.factor *= 1 - decay
        if p.factor < LEAST_FACTOR:
            settle(p)
    elif not passed:
        K.axpy(p.size, <float>-decay, p.value, p.value)


cdef class Stepper:
    """How a trainer makes its updates: alone, here; those of several processes together are derived from it."""

    def __cinit__(self, *args):
        self.least_decay = LEAST_DECAY
        self.alone = True

    cdef int meet(self, object trainer, list stored, Update* u) except -1:
        """Begin an update: learn what the others have.  May change settings of the trainer and what moves."""
        u.scale = 1
        return 0

    cdef int clip(self, object trainer, list stored, Update* u) except -1:
        """See that gradients are scaled to the threshold if their norm is larger.  Called if there is clipping."""
        cdef double norm = u.scale * sqrt(self.squares(u))
        if not isfinite(norm):
            raise bad_gradients(norm, self.not_finite(stored, u), 1)
        if norm > u.threshold:
            u.h.grad_scale = <float>(u.scale * (u.threshold / norm))
            trainer._clips += 1
        return 0

    cdef double squares(self, Update* u) except? -1:
        """The sum of the squares of all gradients, without the scale."""
        cdef double total = 0
        cdef Py_ssize_t i
        with nogil:
            enter_pool()
            for i in range(u.n):
                lock_gradient(u.entries[i])
                total += squared_norm(u.entries[i])
                unlock_gradient(u.entries[i])
            leave_pool()
        return total

    cdef list not_finite(self, list stored, Update* u):
        """Names of the parameters whose gradients are not finite."""
        return [(<_Stored>x).full_name for x in stored if not isfinite(squared_norm((<_Stored>x).p))]

    cdef object count(self, object steps):
        """The number of this update, after those so far."""
        return steps + 1

    cdef int apply(self, Storage storage, Update* u) except -1:
        """Change the parameters, and set the gradients of those that move to zero."""
        cdef Py_ssize_t i
        with nogil:
            enter_pool()
            for i in range(u.n):
                lock_gradient(u.entries[i])
                if u.moves[i]:
                    step(u.entries[i], u.rule, &u.h, u.states, u.sparse, u.decay)
                if u.decay != 0:
                    take_off(u.entries[i], u.decay, u.moves[i] and not (u.entries[i].rows and u.sparse))
                unlock_gradient(u.entries[i])
            storage.changes += 1
            leave_pool()
        return 0

    cdef int blend(self, list stored, float a, float b, Plane source, Plane target) except -1:
        """Let the numbers of parameters in a plane become a target + b source; where a is 0, it is not read."""
        cdef _Stored x
        cdef float* into
        for x in stored:
            settle(x.p)
            into = target.base() + x.p.offset
            if a == 0:
                K.scale(x.p.size, b, source.base() + x.p.offset, into)
            else:
                K.scale(x.p.size, a, into, into)
                K.axpy(x.p.size, b, source.base() + x.p.offset, into)
        return 0

    cdef int learn(self, object trainer) except -1:
        """Let the trainer know of all updates that it has asked for: their clips, and whether they were made."""
        return 0


cdef object bad_gradients(double norm, list names, updates):
    """The error of gradients that are not finite, because of which so many updates were not made."""
    left = "Nothing was updated" if updates == 1 else f"This update and {updates - 1} after it were not made"
    return RuntimeError(
        f"Magnitude of gradient is bad: {norm}; the gradients of {', '.join(names)} are not finite.  {left}")


cdef class DeviceStepper(Stepper):
    """Updates of one trainer whose parameters live on a device.

    The device clips by itself, so that nobody waits.  What it has found is
    learned later: clips when they are asked for, and gradients that are not
    finite at the first of these: the next update, and whatever waits for the
    device, such as reading a value.
    """

    cdef object __weakref__
    cdef bint waits                 # for what the device has found in updates since it was asked
    cdef list stored
    cdef list planes
    cdef object device              # the module of its updates, loaded where there is a device only
    cdef object clipping            # what the device knows of clipping, from the first update with it on
    cdef object trainer             # weak reference

    def __cinit__(self, trainer):
        from dynet_cy.gpu import update
        self.device = update
        self.trainer = weakref.ref(trainer)

    cdef int meet(self, object trainer, list stored, Update* u) except -1:
        u.scale = 1
        self.stored = stored
        self.planes = trainer._states[:trainer._n_states]
        if self.waits:
            if trainer._clip_threshold <= 0:        # nobody would leave this update out
                self.learn(trainer)
            self.told()
        return 0

    cdef int clip(self, object trainer, list stored, Update* u) except -1:
        if self.clipping is None:
            number = (<Storage>trainer.collection.storage).device - 1
            self.clipping = self.device.Clipping(number)
            after_waits(number, self)
            device_steppers.add(self)
        self.waits = True
        return 0

    cdef int apply(self, Storage storage, Update* u) except -1:
        moves = [bool(u.moves[i]) for i in range(u.n)]
        self.device.update(self.stored, moves, u.rule, u.h, self.planes, u.sparse, u.decay,
                           self.clipping if u.threshold > 0 else None, u.scale, u.threshold)
        return 0

    cdef int blend(self, list stored, float a, float b, Plane source, Plane target) except -1:
        self.device.blend(stored, a, b, source, target, self.clipping)
        return 0

    cdef int learn(self, object trainer) except -1:
        if self.waits:
            self.waits = False
            self.clipping.wait()
            self.tell(trainer)
            trainer._clips += self.clipping.clips()
        return 0

    cdef int learn_for(self, Storage storage, str name) except -1:
        """`learn`, if the trainer has parameters of a storage, and of the collection of that name or around it."""
        trainer = self.trainer()
        if self.waits and trainer is not None and trainer._collection.storage is storage:
            own = trainer._collection.name()
            if own.startswith(name) or name.startswith(own):
                self.learn(trainer)
        return 0

    def told(self):
        """See whether updates that are done were left out.

        Raises:
            RuntimeError: they were.  Then gradients are what they are on the
                device, and the trainer's counts are those of the updates that were made.
        """
        if not telling:                         # what interrupts another one's report is told at the next wait
            self.tell(self.trainer())

    cdef int tell(self, object trainer) except -1:
        global telling
        if not self.clipping.skipped or trainer is None:
            return 0
        telling += 1
        try:
            self.report(trainer)
        finally:
            telling -= 1
        return 0

    cdef int report(self, object trainer) except -1:
        """Let trainer and gradients be as if the updates that were left out had not been asked for, and raise."""
        cdef _Stored x
        self.clipping.wait()
        left_out, norm = self.clipping.skipped, self.clipping.norm
        trainer._clips += self.clipping.clips()
        self.clipping.forget()
        trainer._take_back(left_out)
        names = []
        for x in trainer.collection._below():
            note_what_is_there(x)
            if not isfinite(squared_norm(x.p)):
                names.append(x.full_name)
        raise bad_gradients(norm, names, left_out)


# Those that clip: what one of them has left out, another one on the same parameters must not make.
cdef object device_steppers = weakref.WeakSet()
cdef int telling = 0                    # how many of them are looking at gradients, which waits for the device


cdef int learn_of_others(object trainer, Stepper stepper) except -1:
    """Let other trainers of the same parameters learn what their last updates have found.

    Gradients that are not finite are still there, without a note.
    """
    if device_steppers:
        for other in list(device_steppers):
            if other is not stepper:
                (<DeviceStepper>other).learn_for(trainer._collection.storage, trainer._collection.name())
    return 0


cdef int note_what_is_there(_Stored x) except -1:
    """Let a parameter on a device have the gradient that is there, of which it has no note."""
    cdef size_t i, n = size_of(&x.p.dim)
    x.storage.grads.pull(x.p.offset, x.p.size)
    for i in range(x.p.size):
        if x.p.grad[i] != 0:
            x.p.has_gradient = 1
            if x.p.rows:
                touch(x.p, i // n)
    return 0


cdef class SeveralStepper(Stepper):
    """Updates of one trainer whose parameters live on several devices: those on each by themselves.

    The norm of all gradients is known here only, so there is a wait for each GPU
    where gradients are clipped.
    """

    cdef object device              # the module of updates on GPUs
    cdef list parts                 # for each device its storage and its parameters
    cdef list planes                # the state of the rule

    def __cinit__(self):
        from dynet_cy.gpu import update
        self.device = update

    cdef list split(self, list stored):
        """For each device its storage, and those of the parameters that it has."""
        cdef _Stored x
        parts = {}
        for x in stored:
            parts.setdefault(x.p.device, (x.storage, []))[1].append(x)
        return list(parts.values())

    cdef int meet(self, object trainer, list stored, Update* u) except -1:
        self.parts = self.split(stored)
        self.planes = trainer._states[:trainer._n_states]
        return Stepper.meet(self, trainer, stored, u)

    cdef int own(self, Storage storage, const Update* u, Update* own) except -1:
        """What there is to do on the device of a storage; `entries` and `moves` are to be freed."""
        cdef Py_ssize_t i
        cdef Plane plane
        own[0] = u[0]
        own.n = 0
        own.entries = <Param**>malloc((u.n + 1) * sizeof(Param*))
        own.moves = <uint8_t*>malloc(u.n + 1)
        if own.entries == NULL or own.moves == NULL:
            free(own.entries)
            free(own.moves)
            raise MemoryError("the list of parameters to update")
        for i in range(u.n):
            if u.entries[i].device == storage.device:
                own.entries[own.n] = u.entries[i]
                own.moves[own.n] = u.moves[i]
                own.n += 1
        for i, plane in enumerate(self.planes):
            own.states[i] = plane.on(storage.device).base()
        return 0

    cdef double squares(self, Update* u) except? -1:
        cdef double total = 0
        cdef Update own
        for storage, stored in self.parts:
            if (<Storage>storage).device:
                total += self.device.squared_norm(stored)
                continue
            self.own(storage, u, &own)
            try:
                total += Stepper.squares(self, &own)
            finally:
                free(own.entries)
                free(own.moves)
        return total

    cdef list not_finite(self, list stored, Update* u):
        cdef _Stored x
        return [x.full_name for x in stored
                if not isfinite(self.device.squared_norm([x]) if x.p.device else squared_norm(x.p))]

    cdef int apply(self, Storage _, Update* u) except -1:
        cdef Update own
        for storage, stored in self.parts:
            self.own(storage, u, &own)
            try:
                if (<Storage>storage).device:
                    planes = [(<Plane>plane).on((<Storage>storage).device) for plane in self.planes]
                    moves = [bool(own.moves[i]) for i in range(own.n)]
                    self.device.update(stored, moves, own.rule, own.h, planes, own.sparse, own.decay)
                else:
                    Stepper.apply(self, storage, &own)
            finally:
                free(own.entries)
                free(own.moves)
        return 0

    cdef int blend(self, list stored, float a, float b, Plane source, Plane target) except -1:
        cdef int device
        for storage, own in self.split(stored):
            device = (<Storage>storage).device
            if device:
                self.device.blend(own, a, b, source.on(device), target.on(device))
            else:
                Stepper.blend(self, own, a, b, source.on(device), target.on(device))
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
        stepper.learn(trainer)
        trainer._stepper = SeveralStepper()
    elif storage.device and type(stepper) is Stepper:
        trainer._stepper = DeviceStepper(trainer)
    return trainer._stepper


cdef double number(object value, str name) except? -1:
    """A hyper-parameter; text is none, even if it reads like a number."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a number, not {value!r}")
    return float(value)


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
    """

    _rule = None
    _n_states = 0
    _stepper = Stepper()

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
        self._clips = self._updates = 0
        self._average = None
        self._swapped = ""
        self.learning_rate = learning_rate

    def __del__(self):
        stepper = self._stepper
        if type(stepper) is DeviceStepper and not sys.is_finalizing():
            try:
                (<DeviceStepper>stepper).learn(self)
            except RuntimeError as e:
                if type(e) is RuntimeError:             # and not that the device has failed
                    warnings.warn(f"{type(self).__name__}: {e}", RuntimeWarning, stacklevel=1)
        for plane in getattr(self, "_states", ()):
            self._collection.storage.drop_plane(plane)

    @property
    def collection(self):
        """The collection that it trains."""
        return self._collection

    @property
    def learning_rate(self):
        """Step size of the next update."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value):
        self._learning_rate = number(value, "learning_rate")

    def set_learning_rate(self, value):
        """Set the step size; the same as ``trainer.learning_rate = value``."""
        self.learning_rate = value

    def set_clip_threshold(self, thr):
        """Set the global norm beyond which gradients are scaled down; 0 or less: never."""
        self._clip_threshold = max(number(thr, "thr"), 0.0)

    def get_clip_threshold(self):
        """The global norm beyond which gradients are scaled down; 0: never."""
        return self._clip_threshold

    def set_sparse_updates(self, su):
        """Set whether only the used rows of lookup tables are changed (the default).

        With rules that keep moving without gradient (momentum, Adam), all rows
        are changed at every update when it is off.
        """
        self._sparse = bool(su)

    def update(self):
        """Change all parameters by their gradients, and set the gradients to zero.

        Parameters that are not to be updated (`set_updated`) keep value and gradient.

        Raises:
            RuntimeError: a gradient is infinite or not a number, and clipping is
                on.  Nothing is changed then.  On a GPU nothing is changed either, by
                this update and later ones; the error is raised by the next one, or by
                what waits for the device before, such as reading a value.
        """
        self._update(None)

    def update_subset(self, updated_params, updated_lookups):
        """`update` for some parameters; the others keep value and gradient.

        All gradients count for clipping, and weight decay is for all parameters,
        as with `set_updated`.

        Args:
            updated_params: numbers of parameters, as in `parameters_list()` of the collection.
            updated_lookups: numbers of tables, as in `lookup_parameters_list()`.

        Raises:
            IndexError: there is no such parameter or table.
            RuntimeError: see `update`.
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
        self._update(wanted)

    def _update(self, names):
        """Update the parameters of these names, all if None."""
        if self._swapped:
            raise RuntimeError(
                f"{type(self).__name__}: the parameters are set to their moving average; "
                "swap_params_to_weights comes before the next update")
        cdef list stored = self._collection._below()
        cdef Py_ssize_t i, n = len(stored)
        cdef Update u
        cdef Stepper stepper = stepper_of(self)
        learn_of_others(self, stepper)
        memset(&u, 0, sizeof(Update))
        u.n = n
        u.entries = <Param**>malloc((n + 1) * sizeof(Param*))
        u.moves = <uint8_t*>malloc(n + 1)
        try:
            if u.entries == NULL or u.moves == NULL:
                raise MemoryError("the list of parameters to update")
            for i in range(n):
                u.entries[i] = (<_Stored>stored[i]).p
                u.moves[i] = u.entries[i].updated and (names is None or (<_Stored>stored[i]).full_name in names)
            for i, plane in enumerate(self._states[:self._n_states]):
                u.states[i] = (<Plane>plane).base()
            u.rule = self._rule
            stepper.meet(self, stored, &u)
            u.threshold = self._clip_threshold
            u.sparse = self._sparse
            u.h.grad_scale = <float>u.scale
            if u.threshold > 0:
                stepper.clip(self, stored, &u)
            self._steps = stepper.count(self._steps)
            u.h.lr = self._learning_rate
            hyper = self._hyperparameters()
            u.h.lr *= hyper.get("correction", 1.0)
            u.h.b1 = hyper.get("b1", 0.0)
            u.h.b2 = hyper.get("b2", 0.0)
            u.h.eps = hyper.get("eps", 0.0)
            u.decay = self._collection._take_decay(stepper.least_decay)
            stepper.apply(self._collection.storage, &u)
            self._updates += 1
            if made_updates != NULL:
                made_updates[0] = self._steps
        finally:
            free(u.entries)
            free(u.moves)
        if self._average is not None:
            self._add_to_average()

    def _take_back(self, n):
        """Count the last n updates as not asked for: the device has left them out."""
        self._steps -= n
        self._updates -= n
        if self._average is not None:
            self._average["updates"] -= n
            self._average["values"] = self._average["updates"] // self._average["frequency"]

    def exponential_moving_average(self, beta, update_freq=1):
        """Keep an average of the parameters in which older values count less and less.

        Of values p_1, ..., p_n it is the mean with weights beta^(n-i): Polyak and
        Juditsky 1992 for averages of parameters, Kingma and Ba 2015 (section 7.2)
        for these weights.  An average kept so far is given up.

        Every value that is taken up costs a pass over all parameters and tables.

        Args:
            beta: from 0 to below 1; 0.999 looks back about a thousand values.
            update_freq: how many updates lie between values.

        Raises:
            ValueError: beta or update_freq is out of range.
            RuntimeError: the parameters are set to their moving average, or training is asynchronous.
        """
        beta = number(beta, "beta")
        if not 0 <= beta < 1:
            raise ValueError(f"exponential_moving_average: beta must be from 0 to below 1, not {beta}")
        self._start_average(beta, update_freq)

    def cumulative_moving_average(self, update_freq=1):
        """Keep the mean of the values that the parameters have after updates from now on.

        See `exponential_moving_average`.
        """
        self._start_average(None, update_freq)

    def swap_params_to_moving_average(self, save_weights=True, bias_correction=True):
        """Set the parameters to their moving average, to evaluate or save a model.

        `update` is an error until `swap_params_to_weights` is called.

        Args:
            save_weights: keep the values, for `swap_params_to_weights`.  When False
                they are lost, and with them further updates.
            bias_correction: of an exponential average.  When False its weights are
                not scaled to sum up to 1, as if there were zeros before the first value.

        Raises:
            RuntimeError: there is no average yet, or the parameters are set to it already.
        """
        cdef _Stored x
        cdef Plane average, kept
        cdef float factor = 1
        cdef Plane values = (<Storage>self._collection.storage).values
        cdef Stepper stepper = stepper_of(self)
        cdef list stored = self._collection._below()
        self._check_alone("swap_params_to_moving_average")
        stepper.learn(self)
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
            self._states.append(self._collection.storage.new_plane())
            kept = self._states[self._n_states + 1]
        if save_weights:
            stepper.blend(stored, 0, 1, values, kept)
        stepper.blend(stored, 0, factor, average, values)
        for x in stored:
            value_changed(x.p)
        self._swapped = "kept" if save_weights else "lost"

    def swap_params_to_weights(self):
        """Set the parameters to the values that they had before `swap_params_to_moving_average`.

        Raises:
            RuntimeError: they are not set to their average, or the values were not saved.
        """
        cdef _Stored x
        cdef list stored = self._collection._below()
        if not self._swapped:
            raise RuntimeError("swap_params_to_weights: the parameters are not set to their moving average")
        if self._swapped == "lost":
            raise RuntimeError("swap_params_to_weights: the weights were not saved: save_weights was False")
        stepper_of(self).blend(
            stored, 0, 1, self._states[self._n_states + 1], (<Storage>self._collection.storage).values)
        for x in stored:
            value_changed(x.p)
        self._collection.storage.drop_plane(self._states.pop())
        self._swapped = ""

    def _check_alone(self, what):
        if not (<Stepper>self._stepper).alone:
            raise RuntimeError(f"{what}: not in asynchronous training, where other processes use the parameters")

    def _start_average(self, beta, update_freq):
        self._check_alone("moving averages")
        stepper_of(self).learn(self)
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
        stepper_of(self).blend(
            stored, <float>old, <float>(1 - old), (<Storage>self._collection.storage).values,
            self._states[self._n_states])

    def _settings(self):
        """All but the collection, the state of the rule, and who makes the updates: plain data."""
        stepper_of(self).learn(self)
        settings = {k: v for k, v in self.__dict__.items() if k not in ("_collection", "_states", "_stepper")}
        if self._average is not None:
            settings["_average"] = dict(self._average)
        return settings

    def _n_planes(self, settings):
        """How many planes of state belong to these settings."""
        return (self._n_states + (settings["_average"] is not None)
                + (settings["_swapped"] == "kept"))

    def _restore(self, settings, arrays):
        """Put back what `_settings` and `_state_arrays` have returned."""
        n = self._n_planes(settings)
        planes = self.__dict__.get("_states", [])       # they may be memory that is shared with others
        for plane in planes[n:]:
            self._collection.storage.drop_plane(plane)
        planes = planes[:n] + [self._collection.storage.new_plane() for _ in range(n - len(planes))]
        self.__dict__.update(settings)
        self._states = planes
        for x, own in zip(self._collection._below(), arrays):
            for plane, array in zip(planes, own):
                (<_Stored>x).fill(array, (<Plane>plane).on((<_Stored>x).p.device))

    def _state_arrays(self):
        """The state of the rule: for each parameter and table of the collection, as many new arrays
        of its shape as the rule has."""
        return [[(<_Stored>x).array((<Plane>plane).on((<_Stored>x).p.device)) for plane in self._states]
                for x in self._collection._below()]

    def __getstate__(self):
        return self._collection, self._settings(), self._state_arrays()

    def __setstate__(self, state):
        self._collection, settings, arrays = state
        self._restore(settings, arrays)

    def _hyperparameters(self):
        """Constants of the rule for this update."""
        return {}

    def update_epoch(self, r):
        """Say on stderr that this does nothing; here for old programs.  Set `learning_rate` instead."""
        sys.stderr.write(UPDATE_EPOCH)

    def restart(self, learning_rate=None):
        """Set the state of the rule (momentum, moments) to zero.

        Args:
            learning_rate: the step size from now on; as before when None.
        """
        cdef Storage storage = self._collection.storage
        for plane in self._states[:self._n_states]:
            storage.zero(plane)
        if learning_rate is not None:
            self.learning_rate = learning_rate

    def status(self):
        """Write learning rate, clipped updates and updates since the last call to stderr."""
        stepper_of(self).learn(self)
        sys.stderr.write(f"[lr={self._learning_rate:g} clips={self._clips} updates={self._updates}] ")
        self._clips = self._updates = 0

    def whoami(self):
        """Name of the class."""
        return type(self).__name__


class SimpleSGDTrainer(Trainer):
    """Stochastic gradient descent: p -= learning_rate g.

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size.
    """

    _rule = DY_OPTIM_sgd

    def __init__(self, m, learning_rate=0.1):
        super().__init__(m, learning_rate)


class CyclicalSGDTrainer(Trainer):
    """Stochastic gradient descent with a learning rate that goes up and down
    (Smith 2017, Cyclical learning rates for training neural networks).

    Args:
        m: the ParameterCollection to train.
        learning_rate_min, learning_rate_max: bounds of the learning rate.
        step_size: updates from one bound to the other.
        gamma: factor per update on the height of the cycle.
    """

    _rule = DY_OPTIM_sgd

    def __init__(self, m, learning_rate_min=0.01, learning_rate_max=0.1, step_size=2000,
                 gamma=1.0):
        super().__init__(m, learning_rate_min)
        if not step_size > 0:
            raise ValueError(f"CyclicalSGDTrainer: step_size must be positive, not {step_size}")
        self._bounds = number(learning_rate_min, "learning_rate_min"), number(learning_rate_max, "learning_rate_max")
        self._step_size = number(step_size, "step_size")
        self._gamma = number(gamma, "gamma")
        self._iteration = 0

    def _update(self, names):
        super()._update(names)
        self._iteration += 1
        self._set_rate()

    def _take_back(self, n):
        super()._take_back(n)
        self._iteration -= n
        self._set_rate()

    def _set_rate(self):
        """Set the learning rate to what it is after so many updates."""
        low, high = self._bounds
        k = max(self._iteration - 1, 0)
        cycle = 1 + k // (2 * self._step_size)
        x = abs(k / self._step_size - 2 * cycle + 1)
        self._learning_rate = low + (high - low) * max(0.0, 1 - x) * self._gamma ** k


class MomentumSGDTrainer(Trainer):
    """Gradient descent with momentum: v = mom v - learning_rate g; p += v.

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size.
        mom: momentum.
    """

    _rule = DY_OPTIM_momentum
    _n_states = 1

    def __init__(self, m, learning_rate=0.01, mom=0.9):
        super().__init__(m, learning_rate)
        self._mom = number(mom, "mom")

    def _hyperparameters(self):
        return {"b1": self._mom}


class AdagradTrainer(Trainer):
    """Adagrad (Duchi, Hazan and Singer 2011): v += g²; p -= learning_rate g / sqrt(v + eps).

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size.
        eps: keeps the divisor from zero.
    """

    _rule = DY_OPTIM_adagrad
    _n_states = 1

    def __init__(self, m, learning_rate=0.1, eps=1e-20):
        super().__init__(m, learning_rate)
        self._eps = number(eps, "eps")

    def _hyperparameters(self):
        return {"eps": self._eps}


class AdadeltaTrainer(Trainer):
    """Adadelta (Zeiler 2012).  It has no use for a learning rate.

    Args:
        m: the ParameterCollection to train.
        eps: keeps divisors from zero.
        rho: decay of the means of squares.
    """

    _rule = DY_OPTIM_adadelta
    _n_states = 2

    def __init__(self, m, eps=1e-6, rho=0.95):
        super().__init__(m, 1.0)
        self._eps = number(eps, "eps")
        self._rho = number(rho, "rho")

    def _hyperparameters(self):
        return {"eps": self._eps, "b1": self._rho}


class RMSPropTrainer(Trainer):
    """RMSProp (Tieleman and Hinton 2012): v = rho v + (1 - rho) g²;
    p -= learning_rate g / sqrt(v + eps).

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size.
        eps: keeps the divisor from zero.
        rho: decay of the mean of squares.
    """

    _rule = DY_OPTIM_rmsprop
    _n_states = 1

    def __init__(self, m, learning_rate=0.001, eps=1e-8, rho=0.9):
        super().__init__(m, learning_rate)
        self._eps = number(eps, "eps")
        self._rho = number(rho, "rho")

    def _hyperparameters(self):
        return {"eps": self._eps, "b1": self._rho}


class AdamTrainer(Trainer):
    """Adam (Kingma and Ba 2015): with means m of g and v of g²,
    p -= alpha sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + eps).

    Rows of lookup tables that were not used keep their means too, unless
    sparse updates are off.

    Args:
        m: the ParameterCollection to train.
        alpha: step size.
        beta_1, beta_2: decay of the means of g and of g².
        eps: keeps the divisor from zero.
    """

    _rule = DY_OPTIM_adam
    _n_states = 2

    def __init__(self, m, alpha=0.001, beta_1=0.9, beta_2=0.999, eps=1e-8):
        super().__init__(m, alpha)
        self._beta_1 = number(beta_1, "beta_1")
        self._beta_2 = number(beta_2, "beta_2")
        self._eps = number(eps, "eps")

    def _hyperparameters(self):
        correction = sqrt(1 - self._beta_2 ** self._steps) / (1 - self._beta_1 ** self._steps)
        return {"b1": self._beta_1, "b2": self._beta_2, "eps": self._eps, "correction": correction}


class AmsgradTrainer(AdamTrainer):
    """Adam with the greatest mean of g² so far in place of the current one
    (Reddi, Kale and Kumar 2018).

    Args:
        m: the ParameterCollection to train.
        alpha: step size.
        beta_1, beta_2: decay of the means of g and of g².
        eps: keeps the divisor from zero.
    """

    _rule = DY_OPTIM_amsgrad
    _n_states = 3
