"""Helpers of loops: axes, terms of gradients, log-sums, draws, and walks over reduced tensors."""

from libc.math cimport NAN, isinf, logf, sqrt
from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Attr, Call, Dim, Tensor, axis_of, draw_key, draw_number, element, size_of, total_of
from dynet_cy.kernels.kernels cimport K, DY_RNG_bernoulli, squares_of


# ==== axes ========================================================================================
#
# Axes of tensors: what shape rules and loops of several families share.

cdef extern from "dynet_cy/axes.h" nogil:
    # derived: structs of Split
    ctypedef struct Split "dy_split":
        size_t pre
        size_t len
        size_t post
    # end of structs
    # derived: functions of split_at, without
    Split split_at "dy_split_at"(const Dim* x, uint32_t axis)
    void without "dy_without"(const Dim* x, uint32_t mask, Dim* y)
    # end of functions


cdef inline int vector(Dim* y, size_t n) noexcept:
    """A shape rule: y is a vector of n elements."""
    y.nd = 1
    y.d[0] = <uint32_t>n
    return 0


cdef inline int scalar(Dim* y) noexcept:
    return vector(y, 1)


cdef inline int matrix(Dim* y, size_t rows, size_t cols) noexcept:
    y.nd = 2
    y.d[0] = <uint32_t>rows
    y.d[1] = <uint32_t>cols
    return 0


cdef inline size_t best_of_line(const float* x, size_t step, size_t n, float sign) noexcept nogil:
    """The position of the greatest sign x of n elements that are `step` apart: the first of equal ones, or of NaN."""
    cdef size_t k, best = 0
    cdef float top
    if step == 1 and sign > 0:
        return K.argmax(n, x)
    top = x[0]
    for k in range(1, n):
        if top != top:
            break
        if not sign * x[k * step] <= sign * top:
            top = x[k * step]
            best = k
    return best


cdef inline void add_where(const Call* c, Split s, size_t count) noexcept nogil:
    """Add dy to the elements of dx that those of y were: c.saved has the positions, `count` for each line."""
    cdef size_t p
    cdef uint32_t b
    cdef const uint32_t* where = <const uint32_t*>c.saved
    cdef const float* dy = c.dy.v
    cdef float* dx
    for b in range(c.y.dim.bd):
        dx = element(&c.dx, b)
        for _ in range(s.post):
            for _ in range(count):
                for p in range(s.pre):
                    dx[where[p] * s.pre + p] += dy[p]
                where += s.pre
                dy += s.pre
            dx += s.pre * s.len


# ==== terms =======================================================================================
#
# Gradients of arguments without a batch, to which every batch element adds a term: see terms.h.

cdef extern from "dynet_cy/terms.h" nogil:
    # derived: structs of Terms
    ctypedef struct Terms "dy_terms":
        size_t n
        size_t count
        float* dx
        float* part
        double* total
        int acc
    # end of structs
    # derived: functions of dy_terms_work, dy_terms_begin, dy_terms_next, end_terms = dy_terms_end
    size_t dy_terms_work(size_t n, size_t terms)
    void dy_terms_begin(Terms* t, size_t n, size_t terms, float* work, float* dx, int acc)
    float* dy_terms_next(Terms* t, int* add)
    void end_terms "dy_terms_end"(Terms* t)
    # end of functions


cdef inline bint adds(const Call* c, uint32_t b) noexcept nogil:
    """Whether the gradient of batch element b is added to what is there."""
    return c.accumulate or (b > 0 and c.dx.dim.bd == 1)


cdef inline size_t terms_work(const Call* c, int i) noexcept nogil:
    """Floats of working memory that the gradient of argument i needs."""
    return dy_terms_work(size_of(&c.x[i].dim), c.y.dim.bd) if c.x[i].dim.bd == 1 else 0


cdef inline void begin_terms(Terms* t, const Call* c, float* work) noexcept nogil:
    cdef bint shared = c.dx.dim.bd == 1 and c.dx.list == NULL
    dy_terms_begin(t, size_of(&c.dx.dim), c.y.dim.bd if shared else 0, work, c.dx.v if shared else NULL, c.accumulate)


cdef inline float* next_term(Terms* t, const Call* c, uint32_t b, int* add) noexcept nogil:
    """The address of the gradient of batch element b, and whether to add to its contents."""
    if t.dx != NULL:
        return dy_terms_next(t, add)
    add[0] = c.accumulate
    return element(&c.dx, b)


cdef inline void put_scaled(size_t n, float a, const float* x, float* y, bint add) noexcept nogil:
    """y = a x, or y += a x."""
    if add:
        K.axpy(n, a, x, y)
    else:
        K.scale(n, a, x, y)


cdef inline void pass_on(const Call* c, float scale) noexcept nogil:
    """dx = scale dy, summed over the batch if x has one batch element."""
    cdef size_t n = total_of(&c.dx.dim), k = 0
    while k < total_of(&c.y.dim):
        put_scaled(n, scale, c.dy.v + k, c.dx.v, c.accumulate or k > 0)
        k += n


