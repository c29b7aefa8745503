"""Scaled dot-product attention."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, axis_of, cols_of, rows_of, size_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_rows, value_at
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at
from dynet_cy.ops.attention cimport (
    ATTENTION_CAUSAL, ATTENTION_FROM, ATTENTION_HEADS, ATTENTION_NOT_CAUSAL, ATTENTION_RATE, ATTENTION_SCALE,
    ATTENTION_TO_LAST,
)


cdef extern from "dynet_cy/gpu_attention.h" nogil:
    ctypedef struct Attention "dy_gpu_attention":
        const float* q
        const float* k
        const float* v
        const float* bias
        size_t q_step
        size_t k_step
        size_t v_step
        size_t bias_step
        const float* y
        const float* dy
        const float* means
        float* sums
        const uint64_t* seeds
        const uint32_t* items
        size_t m
        size_t n
        size_t before
        uint32_t everywhere
        uint32_t heads
        uint32_t rows
        uint32_t value_rows
        uint32_t bias_columns
        uint32_t bias_heads
        float scale
        float keep


cdef int CU = module_at(b"attention")
cdef int FORWARD = kernel_at(CU, b"attention_forward")
cdef int MEANS = kernel_at(CU, b"attention_means")
cdef int BACKWARD_Q = kernel_at(CU, b"attention_backward_q")
cdef int BACKWARD_KV = kernel_at(CU, b"attention_backward_kv")
cdef int BACKWARD_BIAS = kernel_at(CU, b"attention_backward_bias")


cdef inline size_t sums_of(const Call* c) noexcept nogil:
    """The number of softmax sums: one for each query of each head of each batch element."""
    return <size_t>c.attrs[ATTENTION_HEADS].u * cols_of(&c.x[0].dim) * c.y.dim.bd


cdef Attention attention_of(const Call* c) noexcept nogil:
    cdef Attention p
    cdef int causal = c.attrs[ATTENTION_CAUSAL].i
    memset(&p, 0, sizeof(p))
    p.heads = c.attrs[ATTENTION_HEADS].u
    p.m = cols_of(&c.x[0].dim)
    p.n = cols_of(&c.x[1].dim)
    p.rows = rows_of(&c.x[0].dim) // p.heads
    p.value_rows = rows_of(&c.x[2].dim) // p.heads
    p.q = c.x[0].v
    p.k = c.x[1].v
    p.v = c.x[2].v
    p.q_step = c.x[0].bstride
    p.k_step = c.x[1].bstride
    p.v_step = c.x[2].bstride
    p.bias_columns = p.bias_heads = 1
    if c.n > 3:
        p.bias = c.x[3].v
        p.bias_step = c.x[3].bstride
        p.bias_columns = axis_of(&c.x[3].dim, 1)
        p.bias_heads = axis_of(&c.x[3].dim, 2)
    p.everywhere = causal == ATTENTION_NOT_CAUSAL
    if causal == ATTENTION_TO_LAST:
        p.before = p.n - p.m
    elif causal >= ATTENTION_FROM:
        p.before = causal - ATTENTION_FROM
    p.scale = c.attrs[ATTENTION_SCALE].f
    p.keep = 1 - c.attrs[ATTENTION_RATE].f
    if c.attrs[ATTENTION_RATE].f > 0:
        p.seeds = <const uint64_t*>c.seed
        p.items = c.items
    p.sums = c.saved
    return p


cdef int attention_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Attention p = attention_of(c)
    return launch_rows(gpu, FORWARD, sums_of(c), p.n, sums_of(c), value_at(&p), c.y.v)


cdef int attention_begin(Gpu* gpu, const Call* c) noexcept nogil:
    cdef Attention p = attention_of(c)
    p.y = c.y.v
    p.dy = c.dy.v
    return launch_rows(gpu, MEANS, sums_of(c), p.value_rows, sums_of(c), value_at(&p), c.saved + 2 * sums_of(c))


cdef int attention_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef Attention p = attention_of(c)
    cdef size_t own = c.dx.dim.bd, batch = c.y.dim.bd, blocks = size_of(&c.dx.dim) * own
    p.y = c.y.v
    p.dy = c.dy.v
    p.means = c.saved + 2 * sums_of(c)
    if i == 0:
        return launch_rows(gpu, BACKWARD_Q, blocks // p.rows, p.n, blocks // p.rows, own, batch, value_at(&p), c.dx.v)
    if i == 3:
        return launch_rows(gpu, BACKWARD_BIAS, blocks, p.m, blocks, own, batch, value_at(&p), c.dx.v)
    blocks //= p.value_rows if i == 2 else p.rows
    return launch_rows(gpu, BACKWARD_KV, blocks, p.m, blocks, own, batch, <uint32_t>(i == 2), value_at(&p), c.dx.v)


cdef size_t attention_saved(const Call* c) noexcept nogil:
    return 3 * sums_of(c)


cdef GpuOp* op
cdef bytes name
for name in (b"scaled_dot_product_attention", b"scaled_dot_product_attention_dropout"):
    op = gpu_op(name, CU, attention_forward, attention_backward)
    op.begin = attention_begin
    op.saved = attention_saved
op.draws = True
