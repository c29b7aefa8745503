"""Plans of updates; see plan.pxd."""

from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from dynet_cy.kernels.late_rows cimport can_be_late, rows_may_be_late
from dynet_cy.memory.storage cimport Param, Plane
from dynet_cy.model.parameters cimport _Stored


cdef class Plan:
    """An update of parameters and tables, given with the planes of the rule's state."""

    def __cinit__(self, list stored, list planes):
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

    def set(self, list roles, list group, list settings, bint skips):
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
        behind = p.late != NULL and p.late.n
        # Then no updates are missing when the step begins, and it can be noted as the first one.
        settles = k and not p.in_place and not p.device and p.factor * (1 - s.decoupled) < LEAST_SCALE
        step.late = u.late and rows_may_be_late(p, n) and (
            states != OWN or settles or can_be_late(p, u.rule, &s.h, u.states))
        step.some = step.some or step.late
        if states == FOREIGN or (states == SHARED and behind and (
                not step.late or settles or p.late.read or not can_be_late(p, u.rule, &s.h, u.states))):
            spans[k] = Span(CATCH_UP, False, False, 0, 0)
            k += 1
        spans[k] = step
        k += 1
    if apart and s.decay != 0:
        spans[k] = Span(DECAY, False, False, s.decay, 0)
        k += 1
    return k
