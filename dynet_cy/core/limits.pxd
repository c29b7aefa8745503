"""The limit of every index and size."""

# Elements along an axis, and batch elements: what an `int` holds, which is what BLAS and kernels on devices take.
# Shape rules may compute larger ones; no node is made with them.
cdef enum:
    MOST_ALONG = 0x7FFFFFFF
