"""What trainers give to those that make their updates in other ways, such as several processes together."""

from libc.stdint cimport uint8_t

from dynet_cy.kernels.kernels cimport dy_optim
from dynet_cy.memory.storage cimport Param, Plane, Storage


# Most state floats per parameter of any rule.
cdef enum:
    MOST_STATES = 3

# Parameters are updated in parts of so many floats, which stay in the cache from one loop to the next.
cdef size_t PART


cdef struct Update:
    Param** entries             # all parameters and tables of the trainer
    uint8_t* moves              # which of them are changed
    Py_ssize_t n
    int rule
    dy_optim h
    float* states[MOST_STATES]
    bint sparse
    double threshold            # of clipping; 0 for none
    double scale                # what gradients are to be multiplied by before all else
    double decay


cdef class Stepper:
    cdef readonly double least_decay    # less than that is collected before it is taken off
    cdef readonly bint alone            # whether nobody else changes the parameters
    cdef int meet(self, object trainer, list stored, Update* u) except -1
    cdef int clip(self, object trainer, list stored, Update* u) except -1
    cdef double squares(self, Update* u) except? -1
    cdef list not_finite(self, list stored, Update* u)
    cdef object count(self, object steps)
    cdef int apply(self, Storage storage, Update* u) except -1
    cdef int blend(self, list stored, float a, float b, Plane source, Plane target) except -1
    cdef int learn(self, object trainer) except -1


cdef void lock_gradient(Param* p) noexcept nogil
cdef void unlock_gradient(Param* p) noexcept nogil
cdef double squared_norm(Param* p) noexcept nogil
cdef void step_part(Param* p, int rule, const dy_optim* h, float** states, size_t at, size_t n) noexcept nogil
cdef void take_off(Param* p, double decay, bint passed) noexcept nogil
