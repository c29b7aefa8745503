"""Conversion from and to NumPy arrays.  Returned arrays are copies, which own their memory."""

from dynet_cy.core.tensor cimport Dim

cdef object array_of(const float* v, tuple shape)
# A DLPack capsule of an array, for the `__dlpack__` method of its owner.
cdef object capsule_of(object array, str what, object stream, object max_version, object dl_device)
cdef object floats_in(object values, str op, str argument, int most_axes)
cdef bint taking_numbers() noexcept
cdef int copy_floats(object array, float* out, size_t n) except -1
cdef int dim_from_shape(tuple shape, Dim* out, str op) except -1
cdef tuple shape_of(const Dim* d)
