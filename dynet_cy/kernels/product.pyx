# SPDX-License-Identifier: Apache-2.0
"""Products of matrices, and long loops, in parts that threads share."""

from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

from dynet_cy.core.mutex cimport pthread_mutex_lock, pthread_mutex_unlock
from dynet_cy.core.tensor cimport Packed
from dynet_cy.core.threads cimport ACQUIRE, RELAXED, RELEASE, atomic_add, atomic_load, atomic_sub
from dynet_cy.kernels.kernels cimport (
    BF16, DY_COLUMN_STEP, DY_SGEMM_LIBRARY, DY_SGEMM_PANELS, DY_SGEMM_VECTOR, K, dy_bf16_panels, dy_panels, in_bf16,
)
from dynet_cy.kernels.pool cimport DY_MOST_THREADS, acquire_pool, far_apart, run_pool
from dynet_cy.memory.arena cimport arena_alloc
from dynet_cy.memory.storage cimport Pack, Panels


# ==== product =====================================================================================
#
# Products of matrices.
#
# Products with a parameter may use its packed form, which is kept until its values
# change.  Large products are divided into parts of rows or columns for several
# threads.  The parts use the same method as the whole product would, and are cut
# only where that does not change the results (see kernels.def), so the results
# are the same on any number of threads.

cdef extern from "callers.h" nogil:
    # derived: structs of Caller
    ctypedef struct Caller "dy_caller":
        uint64_t number
        int again
        int narrow
        int n
        const void* first[16]
    # end of structs
    # derived: functions of caller_here, bint came_first
    Caller* caller_here "dy_caller_here"()
    bint came_first "dy_came_first"(Caller* c, const Panels* x)
    # end of functions


# Smaller matrices stay in the first-level cache anyway; with more columns, the
# packing that BLAS does in each call is a small part of its time.
cdef enum:
    LEAST_PACKED = 8192
    MOST_COLUMNS = 512
    MOST_IN_SHORT = 127                         # columns, where memory is short
    LEAST_TERMS = 32                            # sums of fewer are about as fast in float32

# The least number of multiplications per thread, if threads are already looking
# for work (LEAST_ASLEEP: if they must be woken); docs/kernels.md has the
# measurements.  Every part for OpenBLAS needs more than 1e6: on AVX-512 it computes smaller products
# by another method, which sums in another order.
cdef enum:
    LEAST_AWAKE = 100000
    LEAST_FAR = 10000000                        # awake or not, if the threads share no cache
    LEAST_LIBRARY = 1200000
    LEAST_PART = 100000                         # our own products have more parts than threads,
    MOST_PARTS = 8                              # up to this many for each, since some threads may be slower
    PART_IN_BACKGROUND = 5000000                # of a product in the background: the longest wait of a pass at its end
    LEAST_ROWS = 192                            # a side that is long enough to be cut
    PACKED = -1                                 # methods besides those of sgemm:
    ROUNDED = -2                                # in bfloat16, with panels or without


cdef void product(bint ta, size_t m, size_t n, size_t k, const float* a, Packed* pack,
                  const float* b, float beta, float* c) noexcept nogil:
    """C = op(A) B + beta C: op(A) is m x k, B k x n.  All matrices are contiguous.

    `pack` belongs to the parameter that A is, or is NULL.
    """
    summed(ta, m, n, k, a, pack, b, beta, c, m, c)


cdef void product_plus(size_t m, size_t n, size_t k, const float* a, Packed* pack, const float* b, const float* old,
                       size_t ldold, float* c) noexcept nogil:
    summed(0, m, n, k, a, pack, b, 1, old, ldold, c)


cdef void summed(bint ta, size_t m, size_t n, size_t k, const float* a, Packed* pack, const float* b, float beta,
                 const float* old, size_t ldold, float* c) noexcept nogil:
    """C = op(A) B + beta D, where D is at `old` and may be C.  A product with panels reads D where it is."""
    cdef const float* panels = NULL
    cdef Product p
    if pack != NULL and in_bf16 and m * k >= LEAST_PACKED:
        if not (<Pack*>pack).shared:
            panels = panels_of(<Pack*>pack, ta, m, k, a, True)
        begin_with(m, n, old, ldold, c)
        rounded(panels, ta, 0, m, n, k, a, k if ta else m, b, k, beta, c)
        if panels != NULL:
            atomic_sub((<Pack*>pack).users, 1, RELEASE)
        return
    if pack != NULL and not (<Pack*>pack).shared and K.packs and m * k >= LEAST_PACKED and n <= most_columns():
        panels = panels_of(<Pack*>pack, ta, m, k, a, False)
    if panels == NULL:
        begin_with(m, n, old, ldold, c)
        gemm(ta, 0, m, n, k, 1, a, k if ta else m, b, k, beta, c, m)
        return
    p = Product(PACKED, 0, 0, m, n, k, 1, panels, 0, b, k, beta, old, ldold, c, m, NULL)
    if m * n * k < 2 * LEAST_AWAKE or not together(&p):
        K.sgemm_packed(m, n, k, panels, b, k, beta, old, ldold, c, m)
    atomic_sub((<Pack*>pack).users, 1, RELEASE)


