"""Scaled dot-product attention: scores, masks, softmax and weighted sum of all heads as one op."""

from libc.math cimport INFINITY, NAN, sqrt
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, Dim, Tensor, axis_of, cols_of, draw_key, draw_number, element, rows_of, size_of
from dynet_cy.graph.making cimport apply
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport DY_BINARY_mul, DY_RNG_bernoulli, K, dy_panels
from dynet_cy.ops.inputs cimport whole
from dynet_cy.ops.registry cimport LIST, RAGGED, Op, Shapes, register

from dynet_cy.ops.registry import DimensionError

# Scores are computed in blocks that fit in the cache, and recomputed in backward (Rabe and Staats 2021, Dao et al.
# 2022): only their log-sum is saved for each query and head.  These are the sizes of a block; KEYS is a multiple of the
# panel height of every instruction set.
cdef enum:
    QUERIES = 32
    KEYS = 240
    FEW = 8                                     # up to this many queries, keys are not packed
    MOST = 1 << 30                              # limit of keys before the first query

cdef inline size_t least(size_t a, size_t b) noexcept nogil:
    return a if a < b else b


cdef int attention_dim(const Shapes* s, Dim* y) except -1:
    cdef const Dim* q = s.x[0]
    cdef const Dim* k = s.x[1]
    cdef const Dim* v = s.x[2]
    cdef uint32_t heads = heads_in(s.attrs), m = axis_of(q, 1), n = axis_of(k, 1)
    for name, x in (("q", rows_of(q)), ("k", rows_of(k)), ("v", rows_of(v))):
        if x == 0 or x % heads:
            raise DimensionError(f"{name} has {x} rows, which {heads} heads do not divide")
    if q.nd > 2 or k.nd > 2 or v.nd > 2:
        raise DimensionError("q, k and v must be matrices")
    if rows_of(q) != rows_of(k):
        raise DimensionError(f"q has {rows_of(q)} rows but k has {rows_of(k)}")
    if axis_of(v, 1) != n:
        raise DimensionError(f"k has {n} columns but v has {axis_of(v, 1)}")
    if s.n > 3 and not (s.x[3].nd <= 3 and axis_of(s.x[3], 0) == n and axis_of(s.x[3], 1) in (1, m)
                        and axis_of(s.x[3], 2) in (1, heads)):
        raise DimensionError(f"bias must have {n} rows, a column or {m}, and perhaps {heads} matrices as third axis")
    if s.attrs[ATTENTION_SCALE].f != s.attrs[ATTENTION_SCALE].f:    # not given
        s.attrs[ATTENTION_SCALE].f = <float>(1 / sqrt(rows_of(q) // heads))
    if s.attrs[ATTENTION_PLACE].i >= ATTENTION_FROM:                # one value for all lengths, so that they batch
        if n >= m and s.attrs[ATTENTION_PLACE].u - ATTENTION_FROM == n - m:
            s.attrs[ATTENTION_PLACE].i = ATTENTION_TO_LAST
        elif s.attrs[ATTENTION_PLACE].i == ATTENTION_FROM:
            s.attrs[ATTENTION_PLACE].i = ATTENTION_FROM_FIRST
    y.nd = q.nd
    y.d[0] = rows_of(v)
    if q.nd > 1:
        y.d[1] = m
    return 0


# Sizes, and one head of one batch element.
cdef struct Head:
    size_t m                                    # queries
    size_t n                                    # keys
    size_t d                                    # rows of q and k, all heads
    size_t e                                    # rows of v, all heads
    size_t rows                                 # rows of q and k, this head
    size_t value_rows                           # rows of v, this head
    size_t number                               # index of this head
    uint32_t b
    const float* q
    const float* k
    const float* v
    const float* bias                           # or NULL
    size_t next_bias                            # floats from one query's biases to the next; 0: all share them
    const float* keys                           # packed, or NULL
    const float* values


# The parts of the working memory.  The buffers of backward are NULL in forward.
cdef struct Buffers:
    float* q                                    # queries of a block, times the scale
    float* scores                               # of a block: a column for each query
    float* mask                                 # dropout
    float* top                                  # a number for each query of a block
    float* total
    float* factor
    float* slopes                               # of a block
    float* dq
    float* means                                # a number for each query
    float* keys
    float* values


cdef size_t divide_work(const Call* c, bint backward, float* at, Buffers* w) noexcept nogil:
    """Divide the working memory into parts; returns the floats that they take."""
    cdef size_t m = cols_of(&c.x[0].dim), n = cols_of(&c.x[1].dim), heads = heads_in(c.attrs), total = 0
    cdef size_t queries = least(m, QUERIES), block = queries * least(n, KEYS), i
    cdef size_t rows = rows_of(&c.x[0].dim) // heads, value_rows = rows_of(&c.x[2].dim) // heads
    cdef bint packed = m > FEW
    cdef size_t[11] sizes = [
        rows * queries, block, block if c.attrs[ATTENTION_RATE].f > 0 else 0, queries, queries, queries,
        block if backward else 0, rows * queries if backward else 0, m if backward else 0,
        dy_panels(n, rows) if packed else 0, dy_panels(n, value_rows) if packed and backward else 0,
    ]
    cdef float** parts = <float**>w
    for i in range(11):
        if w != NULL:
            parts[i] = at + total if sizes[i] else NULL
        total += sizes[i]
    return total


cdef void head_of(const Call* c, uint32_t b, size_t number, const Buffers* w, Head* h) noexcept nogil:
    """One head of a batch element; its keys, and in backward its values, are packed if that is faster."""
    cdef size_t heads = heads_in(c.attrs)
    h.m = cols_of(&c.x[0].dim)
    h.n = cols_of(&c.x[1].dim)
    h.d = rows_of(&c.x[0].dim)
    h.e = rows_of(&c.x[2].dim)
    h.rows = h.d // heads
    h.value_rows = h.e // heads
    h.number = number
    h.b = b
    h.q = element(&c.x[0], b) + number * h.rows
    h.k = element(&c.x[1], b) + number * h.rows
    h.v = element(&c.x[2], b) + number * h.value_rows
    h.bias = NULL
    if c.n > 3:
        h.bias = element(&c.x[3], b) + bias_at(&c.x[3].dim, number)
        h.next_bias = h.n if axis_of(&c.x[3].dim, 1) > 1 else 0
    h.keys = w.keys
    h.values = w.values
    if w.keys != NULL:
        K.pack(1, h.n, h.rows, h.k, h.d, w.keys)
    if w.values != NULL:
        K.pack(1, h.n, h.value_rows, h.v, h.e, w.values)


cdef inline size_t blocks(size_t n, size_t size) noexcept nogil:
    return (n + size - 1) // size


cdef inline size_t spans(size_t low, size_t most) noexcept nogil:
    """The number of blocks of keys from low on, below most."""
    return blocks(most - low, KEYS) if most > low else 0


cdef inline size_t bias_at(const Dim* bias, size_t head) noexcept nogil:
    """The first bias of a head."""
    return head * bias.d[0] * axis_of(bias, 1) if axis_of(bias, 2) > 1 else 0


cdef inline size_t first_seen(const Call* c, const Head* h, size_t query) noexcept nogil:
    """The first key that a query may attend to, if it may attend to any."""
    cdef size_t place = query + place_of_first(c.attrs, h.m, h.n), before = keys_before(c.attrs)
    return place - before if place > before else 0


cdef inline size_t seen(const Call* c, const Head* h, size_t query) noexcept nogil:
    """The end of the keys that a query may attend to."""
    cdef size_t after = keys_after(c.attrs)
    return h.n if after >= h.n else least(query + place_of_first(c.attrs, h.m, h.n) + 1 + after, h.n)


cdef inline size_t begin(const Call* c, const Head* h, size_t query) noexcept nogil:
    """The first key for a block of queries that begins with this one, at the beginning of a panel."""
    return first_seen(c, h, query) // K.panel * K.panel


cdef inline size_t reach(const Call* c, const Head* h, size_t query) noexcept nogil:
    """The end of the keys for a block of queries that ends with this one: whole panels, or all keys."""
    return least(blocks(seen(c, h, query), K.panel) * K.panel, h.n)


cdef inline void times_keys(const float* panels, size_t at, size_t rows, const float* x, size_t ldx, size_t count,
                            size_t queries, const float* y, size_t ldy, float* z) noexcept nogil:
    """z = X' Y for `count` columns of X from `at` on, packed or as they are, and the columns of some queries."""
    if panels != NULL:
        K.sgemm_packed(count, queries, rows, panels + at * rows, y, ldy, 0, z, count, z, count)
    else:
        K.sgemm(1, 0, count, queries, rows, 1, x + at * ldx, ldx, y, ldy, 0, z, count)


cdef void make_scores(const Call* c, const Head* h, const Buffers* w, size_t query, size_t queries, size_t key,
                      size_t keys) noexcept nogil:
    """Scores of a block of keys for a block of queries, with biases, and -inf where a query must not attend."""
    cdef size_t j, low, high
    cdef float* scores
    times_keys(h.keys, key, h.rows, h.k, h.d, keys, queries, w.q, h.rows, w.scores)
    for j in range(queries):
        scores = w.scores + j * keys
        if h.bias != NULL:
            K.add(keys, h.bias + (query + j) * h.next_bias + key, scores)
        if c.attrs[ATTENTION_PLACE].i != ATTENTION_ANYWHERE:
            low, high = first_seen(c, h, query + j), seen(c, h, query + j)
            low = least(low - key, keys) if low > key else 0
            high = least(high - key, keys) if high > key else 0
            K.fill(low, -INFINITY, scores)
            K.fill(keys - high, -INFINITY, scores + high)


cdef void scaled_queries(const Call* c, const Head* h, const Buffers* w, size_t query, size_t queries) noexcept nogil:
    cdef size_t j
    for j in range(queries):
        K.scale(h.rows, c.attrs[ATTENTION_SCALE].f, h.q + (query + j) * h.d, w.q + j * h.rows)


cdef void draw_mask(const Call* c, const Head* h, const Buffers* w, size_t query, size_t queries, size_t key,
                    size_t keys) noexcept nogil:
    """0 for weights that are dropped, 1 / (1 - p) for the others; independent of the sizes of blocks."""
    cdef float keep = 1 - c.attrs[ATTENTION_RATE].f
    cdef size_t j
    for j in range(queries):
        K.rng[<int>DY_RNG_bernoulli](draw_key(c, h.b), <uint32_t>(c.stream >> 32), draw_number(c, h.b),
                                     (h.number * h.m + query + j) * h.n + key, keys, keep, 1 / keep if keep > 0 else 0,
                                     w.mask + j * keys)


cdef inline void multiply(size_t n, const float* x, float* y) noexcept nogil:
    K.binary_fwd[<int>DY_BINARY_mul](n, y, 1, x, 1, y)


cdef void queries_forward(const Call* c, const Head* h, const Buffers* w, size_t query, size_t queries, float* y,
                          float* sums) noexcept nogil:
    """Results of a block of queries, and the logarithms of their sums as the pairs of loops.pxd."""
    cdef size_t low = begin(c, h, query), most = reach(c, h, query + queries - 1), key, keys, t, j, r
    cdef float part
    scaled_queries(c, h, w, query, queries)
    K.fill(queries, -INFINITY, w.top)
    memset(w.total, 0, queries * sizeof(float))
    for t in range(spans(low, most)):
        key = low + t * KEYS
        keys = least(most - key, KEYS)
        make_scores(c, h, w, query, queries, key, keys)
        K.softmax_part(keys, queries, w.scores, w.top, w.total, w.factor)
        if w.mask != NULL:
            draw_mask(c, h, w, query, queries, key, keys)
            multiply(keys * queries, w.mask, w.scores)
        if t:
            for j in range(queries):
                K.scale(h.value_rows, w.factor[j], y + j * h.e, y + j * h.e)
        K.sgemm(0, 0, h.value_rows, queries, keys, 1, h.v + key * h.e, h.e, w.scores, keys, 1 if t else 0, y, h.e)
    for j in range(queries):
        if w.total[j] == 0:                     # no key to attend to
            memset(y + j * h.e, 0, h.value_rows * sizeof(float))
            sums[2 * j] = INFINITY
            sums[2 * j + 1] = 1
        else:
            part = 1 / w.total[j]
            for r in range(h.value_rows):
                y[j * h.e + r] *= part
            sums[2 * j] = w.top[j]
            sums[2 * j + 1] = w.total[j]


cdef void attention_forward(const Call* c) noexcept nogil:
    cdef size_t heads = heads_in(c.attrs), m = cols_of(&c.x[0].dim), e = rows_of(&c.x[2].dim), i, u, query
    cdef uint32_t b
    cdef Head h
    cdef Buffers w
    divide_work(c, False, c.work, &w)
    for b in range(c.y.dim.bd):
        for i in range(heads):
            head_of(c, b, i, &w, &h)
            for u in range(blocks(m, QUERIES)):
                query = u * QUERIES
                queries_forward(c, &h, &w, query, least(m - query, QUERIES),
                                element(&c.y, b) + query * e + i * h.value_rows,
                                c.saved + 2 * ((b * heads + i) * m + query))


# ---- backward: the gradients of q, k and v are computed together, before that of the first of them ---------------

cdef size_t attention_saved(const Call* c) noexcept nogil:
    """The logarithms of all sums."""
    return 2 * <size_t>heads_in(c.attrs) * cols_of(&c.x[0].dim) * c.y.dim.bd


cdef inline size_t batch_of(const Tensor* x, uint32_t all) noexcept nogil:
    """The number of batch elements of an argument that have separate gradients."""
    return all if x.list != NULL else x.dim.bd


cdef size_t place_of_gradient(const Call* c, uint32_t i) noexcept nogil:
    """Where the gradient of argument i begins in working memory; 3: where the buffers do."""
    cdef size_t at = 0
    cdef uint32_t k
    for k in range(i):
        at += size_of(&c.x[k].dim) * batch_of(&c.x[k], c.y.dim.bd)
    return at


cdef inline float* gradient_of(const Call* c, uint32_t i, uint32_t b) noexcept nogil:
    """The gradient of batch element b of argument i, which may be one for all."""
    return (c.work + place_of_gradient(c, i)
            + (b if batch_of(&c.x[i], c.y.dim.bd) > 1 else 0) * size_of(&c.x[i].dim))


cdef size_t attention_prepared(const Call* c) noexcept nogil:
    return place_of_gradient(c, 3) + divide_work(c, True, NULL, NULL)


cdef size_t attention_work(const Call* c, int i) noexcept nogil:
    return 0 if i >= 0 else divide_work(c, False, NULL, NULL)


cdef void make_slopes(const Call* c, const Head* h, const Buffers* w, size_t query, size_t queries, size_t key,
                      size_t keys, float* dv) noexcept nogil:
    """The weights of a block, and the gradients of its scores; adds the gradient of the values unless dv is NULL."""
    cdef const float* sums = c.saved + 2 * ((h.b * heads_in(c.attrs) + h.number) * h.m + query)
    cdef const float* dy = element(&c.dy, h.b) + query * h.e + h.number * h.value_rows
    make_scores(c, h, w, query, queries, key, keys)
    K.exp_less(keys, queries, sums, w.scores)
    times_keys(h.values, key, h.value_rows, h.v, h.e, keys, queries, dy, h.e, w.slopes)
    if w.mask == NULL:
        if dv != NULL:
            K.sgemm(0, 1, h.value_rows, keys, queries, 1, dy, h.e, w.scores, keys, 1, dv + key * h.e, h.e)
    else:
        draw_mask(c, h, w, query, queries, key, keys)
        multiply(keys * queries, w.mask, w.slopes)
        if dv != NULL:
            multiply(keys * queries, w.scores, w.mask)
            K.sgemm(0, 1, h.value_rows, keys, queries, 1, dy, h.e, w.mask, keys, 1, dv + key * h.e, h.e)
    K.softmax_part_bwd(keys, queries, w.scores, w.means + query, w.slopes)


cdef void make_means(const Call* c, const Head* h, const Buffers* w) noexcept nogil:
    """For each query, the weighted mean of the gradients of its weights: the dot product of its result and gradient."""
    cdef size_t at = h.number * h.value_rows, j
    for j in range(h.m):
        w.means[j] = K.dot(h.value_rows, element(&c.y, h.b) + at + j * h.e, element(&c.dy, h.b) + at + j * h.e)


cdef void head_backward(const Call* c, const Head* h, const Buffers* w, float* dq, float* dk, float* dv,
                        float* dbias) noexcept nogil:
    """Add the gradients of a head; only that of the bias if it is given."""
    cdef size_t query, queries, key, keys, low, most, u, t, j
    make_means(c, h, w)
    for u in range(blocks(h.m, QUERIES)):
        query = u * QUERIES
        queries = least(h.m - query, QUERIES)
        low, most = begin(c, h, query), reach(c, h, query + queries - 1)
        scaled_queries(c, h, w, query, queries)
        for t in range(spans(low, most)):
            key = low + t * KEYS
            keys = least(most - key, KEYS)
            make_slopes(c, h, w, query, queries, key, keys, dv)
            if dbias != NULL:
                for j in range(queries):
                    K.add(keys, w.slopes + j * keys, dbias + (query + j) * h.next_bias + key)
                continue
            K.sgemm(0, 0, h.rows, queries, keys, 1, h.k + key * h.d, h.d, w.slopes, keys, 1 if t else 0, w.dq, h.rows)
            K.sgemm(0, 1, h.rows, keys, queries, 1, w.q, h.rows, w.slopes, keys, 1, dk + key * h.d, h.d)
        if most > low and dbias == NULL:
            for j in range(queries):
                K.axpy(h.rows, c.attrs[ATTENTION_SCALE].f, w.dq + j * h.rows, dq + (query + j) * h.d)


cdef void attention_prepare(const Call* c) noexcept nogil:
    cdef size_t buffers = place_of_gradient(c, 3), k
    cdef uint32_t b
    cdef Head h
    cdef Buffers w
    divide_work(c, True, c.work + buffers, &w)
    memset(c.work, 0, buffers * sizeof(float))
    for b in range(c.y.dim.bd):
        for k in range(heads_in(c.attrs)):
            head_of(c, b, k, &w, &h)
            head_backward(c, &h, &w, gradient_of(c, 0, b) + k * h.rows, gradient_of(c, 1, b) + k * h.rows,
                          gradient_of(c, 2, b) + k * h.value_rows, NULL)


cdef void attention_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t k
    cdef uint32_t b
    cdef Head h
    cdef Buffers w
    if i < 3:
        for b in range(batch_of(&c.x[i], c.y.dim.bd)):
            K.add(size_of(&c.x[i].dim), gradient_of(c, i, b), element(&c.dx, b))
        return
    divide_work(c, True, c.work + place_of_gradient(c, 3), &w)
    for b in range(c.y.dim.bd):
        for k in range(heads_in(c.attrs)):
            head_of(c, b, k, &w, &h)
            head_backward(c, &h, &w, NULL, NULL, NULL, element(&c.dx, b) + bias_at(&c.x[3].dim, k))


cdef Op* new_attention(const char* name, const char* args) except NULL:
    cdef Op* op = register(name, args, attention_dim, attention_forward, attention_backward, RAGGED, attention_work,
                           attention_saved)     # ragged: sentences of different lengths
    op.prepare = attention_prepare
    op.prepared = attention_prepared
    op.rule[0] = op.rule[1] = op.rule[2] = LIST
    return op


cdef Op* ATTENTION = new_attention(b"scaled_dot_product_attention", b"q k v bias")
cdef Op* ATTENTION_DROPOUT = new_attention(b"scaled_dot_product_attention_dropout", b"q k v bias")
ATTENTION_DROPOUT.random = True


def scaled_dot_product_attention(q, k, v, heads=1, bias: Expression | None = None, bint causal=False, first=0,
                                 dropout=0.0, scale: float | None = None, window: int | None = None):
    """For each query the mean of the values, weighted by the softmax of its products with the keys, in several heads
    (Vaswani et al., "Attention is all you need", NeurIPS 2017).

    With d rows of q and k and e rows of v, head i has rows ``i d / heads`` to ``(i + 1) d / heads`` of q and k, and
    rows ``i e / heads`` to ``(i + 1) e / heads`` of v and the result: ``V softmax(K' Q scale + bias)``.

    Sentences of different lengths run in the same batch, without padding.  The scores are never stored as a whole: they
    are computed in blocks that fit in the cache, and recomputed in backward (Rabe and Staats, "Self-attention does not
    need O(n^2) memory", 2021; Dao et al., "FlashAttention", NeurIPS 2022).

    Shapes: ``q {d,m}``, ``k {d,n}``, ``v {e,n}`` -> ``{e,m}``; a vector is a column.  An argument without a batch is
    used for all batch elements of the others.

    Args:
        q: queries.
        k: keys.
        v: values.
        heads: number of heads, which divides d and e (default: 1).
        bias: added to the scores: ``{n,m}``, or ``{n}`` for one column that all queries share, or ``{n,m,heads}`` if
            heads differ; -inf where a query must not attend.  A query that may attend to no key has the result 0.
            None, the default: no bias.
        causal: whether query j may only attend to keys 0 to ``first`` + j (default: no).
        first: the position of the first query among the keys (default: 0); it matters if attention is causal or has a
            window.
        dropout: the probability that a weight is set to 0; the others are divided by 1 - dropout (default: 0).
        scale: what scores are multiplied by; None, the default, for ``(d / heads) ** -0.5``.
        window: the greatest distance between the positions of a query and a key: query j may only attend to keys
            ``first + j - window`` to ``first + j + window`` (Beltagy et al., "Longformer", 2020), or to
            ``first + j`` if attention is causal.  Time and memory grow with the window, not with the number of keys.
            ModernBERT's `local_attention` is twice this number, Mistral's `sliding_window` one more than it.  None, the
            default: no window.

    Raises:
        DimensionError: the shapes do not fit.
        TypeError: heads, first or window is not a whole number.
        ValueError: heads is less than 1 or more than 4,095, first or window less than 0, window more than 524,286,
            dropout not a probability, or scale nan.

    Example:
        >>> q, k, v = dy.ones((8, 2)), dy.ones((8, 3)), dy.inputTensor(np.eye(4, 3))
        >>> dy.scaled_dot_product_attention(q, k, v, heads=2).npvalue().round(3)
        array([[0.333, 0.333],
               [0.333, 0.333],
               [0.333, 0.333],
               [0.   , 0.   ]])
    """
    cdef double rate = dropout
    cdef Py_ssize_t count = whole(heads, "scaled_dot_product_attention", "heads")
    cdef Py_ssize_t place = whole(first, "scaled_dot_product_attention", "first")
    cdef Py_ssize_t far = -1 if window is None else whole(window, "scaled_dot_product_attention", "window")
    if not 1 <= count <= ATTENTION_MOST_HEADS:
        raise ValueError(f"scaled_dot_product_attention: heads must be from 1 to {ATTENTION_MOST_HEADS}, not {heads}")
    if not 0 <= place <= MOST:
        raise ValueError(f"scaled_dot_product_attention: first must be from 0 to {MOST}, not {first}")
    if window is not None and not 0 <= far <= ATTENTION_MOST_WINDOW:
        raise ValueError(
            f"scaled_dot_product_attention: window must be from 0 to {ATTENTION_MOST_WINDOW}, not {window}"
        )
    if not 0 <= rate <= 1:
        raise ValueError(f"scaled_dot_product_attention: dropout must be a probability, not {dropout}")
    cdef Extra extra = no_extra()
    extra.attrs[ATTENTION_HEADS].u = <uint32_t>(count | (ATTENTION_IS_CAUSAL if causal else 0)
                                                | (far + 1) << ATTENTION_WINDOW_AT)
    extra.attrs[ATTENTION_PLACE].i = (ATTENTION_FROM + <int32_t>place if causal or window is not None
                                      else ATTENTION_ANYWHERE)
    extra.attrs[ATTENTION_RATE].f = <float>rate
    if scale is not None and not scale == scale:
        raise ValueError("scaled_dot_product_attention: scale must be a number, not nan")
    extra.attrs[ATTENTION_SCALE].f = NAN if scale is None else scale
    xs = (q, k, v) if bias is None else (q, k, v, bias)
    return apply(ATTENTION_DROPOUT if rate > 0 else ATTENTION, xs, &extra)
