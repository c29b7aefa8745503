"""Groups of parameters with settings of their own, and the checks of what users give as settings."""

from dynet_cy.train.structs cimport Update


# A hyperparameter; text is none, even if it reads like a number.
cdef double number(object value, str name) except? -1
# A coefficient of weight decay.
cdef double checked_decay(object value) except? -1
# Refuse to set a learning rate that a schedule sets.
cdef int check_not_scheduled(object pace) except -1
# Parameters and tables: one, all of a collection, or those of a list of these.
cdef list stored_in(object params, str op)
# Say which group each entry of an update is in, and how it is clipped.
cdef int begin_groups(object trainer, list stored, Update* u) except -1
# The groups with what `_state` has returned; those of the same parameters stay the objects that they are.
cdef list restored_groups(object own, object states)
