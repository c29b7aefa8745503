"""Ops that the library does not have, with kernels in CUDA whose source the program gives.

ops/cuda_source makes the kernels.  They are compiled when an op first runs on a device, and cached like all kernels.
The gradients of all arguments are computed at once, into memory that lasts for the backward of the call: each with the
batch of the result, as if its argument had one.  Then each is added to that of its argument, summed where the argument
is repeated.
"""

from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport Call, Dim, Tensor, size_of, total_of
from dynet_cy.gpu.driver cimport WRONG_SHAPES, Gpu, GpuOp, failed, fill, launch, value_at
from dynet_cy.gpu.registry cimport NO_MODULE, Axes, contract, gpu_op_at, kernel_at, load_code, scaled, split_axes
from dynet_cy.ops.custom cimport NUMBERS, _Kernels, repeats, serve_on_devices
from dynet_cy.ops.registry cimport GPU, MAX_OPS, Op

from dynet_cy.gpu.compiler import text_cubin
from dynet_cy.gpu.driver import architecture


cdef extern from "dynet_cy/gpu_custom.h" nogil:
    # derived: structs of Array
    ctypedef struct Array "dy_array":
        float* v
        size_t size
        size_t stride
        int32_t batch
        int32_t nd
        int32_t shape[7]
        int32_t unused
    # end of structs

cdef enum:
    MOST_BYTES = 4096               # of the parameter of a kernel: its arrays, then its numbers
    BLOCK = 256

cdef struct Form:
    int forward                     # the number of the kernel
    int backward
    bint elementwise                # gradients are computed in the shape of the result, not in that of the argument
    uint32_t n_numbers              # see _Kernels of ops/custom
    bint packed
    uint32_t integers

cdef Form[MAX_OPS] forms            # by number of the op
_kernels = {}                       # by number of the op

# What a kernel gets, while it is being listed.
cdef struct Given:
    char[MOST_BYTES] bytes
    uint32_t n
    size_t most                     # numbers of the largest array that it computes


cdef void give(Given* given, const Dim* dim, float* v, size_t stride, uint32_t batch) noexcept nogil:
    cdef Array* to = <Array*>given.bytes + given.n
    cdef uint32_t k
    given.n += 1
    to.v = v
    to.size = size_of(dim)
    to.stride = stride
    to.batch = <int32_t>batch
    to.nd = dim.nd
    for k in range(dim.nd):
        to.shape[k] = <int32_t>dim.d[k]


cdef void give_arguments(Given* given, const Call* c) noexcept nogil:
    cdef uint32_t i
    for i in range(c.n):
        give(given, &c.x[i].dim, c.x[i].v, size_of(&c.x[i].dim) if c.x[i].dim.bd > 1 else 0, c.y.dim.bd)


cdef void give_result(Given* given, const Call* c, float* v) noexcept nogil:
    give(given, &c.y.dim, v, size_of(&c.y.dim), c.y.dim.bd)
    given.most = max(given.most, total_of(&c.y.dim))


cdef void give_numbers(Given* given, const Form* form, const Call* c) noexcept nogil:
    cdef double* to = <double*>(<Array*>given.bytes + given.n)
    cdef const void* packed
    cdef uint32_t k
    if form.packed:
        memcpy(&packed, c.attrs + <int>NUMBERS, sizeof(packed))
        memcpy(to, packed, form.n_numbers * sizeof(double))
        return
    for k in range(form.n_numbers):
        to[k] = c.attrs[k].i if form.integers >> k & 1 else c.attrs[k].f


