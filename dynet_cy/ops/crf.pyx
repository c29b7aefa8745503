"""Linear-chain conditional random fields: sums over all sequences of tags, and the best of them."""

from libc.math cimport NAN, isfinite
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport Call, Dim, axis_of, cols_of, element, rows_of, size_of
from dynet_cy.graph.making cimport apply
from dynet_cy.kernels.kernels cimport DY_BINARY_add, DY_UNARY_exp, DY_UNARY_shift, K
from dynet_cy.ops.registry cimport SHARE, Backward, DimRule, Forward, Op, Shapes, register
from dynet_cy.ops.terms cimport Terms, dy_terms_begin, dy_terms_next, dy_terms_work, end_terms

from dynet_cy.ops.registry import DimensionError

# A sequence of tags y has the score start[y_0] + sum_t x[y_t, t] + sum_t transitions[y_{t-1}, y_t] + end[y_{n-1}].
# alpha_t[j] is the log-sum over all prefixes that end with tag j at t, its own score included, minus a constant for
# each column; beta_t[i] is the log-sum over all continuations, minus a constant such that exp(alpha_t + beta_t) are the
# marginals.  The constants keep long sequences, whose scores are large, from losing precision.


cdef int crf_shapes(const Shapes* s) except -1:
    cdef uint32_t tags = axis_of(s.x[0], 0), i
    if s.x[0].nd > 2 or cols_of(s.x[0]) == 0 or tags == 0:
        raise DimensionError("x must be a matrix with a column for each word, at least one")
    if axis_of(s.x[1], 0) != tags or axis_of(s.x[1], 1) != tags or s.x[1].nd > 2:
        raise DimensionError(f"transitions must be a matrix of {tags} x {tags}, a row and a column for each tag")
    for i in range(2, 4):
        if size_of(s.x[i]) != tags:
            raise DimensionError(f"{'start' if i == 2 else 'end'} must have an element for each of {tags} tags")
    return 0


cdef int log_partition_dim(const Shapes* s, Dim* y) except -1:
    crf_shapes(s)
    y.nd = 1
    y.d[0] = 1
    return 0


cdef inline float lower(size_t n, float* v) noexcept nogil:
    """Subtract the greatest of n numbers from all of them, if it is finite; returns the number subtracted."""
    cdef float top = v[K.argmax(n, v)]
    if not isfinite(top):
        return 0
    K.unary_fwd[<int>DY_UNARY_shift](n, v, -top, 0, v)
    return top


cdef double find_alphas(const Call* c, uint32_t b, float* alphas, float* lowered, float* work) noexcept nogil:
    """All alphas of a batch element, and the constant subtracted from each column; returns the sum of these constants.

    `work` has room for a matrix of tags x tags.
    """
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), t, j
    cdef const float* x = element(&c.x[0], b)
    cdef const float* transitions = element(&c.x[1], b)
    memcpy(alphas, x, tags * sizeof(float))
    K.add(tags, element(&c.x[2], b), alphas)
    cdef double total = lower(tags, alphas)
    lowered[0] = <float>total
    for t in range(1, n):
        for j in range(tags):
            K.binary_fwd[<int>DY_BINARY_add](tags, alphas, 1, transitions + j * tags, 1, work + j * tags)
        alphas += tags
        K.logsumexp(tags, tags, work, alphas)
        K.add(tags, x + t * tags, alphas)
        lowered[t] = lower(tags, alphas)
        total += lowered[t]
    return total


cdef float log_last(const Call* c, uint32_t b, const float* alphas, float* work) noexcept nogil:
    """The logarithm of the sum over all ends of a sequence."""
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim)
    cdef float total
    K.binary_fwd[<int>DY_BINARY_add](tags, alphas + (n - 1) * tags, 1, element(&c.x[3], b), 1, work)
    K.logsumexp(tags, 1, work, &total)
    return total


cdef void find_betas(const Call* c, uint32_t b, const float* alphas, float* betas, float* work) noexcept nogil:
    """All betas of a batch element; `work` has room for two matrices of tags x tags and a vector of tags."""
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), t, i, j
    cdef const float* x = element(&c.x[0], b)
    cdef const float* transitions = element(&c.x[1], b)
    cdef float* transposed = work + tags * tags
    cdef float* later = work + 2 * tags * tags
    for i in range(tags):
        for j in range(tags):
            transposed[i * tags + j] = transitions[j * tags + i]
    memcpy(betas + (n - 1) * tags, element(&c.x[3], b), tags * sizeof(float))
    fit(tags, alphas + (n - 1) * tags, betas + (n - 1) * tags, later)
    for t in range(1, n):
        K.binary_fwd[<int>DY_BINARY_add](tags, betas + (n - t) * tags, 1, x + (n - t) * tags, 1, later)
        for i in range(tags):
            K.binary_fwd[<int>DY_BINARY_add](tags, later, 1, transposed + i * tags, 1, work + i * tags)
        K.logsumexp(tags, tags, work, betas + (n - t - 1) * tags)
        fit(tags, alphas + (n - t - 1) * tags, betas + (n - t - 1) * tags, later)


