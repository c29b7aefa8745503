"""What trainers give to those that make their updates in other ways, such as several processes together."""

from libc.stdint cimport uint8_t, uint32_t

from dynet_cy.kernels.kernels cimport dy_optim
from dynet_cy.memory.arena cimport Arena
from dynet_cy.memory.storage cimport Param, Plane, Storage


# Most state floats per parameter of any rule.
cdef enum:
    MOST_STATES = 3

# Parameters are updated in parts of so many floats, which stay in the cache from one loop to the next.
cdef size_t PART


# What an update does with a parameter or table.
cdef enum Role:
    FROZEN                      # nothing: it has no gradient
    KEPT                        # its gradient counts in the norm and stays, and its value decays
    MOVES                       # the rule changes it


# What holds for a group of parameters in one update.  The first group are those that the program has put in none.
cdef struct Settings:
    dy_optim h                  # constants of the rule: the learning rate, what gradients are multiplied by, ...
    double decoupled            # the share that values lose before their step...
    double decay                # ... and after it
    double threshold            # of clipping; 0 for none
    bint own_norm               # whether it is clipped by the norm of its own gradients, not with the first group
    double squares              # sum of the squares of its gradients, if it was asked for


cdef struct Update:
    Param** entries             # all parameters and tables of the trainer
    uint8_t* roles              # of each
    uint32_t* group             # of each, by number
    double* squares             # of the gradient of each, if they were asked for
    Py_ssize_t n
    Settings* settings          # of each group
    uint32_t n_groups
    int rule
    const Arena* states[MOST_STATES]
    bint sparse
    bint measures               # whether norms of gradients are asked for
    bint skips                  # whether an update of gradients that are not finite is dropped without an error
    double scale                # what gradients are to be multiplied by before all else


cdef class Stepper:
    cdef readonly double least_decay    # less than that is collected before it is taken off
    cdef readonly bint alone            # whether nobody else changes the parameters
    cdef int meet(self, object trainer, list stored, Update* u) except -1
    cdef int clip(self, object trainer, list stored, Update* u) except -1
    cdef int measure(self, Update* u) except -1
    cdef list not_finite(self, list stored, Update* u)
    cdef object count(self, object steps)
    cdef int prepare(self, object trainer, list stored, Update* u) except -1
    cdef int apply(self, Storage storage, object trainer, Update* u) except -1
    cdef bint was_made(self, object trainer, Update* u) except -1
    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1
    cdef int poll_errors(self, object trainer) except -1
    cdef int reconcile(self, object trainer) except -1
    cdef int end(self, object error) except -1


cdef int update_on_device(object device, list stored, const Update* u, list planes, object clipping=*,
                          object rates=*) except -1
cdef list restored_groups(object own, object states)
cdef void clip_groups(Update* u, double* norm, bint* clips) noexcept nogil
cdef void lock_gradient(Param* p) noexcept nogil
cdef void unlock_gradient(Param* p) noexcept nogil
cdef double squared_norm(Param* p) noexcept nogil
cdef bint in_one_pass(const Update* u, Py_ssize_t i) noexcept nogil
cdef void step_part(Param* p, const Settings* s, const Update* u, bint decays, size_t at, size_t n) noexcept nogil
cdef void apply_weight_decay(Param* p, double share) noexcept nogil
