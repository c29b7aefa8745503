"""User-defined ops, and the registration of ops from other packages: see dynet_cy/extension.pxd."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Attr, Dim
from dynet_cy.ops.registry cimport Op

# Attributes of a node.
cdef enum:
    DEFINITION                      # index in `definitions`
    PARAMETERS                      # index in `parameters` of the definition
    NUMBERS                         # two words, of an op with kernels in CUDA: the address of the numbers for these

cdef class _Kernels:
    """The kernels in CUDA of an op that the library does not have."""

    cdef Op* op
    cdef object source              # CudaSource
    cdef uint32_t n_numbers         # numbers that kernels get
    cdef bint packed                # they are where the attributes NUMBERS point; otherwise they are the attributes
    cdef uint32_t integers          # bits: the attributes that are integers

cdef class _Definition:
    """A user-defined op, which is called like the functions of other ops."""

    cdef readonly str name
    cdef bytes c_name, c_args
    cdef object forward, backward, shape
    cdef int n_arguments            # -1: any number
    cdef list parameters            # dictionaries of keyword arguments
    cdef dict numbers               # the index in `parameters` of each set of keyword arguments
    cdef uint32_t number
    cdef Op* op
    cdef _Kernels kernels            # None: it does not run on devices
    cdef dict defaults              # with `kernels`: of its keyword arguments
    cdef dict packed                # with `kernels`: by the index in `parameters`, the numbers that kernels get

    cdef object argument(self, uint32_t i)
    cdef uint32_t number_of(self, dict keywords) except? 0xFFFFFFFF
    cdef int set_numbers(self, uint32_t number, Attr* to) except -1
    cdef int check_keywords(self, dict keywords) except -1


cdef inline bint repeats(const Dim* x, const Dim* y) noexcept nogil:
    """Whether x becomes the shape y where axes of length 1 are repeated, as in NumPy: the last axes correspond."""
    cdef uint32_t k
    for k in range(x.nd):
        if x.nd > y.nd or (x.d[k] != 1 and x.d[k] != y.d[y.nd - x.nd + k]):
            return False
    return True


ctypedef int (*Served)(_Kernels kernels) except -1

# Call a function with the kernels of each op, those to come too.
cdef int serve_on_devices(Served function) except -1
# Give a compiled op kernels, as `cuda` of `custom_op` does.  `numbers` names its attributes, such as "float alpha".
cdef int add_cuda(Op* op, cuda, numbers) except -1
cdef bint is_custom(const Op* op) noexcept nogil
# Raise ImportError unless the sizes of Op, Call and Extra are those that this library was compiled with.
cdef int check_headers(size_t op, size_t call, size_t extra) except -1