cdef inline void fit(size_t tags, const float* alpha, float* beta, float* work) noexcept nogil:
    """Subtract a number from beta such that the exponentials of alpha + beta have the sum 1."""
    cdef float total
    K.binary_fwd[<int>DY_BINARY_add](tags, alpha, 1, beta, 1, work)
    K.logsumexp(tags, 1, work, &total)
    K.unary_fwd[<int>DY_UNARY_shift](tags, beta, -total, 0, beta)


cdef void marginals(size_t n, const float* alphas, const float* betas, float* y) noexcept nogil:
    K.binary_fwd[<int>DY_BINARY_add](n, alphas, 1, betas, 1, y)
    K.unary_fwd[<int>DY_UNARY_exp](n, y, 0, 0, y)


cdef void log_partition_forward(const Call* c) noexcept nogil:
    cdef size_t size = size_of(&c.x[0].dim)
    cdef uint32_t b
    cdef float* alphas
    cdef double total
    for b in range(c.y.dim.bd):
        alphas = c.saved + b * saved_of_one(&c.x[0].dim)
        total = find_alphas(c, b, alphas, alphas + 2 * size, c.work)
        c.y.v[b] = <float>(total + log_last(c, b, alphas, c.work))


cdef inline size_t saved_of_one(const Dim* x) noexcept nogil:
    """The number of floats for alphas, betas, and the constant subtracted from each column of alphas."""
    return 2 * size_of(x) + cols_of(x)


cdef void log_partition_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), size = tags * n, t, j
    cdef uint32_t b
    cdef float dy
    cdef const float* x
    cdef float* alphas
    cdef float* betas
    cdef float* lowered
    cdef float* dx
    cdef float* to
    cdef Terms terms
    cdef int add
    for b in range(c.y.dim.bd):
        alphas = c.saved + b * saved_of_one(&c.x[0].dim)
        betas = alphas + size
        lowered = betas + size
        dy = c.dy.v[b]
        x = element(&c.x[0], b)
        dx = element(&c.dx, b)
        if c.first:
            find_betas(c, b, alphas, betas, c.work)
        if i == 0:
            for t in range(n):
                marginals(tags, alphas + t * tags, betas + t * tags, c.work)
                K.axpy(tags, dy, c.work, dx + t * tags)
        elif i == 1:
            dy_terms_begin(&terms, tags * tags, n - 1, c.work + tags * tags, dx, True)
            for t in range(1, n):
                for j in range(tags):
                    K.binary_fwd[<int>DY_BINARY_add](tags, alphas + (t - 1) * tags, 1,
                                                     element(&c.x[1], b) + j * tags, 1, c.work + j * tags)
                    K.unary_fwd[<int>DY_UNARY_shift](tags, c.work + j * tags,
                                                     x[t * tags + j] + betas[t * tags + j] - lowered[t], 0,
                                                     c.work + j * tags)
                K.unary_fwd[<int>DY_UNARY_exp](tags * tags, c.work, 0, 0, c.work)
                to = dy_terms_next(&terms, &add)
                if add:
                    K.axpy(tags * tags, dy, c.work, to)
                else:
                    K.scale(tags * tags, dy, c.work, to)
            end_terms(&terms)
        else:
            t = 0 if i == 2 else n - 1
            marginals(tags, alphas + t * tags, betas + t * tags, c.work)
            K.axpy(tags, dy, c.work, dx)


cdef size_t log_partition_saved(const Call* c) noexcept nogil:
    return saved_of_one(&c.x[0].dim) * c.y.dim.bd


cdef size_t log_partition_work(const Call* c, int i) noexcept nogil:
    cdef size_t tags = rows_of(&c.x[0].dim)
    if i < 0:
        return tags * tags
    return 2 * tags * tags + tags + dy_terms_work(tags * tags, cols_of(&c.x[0].dim))


# ---- marginals and the best sequence: for decoding, without gradients ---------------

cdef int marginals_dim(const Shapes* s, Dim* y) except -1:
    crf_shapes(s)
    y.nd = s.x[0].nd
    y.d[0] = s.x[0].d[0]
    y.d[1] = cols_of(s.x[0])
    return 0


