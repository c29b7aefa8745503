"""Interfaces of trainers, backends and reducers; groups of parameters."""

from libc.stdint cimport int64_t, uint8_t

from dynet_cy.memory.storage cimport Param, Plane, Storage
from dynet_cy.train.plan cimport N_CONSTANTS, Outcome, Plan, TrainerSettings, Update


# ==== interfaces ==================================================================================
#
# How a trainer makes its updates: a `Backend` says where, a `Reducer` says together with which other processes.
#
# Any backend works with any reducer.  `dynet_cy.train.device` chooses the backend, by where the parameters live;
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
