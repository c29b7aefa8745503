"""Linear-chain conditional random fields."""

from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, cols_of, rows_of, size_of
from dynet_cy.gpu.driver cimport Gpu, GpuOp, launch_each, launch_rows
from dynet_cy.gpu.registry cimport gpu_op, kernel_at, module_at

cdef int CU = module_at(b"crf")
cdef int ALPHAS = kernel_at(CU, b"crf_alphas")
cdef int BETAS = kernel_at(CU, b"crf_betas")
cdef int MARGINALS = kernel_at(CU, b"crf_marginals")
cdef int TRANSITIONS_BACKWARD = kernel_at(CU, b"crf_transitions_backward")


# Saved for each batch element: alphas, betas, the number that was subtracted from each column of alphas, and the
# greatest score of each word, of the transitions, of the starts and of the ends.

cdef size_t saved_of_one(const Call* c) noexcept nogil:
    return 2 * size_of(&c.x[0].dim) + 2 * cols_of(&c.x[0].dim) + 3


cdef const uint32_t* gold_of(const Call* c) noexcept nogil:
    """The tags of crf_loss, or NULL."""
    return c.items if c.item_count else NULL


cdef int find_alphas(Gpu* gpu, const Call* c, float* alphas, float* total) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim)
    return launch_rows(gpu, ALPHAS, batch, tags, batch, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.x[2].v,
                       c.x[2].bstride, c.x[3].v, c.x[3].bstride, tags, n, gold_of(c), saved_of_one(c), alphas,
                       2 * size_of(&c.x[0].dim), total)


cdef int find_betas(Gpu* gpu, const Call* c, float* alphas, float* betas) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim)
    return launch_rows(gpu, BETAS, batch, tags, batch, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride, c.x[2].v,
                       c.x[2].bstride, c.x[3].v, c.x[3].bstride, tags, n, gold_of(c), saved_of_one(c), alphas,
                       2 * size_of(&c.x[0].dim), betas)


# ---- crf_log_partition, crf_loss -------------------------------------------------------------

cdef int log_partition_forward(Gpu* gpu, const Call* c) noexcept nogil:
    return find_alphas(gpu, c, c.saved, c.y.v)


cdef int log_partition_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, own = c.dx.dim.bd, size = size_of(&c.x[0].dim)
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), count, offset
    if c.first:
        find_betas(gpu, c, c.saved, c.saved + size)
    if i == 1:
        return launch_each(gpu, TRANSITIONS_BACKWARD, own * tags * tags, own, batch, c.x[0].v, c.x[0].bstride, c.x[1].v,
                           c.x[1].bstride, c.x[2].v, c.x[2].bstride, c.x[3].v, c.x[3].bstride, tags, n, gold_of(c),
                           saved_of_one(c), c.saved, c.saved + size, c.saved + 2 * size, c.dy.v, c.dx.v)
    count = size if i == 0 else tags
    offset = size - tags if i == 3 else 0
    return launch_each(gpu, MARGINALS, own * count, own, batch, count, offset, saved_of_one(c), tags, n, gold_of(c),
                       c.saved, c.saved + size, c.dy.v, c.dx.v)


cdef size_t log_partition_saved(const Call* c) noexcept nogil:
    return saved_of_one(c) * c.y.dim.bd


cdef GpuOp* op
cdef bytes name
for name in (b"crf_log_partition", b"crf_loss"):
    op = gpu_op(name, CU, log_partition_forward, log_partition_backward)
    op.saved = log_partition_saved


# ---- crf_marginals -----------------------------------------------------------------

cdef int marginals_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, size = size_of(&c.x[0].dim)
    find_alphas(gpu, c, c.work, <float*>NULL)
    find_betas(gpu, c, c.work, c.work + size)
    return launch_each(gpu, MARGINALS, batch * size, batch, batch, size, <size_t>0, saved_of_one(c),
                       rows_of(&c.x[0].dim), cols_of(&c.x[0].dim), <uint32_t*>NULL, c.work, c.work + size,
                       <float*>NULL, c.y.v)


cdef size_t marginals_work(const Call* c, int i) noexcept nogil:
    return saved_of_one(c) * c.y.dim.bd


op = gpu_op(b"crf_marginals", CU, marginals_forward, NULL)
op.work = marginals_work


# derived: launches
cdef int CRF_VITERBI = kernel_at(CU, b"crf_viterbi")


cdef int crf_viterbi_forward(Gpu* gpu, const Call* c) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim)
    return launch_rows(gpu, CRF_VITERBI, batch, tags, batch, c.x[0].v, c.x[0].bstride, c.x[1].v, c.x[1].bstride,
                       c.x[2].v, c.x[2].bstride, c.x[3].v, c.x[3].bstride, tags, n, NULL, c.work, c.y.v)


cdef size_t crf_viterbi_work(const Call* c, int i) noexcept nogil:
    cdef size_t batch = c.y.dim.bd, tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim)
    return ((n + 2) * tags + n + 3) * batch


op = gpu_op(b"crf_viterbi", CU, crf_viterbi_forward, NULL)
op.work = crf_viterbi_work
# end of launches
