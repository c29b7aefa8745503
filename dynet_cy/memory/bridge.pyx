"""Conversion from and to NumPy arrays, and the addresses of their numbers."""

import numbers

import numpy as np

from cpython.buffer cimport PyBUF_F_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport FLOATS, MOST_ALONG

# numpy in and out.

cdef extern from *:
    "static _Thread_local int dy_taking_numbers = 0;"
    int dy_taking_numbers

# Bytes that are copied between two checks for signals.
cdef enum:
    AT_ONCE = 1 << 26

_empty = np.empty
_float32 = np.float32


cdef object array_of(const float* v, tuple shape):
    """New float32 array of that shape, column-major, with a copy of the floats at v."""
    array = _empty(shape, _float32, "F")
    cdef Py_buffer view
    cdef size_t at = 0, n
    PyObject_GetBuffer(array, &view, PyBUF_F_CONTIGUOUS | PyBUF_WRITABLE)
    try:
        while at < <size_t>view.len:
            n = min(<size_t>view.len - at, <size_t>AT_ONCE)
            memcpy(<char*>view.buf + at, <const char*>v + at, n)
            at += n
            if n == AT_ONCE:
                PyErr_CheckSignals()
    finally:
        PyBuffer_Release(&view)
    return array


# Device types whose memory the CPU can read (DLDeviceType of the DLPack standard): the CPU, and pinned memory of GPUs.
_READABLE = (1, 3, 11)
# NumPy before 2.1 has no versions of the protocol.
_HAS_VERSIONS = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)


cdef object capsule_of(object array, str what, object stream, object max_version, object dl_device):
    """A DLPack capsule of an array, for the `__dlpack__` method of its owner."""
    if stream is not None:
        raise BufferError(f"{what} is given on the CPU, which has no streams, but stream is {stream!r}")
    if dl_device is not None and tuple(dl_device) != (1, 0):
        raise BufferError(f"{what} is given on the CPU, device (1, 0), but dl_device is {tuple(dl_device)}")
    return array.__dlpack__(max_version=max_version) if _HAS_VERSIONS else array.__dlpack__()


cdef object unreadable(object values, str op, str argument, object e):
    """The error for a tensor of another library that NumPy cannot read."""
    kind = getattr(values, "__dlpack_device__", lambda: (1, 0))()
    if int(kind[0]) in _READABLE:
        return TypeError(f"{op}: {argument} cannot be read as numbers: {e}")
    return TypeError(f"{op}: {argument} lies on a device ({type(values).__name__} on device {kind[1]} of kind "
                     f"{int(kind[0])}); copy it to the CPU first")


cdef object read_tensor(object values, str op, str argument):
    """A tensor of another library that supports only DLPack; not copied if its memory layout allows that."""
    try:
        if int(values.__dlpack_device__()[0]) not in _READABLE:
            raise BufferError("another device")
        return np.from_dlpack(values)
    except (BufferError, RuntimeError, TypeError, ValueError) as e:
        raise unreadable(values, op, argument, e) from None


cdef object floats_in(object values, str op, str argument, int most_axes):
    """The values as a column-major float32 array, or a clear error."""
    global dy_taking_numbers
    dy_taking_numbers += 1
    try:
        array = np.asarray(values)
    except ValueError as e:
        raise ValueError(f"{op}: {argument} is not a rectangular array of numbers ({e})") from None
    except (RuntimeError, TypeError) as e:
        if not hasattr(values, "__dlpack__"):
            raise
        raise unreadable(values, op, argument, e) from None
    finally:
        dy_taking_numbers -= 1
    if array.dtype.kind == "O" and hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
        array = read_tensor(values, op, argument)
    if array.dtype != _float32:
        if array.dtype.kind not in "fiub":
            raise TypeError(
                f"{op}: {argument} must hold real numbers, not {array.dtype} "
                f"(shape {array.shape})")
        array = array.astype(_float32)
    if array.ndim > most_axes:
        raise ValueError(
            f"{op}: {argument} has {array.ndim} axes (shape {array.shape}), "
            f"at most {most_axes} are possible")
    return np.asarray(array, order="F")     # asfortranarray would add an axis to one number


cdef bint taking_numbers() noexcept:
    """Whether `floats_in` is running: it must not read expressions as numbers, as their gradients would be lost."""
    return dy_taking_numbers > 0


cdef int copy_floats(object array, float* out, size_t n) except -1:
    """Copy a column-major float32 array of n elements to `out`."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_F_CONTIGUOUS)
    try:
        if <size_t>view.len != n * sizeof(float):
            raise ValueError(f"{view.len // 4} floats given where {n} are needed")
        if n:
            memcpy(out, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return 0


cdef int dim_from_shape(tuple shape, Dim* out, str op) except -1:
    """Shape with batch size 1 from a tuple of whole numbers, or a clear error."""
    cdef uint32_t i
    if len(shape) > 7:
        raise ValueError(f"{op}: shape {shape} has {len(shape)} axes, at most 7 are possible")
    total = 1
    for i, d in enumerate(shape):
        if not isinstance(d, numbers.Real) or d != int(d):
            raise TypeError(f"{op}: shape {shape} must hold whole numbers, not {d!r}")
        if d < 0 or d > MOST_ALONG:
            raise ValueError(f"{op}: axis {i} of shape {shape} is out of range, from 0 to {MOST_ALONG} (2^31 - 1)")
        total *= int(d)
        out.d[i] = int(d)
    if total >= 2**44:
        raise MemoryError(f"{op}: shape {shape} has {total:,} elements")
    out.nd = <uint8_t>len(shape)
    out.type = FLOATS
    out.bd = 1
    return 0


cdef tuple shape_of(const Dim* d):
    """The shape without the batch."""
    cdef uint32_t i
    return tuple([d.d[i] for i in range(d.nd)])
