"""Updates of parameters on the host, by rules in C and in Python."""

from dynet_cy.memory.storage cimport Param
from dynet_cy.train.interfaces cimport Backend, GroupSettings, Reducer, Span, Update

# Updates of parameters that lie in the memory of the host.

cdef class HostBackend(Backend):
    pass

# Prevent graphs of other threads from adding to the gradient.
cdef void lock_gradient(Param* p) noexcept nogil
cdef void unlock_gradient(Param* p) noexcept nogil
# Sum of the squares of the gradient.
cdef double squared_norm(Param* p) noexcept nogil
# Make a step with n numbers of a parameter, from `at` on.
cdef void step_part(Param* p, const GroupSettings* s, const Update* u, const Span* span, size_t at,
                    size_t n) noexcept nogil
# Take this share off the value, or multiply the factor of a table instead.
cdef void apply_weight_decay(Param* p, double share) noexcept nogil
# Replace the gradients of a table's rows by their sums over all ranks.
cdef int sum_table(Reducer ranks, Update* u, Py_ssize_t i) except -1
