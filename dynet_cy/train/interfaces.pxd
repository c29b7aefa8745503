"""How a trainer makes its updates: where, which is a `Backend`, and with whom, which is a `Reducer`.

Any backend goes with any reducer.  Those that a trainer has are chosen in `dynet_cy.train.backends` (by where its
parameters live) and in `dynet_cy.parallel.trainer.wrap` (by how its process is connected to others).
"""

from libc.stdint cimport uint8_t

from dynet_cy.memory.storage cimport Param, Plane, Storage
from dynet_cy.train.structs cimport Outcome, TrainerSettings, Update


cdef class Reducer


cdef class Backend:
    """Where parameters live, and so who applies the rule: the CPU, a device, or several."""

    # An update of these parameters begins, with this state of the rule.
    cdef int begin(self, list stored, list planes, bint measures, Outcome* found) except -1
    # Find the sum of the squares of each gradient, without the scale; or set `deferred`, and let the device clip.
    cdef int measure(self, Update* u) except -1
    # Names of the parameters whose gradients are not finite, after `measure`.
    cdef list not_finite(self, list stored, const Update* u)
    # Make gradients their sums over all ranks, where `any` rank has one, and find their squares if they are asked for.
    cdef int sum_gradients(self, Reducer ranks, const uint8_t* any, Update* u) except -1
    # Have what the update needs.  What can fail comes here, and all Python code, in which handlers of signals may run:
    # from here to the end of `apply` there is none.
    cdef int prepare(self, Update* u) except -1
    # How many of the updates made so far may have been dropped without anybody knowing yet.
    cdef Py_ssize_t undecided(self, const Update* u) except -1
    # Change the parameters, and set the gradients of those that move to zero.  `rates`: where the update is deferred,
    # for each group its learning rate and its share of decoupled decay, for each number of undecided updates that were
    # dropped.
    cdef int apply(self, Storage storage, list planes, Update* u, list rates) except -1
    # Whether the update that has just been applied was not dropped after all; handlers of signals do not run.
    cdef bint was_made(self, const Update* u) except -1
    # Let the numbers of parameters in a plane become a target + b source; where a is 0, the target is not read.
    cdef int axpby(self, list stored, float a, float b, Plane source, Plane target) except -1
    # Say what has become of updates, as far as that is known; and of all, waiting for them.
    cdef int poll(self, Outcome* found) except -1
    cdef int wait(self, Outcome* found) except -1
    # The trainer is going: raise if updates were left out.  No handler of a signal runs.
    cdef int close(self) except -1


cdef class Reducer:
    """How an update takes up the gradients of other processes.  This one: there are none."""

    cdef readonly double least_decay    # less than that is collected before it is taken off
    cdef readonly bint alone            # whether no other process changes the parameters while they are not looked at
    cdef readonly bint collective       # whether ranks agree on each update, and so `agree` is called
    cdef readonly bint late_rows        # whether rows of tables may have updates later than others
    cdef readonly str host_only         # why parameters can't live on devices; None: they can

    # See that all ranks make the same update, or change the settings to theirs.  Returns the groups to be adopted.
    cdef object agree(self, str trainer, list stored, Update* u, TrainerSettings* settings, list groups)
    # Have the gradients of all ranks, with their squares if they are asked for.
    cdef int reduce(self, Backend backend, Update* u) except -1
    # The number of this update, after those so far.
    cdef object count(self, object steps)
    cdef int apply(self, Backend backend, Storage storage, list planes, Update* u, list rates) except -1
    # An update is over, perhaps by an error.
    cdef int end(self, object error) except -1
    # For `Backend.sum_gradients`: the sums over all ranks of floats, in place, and of rows: (their numbers, sums).
    cdef int sum_floats(self, object floats) except -1
    cdef tuple sum_rows(self, const Param* p, object rows, object values)
