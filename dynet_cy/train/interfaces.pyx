"""Interfaces of trainers, backends and reducers; groups of parameters."""

cimport cython
from libc.math cimport isfinite

from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.kernels.lazy_rows cimport open_lazy
from dynet_cy.memory.storage cimport see_whole
from dynet_cy.model.parameters cimport _Stored
from dynet_cy.train.plan cimport MOVES

from dynet_cy.model.collection import ParameterCollection
from dynet_cy.model.weight_decay import LEAST_DECAY
from dynet_cy.model.whole import as_collection


# ==== interfaces ==================================================================================
#
# The base classes of backends, and the reducer of a process that trains alone.

cdef class Backend:
    cdef int begin_update(self, list stored, list planes, bint measures, Outcome* found) except -1:
        return 0

    cdef int measure(self, Update* u) except -1:
        raise NotImplementedError

    cdef list not_finite(self, list stored, const Update* u):
        return [(<_Stored>stored[i]).full_name for i in range(u.n) if not isfinite(u.squares[i])]

    cdef int sum_gradients(self, Reducer ranks, const uint8_t* any, Update* u) except -1:
        raise NotImplementedError

    cdef int prepare(self, Update* u) except -1:
        cdef Py_ssize_t i
        for i in range(u.n if u.lazy else 0):
            if u.roles[i] == MOVES:
                open_lazy(u.entries[i])
        return 0

    cdef Py_ssize_t undecided(self, const Update* u) except -1:
        return 0

    cdef int apply(self, Storage storage, Plan plan, list rates) except -1:
        raise NotImplementedError

    cdef bint was_made(self, const Update* u) except -1:
        return True

    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1:
        raise NotImplementedError

    cdef int poll(self, Outcome* found) except -1:
        return 0

    cdef int wait(self, Outcome* found) except -1:
        return 0

    cdef int close(self) except -1:
        return 0


cdef class Reducer:
    def __cinit__(self, *args):
        self.least_decay = LEAST_DECAY
        self.alone = True

    cdef object agree(self, trainer, list stored, Update* u, TrainerSettings* settings, list groups):
        return None

    cdef int reduce(self, Backend backend, Update* u) except -1:
        return backend.measure(u) if u.measures else 0

    cdef object count(self, object steps):
        return steps + 1

    cdef int apply(self, Backend backend, Storage storage, Plan plan, list rates) except -1:
        return backend.apply(storage, plan, rates)

    cdef int end(self, object error) except -1:
        return 0

    cdef int settle(self, collection) except -1:
        see_whole()
        collection._catch_up()
        return 0

    cdef int sum_floats(self, object floats) except -1:
        return 0

    cdef tuple sum_rows(self, const Param* p, object rows, object values):
        return rows, values


@cython.auto_pickle(False)
cdef class TrainerFields:
    def __cinit__(self, *args, **options):
        rule = type(self)._rule
        self.rule = -1 if rule is None else rule
        self._states = []
        self._groups = ()
        self._reducer = Reducer()


# ==== groups ======================================================================================
#
# Groups of parameters with settings of their own, and checks of the settings that users pass.

cdef double number(object value, str name) except? -1:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a number, not {value!r}")
    return float(value)


cdef double checked_rate(object value, str name="learning_rate") except? -1:
    cdef double rate = number(value, name)
    if not (isfinite(rate) and rate >= 0) and not follows_dynet():
        raise ValueError(f"{name} must be a finite number of at least 0, not {value!r}")
    return rate


cdef int check_not_scheduled(object pace) except -1:
    if pace is not None:
        raise RuntimeError(
            f"learning_rate is set by {pace.schedule!r}; set the trainer's schedule to None first, or to another one")
    return 0


