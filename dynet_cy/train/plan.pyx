"""Plans of updates: the action for each entry, and the rules of trainers."""

import re

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from dynet_cy.kernels.lazy_rows cimport can_defer, may_defer_rows
from dynet_cy.memory.storage cimport Param, Plane
from dynet_cy.model.parameters cimport _Stored


# ==== rules =======================================================================================
#
# Facts about each rule from its row in optim.def: how many planes of state it has, and which constants it reads.

cdef extern from *:
    """
    static const int dy_states_of_rules[] = {
    #define OPTIM(name, states, ...) states,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    static const char *const dy_names_of_rules[] = {
    #define OPTIM(name, ...) #name,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    static const char *const dy_texts_of_rules[] = {
    #define OPTIM(name, states, rule, ...) #rule,
    #include "dynet_cy/optim.def"
    #undef OPTIM
    };
    """
    const int* states_of_rules "dy_states_of_rules"
    const char* const names_of_rules "dy_names_of_rules"[]
    const char* const texts_of_rules "dy_texts_of_rules"[]


CONSTANTS: tuple[str, ...] = ("b1", "b2", "eps")


cdef int n_states(int rule) noexcept:
    return states_of_rules[rule]


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
    name = names_of_rules[<int>cls._rule].decode()
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