cdef int run(Gpu* gpu, int kernel, Given* given, const Call* c) noexcept nogil:
    """Launch a kernel with a thread for each number of the largest array that it computes."""
    give_numbers(given, &forms[gpu.op], c)
    return launch(gpu, kernel, <unsigned>((given.most + BLOCK - 1) // BLOCK), 1, BLOCK, 0, value_at(given.bytes))


cdef int custom_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Given given
    cdef uint32_t i
    memset(&given, 0, sizeof(given))
    for i in range(c.n if forms[gpu.op].elementwise else 0):    # shape rules of compiled ops may allow others
        if not repeats(&c.x[i].dim, &c.y.dim):
            return failed(gpu, WRONG_SHAPES, forms[gpu.op].forward)
    give_arguments(&given, c)
    give_result(&given, c, c.y.v)
    fill(gpu, 0 if forms[gpu.op].elementwise else total_of(&c.y.dim), 0, c.y.v)
    return run(gpu, forms[gpu.op].forward, &given, c)


cdef Dim prepared_dim(const Call* c, uint32_t i, bint elementwise) noexcept nogil:
    """The shape in which the gradient of an argument is computed."""
    cdef Dim dim = c.y.dim if elementwise else c.x[i].dim
    dim.bd = c.y.dim.bd
    return dim


cdef size_t before_argument(const Call* c, uint32_t i, bint elementwise) noexcept nogil:
    """Where it is in c.work."""
    cdef size_t n = 0
    cdef uint32_t k
    cdef Dim dim
    for k in range(i):
        dim = prepared_dim(c, k, elementwise)
        n += total_of(&dim)
    return n


cdef size_t prepared_of_arguments(const Call* c) noexcept nogil:
    return before_argument(c, c.n, False)


cdef size_t prepared_of_elements(const Call* c) noexcept nogil:
    return before_argument(c, c.n, True)


cdef int custom_begin_backward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Given given
    cdef Dim dim
    cdef uint32_t i
    cdef float* to = c.work
    memset(&given, 0, sizeof(given))
    give_result(&given, c, c.dy.v)
    give_result(&given, c, c.y.v)
    give_arguments(&given, c)
    for i in range(c.n):
        dim = prepared_dim(c, i, forms[gpu.op].elementwise)
        give(&given, &dim, to, size_of(&dim), dim.bd)
        to += total_of(&dim)
        given.most = max(given.most, total_of(&dim))
    fill(gpu, 0 if forms[gpu.op].elementwise else <size_t>(to - c.work), 0, c.work)
    return run(gpu, forms[gpu.op].backward, &given, c)


cdef int custom_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Tensor prepared = c.dy, dx = c.dx
    cdef Axes kept, reduced
    prepared.dim = prepared_dim(c, i, forms[gpu.op].elementwise)
    prepared.v = c.work + before_argument(c, i, forms[gpu.op].elementwise)
    if total_of(&prepared.dim) == total_of(&dx.dim):
        return scaled(gpu, total_of(&dx.dim), 1, prepared.v, dx.v, c.accumulate)
    align_axes(&dx.dim, prepared.dim.nd)
    split_axes(&prepared.dim, &prepared.dim, &prepared.dim, &dx.dim, &kept, &reduced)
    return contract(gpu, &kept, &reduced, 1, prepared.v, dx.v, c.accumulate)


cdef void align_axes(Dim* dim, uint32_t nd) noexcept nogil:
    """Put axes of length 1 before those of a shape, so that it has nd."""
    cdef uint32_t k
    for k in range(nd):
        dim.d[nd - 1 - k] = dim.d[dim.nd - 1 - k] if k < dim.nd else 1
    dim.nd = <unsigned char>nd


cdef void* load_kernels(Gpu* gpu, uint32_t op) noexcept with gil:
    """Compile and load the kernels of an op; returns the exception, owned, or NULL."""
    cdef _Kernels kernels = _kernels[op]
    what = f"of {kernels.op.name.decode()}"
    try:
        code = text_cubin(kernels.source.text, what, architecture(gpu.number))
        own = [(forms[op].forward, b"custom_forward")]
        if kernels.source.has_backward:
            own.append((forms[op].backward, b"custom_backward"))
        load_code(gpu, code, own, what)
    except BaseException as error:
        Py_INCREF(error)
        return <void*>error
    gpu_op_at(op).devices |= <uint64_t>1 << gpu.number
    return NULL


cdef int serve(_Kernels kernels) except -1:
    """Let an op run on devices."""
    cdef Op* of = kernels.op
    cdef GpuOp* op = gpu_op_at(of.id)
    cdef Form* form = &forms[of.id]
    _kernels[of.id] = kernels
    form.elementwise = kernels.source.elementwise
    form.n_numbers = kernels.n_numbers
    form.packed = kernels.packed
    form.integers = kernels.integers
    form.forward = kernel_at(NO_MODULE, b"forward of " + of.name)
    op.needs = &of.needs[GPU]
    op.load = load_kernels
    op.forward = custom_forward
    if kernels.source.has_backward:
        form.backward = kernel_at(NO_MODULE, b"backward of " + of.name)
        op.prepared = prepared_of_elements if form.elementwise else prepared_of_arguments
        op.assigns = True
        op.begin_backward = custom_begin_backward
        op.backward = custom_backward
    return 0


serve_on_devices(serve)
