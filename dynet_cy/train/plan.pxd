"""Plans of updates: the action for each entry, and the rules of trainers."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from dynet_cy.kernels.kernels cimport dy_optim
from dynet_cy.memory.arena cimport Arena
from dynet_cy.memory.storage cimport Param


# ==== rules =======================================================================================
#
# The rules of trainers, by their numbers in optim.def.

# The number of planes of state of a rule.
cdef int n_states(int rule) noexcept


# ==== plan ========================================================================================
#
# An update, as plain structs that trainers, backends and reducers pass to each other, and as a plan.
#
# The plan says what the update does to a parameter or table: a list of spans that backends and reducers carry out.  All
# decisions are made in it: which rows the rule changes, whether the others get the update later, and whether weight
# decay is a part of the step.  The CPU loops over the spans, a GPU launches kernels over tables of them, and processes
# that share memory carry out a part each.

cdef enum:
    # The largest number of state floats per parameter that any rule has.
    MOST_STATES = 3
    # The number of constants that rules may read: CONSTANTS of train/plan.
    N_CONSTANTS = 3

cdef extern from * nogil:
    # Parameters are updated in parts of this many floats, which stay in the cache from one loop to the next.
    const size_t PART "((size_t)1 << 13)"
    # The factor of a table is multiplied into its numbers when it falls below this.
    const double LEAST_SCALE "0.25"


# The role of a parameter or table in an update.
cdef enum Role:
    FROZEN                      # nothing
    KEPT                        # its gradient counts in the norm and stays, and its value decays
    MOVES                       # the rule changes it


# The settings of a group of parameters in one update.  Group 0 holds the parameters that are in no other group.
cdef struct GroupSettings:
    dy_optim h                  # constants of the rule: the learning rate, the factor of gradients, ...
    double decoupled            # the share of weight decay taken off values before the step...
    double decay                # ... and after it
    double threshold            # of clipping; 0 for none
    bint own_norm               # whether it is clipped by the norm of its own gradients, not together with group 0
    double squares              # sum of the squares of its gradients, if it was requested
    # From which h, decoupled and decay are computed once the number of the update is known:
    double learning_rate        # its own, without the schedule,
    bint own_rate               # if it has one
    double weight_decay         # decoupled decay per unit of the learning rate,
    bint own_decay              # and whether it replaces that of the collection
    double collected            # the share of decoupled decay that has been collected but not applied yet


cdef struct Update:
    Param** entries             # all parameters and tables of the trainer
    uint8_t* roles              # of each
    uint32_t* group             # of each, by number
    double* squares             # of the gradient of each, if they were requested
    Py_ssize_t n
    GroupSettings* settings     # of each group
    uint32_t n_groups
    int rule
    const Arena* states[MOST_STATES]
    bint sparse                 # whether only rows of tables that have a gradient change
    bint lazy                   # whether other rows may get this update later, when they are needed
    bint measures               # whether norms of gradients are needed
    bint deferred               # whether the device computes norms and clips by itself, and the host does not wait
    bint skips                  # whether an update with gradients that are not finite is dropped without an error
    double scale                # factor for all gradients, before clipping


# The settings of a trainer, without those of its groups.  They must be equal on all ranks.
cdef struct TrainerSettings:
    double learning_rate        # of the next update
    double clip_threshold
    double[N_CONSTANTS] constants   # of the rule, in the order of CONSTANTS; 0 where it reads none
    double decoupled_decay      # of the trainer itself
    double weight_decay         # of the collection,
    double decay_due            # and the share of it that has been collected but not applied yet
    int64_t steps               # updates made so far
    uint64_t groups             # a digest of the groups' settings
    bint sparse
    bint skips


# The outcomes of updates that the trainer has not counted yet.
cdef struct Outcome:
    double norm                 # of all gradients in the last one...
    bint measured               # ... if it was measured
    Py_ssize_t clipped          # updates whose gradients were scaled down
    Py_ssize_t skipped          # updates dropped before they were counted
    Py_ssize_t dropped          # updates dropped by the device, after they were counted
    Py_ssize_t left_out         # updates that the device did not make, after they were counted; an error reports them


cdef enum Kind:
    DECAY                       # the share `before` is taken off all values, or off the factor of their table
    CATCH_UP                    # all rows, and the states that ranks share, get the updates that they are missing
    STEP                        # the rule changes values and states, and gradients become zero

# Who has the states of the rule.
cdef enum States:
    OWN                         # this process
    SHARED                      # all ranks, which must make the same decisions
    FOREIGN                     # all ranks; and rows are missing updates of another trainer

cdef enum:
    MOST_SPANS = 4              # of an entry

cdef struct Span:
    uint8_t kind
    bint some                   # of a step: only rows with a gradient make it,
    bint lazy                   # and the others get it later, which is noted
    double before               # shares of weight decay that are taken off before the rule
    double after                # and after it

# An update, with the memory of its lists.
cdef class Plan:
    cdef Update u
    cdef list stored            # the entries
    cdef list planes            # the state of the rule

    # Allocate the settings of this many groups.
    cdef int set_groups(self, uint32_t n) except -1
    # What the update does on one device: a copy, in which entries that live elsewhere are frozen.
    cdef Plan on(self, int device, list planes)

# What an update does to entry i, of which n rows have a gradient, in order; returns the number of spans.
cdef int plan_entry(Update* u, Py_ssize_t i, uint32_t n, States states, Span* spans) noexcept nogil
