"""Elementwise functions, with kernels from the rows of .def files; sums of many; dropout, noise and random leaves."""

from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, total_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, launch_rows, value_at
from dynet_cy.gpu.registry cimport (
    POINTERS, Axes, Pointers, add_axis, axes_of, axes_total, by_threads, contract, expand, gpu_op, gpu_op_named,
    kernel_at, module_at, no_axes, scaled, split_axes, strided, sum_pointers,
)
from dynet_cy.kernels.kernels cimport DY_BINARY_COUNT, DY_UNARY_COUNT
from dynet_cy.ops.elementwise cimport BINARY, CONSTANT_A, CONSTANT_B, DY_INTEGER_COUNT, INTEGER, THROUGH, UNARY
from dynet_cy.ops.registry cimport ASSIGNS, MAX_OPS

cdef GpuOp* op


# ==== unary =======================================================================================
#
# Elementwise functions of one argument: kernels from the rows of unary.def.

cdef int CU_UNARY = module_at(b"unary")
# Kernels by number of the op.
cdef int[MAX_OPS] UNARY_FORWARD
cdef int[MAX_OPS] UNARY_BACKWARD


cdef int unary_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim)
    return launch_each(gpu, UNARY_FORWARD[gpu.op], n, n, c.x[0].v, c.attrs[0].f, c.attrs[1].f, c.y.v)


cdef int unary_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim)
    return launch_each(gpu, UNARY_BACKWARD[gpu.op], n, n, c.x[0].v, c.y.v, c.dy.v, c.attrs[0].f, c.attrs[1].f, c.dx.v,
                       c.accumulate)