# ==== log sums ====================================================================================
#
# The logarithm of a sum of e^x as a pair of floats: the maximum of the x, and the sum of e^(x - maximum).
#
# As one float it has too few digits next to a large maximum: the e^(x - log-sum) would not sum to one.

cdef inline float log_of(const float* pair) noexcept nogil:
    return pair[0] + logf(pair[1])


cdef inline void logs_of(size_t n, const float* pairs, float* y) noexcept nogil:
    cdef size_t i
    for i in range(n):
        y[i] = log_of(pairs + 2 * i)


# ==== draws =======================================================================================
#
# Draws of random ops, which depend on the seed and the items of a node, never on batching.

cdef inline void draw(const Call* c, uint32_t b, int which, size_t n, float p0, float p1,
                      float* out) noexcept nogil:
    """The first n elements of the draw of batch element b."""
    K.rng[which](draw_key(c, b), <uint32_t>(c.stream >> 32), draw_number(c, b), 0, n, p0, p1, out)


cdef inline void draw_mask(const Call* c, uint32_t b, size_t n, float* out) noexcept nogil:
    """0 with probability p, else 1 / (1 - p); attribute 0 is p."""
    cdef float keep = 1 - c.attrs[0].f
    draw(c, b, <int>DY_RNG_bernoulli, n, keep, 1 / keep if keep > 0 else 0, out)


# ==== sweeps ======================================================================================
#
# Walks over tensors that are reduced: what the loops of reductions and of norms share.

# ---- walks -------------------------------------------------------------------
# A reduction visits x in memory order, in runs of adjacent elements that go
# either all to one element of y, or each to its own.

cdef struct Walk:
    uint32_t n
    size_t[9] size
    size_t[9] stride                # in y; 0: reduced

# The data of a run.
cdef struct Sweep:
    const float* x
    float* y
    double* sums                    # sums of y in double precision, or NULL
    float* more                     # another number for each element of y
    const float* dy
    float* dx
    float scale
    float p
    bint acc

