"""Conversion from and to NumPy arrays, and the addresses of their numbers."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBUF_WRITE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory

from dynet_cy.core.tensor cimport Dim


# ==== buffers =====================================================================================
#
# NumPy arrays and the addresses of their numbers.  Typed memoryviews do the same, but add a megabyte of C to each
# module that uses them.


cdef inline object array_at(void* at, size_t n, object dtype):
    """The n numbers at an address, as an array that does not own them."""
    from numpy import empty, frombuffer
    kind = empty(0, dtype)
    if n == 0:
        return kind
    return frombuffer(PyMemoryView_FromMemory(<char*>at, n * <size_t>kind.itemsize, PyBUF_WRITE), kind.dtype)


cdef inline void* memory_of(object array, bint writable=False) except? NULL:
    """The address of an array's numbers, valid as long as the array lives; NULL if it has none.

    Raises:
        ValueError: the array is not C-contiguous, or may not be written.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0))
    cdef void* at = view.buf if view.len else NULL
    PyBuffer_Release(&view)
    return at


# ==== bridge ======================================================================================
#
# Conversion from and to NumPy arrays.  Returned arrays are copies, which own their memory.

cdef object array_of(const float* v, tuple shape)
# A DLPack capsule of an array, for the `__dlpack__` method of its owner.
cdef object capsule_of(object array, str what, object stream, object max_version, object dl_device)
cdef object floats_in(object values, str op, str argument, int most_axes)
cdef bint taking_numbers() noexcept
cdef int copy_floats(object array, float* out, size_t n) except -1
cdef int dim_from_shape(tuple shape, Dim* out, str op) except -1
cdef tuple shape_of(const Dim* d)