cdef struct Columns:
    size_t rows
    const float* old
    size_t ldold
    float* c


cdef void copy_columns(void* job, size_t first, size_t end) noexcept nogil:
    cdef const Columns* x = <const Columns*>job
    if x.ldold:
        memcpy(x.c + first * x.rows, x.old + first * x.rows, (end - first) * x.rows * sizeof(float))
    else:
        K.repeat(x.rows, end - first, x.old, x.c + first * x.rows)


cdef void begin_with(size_t m, size_t n, const float* old, size_t ldold, float* c) noexcept nogil:
    """C = D, to which a product is added then."""
    cdef Columns columns = Columns(m, old, ldold, c)
    if old != c:
        in_ranges(n, 1, m * ELEMENT_COST, copy_columns, &columns)


cdef inline size_t most_columns() noexcept nogil:
    """The columns of products for which weights are packed."""
    return MOST_IN_SHORT if caller_here().narrow else MOST_COLUMNS


cdef void pack_for_narrow(bint only) noexcept nogil:
    caller_here().narrow = only


cdef void note_caller(uint64_t number, bint again) noexcept nogil:
    cdef Caller* caller = caller_here()
    caller.number = number
    caller.again = again
    caller.n = 0


cdef void weight_gradient(size_t m, size_t k, size_t n, const float* dy, const float* x, float beta,
                          float* dw) noexcept nogil:
    """dW = dY X' + beta dW for a weight of m x k: dY is m x n, X k x n.  All matrices are contiguous."""
    if in_bf16 and m * k >= LEAST_PACKED and n >= LEAST_TERMS:
        rounded(NULL, 0, 1, m, k, n, dy, m, x, k, beta, dw)
    else:
        gemm(0, 1, m, k, n, 1, dy, m, x, k, beta, dw, m)


