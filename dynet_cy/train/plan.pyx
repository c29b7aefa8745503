"""Plans of updates; see plan.pxd."""

from dynet_cy.kernels.late_rows cimport can_be_late, rows_may_be_late
from dynet_cy.memory.storage cimport Param
from dynet_cy.train.structs cimport FROZEN, LEAST_SCALE, MOVES, GroupSettings


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
