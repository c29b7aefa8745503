"""Registration of ops from other packages: see dynet_cy/extension.pxd."""

# Raise ImportError unless the sizes of Op, Call and Extra are those that this library was compiled with.
cdef int check_headers(size_t op, size_t call, size_t extra) except -1