cdef list stored_in(object params, str op):
    if isinstance(params, _Stored):
        return [params]
    params = as_collection(params)
    if isinstance(params, ParameterCollection):
        return params._below()
    if isinstance(params, (str, bytes)) or not hasattr(params, "__iter__"):
        raise TypeError(
            f"{op}: parameters, a ParameterCollection or a list of these is needed, not {type(params).__name__}")
    return [x for several in params for x in stored_in(several, op)]


@cython.embedsignature(False)
class ParameterGroup:
    """Parameters of a trainer that have settings of their own.  Made by `Trainer.group`.

    Each setting may be changed between updates; None means the trainer's own setting.

    Attributes:
        names: full names of the parameters and tables, from the trainer's collection.
        learning_rate, weight_decay, clip_threshold: see `Trainer.group`.
    """

    _SETTINGS = ("learning_rate", "weight_decay", "clip_threshold")
    # No other attribute can be set, so that a misspelt name is an error.
    __slots__ = ("_collection", "_stored", "_learning_rate", "_weight_decay", "_clip_threshold", "_decay_due", "_pace")

    def __init__(
        self, collection: ParameterCollection, stored: Iterable[_AnyParameters],
        learning_rate: float | None = None, weight_decay: float | None = None, clip_threshold: float | None = None
    ) -> None:
        self._collection = collection           # of the trainer
        self._stored = list(stored)             # the group follows its parameters, whose names may change
        self._pace = None                       # of the trainer's schedule, if it has one
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.clip_threshold = clip_threshold
        self._decay_due = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of the parameters and tables, from the trainer's collection: a tuple."""
        names = {(<_Stored>x).p.id: name for name, x in self._collection._full_names().items()}
        return tuple([names[(<_Stored>x).p.id] for x in self._stored if (<_Stored>x).p.id in names])

    @property
    def learning_rate(self) -> float | None:
        """Step size of the next update."""
        return self._learning_rate if None in (self._learning_rate, self._pace) else self._pace.scaled(
            self._learning_rate)

    @learning_rate.setter
    def learning_rate(self, value: float | None):
        check_not_scheduled(self._pace)
        self._learning_rate = None if value is None else checked_rate(value)

    @property
    def weight_decay(self) -> float | None:
        """An update takes the share learning_rate * weight_decay off the values."""
        return self._weight_decay

    @weight_decay.setter
    def weight_decay(self, value: float | None):
        self._weight_decay = None if value is None else checked_decay(value)

    @property
    def clip_threshold(self) -> float | None:
        """Norm of the gradients of the group beyond which they are scaled down; 0: never."""
        return self._clip_threshold

    @clip_threshold.setter
    def clip_threshold(self, value: float | None):
        self._clip_threshold = None if value is None else max(number(value, "clip_threshold"), 0.0)

    def _state(self) -> dict[str, Any]:
        """Plain data."""
        settings = {k: getattr(self, "_" + k) for k in self._SETTINGS}
        return {"names": list(self.names), **settings, "decay_due": self._decay_due}

    def _restore(self, state):
        """Restore what `_state` returned for a group of the same parameters."""
        self._pace = None
        for k in self._SETTINGS:
            setattr(self, k, state[k])
        self._decay_due = state["decay_due"]

    def __repr__(self):
        settings = ", ".join(f"{k}={getattr(self, k)}" for k in self._SETTINGS if getattr(self, k) is not None)
        return f"<ParameterGroup of {', '.join(self.names)}: {settings or 'as the trainer'}>"


cdef list restored_groups(object collection, object own, object states):
    if [list(group.names) for group in own] != [list(state["names"]) for state in states]:
        there = collection._full_names()
        own = [ParameterGroup(collection, [there[name] for name in state["names"] if name in there])
               for state in states]
    for group, state in zip(own, states):
        group._restore(state)
    return list(own)


cdef double checked_decay(object value) except? -1:
    cdef double decay = number(value, "weight_decay")
    if not (isfinite(decay) and decay >= 0):
        raise ValueError(f"weight_decay must be a number of at least 0, not {value!r}")
    return decay