cdef int straight_through(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return scaled(gpu, total_of(&c.dx.dim), 1, c.dy.v, c.dx.v, c.accumulate)


cdef int which
for which in range(DY_UNARY_COUNT):
    gpu_op(UNARY[which].name, CU_UNARY, unary_forward, unary_backward, ASSIGNS)
    UNARY_FORWARD[UNARY[which].id] = kernel_at(CU_UNARY, b"unary_forward_" + UNARY[which].name)
    UNARY_BACKWARD[UNARY[which].id] = kernel_at(CU_UNARY, b"unary_backward_" + UNARY[which].name)
    if THROUGH[which] != NULL:
        gpu_op(THROUGH[which].name, CU_UNARY, unary_forward, straight_through, ASSIGNS)
        UNARY_FORWARD[THROUGH[which].id] = UNARY_FORWARD[UNARY[which].id]


# ==== arithmetic ==================================================================================
#
# Elementwise functions of two arguments, whose kernels come from the rows of binary.def, and sums of many.

cdef int CU_BINARY = module_at(b"binary")
# Kernels by number of the op, and of the argument.
cdef int[MAX_OPS] BINARY_FORWARD
cdef int[MAX_OPS][2] BINARY_BACKWARD


cdef int binary_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Axes all = axes_of(&c.y.dim, &c.x[0].dim, &c.x[1].dim)
    cdef size_t n = axes_total(&all)
    return launch_each(gpu, BINARY_FORWARD[gpu.op], n, n, value_at(&all), c.x[0].v, c.x[1].v, c.y.v)


cdef int binary_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Axes kept, reduced
    cdef size_t n, terms
    split_axes(&c.y.dim, &c.x[0].dim, &c.x[1].dim, &c.x[i].dim, &kept, &reduced)
    n = axes_total(&kept)
    terms = axes_total(&reduced)
    if by_threads(gpu, n, terms):
        return launch_each(gpu, BINARY_BACKWARD[gpu.op][i], n, n, terms, value_at(&kept), value_at(&reduced), c.x[0].v,
                           c.x[1].v, c.y.v, c.dy.v, c.dx.v, c.accumulate, 0)
    return launch_rows(gpu, BINARY_BACKWARD[gpu.op][i], n, terms, n, terms, value_at(&kept), value_at(&reduced),
                       c.x[0].v, c.x[1].v, c.y.v, c.dy.v, c.dx.v, c.accumulate, 1)


cdef int argument
cdef bytes name, side
for which in range(DY_BINARY_COUNT):
    if BINARY[which] == NULL:                           # not an op, only a part of other ops
        continue
    name = BINARY[which].name
    gpu_op(name, CU_BINARY, binary_forward, binary_backward, ASSIGNS)
    BINARY_FORWARD[BINARY[which].id] = kernel_at(CU_BINARY, b"binary_forward_" + name)
    for argument in range(2):
        side = b"ab"[argument:argument + 1]
        BINARY_BACKWARD[BINARY[which].id][argument] = kernel_at(CU_BINARY, b"binary_backward_" + side + b"_" + name)


# ---- integers ----------------------------------------------------------------------
# A node has two arguments, or one and a constant.

cdef int CU_INTEGERS = module_at(b"integers")
cdef int[MAX_OPS] INTEGER_FORWARD


cdef int integer_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Axes all
    cdef size_t n = total_of(&c.y.dim)
    cdef bint first = c.attrs[0].u != <uint32_t>CONSTANT_A, second = c.attrs[0].u != <uint32_t>CONSTANT_B
    if c.n == 2:
        all = axes_of(&c.y.dim, &c.x[0].dim, &c.x[1].dim)
    else:
        no_axes(&all)
        add_axis(&all, n, first, second, 1)
    return launch_each(gpu, INTEGER_FORWARD[gpu.op], n, n, value_at(&all), c.x[0].v if first else NULL,
                       c.x[c.n - 1].v if second else NULL, c.attrs[1].i, c.y.v)


for which in range(DY_INTEGER_COUNT):
    gpu_op(INTEGER[which].name, CU_INTEGERS, integer_forward, NULL)
    INTEGER_FORWARD[INTEGER[which].id] = kernel_at(CU_INTEGERS, INTEGER[which].name + b"_forward")


# ---- esum, average ---------------------------------------------------------------

cdef bint side_by_side(const Call* c) noexcept nogil:
    """Whether all arguments are adjacent and as large as y."""
    cdef size_t total = total_of(&c.y.dim)
    cdef uint32_t i
    for i in range(c.n):
        if c.x[i].dim.bd != c.y.dim.bd or c.x[i].v != c.x[0].v + i * total:
            return False
    return True


cdef int add_scaled(Gpu* gpu, const Call* c, float scale) noexcept nogil:
    """y = scale times the sum of all arguments; if one kernel cannot take all of them, it adds partial sums."""
    cdef Pointers xs
    cdef Axes axes, terms
    cdef uint32_t i, n = 0, sums = 0
    cdef float* to
    cdef size_t total = total_of(&c.y.dim)
    cdef bint acc = False
    if side_by_side(c):
        axes = strided(total, 1)
        terms = strided(c.n, total)
        return contract(gpu, &axes, &terms, scale, c.x[0].v, c.y.v, 0)
    memset(&xs, 0, sizeof(xs))
    for i in range(c.n):
        if c.x[i].dim.bd == c.y.dim.bd:
            xs.p[n] = c.x[i].v
            n += 1
        if n and (n == <uint32_t>POINTERS or i + 1 == c.n):
            to = c.work if c.n > <uint32_t>POINTERS else c.y.v
            sum_pointers(gpu, total, &xs, n, scale, to + sums * total, False)
            n = 0
            sums += 1
            acc = True
    if c.n > <uint32_t>POINTERS and sums:
        axes = strided(total, 1)
        terms = strided(sums, total)
        contract(gpu, &axes, &terms, 1, c.work, c.y.v, 0)
    for i in range(c.n):
        if c.x[i].dim.bd != c.y.dim.bd:         # one batch element for the whole batch
            axes = axes_of(&c.y.dim, &c.x[i].dim, &c.x[i].dim)
            expand(gpu, &axes, scale, c.x[i].v, c.y.v, acc)
            acc = True
    return gpu.error


cdef size_t sums_work(const Call* c) noexcept nogil:
    """Partial sums, if one kernel cannot take all arguments."""
    return (c.n + <uint32_t>POINTERS - 1) // <uint32_t>POINTERS * total_of(&c.y.dim) if c.n > <uint32_t>POINTERS else 0


cdef float spread_of_add(const Call* c) noexcept nogil:
    return 1


gpu_op_named(b"add").spread = spread_of_add             # to arguments that are not broadcast


# derived: launches of base, many, integers, random
from dynet_cy.core.tensor cimport size_of
from dynet_cy.gpu.driver cimport refused_of
from dynet_cy.gpu.registry cimport BASE, SOME, Some, pass_scaled, some_of
from dynet_cy.ops.loops cimport Split, split_at


cdef int esum_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return add_scaled(gpu, c, 1)


cdef int esum_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_scaled(gpu, &c.dy, 1, &c.dx, c.accumulate)


cdef float esum_spread(const Call* c) noexcept nogil:
    return 1


cdef size_t esum_work(const Call* c, int i) noexcept nogil:
    return sums_work(c) if i < 0 else 0


op = gpu_op(b"esum", BASE, esum_forward, esum_backward)
op.spread = esum_spread
op.work = esum_work
op.assigns = True


cdef int average_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return add_scaled(gpu, c, 1.0 / c.n)


cdef int average_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_scaled(gpu, &c.dy, 1.0 / c.n, &c.dx, c.accumulate)


cdef float average_spread(const Call* c) noexcept nogil:
    return 1.0 / c.n


op = gpu_op(b"average", BASE, average_forward, average_backward)
op.spread = average_spread
op.work = esum_work
op.assigns = True

cdef int CU_MANY = module_at(b"many")
cdef int EMAX_FORWARD = kernel_at(CU_MANY, b"emax_forward")
cdef int EMAX_BACKWARD = kernel_at(CU_MANY, b"emax_backward")


cdef int emax_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim), n = size_of(&c.y.dim)
    cdef uint32_t first = 0
    cdef Some some
    while first == 0 or first < c.n - 0:
        some = some_of(c, 0, first)
        launch_each(gpu, EMAX_FORWARD, total, total, n, value_at(&some), c.saved, c.y.v)
        first += SOME
    return gpu.error


