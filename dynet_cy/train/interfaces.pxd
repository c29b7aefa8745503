"""Plans of updates; interfaces of trainers, backends and reducers; groups of parameters."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from dynet_cy.kernels.kernels cimport dy_optim
from dynet_cy.memory.arena cimport Arena
from dynet_cy.memory.storage cimport Param, Plane, Storage


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
    # The number of constants that rules may read: CONSTANTS.
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


# ==== interfaces ==================================================================================
#
# How a trainer makes its updates: a `Backend` says where, a `Reducer` says together with which other processes.
#
# Any backend works with any reducer.  `dynet_cy.train.backends` chooses the backend, by where the parameters live;
# `dynet_cy.parallel.trainer.wrap` chooses the reducer, by how the process is connected to others.

cdef class Reducer


cdef class Backend:
    """Applies the rule where the parameters live: on the CPU, on a device, or on several."""

    # Begin an update of these parameters, with this state of the rule.
    cdef int begin_update(self, list stored, list planes, bint measures, Outcome* found) except -1
    # Compute the sum of squares of each gradient, before scaling; or set `deferred`, to let the device clip.
    cdef int measure(self, Update* u) except -1
    # Names of the parameters whose gradients are not finite, after `measure`.
    cdef list not_finite(self, list stored, const Update* u)
    # Replace gradients by their sums over all ranks, if `any` rank has one; compute their squares if asked to.
    cdef int sum_gradients(self, Reducer ranks, const uint8_t* any, Update* u) except -1
    # Get everything that the update needs.  All that can fail happens here, and all Python code, during which signal
    # handlers may run: from here to the end of `apply` no Python code runs.
    cdef int prepare(self, Update* u) except -1
    # How many of the updates made so far may have been dropped, with the outcome not known yet.
    cdef Py_ssize_t undecided(self, const Update* u) except -1
    # Change the parameters, and set the gradients of those with the role MOVES to zero.  `rates`, for a deferred
    # update: for each group its learning rate and its share of decoupled decay, for each possible number of undecided
    # updates that were dropped.
    cdef int apply(self, Storage storage, Plan plan, list rates) except -1
    # Whether the update just applied was really made, not dropped; signal handlers do not run.
    cdef bint was_made(self, const Update* u) except -1
    # Set the numbers of parameters in a plane to a target + b source; if a is 0, the target is not read.
    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1
    # Add the known outcomes of updates; or those of all updates, after waiting for them.
    cdef int poll(self, Outcome* found) except -1
    cdef int wait(self, Outcome* found) except -1
    # The trainer is being freed: raise if updates were skipped.  No signal handler runs.
    cdef int close(self) except -1


cdef class Reducer:
    """Combines the gradients of several processes in an update.  This base class is for a single process."""

    cdef readonly double least_decay    # smaller shares of weight decay are collected before they are applied
    cdef readonly bint alone            # whether no other process changes the parameters at the same time
    cdef readonly bint collective       # whether ranks agree on each update, so that `agree` must be called
    cdef readonly str host_only         # type: str | None  # why parameters can't live on devices; None: they can

    # Check that all ranks make the same update, or adopt their settings.  Returns the groups to be adopted.
    cdef object agree(self, trainer, list stored, Update* u, TrainerSettings* settings, list groups)
    # Sum the gradients of all ranks; compute their squares if asked to.
    cdef int reduce(self, Backend backend, Update* u) except -1
    # The number of this update, given the number of updates so far.
    cdef object count(self, object steps)
    cdef int apply(self, Backend backend, Storage storage, Plan plan, list rates) except -1
    # An update has ended, perhaps with an error.
    cdef int end(self, object error) except -1
    # Bring all rows of tables up to date, and their states, which will be set: all processes that share these call it.
    cdef int settle(self, collection) except -1
    # For `Backend.sum_gradients`: sum floats over all ranks, in place; sum rows, returning (their numbers, sums).
    cdef int sum_floats(self, object floats) except -1
    cdef tuple sum_rows(self, const Param* p, object rows, object values)


cdef class TrainerFields:
    """The settings and state of a trainer as numbers of C: what an update reads and changes."""

    cdef public object _collection      # type: ParameterCollection
    cdef public list _states            # type: list[Any]  # planes: the state of the rule, then the moving average
    cdef public object _groups          # type: Sequence[ParameterGroup]
    # Plain data: beta, frequency, updates, values, and since: by the id of a parameter, how many values came before it.
    cdef public object _average         # type: dict[str, Any] | None
    cdef public object _pace            # type: Any  # of the schedule, if there is one
    cdef public object _norm            # type: float | None
    cdef public Reducer _reducer
    cdef int rule                       # number of a row of optim.def
    cdef double[N_CONSTANTS] constants  # see TrainerSettings
    cdef public double _learning_rate   # without the schedule
    cdef public double _clip_threshold
    cdef public bint _clip_chosen       # whether the program has set the threshold
    cdef public double _weight_decay    # decoupled,
    cdef public double _decay_due       # and the share of it that has been collected but not applied yet
    cdef public bint _sparse
    cdef public int64_t _steps          # type: int  # made so far
    cdef public Py_ssize_t _clips, _updates, _skipped


# ==== groups ======================================================================================
#
# Groups of parameters with settings of their own, and checks of the settings that users pass.

# A hyperparameter as a float; a string is refused, even if it looks like a number.
cdef double number(object value, str name) except? -1
# A step size: finite and not negative, except in programs of DyNet.
cdef double checked_rate(object value, str name=?) except? -1
# A coefficient of weight decay.
cdef double checked_decay(object value) except? -1
# Raise an error if a schedule controls the learning rate.
cdef int check_not_scheduled(object pace) except -1
# Parameters and tables: one, all of a collection, or those of a list of these.
cdef list stored_in(object params, str op)
# Groups restored from what `_state` returned; a group of the same parameters keeps its object.
cdef list restored_groups(object collection, object own, object states)