cdef void marginals_forward(const Call* c) noexcept nogil:
    cdef size_t size = size_of(&c.x[0].dim)
    cdef float* rest = c.work + saved_of_one(&c.x[0].dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        find_alphas(c, b, c.work, c.work + 2 * size, rest)
        find_betas(c, b, c.work, c.work + size, rest)
        marginals(size, c.work, c.work + size, element(&c.y, b))


cdef size_t marginals_work(const Call* c, int i) noexcept nogil:
    cdef size_t tags = rows_of(&c.x[0].dim)
    return saved_of_one(&c.x[0].dim) + 2 * tags * tags + tags


cdef int viterbi_dim(const Shapes* s, Dim* y) except -1:
    crf_shapes(s)
    y.nd = 1
    y.d[0] = cols_of(s.x[0])
    return 0


cdef void viterbi_forward(const Call* c) noexcept nogil:
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), t, j, best
    cdef uint32_t b
    cdef uint32_t* previous = <uint32_t*>c.work + 3 * tags  # the best tag before, for each word and tag
    cdef float* scores = c.work
    cdef float* next_scores = c.work + tags
    cdef float* sums = c.work + 2 * tags
    cdef const float* x
    cdef const float* transitions
    cdef float* y
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], b)
        transitions = element(&c.x[1], b)
        y = element(&c.y, b)
        K.binary_fwd[<int>DY_BINARY_add](tags, x, 1, element(&c.x[2], b), 1, scores)
        for t in range(1, n):
            for j in range(tags):
                K.binary_fwd[<int>DY_BINARY_add](tags, scores, 1, transitions + j * tags, 1, sums)
                best = K.argmax(tags, sums)
                previous[t * tags + j] = <uint32_t>best
                next_scores[j] = sums[best] + x[t * tags + j]
            memcpy(scores, next_scores, tags * sizeof(float))
        K.add(tags, element(&c.x[3], b), scores)
        best = K.argmax(tags, scores)           # a NaN wins; then there is no best sequence
        if scores[best] != scores[best]:
            K.fill(n, NAN, y)
            continue
        for t in range(n):
            y[n - 1 - t] = <float>best
            if t + 1 < n:
                best = previous[(n - 1 - t) * tags + best]


cdef size_t viterbi_work(const Call* c, int i) noexcept nogil:
    return size_of(&c.x[0].dim) + 3 * rows_of(&c.x[0].dim)


cdef Op* new_crf(const char* name, DimRule dim, Forward forward, Backward backward) except NULL:
    cdef Op* op = register(name, b"x transitions start end", dim, forward, backward)
    op.rule[1] = op.rule[2] = SHARE
    op.ragged = True                        # sentences of different lengths
    return op


cdef Op* LOG_PARTITION = new_crf(b"crf_log_partition", log_partition_dim, log_partition_forward,
                                 log_partition_backward)
LOG_PARTITION.saved = log_partition_saved
LOG_PARTITION.work = log_partition_work
cdef Op* MARGINALS = new_crf(b"crf_marginals", marginals_dim, marginals_forward, NULL)
MARGINALS.work = marginals_work
MARGINALS.no_gradient_because = b"they are for decoding; they are themselves the gradient of crf_log_partition"
cdef Op* VITERBI = new_crf(b"crf_viterbi", viterbi_dim, viterbi_forward, NULL)
VITERBI.work = viterbi_work
VITERBI.no_gradient_because = b"the best sequence is constant almost everywhere"


def crf_log_partition(x, transitions, start, end):
    """Logarithm of the sum of e^score over all sequences of tags (Lafferty et al. 2001).

    The score of a sequence y is ``start[y_0] + sum x[y_t, t] + sum transitions[y_{t-1}, y_t] + end[y_{n-1}]``.
    Sentences of different lengths that share the transitions run together.  See `crf_loss`.

    Shapes: ``x {tags,n}``, ``transitions {tags,tags}``, ``start {tags}``, ``end {tags}`` -> ``{1}``.

    Args:
        x: the score of each tag for each word, a column for each word.
        transitions: the score of a tag (column) after another one (row); give impossible transitions a score such as
            -10000, not -inf.
        start, end: scores of the first and of the last tag.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> x, transitions, ends = dy.zeros((2, 3)), dy.zeros((2, 2)), dy.zeros(2)
        >>> round(dy.crf_log_partition(x, transitions, ends, ends).value(), 4)      # eight sequences
        2.0794
        >>> round(float(np.log(8)), 4)
        2.0794
    """
    return apply(LOG_PARTITION, (x, transitions, start, end), NULL)


def crf_marginals(x, transitions, start, end):
    """The marginal probability of each tag for each word; see `crf_log_partition`.

    Shapes: ``x {tags,n}`` -> ``{tags,n}``.  There is no gradient.

    Args:
        x, transitions, start, end: see `crf_log_partition`.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> x, transitions, ends = dy.zeros((2, 3)), dy.zeros((2, 2)), dy.zeros(2)
        >>> dy.crf_marginals(x, transitions, ends, ends).npvalue().round(3)
        array([[0.5, 0.5, 0.5],
               [0.5, 0.5, 0.5]])
    """
    return apply(MARGINALS, (x, transitions, start, end), NULL)


def crf_viterbi(x, transitions, start, end):
    """The sequence of tags with the greatest score (Viterbi 1967), as a vector of whole numbers; the first if
    several are equal.  See `crf_log_partition`.

    Shapes: ``x {tags,n}`` -> ``{n}``.  There is no gradient.

    Args:
        x, transitions, start, end: see `crf_log_partition`.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> x = dy.inputTensor([[2, 0, 0], [0, 3, 1]])              # two tags, three words
        >>> transitions, ends = dy.zeros((2, 2)), dy.zeros(2)
        >>> [int(t) for t in dy.crf_viterbi(x, transitions, ends, ends).vec_value()]
        [0, 1, 1]
    """
    return apply(VITERBI, (x, transitions, start, end), NULL)