cdef int emax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t total = total_of(&c.y.dim), n = total_of(&c.dx.dim)
    return launch_each(gpu, EMAX_BACKWARD, n, total, n, i, c.saved, c.dy.v, c.dx.v, c.accumulate)


op = gpu_op(b"emax", CU_MANY, emax_forward, emax_backward)
op.assigns = True

cdef int TO_FLOAT_FORWARD = kernel_at(CU_INTEGERS, b"to_float_forward")
cdef int TO_INT_FORWARD = kernel_at(CU_INTEGERS, b"to_int_forward")


cdef int to_float_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim)
    return launch_each(gpu, TO_FLOAT_FORWARD, n, n, c.x[0].v, c.y.v)


op = gpu_op(b"to_float", CU_INTEGERS, to_float_forward, NULL)


cdef int to_int_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t n = total_of(&c.y.dim)
    return launch_each(gpu, TO_INT_FORWARD, n, n, c.x[0].v, c.y.v)


op = gpu_op(b"to_int", CU_INTEGERS, to_int_forward, NULL)

cdef int CU_RANDOM = module_at(b"random")
cdef int RANDOM_NORMAL = kernel_at(CU_RANDOM, b"random_normal")
cdef int RANDOM_UNIFORM = kernel_at(CU_RANDOM, b"random_uniform")
cdef int RANDOM_BERNOULLI = kernel_at(CU_RANDOM, b"random_bernoulli")
cdef int RANDOM_GUMBEL = kernel_at(CU_RANDOM, b"random_gumbel")
cdef int NOISE_FORWARD = kernel_at(CU_RANDOM, b"noise_forward")
cdef int DROPOUT_FORWARD = kernel_at(CU_RANDOM, b"dropout_forward")
cdef int DROPOUT_BACKWARD = kernel_at(CU_RANDOM, b"dropout_backward")
cdef int SAMPLE_FORWARD = kernel_at(CU_RANDOM, b"sample_forward")


cdef int random_normal_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float p0 = <float>c.attrs[0].f, p1 = <float>c.attrs[1].f
    return launch_each(gpu, RANDOM_NORMAL, batch * n, batch, n, <const void*>c.seed, c.items, p0, p1, c.y.v)


op = gpu_op(b"random_normal", CU_RANDOM, random_normal_forward, NULL)
op.draws = True


