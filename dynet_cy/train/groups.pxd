"""Groups of parameters with settings of their own, and checks of the settings that users pass."""

from dynet_cy.train.plan cimport Update


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
# Set the group of each entry of an update, and how each group is clipped.
cdef int begin_groups(object trainer, list stored, Update* u) except -1
# Groups restored from what `_state` returned; a group of the same parameters keeps its object.
cdef list restored_groups(object own, object states)
