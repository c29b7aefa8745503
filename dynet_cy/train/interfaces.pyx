"""Plans of updates, the rules of trainers; interfaces of trainers, backends and reducers; groups of parameters."""

import re

cimport cython
from libc.math cimport isfinite
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.kernels.lazy_rows cimport can_defer, may_defer_rows, open_lazy
from dynet_cy.memory.storage cimport Param, Plane, see_whole
from dynet_cy.model.parameters cimport _Stored

from dynet_cy.kernels.kernels import optim_states
from dynet_cy.model.collection import ParameterCollection
from dynet_cy.model.weight_decay import LEAST_DECAY
from dynet_cy.model.whole import as_collection


# ==== rules =======================================================================================
#
# Facts about each rule from its row in optim.def: how many planes of state it has, and which constants it reads.

cdef extern from *:
    """
    static const char *const dy_texts_of_rules[] = {
    #define OPTIM(name, states, rule, ...) #rule,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    """
    const char* const texts_of_rules "dy_texts_of_rules"[]


CONSTANTS: tuple[str, ...] = ("b1", "b2", "eps")
_rules = list(optim_states().items())           # by number: the name, and the number of planes


cdef int n_states(int rule) noexcept:
    return _rules[rule][1]


def check_constants(cls: type) -> list[tuple[int, str]]:
    """Check that a trainer class has a value for each constant that its rule reads, and for no other.

    Returns:
        Of each that it has, the place in `CONSTANTS` and the attribute that holds it.

    Raises:
        TypeError: a constant is missing or unknown.
    """
    given = cls._constants
    unknown = sorted(given.keys() - set(CONSTANTS))
    if unknown:
        raise TypeError(f"{cls.__name__}: rules have no constant {unknown[0]!r}, only b1, b2 and eps")
    places = [(k, given[constant]) for k, constant in enumerate(CONSTANTS) if constant in given]
    if cls._rule is None:
        return places
    name = _rules[cls._rule][0]
    read = set(re.findall(r"\w+", texts_of_rules[<int>cls._rule].decode())) & set(CONSTANTS)
    for constant in CONSTANTS:
        if (constant in read) != (constant in given):
            reads = "reads" if constant in read else "does not read"
            has = "gives it no value" if constant in read else "gives it one"
            raise TypeError(f"{cls.__name__}: the rule {name} {reads} the constant {constant!r}, and _constants {has}")
    return places


# ==== plan ========================================================================================
#
# Plans of updates.

cdef class Plan:
    """An update of parameters and tables, given with the planes of the rule's state."""

    def __cinit__(self, list stored: list[Parameters], list planes: list[Plane]) -> None:
        cdef Py_ssize_t i, n = len(stored)
        self.stored, self.planes = stored, planes
        self.u.n = n
        self.u.scale = 1
        self.u.entries = <Param**>calloc(n + 1, sizeof(Param*))
        self.u.roles = <uint8_t*>calloc(n + 1, sizeof(uint8_t))
        self.u.group = <uint32_t*>calloc(n + 1, sizeof(uint32_t))
        self.u.squares = <double*>calloc(n + 1, sizeof(double))
        if self.u.entries == NULL or self.u.roles == NULL or self.u.group == NULL or self.u.squares == NULL:
            raise MemoryError("the list of parameters to update")
        for i in range(n):
            self.u.entries[i] = (<_Stored>stored[i]).p
        for i in range(min(len(planes), MOST_STATES)):          # those that rules of optim.def may have
            self.u.states[i] = (<Plane>planes[i]).memory()

    def __dealloc__(self):
        free(self.u.entries)
        free(self.u.roles)
        free(self.u.group)
        free(self.u.squares)
        free(self.u.settings)

    cdef int set_groups(self, uint32_t n) except -1:
        free(self.u.settings)
        self.u.n_groups = n
        self.u.settings = <GroupSettings*>calloc(n, sizeof(GroupSettings))
        if self.u.settings == NULL:
            raise MemoryError("the settings of groups")
        return 0

    cdef Plan on(self, int device, list planes):
        cdef Plan own = Plan(self.stored, planes)
        cdef Update u = own.u
        cdef Py_ssize_t i
        own.u = self.u
        own.u.entries, own.u.roles, own.u.group, own.u.squares = u.entries, u.roles, u.group, u.squares
        own.u.settings = NULL
        own.u.states = u.states
        own.set_groups(self.u.n_groups)
        memcpy(own.u.settings, self.u.settings, self.u.n_groups * sizeof(GroupSettings))
        memcpy(own.u.group, self.u.group, self.u.n * sizeof(uint32_t))
        for i in range(self.u.n):
            own.u.roles[i] = self.u.roles[i] if self.u.entries[i].device == device else <uint8_t>FROZEN
        return own

    def set(self, list roles: list[int], list group: list[int], list settings: list[dict[str, Any]], bint skips):
        """Set the role and the number of the group of each entry, and the settings of groups, as dicts: for tests."""
        self.set_groups(len(settings))
        for k, one in enumerate(settings):
            self.u.settings[<Py_ssize_t>k] = one
        for k in range(self.u.n):
            self.u.roles[<Py_ssize_t>k], self.u.group[<Py_ssize_t>k] = roles[k], group[k]
        self.u.sparse = True
        self.u.skips = skips


cdef int plan_entry(Update* u, Py_ssize_t i, uint32_t n, States states, Span* spans) noexcept nogil:
    cdef Param* p = u.entries[i]
    cdef const GroupSettings* s = &u.settings[u.group[i]]
    cdef bint apart, settles, behind
    cdef int k = 0
    cdef Span step
    if u.roles[i] == FROZEN:
        return 0
    step.kind = STEP
    step.some = p.rows and u.sparse
    # A step that visits all numbers of an entry where they lie applies weight decay in the same pass.
    apart = u.roles[i] != MOVES or step.some or not (p.in_place or p.device)
    step.before = 0 if apart else s.decoupled
    step.after = 0 if apart else s.decay
    if apart and s.decoupled != 0:
        spans[k] = Span(DECAY, False, False, s.decoupled, 0)
        k += 1
    if u.roles[i] == MOVES:
        behind = p.lazy != NULL and p.lazy.n
        # Then no updates are missing when the step begins, and it can be noted as the first one.
        settles = k and not p.in_place and not p.device and p.factor * (1 - s.decoupled) < LEAST_SCALE
        step.lazy = u.lazy and may_defer_rows(p, n) and (
            states != OWN or settles or can_defer(p, u.rule, &s.h, u.states))
        step.some = step.some or step.lazy
        if states == FOREIGN or (states == SHARED and behind and (
                not step.lazy or settles or p.lazy.read or not can_defer(p, u.rule, &s.h, u.states))):
            spans[k] = Span(CATCH_UP, False, False, 0, 0)
            k += 1
        spans[k] = step
        k += 1
    if apart and s.decay != 0:
        spans[k] = Span(DECAY, False, False, s.decay, 0)
        k += 1
    return k


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