cdef void cut_weight_gradient(size_t m, size_t k, size_t n, const float* dy, const float* x, float* dw,
                              WeightGradient* g) noexcept nogil:
    """Cut dW += dY X' into parts for `part_of_weight_gradient`, which together compute what `weight_gradient` does."""
    cdef size_t most
    if in_bf16 and m * k >= LEAST_PACKED and n >= LEAST_TERMS:
        g.product = Product(ROUNDED, 0, 1, m, k, n, 1, dy, m, x, k, 1, dw, m, dw, m, NULL)
    else:
        g.product = Product(K.sgemm_way(0, 1, m, k, n), 0, 1, m, k, n, 1, dy, m, x, k, 1, dw, m, dw, m,
                            NULL)
    most = most_parts(&g.product, &g.cut) if g.product.way != DY_SGEMM_VECTOR else 1
    if g.product.way == DY_SGEMM_LIBRARY:
        most = min(most, <size_t>2)
    g.cut.parts = max(<size_t>1, min(most, work_of(&g.product) // PART_IN_BACKGROUND))


cdef void part_of_weight_gradient(const WeightGradient* g, size_t i) noexcept nogil:
    """Compute part i of a weight gradient."""
    cdef const Product* p = &g.product
    if g.cut.parts > 1:
        part(<void*>&g.cut, i)
    elif p.way == ROUNDED:
        BF16.gemm(NULL, p.ta, p.tb, p.m, p.n, p.k, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc)
    else:
        K.sgemm(p.ta, p.tb, p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc)


cdef void rounded(const float* panels, bint ta, bint tb, size_t m, size_t n, size_t k, const float* a, size_t lda,
                  const float* b, size_t ldb, float beta, float* c) noexcept nogil:
    """C = op(A) op(B) + beta C with elements of A and B in bfloat16."""
    cdef Product p = Product(ROUNDED, ta, tb, m, n, k, 1, a, lda, b, ldb, beta, c, m, c, m, panels)
    if work_of(&p) < 2 * LEAST_AWAKE or not together(&p):
        BF16.gemm(panels, ta, tb, m, n, k, a, lda, b, ldb, beta, c, m)


cdef void gemm(bint ta, bint tb, size_t m, size_t n, size_t k, float alpha, const float* a, size_t lda,
               const float* b, size_t ldb, float beta, float* c, size_t ldc) noexcept nogil:
    """`sgemm` of kernels.def, on several threads where that is faster.  `alpha` and `beta` are 0, 1 or -1."""
    cdef Product p
    if m * n * k >= 2 * LEAST_AWAKE and alpha != 0:
        p = Product(K.sgemm_way(ta, tb, m, n, k), ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, c, ldc, NULL)
        if p.way != DY_SGEMM_VECTOR and together(&p):
            return
    K.sgemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)


cdef bint in_parts(size_t parts, size_t work, void (*run)(void* job, size_t part) noexcept nogil,
                   void* job) noexcept nogil:
    """Call run(job, 0) to run(job, parts - 1), `work` multiplications in total, on several threads.

    False: only one thread is available, and nothing has been done.
    """
    cdef int threads = acquire_threads(work, parts)
    if threads == 1:
        return False
    run_pool(threads, parts, run, job)
    return True


cdef int acquire_threads(size_t work, size_t most) noexcept nogil:
    """Get at most so many threads for a number of multiplications; if it is not 1, `run_pool` must follow."""
    most = min(most, work // LEAST_AWAKE, <size_t>DY_MOST_THREADS)
    if most > 1 and far_apart():
        most = min(most, work // LEAST_FAR)
    return 1 if most < 2 else acquire_pool(<int>min(work // LEAST_ASLEEP, most), <int>most)


cdef inline size_t work_of(const Product* p) noexcept nogil:
    """The number of multiplications, or of those in float32 that take as long."""
    return p.m * p.n * p.k // (2 if p.way == ROUNDED else 1)


cdef size_t most_parts(const Product* p, Cut* cut) noexcept nogil:
    """Choose which side is cut, and where; returns how many parts there may be."""
    cdef size_t steps, least, work = work_of(p)
    cdef bint packs = p.way == DY_SGEMM_PANELS or (p.way == ROUNDED and p.panels == NULL)
    cut.whole = p
    # Each part reads all of the other matrix, so the longer side is cut; if rows are packed, each part would pack all.
    cut.by_rows = p.way != DY_SGEMM_LIBRARY and (p.m >= p.n or (packs and p.m >= LEAST_ROWS))
    cut.step = (BF16.panel if p.way == ROUNDED else K.panel) if cut.by_rows else DY_COLUMN_STEP
    steps = steps_of(cut)
    if p.way != DY_SGEMM_LIBRARY:
        return min(work // LEAST_AWAKE, steps)
    # The smallest part consists of all columns of a number of steps.
    least = (LEAST_LIBRARY - 1) // (p.m * p.k * cut.step) + 1
    # With fewer than one and a half steps per thread, one thread would do most of the work.
    return min(p.n // cut.step // least, steps * 2 // 3)


cdef inline size_t steps_of(const Cut* cut) noexcept nogil:
    return ((cut.whole.m if cut.by_rows else cut.whole.n) + cut.step - 1) // cut.step


cdef inline size_t part_begin(const Cut* cut, size_t i) noexcept nogil:
    """The row or column where part i begins."""
    return min(steps_of(cut) * i // cut.parts * cut.step, cut.whole.m if cut.by_rows else cut.whole.n)


cdef size_t parts_for(const Cut* cut, size_t threads) noexcept nogil:
    """The number of parts for a number of threads."""
    # OpenBLAS packs the other matrix again for each part.
    if cut.whole.way == DY_SGEMM_LIBRARY:
        return threads
    return min(threads * MOST_PARTS, steps_of(cut), work_of(cut.whole) // LEAST_PART)


cdef bint together(const Product* p) noexcept nogil:
    """Compute a large product on several threads; False if only one is available."""
    cdef Cut cut
    cdef int threads = acquire_threads(work_of(p), most_parts(p, &cut))
    if threads == 1:
        return False
    cut.parts = parts_for(&cut, threads)
    run_pool(threads, cut.parts, part, &cut)
    return True


def cuts(int way, size_t m, size_t n, size_t k, size_t threads) -> tuple[bool, list[int]]:
    """How a product is cut for a number of threads: whether in rows, where parts begin, and then its size.

    For tests: the parts computed in this way have the same bits as the whole.
    """
    cdef Product p
    cdef Cut cut
    memset(&p, 0, sizeof(Product))
    p.way = way
    p.m = m
    p.n = n
    p.k = k
    threads = min(threads, most_parts(&p, &cut))
    cut.parts = parts_for(&cut, threads) if threads > 1 else 1
    return bool(cut.by_rows), [part_begin(&cut, i) for i in range(cut.parts + 1)]


cdef void part(void* job, size_t i) noexcept nogil:
    """Compute part i of a product."""
    cdef const Cut* cut = <const Cut*>job
    cdef const Product* p = cut.whole
    cdef size_t first = part_begin(cut, i), n = part_begin(cut, i + 1) - first
    cdef size_t rows = n if cut.by_rows else p.m
    cdef size_t columns = p.n if cut.by_rows else n
    cdef const float* a = p.a
    cdef const float* b = p.b
    cdef float* c = p.c
    cdef const float* old = p.old
    cdef const float* panels = p.panels
    if cut.by_rows:
        c += first
        old += first
        if panels != NULL:
            panels += dy_bf16_panels(first, p.k)
        a += first * (p.k if p.way == PACKED else p.lda if p.ta else 1)
    else:
        c += first * p.ldc
        old += first * p.ldold
        b += first * (1 if p.tb else p.ldb)
    if p.way == ROUNDED:
        BF16.gemm(panels, p.ta, p.tb, rows, columns, p.k, a, p.lda, b, p.ldb, p.beta, c, p.ldc)
    elif p.way == PACKED:
        K.sgemm_packed(rows, columns, p.k, a, b, p.ldb, p.beta, old, p.ldold, c, p.ldc)
    else:
        K.sgemm_by(p.way, p.ta, p.tb, rows, columns, p.k, p.alpha, a, p.lda, b, p.ldb, p.beta, c, p.ldc)


cdef inline size_t panels_size(size_t m, size_t k, bint half) noexcept nogil:
    """The floats of a packed matrix, or of its packed transpose."""
    if half:
        return max(dy_bf16_panels(m, k), dy_bf16_panels(k, m))
    return max(dy_panels(m, k), dy_panels(k, m))


cdef const float* panels_of(Pack* pack, bint ta, size_t m, size_t k, const float* a, bint half) noexcept nogil:
    """The packed form; NULL if there is none.  The caller decrements `users`.

    In float32 it is made at the second product with the same values, because a single product is faster without it.
    The result depends only on the products since the last change of the values, so that training resumed from a file
    computes the same as training that never stopped.  In bfloat16 it is made at the first product.
    """
    cdef const float* panels = NULL
    cdef Panels* x = &pack.of[2 * half + ta]
    cdef Panels* turned = &pack.of[2 * half + 1 - ta]
    cdef uint64_t now
    cdef Caller* caller = caller_here()
    pthread_mutex_lock(pack.lock)
    now = pack.changes.n
    if not half and x.asked == now and came_first(caller, x):
        pass
    elif x.made == now and x.panels != NULL:
        panels = x.panels
    elif x.asked != now and not half:
        x.asked = now
        x.asker = caller.number
    else:
        if x.panels == NULL:
            # Most programs read a matrix in forward and its transpose in backward, and change it after that: one piece
            # of memory is enough for both.  If the first of them is read again, both get memory of their own.
            if x.made != now and turned.panels != NULL and atomic_load(pack.users, ACQUIRE) == 0:
                x.panels = turned.panels
                turned.panels = NULL
            else:
                x.panels = <float*>arena_alloc(pack.arena, panels_size(m, k, half) * sizeof(float))
        if x.panels != NULL:
            (BF16.pack if half else K.pack)(ta, m, k, a, k if ta else m, x.panels)
            x.made = now
            panels = x.panels
    if panels != NULL:
        atomic_add(pack.users, 1, RELAXED)
    pthread_mutex_unlock(pack.lock)
    return panels


# ==== ranges ======================================================================================
#
# Loops over independent elements, columns or images, divided among threads.
#
# Nothing is summed up across ranges, so the results are the same on any number of threads.

# The ranges of a call; a thread that starts late or is interrupted computes fewer of them.
cdef enum:
    MOST_RANGES = 16

cdef struct Ranges:
    RangeRun run
    void* job
    size_t n
    size_t step
    size_t parts


cdef inline size_t range_begin(const Ranges* r, size_t i) noexcept nogil:
    """The start of range i."""
    return min((r.n + r.step - 1) // r.step * i // r.parts * r.step, r.n)


cdef void run_range(void* job, size_t i) noexcept nogil:
    cdef const Ranges* r = <const Ranges*>job
    r.run(r.job, range_begin(r, i), range_begin(r, i + 1))


cdef void in_ranges(size_t n, size_t step, size_t cost, RangeRun run, void* job) noexcept nogil:
    """Call run(job, first, end) for ranges that together are 0 to n, on several threads where that is quicker.

    Args:
        step: ranges begin at multiples of it, so that vectors and cache lines are not cut.
        cost: what one of the n takes, in multiplications of a product (`in_parts`).  An element of a simple loop takes
            as long as some 16: 0.1 to 0.2 ns.
    """
    cdef Ranges r = Ranges(run, job, n, step, min((n + step - 1) // step, <size_t>MOST_RANGES))
    if r.parts < 2 or not in_parts(r.parts, n * cost, run_range, &r):
        run(job, 0, n)