# n elements of x from i on; they go to element o of y or, if `kept`, to o, o + 1, ...
ctypedef void (*Run)(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil

# attrs[0] of these ops: a bit for each axis that is reduced.
cdef enum:
    BATCH_BIT = 1 << 31
    ALL_AXES = 0x7F


cdef inline void add_axis(Walk* w, size_t size, size_t stride) noexcept nogil:
    cdef uint32_t last = w.n - 1
    if size == 1:
        return
    if w.n and (stride == w.stride[last] * w.size[last] if stride else w.stride[last] == 0):
        w.size[last] *= size
        return
    w.size[w.n] = size
    w.stride[w.n] = stride
    w.n += 1


cdef inline void walk_of(const Tensor* x, const Tensor* y, uint32_t mask, Walk* w) noexcept nogil:
    cdef uint32_t i
    cdef size_t stride = 1
    w.n = 0
    for i in range(x.dim.nd):
        if mask >> i & 1:
            add_axis(w, x.dim.d[i], 0)
        else:
            add_axis(w, x.dim.d[i], stride)
            stride *= x.dim.d[i]
    # A y of one batch element is reduced over the batch of x.
    add_axis(w, x.dim.bd, 0 if y.dim.bd == 1 else stride)
    if w.n == 0:
        w.n = 1
        w.size[0] = 1
        w.stride[0] = 1


cdef inline void walk(const Walk* w, const Sweep* s, Run run) noexcept nogil:
    cdef size_t[9] at
    cdef size_t i = 0, o = 0, runs = 1
    cdef uint32_t a
    memset(at, 0, sizeof(at))
    for a in range(1, w.n):
        runs *= w.size[a]
    for _ in range(runs):
        run(s, w.size[0], i, o, w.stride[0] != 0)
        i += w.size[0]
        a = 1
        while a < w.n:
            at[a] += 1
            o += w.stride[a]
            if at[a] < w.size[a]:
                break
            o -= w.stride[a] * w.size[a]
            at[a] = 0
            a += 1


cdef inline void sweep(const Call* c, const Sweep* first, Run run) noexcept nogil:
    """Run over x, once for each element of y that shares x."""
    cdef Walk w
    cdef Sweep s = first[0]
    cdef size_t n = size_of(&c.y.dim)
    if total_of(&c.x[0].dim) == 0:
        return
    walk_of(&c.x[0], &c.y, c.attrs[0].u, &w)
    for _ in range(c.y.dim.bd if c.x[0].dim.bd == 1 else 1):
        walk(&w, &s, run)
        s.y += n
        if s.sums != NULL:
            s.sums += n
        if s.more != NULL:
            s.more += n
        if s.dy != NULL:
            s.dy += n
        s.acc = True


# Rounding errors grow with the number of terms: more than this many are summed in double precision.
cdef enum:
    MOST_TERMS = 1024


cdef inline size_t sweep_work(const Call* c, int i) noexcept nogil:
    """Floats that `sweep_forward` needs."""
    return 2 * total_of(&c.y.dim) if i < 0 and count_of(c) > MOST_TERMS else 0


cdef inline void sweep_forward(const Call* c, Run run, float scale, float* y, double* sums) noexcept nogil:
    """Zero y and run over x; sum in `sums` if that is not NULL."""
    cdef Sweep s
    cdef size_t total = total_of(&c.y.dim), j
    K.fill(total, 0, y)
    if total_of(&c.x[0].dim) == 0:
        if isinf(scale):                            # the mean of nothing
            K.fill(total, NAN, y)
        return
    memset(&s, 0, sizeof(Sweep))
    s.x = c.x[0].v
    s.y = y
    s.sums = sums
    s.more = c.saved
    s.scale = scale
    s.acc = True
    if sums != NULL:
        memset(sums, 0, total * sizeof(double))
    sweep(c, &s, run)
    if sums != NULL:
        for j in range(total):
            y[j] = <float>sums[j]


cdef inline double* sums_of(const Call* c) noexcept nogil:
    """The memory for the sums of y: NULL if the sums are short."""
    return <double*>c.work if count_of(c) > MOST_TERMS else NULL


cdef inline void add_to(const Sweep* s, size_t o, double x) noexcept nogil:
    """Add to element o of y."""
    if s.sums != NULL:
        s.sums[o] += x
    else:
        s.y[o] += <float>x


cdef inline void sweep_backward(const Call* c, Run run, float scale) noexcept nogil:
    cdef Sweep s
    memset(&s, 0, sizeof(Sweep))
    s.x = c.x[0].v
    s.y = c.y.v
    s.more = c.saved
    s.dy = c.dy.v
    s.dx = c.dx.v
    s.scale = scale
    s.acc = c.accumulate
    sweep(c, &s, run)


cdef inline float count_of(const Call* c) noexcept nogil:
    """How many elements of x are reduced to one element of y."""
    cdef size_t n = total_of(&c.y.dim)
    cdef size_t m = total_of(&c.x[0].dim)
    if c.x[0].dim.bd == 1:
        n = size_of(&c.y.dim)
    return m / <float>n if n else 1


# ---- sums of elements ---------------------------------------

cdef inline void sum_run(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    cdef size_t k
    if not kept:
        add_to(s, o, s.scale * K.sum(n, s.x + i))
    elif s.sums == NULL:
        K.axpy(n, s.scale, s.x + i, s.y + o)
    else:
        for k in range(n):
            s.sums[o + k] += s.scale * s.x[i + k]


cdef inline void sum_run_backward(const Sweep* s, size_t n, size_t i, size_t o, bint kept) noexcept nogil:
    cdef size_t k
    cdef float g
    cdef float* dx = s.dx + i
    if kept:
        put_scaled(n, s.scale, s.dy + o, dx, s.acc)
        return
    g = s.scale * s.dy[o]
    if s.acc:
        for k in range(n):
            dx[k] += g
    else:
        K.fill(n, g, dx)


# ==== norms =======================================================================================
#
# Norms and normalization: what CPU and GPU share.

# ---- norms, also of vectors whose squares do not fit in a float ---------------

cdef inline bint is_usual(double norm) noexcept nogil:
    """Whether the sum of squares is far from overflow and underflow in float."""
    return 1e-15 < norm < 1e15


cdef inline double norm_of(size_t n, const float* x) noexcept nogil:
    return sqrt(squares_of(n, x))


# ---- lines of layer_norm ---------------------------------------------------------

# attrs of layer_norm: the first axis, and the number of axes (0: those of g and b); the number added to the variance
# (0: 1e-8 is added to the deviation instead).  attrs of residual_layer_norm: dropout rate, unused, EPSILON as above.
cdef enum:
    FIRST
    COUNT
    EPSILON
    DROPPED = 0
    NONE = 8                                    # result of `covered`: the shape does not fit


cdef inline Split columns_of(const Dim* x) noexcept nogil:
    """x as lines along its first axis."""
    cdef Split s
    s.pre = 1
    s.len = axis_of(x, 0)
    s.post = size_of(x) // s.len if s.len else 0
    return s


cdef inline uint32_t covered(const Dim* part, const Dim* x, uint32_t first, uint32_t last) noexcept nogil:
    """How many axes of x, from `first` up to `last`, part has; NONE if it has any other axis of a size above 1."""
    cdef uint32_t k = 0, i
    while first + k < last and axis_of(part, k) == x.d[first + k]:
        k += 1
    for i in range(k, part.nd):
        if part.d[i] != 1:
            return NONE
    return k


cdef inline Split lines_of(const Dim* x, const Dim* g, const Attr* attrs) noexcept nogil:
    """x as lines: `len` elements that are `pre` apart, pre x post times."""
    cdef uint32_t first = attrs[FIRST].u, last = first + attrs[COUNT].u, k
    cdef Split s
    if first == last:
        last = covered(g, x, 0, x.nd)
    s.pre = s.len = s.post = 1
    for k in range(x.nd):
        if k < first:
            s.pre *= x.d[k]
        elif k < last:
            s.len *= x.d[k]
        else:
            s.post *= x.d[k]
    return s