cdef int random_uniform_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float p0 = <float>c.attrs[0].f, p1 = <float>c.attrs[1].f
    return launch_each(gpu, RANDOM_UNIFORM, batch * n, batch, n, <const void*>c.seed, c.items, p0, p1, c.y.v)


op = gpu_op(b"random_uniform", CU_RANDOM, random_uniform_forward, NULL)
op.draws = True


cdef int random_bernoulli_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float p0 = <float>c.attrs[0].f, p1 = <float>c.attrs[1].f
    return launch_each(gpu, RANDOM_BERNOULLI, batch * n, batch, n, <const void*>c.seed, c.items, p0, p1, c.y.v)


op = gpu_op(b"random_bernoulli", CU_RANDOM, random_bernoulli_forward, NULL)
op.draws = True


cdef int random_gumbel_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float p0 = <float>c.attrs[0].f, p1 = <float>c.attrs[1].f
    return launch_each(gpu, RANDOM_GUMBEL, batch * n, batch, n, <const void*>c.seed, c.items, p0, p1, c.y.v)


op = gpu_op(b"random_gumbel", CU_RANDOM, random_gumbel_forward, NULL)
op.draws = True


cdef int noise_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float deviation = <float>c.attrs[0].f
    return launch_each(gpu, NOISE_FORWARD, batch * n, batch, n, <const void*>c.seed, c.items, deviation, c.x[0].v,
                       c.x[0].bstride, c.y.v)


cdef int noise_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    return pass_scaled(gpu, &c.dy, 1, &c.dx, c.accumulate)


op = gpu_op(b"noise", CU_RANDOM, noise_forward, noise_backward)
op.draws = True
op.assigns = True


cdef int dropout_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = size_of(&c.y.dim), length = 1
    return launch_each(gpu, DROPOUT_FORWARD, batch * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.x[0].v, c.x[0].bstride, c.y.v)


cdef int dropout_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = size_of(&c.y.dim), length = 1
    return launch_each(gpu, DROPOUT_BACKWARD, elements * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"dropout", CU_RANDOM, dropout_forward, dropout_backward)
op.draws = True
op.assigns = True


cdef int dropout_dim_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.y.dim, c.attrs[1].u)
    cdef size_t n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = s.pre, length = s.len
    return launch_each(gpu, DROPOUT_FORWARD, batch * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.x[0].v, c.x[0].bstride, c.y.v)


cdef int dropout_dim_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd
    cdef Split s = split_at(&c.y.dim, c.attrs[1].u)
    cdef size_t n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = s.pre, length = s.len
    return launch_each(gpu, DROPOUT_BACKWARD, elements * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"dropout_dim", CU_RANDOM, dropout_dim_forward, dropout_dim_backward)
op.draws = True
op.assigns = True


cdef int dropout_batch_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = 1, length = size_of(&c.y.dim)
    return launch_each(gpu, DROPOUT_FORWARD, batch * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.x[0].v, c.x[0].bstride, c.y.v)


cdef int dropout_batch_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim)
    cdef float keep = <float>(1 - c.attrs[0].f), value = <float>(1 / keep if keep > 0 else 0)
    cdef size_t inner = 1, length = size_of(&c.y.dim)
    return launch_each(gpu, DROPOUT_BACKWARD, elements * n, batch, n, inner, length, <const void*>c.seed, c.items, keep,
                       value, c.dy.v, elements, c.dx.v, c.accumulate)


op = gpu_op(b"dropout_batch", CU_RANDOM, dropout_batch_forward, dropout_batch_backward)
op.draws = True
op.assigns = True

op = gpu_op(b"block_dropout", CU_RANDOM, dropout_batch_forward, dropout_batch_backward)
op.draws = True
op.assigns = True


cdef int sample_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t inner = s.pre, length = s.len, outer = s.post
    cdef uint32_t function = c.attrs[3].u
    return launch_rows(gpu, SAMPLE_FORWARD, inner * outer * batch, length, batch, inner, length, outer,
                       <const void*>c.seed, c.items, function, refused_of(gpu), c.x[0].v, c.x[0].bstride, c.y.v)


op = gpu_op(b"sample", CU_RANDOM, sample_forward, NULL)
op.draws = True
# end of launches
