"""Distances and losses between two expressions, and conditional random fields."""

import numbers

import numpy as np

from libc.math cimport INFINITY, exp, isfinite, lgamma, log
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport Call, Dim, axis_of, cols_of, element, integers, rows_of, same_shape, size_of
from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.graph.expressions cimport Expression, dim_of, number_in
from dynet_cy.graph.making cimport apply, apply1x, apply2x, claim_current, expression, release_current, wrap
from dynet_cy.graph.origin cimport describe_dim
from dynet_cy.graph.structs cimport Extra, Graph, Node, args_of, no_extra, nodes_of
from dynet_cy.kernels.kernels cimport (
    K, DY_BINARY_abs_difference, DY_BINARY_add, DY_BINARY_binary_log_loss, DY_BINARY_squared_difference, DY_BINARY_sub,
    DY_UNARY_clip, DY_UNARY_exp, DY_UNARY_huber, DY_UNARY_logistic, DY_UNARY_shift,
)
from dynet_cy.memory.bridge cimport shape_of
from dynet_cy.ops.elementwise cimport UNARY
from dynet_cy.ops.index cimport chooser_number, chooses, refuse, refuse_number
from dynet_cy.ops.inputs cimport check_count, is_list, of_numbers, of_words, set_index, set_indices, set_shared_indices
from dynet_cy.ops.loops cimport (
    Terms, begin_terms, dy_terms_begin, dy_terms_next, dy_terms_work, end_terms, log_of, logs_of, next_term,
    put_scaled, scalar, terms_work, vector,
)
from dynet_cy.ops.registry cimport (
    ASSIGNS, BY_ELEMENT, RAGGED, SHARE, UNREAD_ARGUMENTS, UNREAD_RESULT, Backward, DimRule, Forward, Op, Saved,
    Shapes, Work, op_at, register, same_dim,
)

from dynet_cy.graph.structs import operators
from dynet_cy.ops.inputs import inputTensor, constant
from dynet_cy.ops.registry import DimensionError


# ==== losses ======================================================================================
#
# Distances and losses between two expressions.

cdef int pair_dim(const Shapes* s, Dim* y) except -1:
    """One result for two arguments of one shape."""
    if not same_shape(s.x[0], s.x[1]):
        raise DimensionError("x and y differ in shape")
    return scalar(y)


# ---- squared_distance, l1_distance, binary_log_loss: y = sum_j f(x_j, y_j) ------
# f is a row of binary.def, whose number is attribute 3.

cdef void summed_forward(const Call* c) noexcept nogil:
    cdef int which = c.attrs[3].i
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        K.binary_fwd[which](n, element(&c.x[0], b), 1, element(&c.x[1], b), 1, c.work)
        c.y.v[b] = K.sum(n, c.work)


cdef void summed_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef int which = c.attrs[3].i
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    cdef float* y = c.work                      # values of f, which the rows used here ignore
    cdef float* dy = c.work + n
    cdef float* dx
    cdef int add
    cdef Terms terms
    begin_terms(&terms, c, c.work + 2 * n)
    for b in range(c.y.dim.bd):
        K.fill(n, 0, y)
        K.fill(n, c.dy.v[b], dy)
        dx = next_term(&terms, c, b, &add)
        if i == 0:
            K.binary_bwd_a[which](n, element(&c.x[0], b), 1, element(&c.x[1], b), 1, y, dy, dx, add)
        else:
            K.binary_bwd_b[which](n, element(&c.x[0], b), 1, element(&c.x[1], b), 1, y, dy, dx, add)
    end_terms(&terms)


cdef size_t pair_work(const Call* c, int i) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    return n if i < 0 else 2 * n + terms_work(c, i)


cdef Op* new_pair_op(const char* name, Forward forward=summed_forward, Backward backward=summed_backward) except NULL:
    return register(name, b"x y", pair_dim, forward, backward, UNREAD_RESULT | ASSIGNS, pair_work)


cdef Op* SQUARED_DISTANCE = new_pair_op(b"squared_distance")
cdef Op* L1_DISTANCE = new_pair_op(b"l1_distance")
cdef Op* BINARY_LOG_LOSS = new_pair_op(b"binary_log_loss")


cdef Expression summed(const Op* op, int which, object x, object y):
    cdef Extra extra = of_words(0, 0, 0, which)
    return apply2x(op, x, y, &extra)


def squared_distance(x, y):
    """Sum of the squared differences of two expressions of one shape.

    Shapes: ``x`` and ``y`` of one shape -> ``{1}``.

    Raises:
        DimensionError: the shapes differ.

    Example:
        >>> dy.squared_distance(dy.inputVector([1, 2]), dy.inputVector([3, -1])).value()
        13.0
    """
    return summed(SQUARED_DISTANCE, DY_BINARY_squared_difference, x, y)


def l1_distance(x, y):
    """Sum of the absolute differences of two expressions of one shape.

    Shapes: ``x`` and ``y`` of one shape -> ``{1}``.

    Raises:
        DimensionError: the shapes differ.

    Example:
        >>> dy.l1_distance(dy.inputVector([1, 2]), dy.inputVector([3, -1])).value()
        5.0
    """
    return summed(L1_DISTANCE, DY_BINARY_abs_difference, x, y)


cdef object labels_like(Expression x, object labels, str function):
    """Numbers given for an expression of the shape of x, as an input."""
    cdef const Dim* d = dim_of(x)
    shape = shape_of(d)
    array = np.asarray(labels)
    if array.ndim == 0:
        return constant(shape, array.item())
    if array.shape == (d.bd,) and d.bd > 1 and size_of(d) == 1:
        return inputTensor(array.reshape((*shape, d.bd)), batched=True)
    if array.shape == (*shape, d.bd):
        return inputTensor(array, batched=True)
    if array.shape != shape:
        raise DimensionError(
            f"{function}: the labels have shape {array.shape}\n    x  {describe_dim(d)}")
    return inputTensor(np.asarray(array))


cdef Expression logits_of(object x):
    """What x is the logistic of, if it is one; otherwise None."""
    cdef Graph* g
    cdef const Node* node
    if not isinstance(x, Expression):
        return None
    g = claim_current()
    try:
        node = &nodes_of(g)[number_in(g, <Expression>x)]
        # The argument of a value in a forward-only graph may have been dropped.
        if op_at(node.op) != UNARY[DY_UNARY_logistic] or node.nargs != 1 or g.forward_only:
            return None
        return wrap(g, args_of(g, node)[0])
    finally:
        release_current(g)


def _labels(x, y, function):
    """The y of a loss, an expression or labels, as an expression."""
    if not isinstance(y, (Expression, str)) and (is_list(y) or isinstance(y, numbers.Real)):
        return labels_like(expression(x, function, "x"), y, function)
    return expression(y, function, "y")


operators["labels"] = _labels


def binary_log_loss(x, y: Expression | npt.ArrayLike):
    """Negative log-likelihood of yes-or-no decisions: -sum y log x + (1 - y) log(1 - x).

    A probability near 0 or 1 has too few digits: the loss of a certain, wrong one is bounded, and its gradient 0. Of
    ``dy.logistic(scores)`` the loss is therefore computed from the scores, as by `binary_cross_entropy_with_logits`;
    not so with ``import dynet``.

    Args:
        x: predicted probabilities.
        y: true probabilities: an expression of the same shape, or labels: one number for all
            elements, an array of the shape of x (its last axis the batch), or a list with one
            number for each element or, where elements are scalars, for each batch element.

    Raises:
        DimensionError: y has another shape.
        TypeError: y is neither an expression nor numbers.

    Example:
        >>> round(dy.binary_log_loss(dy.inputVector([0.5, 0.9]), dy.inputVector([1, 1])).value(), 3)
        0.799
    """
    y = _labels(x, y, "binary_log_loss")
    logits = None if follows_dynet() else logits_of(x)
    if logits is not None and same_shape(dim_of(logits), dim_of(y)):
        return operators["logit_loss"](logits, y).sum()
    return summed(BINARY_LOG_LOSS, DY_BINARY_binary_log_loss, x, y)


# ---- huber_distance: y = sum_j h(x_j - y_j) --------------------------------------
# h(d) = d^2 / 2 up to |d| = c, and is linear beyond.  Attributes: c.

cdef void huber_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        K.binary_fwd[<int>DY_BINARY_sub](n, element(&c.x[0], b), 1, element(&c.x[1], b), 1, c.work)
        K.unary_fwd[<int>DY_UNARY_huber](n, c.work, c.attrs[0].f, 0, c.work)
        c.y.v[b] = 0.5 * K.sum(n, c.work)


cdef void huber_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    cdef float slope
    cdef float* dx
    cdef int add
    cdef Terms terms
    begin_terms(&terms, c, c.work + 2 * n)
    for b in range(c.y.dim.bd):
        slope = -c.dy.v[b] if i else c.dy.v[b]
        K.binary_fwd[<int>DY_BINARY_sub](n, element(&c.x[0], b), 1, element(&c.x[1], b), 1, c.work)
        K.unary_fwd[<int>DY_UNARY_clip](n, c.work, -c.attrs[0].f, c.attrs[0].f, c.work)
        dx = next_term(&terms, c, b, &add)
        put_scaled(n, slope, c.work, dx, add)
    end_terms(&terms)


cdef Op* HUBER_DISTANCE = new_pair_op(b"huber_distance", huber_forward, huber_backward)


def huber_distance(x, y, float c=1.345):
    """Huber loss: quadratic for small differences, linear for large ones.

    Args:
        x, y: expressions of one shape.
        c: the difference where the linear part begins (default: 1.345).

    Example:
        >>> dy.huber_distance(dy.inputVector([0, 0]), dy.inputVector([1, 1])).value()
        1.0
    """
    cdef Extra extra = of_numbers(c)
    return apply2x(HUBER_DISTANCE, x, y, &extra)


# ---- pairwise_rank_loss: y = max(m - x + y, 0), element by element ----------------
# Attributes: m.

cdef int pairwise_dim(const Shapes* s, Dim* y) except -1:
    pair_dim(s, y)
    return same_dim(s, y)


cdef void pairwise_forward(const Call* c) noexcept nogil:
    cdef size_t j, n = size_of(&c.y.dim)
    cdef uint32_t b
    cdef float* x
    cdef float* other
    cdef float* y
    cdef float t
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], b)
        other = element(&c.x[1], b)
        y = element(&c.y, b)
        for j in range(n):
            t = c.attrs[0].f - x[j] + other[j]
            y[j] = 0 if t <= 0 else t           # a NaN stays


cdef void pairwise_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t j, n = size_of(&c.y.dim)
    cdef uint32_t b
    cdef float* y
    cdef float* dy
    cdef float* dx
    cdef float sign = 1 if i else -1
    for b in range(c.y.dim.bd):
        y = element(&c.y, b)
        dy = element(&c.dy, b)
        dx = element(&c.dx, b)
        for j in range(n):
            dx[j] += sign * dy[j] if y[j] > 0 else 0


cdef Op* PAIRWISE = register(b"pairwise_rank_loss", b"x y", pairwise_dim, pairwise_forward, pairwise_backward,
                             UNREAD_ARGUMENTS | BY_ELEMENT)


def pairwise_rank_loss(x, y, float m=1.0):
    """Margin loss max(m - x + y, 0) of each pair of elements.

    Args:
        x: scores that should be greater than those of y.
        y: scores, of the same shape.
        m: the margin (default: 1).

    Example:
        >>> dy.pairwise_rank_loss(dy.inputVector([3, 1]), dy.inputVector([1, 1])).npvalue()
        array([0., 1.])
    """
    cdef Extra extra = of_numbers(m)
    return apply2x(PAIRWISE, x, y, &extra)


# ---- poisson_loss: y = e^l - x l + log x! ------------------------------------------

cdef int poisson_dim(const Shapes* s, Dim* y) except -1:
    if size_of(s.x[0]) != 1:
        raise DimensionError("log_lambda must be a scalar")
    check_count(s, 1)
    return scalar(y)


cdef void poisson_forward(const Call* c) noexcept nogil:
    cdef uint32_t b
    cdef double log_mean, x
    for b in range(c.y.dim.bd):
        log_mean = element(&c.x[0], b)[0]
        x = c.items[b]
        c.y.v[b] = <float>(exp(log_mean) - x * log_mean + lgamma(x + 1))


cdef void poisson_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        element(&c.dx, b)[0] += <float>(
            c.dy.v[b] * (exp(element(&c.x[0], b)[0]) - <double>c.items[b]))


cdef Op* POISSON_LOSS = register(b"poisson_loss", b"log_lambda", poisson_dim, poisson_forward, poisson_backward,
                                 UNREAD_RESULT)


def poisson_loss(log_lambda, x: int | np.integer[Any] | Sequence[int] | npt.NDArray[np.integer[Any]]):
    """Negative log-likelihood of a count under a Poisson distribution.

    Shapes: ``log_lambda {1}`` -> ``{1}``.

    Args:
        log_lambda: logarithm of the mean.
        x: the count, or a list of counts, one for each batch element.

    Example:
        >>> round(dy.poisson_loss(dy.scalarInput(0), 2).value(), 3)
        1.693
    """
    cdef uint32_t count
    cdef Extra extra = no_extra()
    if is_list(x):
        _held = set_indices(&extra, x, "poisson_loss")
    else:
        set_index(&extra, &count, x, "poisson_loss")
    return apply1x(POISSON_LOSS, log_lambda, &extra)


# ==== crf =========================================================================================
#
# Linear-chain conditional random fields: sums over all sequences of tags, and the best of them.

# A sequence of tags y has the score start[y_0] + sum_t x[y_t, t] + sum_t transitions[y_{t-1}, y_t] + end[y_{n-1}].
# alpha_t[j] is the log-sum over all prefixes that end with tag j at t, its own score included, minus a constant for
# each column; beta_t[i] is the log-sum over all continuations, minus a constant such that exp(alpha_t + beta_t) are the
# marginals.  The constants keep long sequences, whose scores are large, from losing precision.  For the same reason the
# greatest score of each word, of the transitions, of the starts and of the ends is subtracted first; what is subtracted
# is summed in double precision, or, if the score of one sequence is subtracted from the result, drops out.


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
    return scalar(y)


cdef inline float lowered_to(size_t n, const float* v, float* to) noexcept nogil:
    """n numbers minus the greatest of them, if it is finite, in `to`; returns the number subtracted."""
    cdef float top = v[K.argmax(n, v)]
    if not isfinite(top):
        top = 0
    K.unary_fwd[<int>DY_UNARY_shift](n, v, -top, 0, to)
    return top


# The arguments for a batch element, less the greatest of their scores, and working memory.
cdef struct Scores:
    float* x
    float* transitions
    float* start
    float* end
    float* rest
    float above                                 # what was subtracted from the transitions


cdef size_t scores_work(const Dim* x, size_t matrices) noexcept nogil:
    """The floats for Scores and for some matrices of tags x tags."""
    cdef size_t tags = rows_of(x)
    return size_of(x) + (matrices + 1) * tags * tags + 4 * tags


cdef void divide_work(const Call* c, float* work, Scores* s) noexcept nogil:
    cdef size_t tags = rows_of(&c.x[0].dim)
    s.x = work
    s.transitions = s.x + size_of(&c.x[0].dim)
    s.start = s.transitions + tags * tags
    s.end = s.start + tags
    s.rest = s.end + tags
    s.above = 0


cdef double lower_scores(const Call* c, uint32_t b, const uint32_t* gold, Scores* s) noexcept nogil:
    """Fill in the scores; returns what was subtracted from each sequence of tags, less the score of `gold` if given."""
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), t
    cdef double total = 0
    cdef float top
    for t in range(n):
        top = lowered_to(tags, element(&c.x[0], b) + t * tags, s.x + t * tags)
        total += top if gold == NULL else -s.x[t * tags + gold[t]]
    if b == 0 or c.x[1].dim.bd > 1:
        s.above = lowered_to(tags * tags, element(&c.x[1], b), s.transitions)
    if gold == NULL:
        total += <double>s.above * (n - 1)
    else:
        for t in range(1, n):
            total -= s.transitions[gold[t] * tags + gold[t - 1]]
    top = lowered_to(tags, element(&c.x[2], b), s.start)
    total += top if gold == NULL else -s.start[gold[0]]
    top = lowered_to(tags, element(&c.x[3], b), s.end)
    return total + (top if gold == NULL else -s.end[gold[n - 1]])


cdef inline const uint32_t* gold_of(const Call* c, uint32_t b) noexcept nogil:
    """The sequence whose score is subtracted, or NULL."""
    return c.items + b * cols_of(&c.x[0].dim) if c.item_count else NULL


cdef inline void log_sums(size_t tags, const float* scores, size_t cols, float* pairs, float* y) noexcept nogil:
    K.logsumexp(tags, 1, cols, scores, pairs, NULL)
    logs_of(cols, pairs, y)


cdef double find_alphas(const Call* c, const Scores* s, float* alphas, float* lowered) noexcept nogil:
    """All alphas of a batch element, and the constants subtracted from its columns; returns their sum."""
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), t
    cdef float* sums = s.rest
    cdef float* pairs = s.rest + tags * tags
    cdef double total
    K.binary_fwd[<int>DY_BINARY_add](tags, s.x, 1, s.start, 1, alphas)
    lowered[0] = lowered_to(tags, alphas, alphas)
    total = lowered[0]
    for t in range(1, n):
        K.bias_add(tags, tags, alphas, s.transitions, sums)
        alphas += tags
        log_sums(tags, sums, tags, pairs, alphas)
        K.add(tags, s.x + t * tags, alphas)
        lowered[t] = lowered_to(tags, alphas, alphas)
        total += lowered[t]
    return total


cdef float log_last(const Call* c, const Scores* s, const float* alphas) noexcept nogil:
    """The logarithm of the sum over all ends of a sequence."""
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim)
    cdef float[2] pair
    K.binary_fwd[<int>DY_BINARY_add](tags, alphas + (n - 1) * tags, 1, s.end, 1, s.rest)
    K.logsumexp(tags, 1, 1, s.rest, pair, NULL)
    return log_of(pair)


cdef void find_betas(const Call* c, const Scores* s, const float* alphas, float* betas) noexcept nogil:
    """All betas of a batch element."""
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), t, i, j
    cdef float* transposed = s.rest
    cdef float* sums = s.rest + tags * tags
    cdef float* later = sums + tags * tags
    for i in range(tags):
        for j in range(tags):
            transposed[i * tags + j] = s.transitions[j * tags + i]
    memcpy(betas + (n - 1) * tags, s.end, tags * sizeof(float))
    fit(tags, alphas + (n - 1) * tags, betas + (n - 1) * tags, later)
    for t in range(n - 1, 0, -1):
        K.binary_fwd[<int>DY_BINARY_add](tags, betas + t * tags, 1, s.x + t * tags, 1, later)
        K.bias_add(tags, tags, later, transposed, sums)
        log_sums(tags, sums, tags, later, betas + (t - 1) * tags)
        fit(tags, alphas + (t - 1) * tags, betas + (t - 1) * tags, later)


cdef inline void fit(size_t tags, const float* alpha, float* beta, float* work) noexcept nogil:
    """Subtract a number from beta such that the exponentials of alpha + beta have the sum 1."""
    cdef float[2] pair
    K.binary_fwd[<int>DY_BINARY_add](tags, alpha, 1, beta, 1, work)
    K.logsumexp(tags, 1, 1, work, pair, NULL)
    K.unary_fwd[<int>DY_UNARY_shift](tags, beta, -log_of(pair), 0, beta)


cdef void marginals(size_t n, const float* alphas, const float* betas, float* y) noexcept nogil:
    K.binary_fwd[<int>DY_BINARY_add](n, alphas, 1, betas, 1, y)
    K.unary_fwd[<int>DY_UNARY_exp](n, y, 0, 0, y)


cdef void log_partition_forward(const Call* c) noexcept nogil:
    cdef size_t size = size_of(&c.x[0].dim)
    cdef uint32_t b
    cdef float* alphas
    cdef double total
    cdef Scores s
    divide_work(c, c.work, &s)
    for b in range(c.y.dim.bd):
        alphas = c.saved + b * saved_of_one(&c.x[0].dim)
        total = lower_scores(c, b, gold_of(c, b), &s)
        total += find_alphas(c, &s, alphas, alphas + 2 * size)
        c.y.v[b] = <float>(total + log_last(c, &s, alphas))


cdef inline size_t saved_of_one(const Dim* x) noexcept nogil:
    """The number of floats for alphas, betas, and the constant subtracted from each column of alphas."""
    return 2 * size_of(x) + cols_of(x)


cdef void log_partition_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), size = tags * n, t, first, end
    cdef uint32_t b
    cdef const uint32_t* gold
    cdef float dy
    cdef float* alphas
    cdef float* betas
    cdef float* dx
    cdef Scores s
    divide_work(c, c.work, &s)
    for b in range(c.y.dim.bd):
        alphas = c.saved + b * saved_of_one(&c.x[0].dim)
        betas = alphas + size
        dy = c.dy.v[b]
        dx = element(&c.dx, b)
        gold = gold_of(c, b)
        if c.first or i == 1:
            lower_scores(c, b, gold, &s)
        if c.first:
            find_betas(c, &s, alphas, betas)
        if i == 1:
            transitions_backward(c, &s, alphas, betas, dy, dx)
            for t in range(1, n if gold != NULL else 0):
                dx[gold[t] * tags + gold[t - 1]] -= dy
            continue
        first = n - 1 if i == 3 else 0
        end = 1 if i == 2 else n
        for t in range(first, end):
            marginals(tags, alphas + t * tags, betas + t * tags, s.rest)
            K.axpy(tags, dy, s.rest, dx + (t - first) * tags)
            if gold != NULL:
                dx[(t - first) * tags + gold[t]] -= dy


cdef void transitions_backward(const Call* c, const Scores* s, const float* alphas, const float* betas, float dy,
                               float* dx) noexcept nogil:
    """Add the gradient that a batch element has for the transitions, but for those of `gold`."""
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), t, j
    cdef const float* lowered = alphas + 2 * size_of(&c.x[0].dim)
    cdef float* sums = s.rest
    cdef float* to
    cdef Terms terms
    cdef int add
    dy_terms_begin(&terms, tags * tags, n - 1, sums + tags * tags, dx, True)
    for t in range(1, n):
        K.bias_add(tags, tags, alphas + (t - 1) * tags, s.transitions, sums)
        for j in range(tags):
            K.unary_fwd[<int>DY_UNARY_shift](tags, sums + j * tags,
                                             s.x[t * tags + j] + betas[t * tags + j] - lowered[t], 0, sums + j * tags)
        K.unary_fwd[<int>DY_UNARY_exp](tags * tags, sums, 0, 0, sums)
        to = dy_terms_next(&terms, &add)
        put_scaled(tags * tags, dy, sums, to, add)
    end_terms(&terms)


cdef size_t log_partition_saved(const Call* c) noexcept nogil:
    return saved_of_one(&c.x[0].dim) * c.y.dim.bd


cdef size_t log_partition_work(const Call* c, int i) noexcept nogil:
    cdef size_t tags = rows_of(&c.x[0].dim)
    if i < 0:
        return scores_work(&c.x[0].dim, 1)
    return scores_work(&c.x[0].dim, 2) + dy_terms_work(tags * tags, cols_of(&c.x[0].dim))


# ---- crf_loss: the log-partition minus the score of a sequence, whose tags are the items ------------

cdef int loss_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i, n = cols_of(s.x[0])
    log_partition_dim(s, y)
    if s.n_items != n:
        raise DimensionError(f"{s.n_items} tags are given for {n} words")
    for i in range(n):
        if s.items[i] >= s.x[0].d[0]:
            raise IndexError(f"tag {s.items[i]} is not from 0 to {<int>s.x[0].d[0] - 1}")
    return 0


# ---- marginals and the best sequence: for decoding, without gradients ---------------

cdef int marginals_dim(const Shapes* s, Dim* y) except -1:
    crf_shapes(s)
    y.nd = s.x[0].nd
    y.d[0] = s.x[0].d[0]
    y.d[1] = cols_of(s.x[0])
    return 0


cdef void marginals_forward(const Call* c) noexcept nogil:
    cdef size_t size = size_of(&c.x[0].dim)
    cdef uint32_t b
    cdef Scores s
    divide_work(c, c.work + saved_of_one(&c.x[0].dim), &s)
    for b in range(c.y.dim.bd):
        lower_scores(c, b, NULL, &s)
        find_alphas(c, &s, c.work, c.work + 2 * size)
        find_betas(c, &s, c.work, c.work + size)
        marginals(size, c.work, c.work + size, element(&c.y, b))


cdef size_t marginals_work(const Call* c, int i) noexcept nogil:
    return saved_of_one(&c.x[0].dim) + scores_work(&c.x[0].dim, 2)


cdef int viterbi_dim(const Shapes* s, Dim* y) except -1:
    crf_shapes(s)
    return vector(y, cols_of(s.x[0]))


cdef void refuse_sequence(const Call* c, uint32_t b) noexcept nogil:
    """Note why no sequence of a batch element is the best: the first NaN, an inf that meets -inf, or all are -inf."""
    cdef uint32_t i
    cdef size_t k
    cdef const float* x
    for i in range(4):
        x = element(&c.x[i], b)
        for k in range(size_of(&c.x[i].dim)):
            if x[k] != x[k] or x[k] == INFINITY:
                refuse(c.attrs[0].u, &c.x[i], b, k, i)
                return
    refuse_number(c.attrs[0].u, -INFINITY, b, 0, 0)


cdef void viterbi_forward(const Call* c) noexcept nogil:
    cdef size_t tags = rows_of(&c.x[0].dim), n = cols_of(&c.x[0].dim), t, j, best
    cdef uint32_t b
    cdef uint32_t* previous = <uint32_t*>c.work + 3 * tags  # the best tag before, for each word and tag
    cdef float* scores = c.work
    cdef float* next_scores = c.work + tags
    cdef float* sums = c.work + 2 * tags
    cdef int32_t* y
    cdef Scores s
    divide_work(c, c.work + size_of(&c.x[0].dim) + 3 * tags, &s)
    for b in range(c.y.dim.bd):
        lower_scores(c, b, NULL, &s)
        y = integers(element(&c.y, b))
        K.binary_fwd[<int>DY_BINARY_add](tags, s.x, 1, s.start, 1, scores)
        for t in range(1, n):
            for j in range(tags):
                K.binary_fwd[<int>DY_BINARY_add](tags, scores, 1, s.transitions + j * tags, 1, sums)
                best = K.argmax(tags, sums)
                previous[t * tags + j] = <uint32_t>best
                next_scores[j] = sums[best] + s.x[t * tags + j]
            memcpy(scores, next_scores, tags * sizeof(float))
        K.add(tags, s.end, scores)
        best = K.argmax(tags, scores)           # a NaN wins
        if not scores[best] > -INFINITY:
            refuse_sequence(c, b)
            continue
        for t in range(n):
            y[n - 1 - t] = <int32_t>best
            if t + 1 < n:
                best = previous[(n - 1 - t) * tags + best]


cdef size_t viterbi_work(const Call* c, int i) noexcept nogil:
    return size_of(&c.x[0].dim) + 3 * rows_of(&c.x[0].dim) + scores_work(&c.x[0].dim, 0)


# Sentences of different lengths run together.
cdef Op* new_crf(const char* name, DimRule dim, Forward forward, Backward backward, Work work,
                 Saved saved=NULL) except NULL:
    cdef Op* op = register(name, b"x transitions start end", dim, forward, backward, RAGGED, work, saved)
    op.rule[1] = op.rule[2] = SHARE
    return op


cdef Op* LOG_PARTITION = new_crf(b"crf_log_partition", log_partition_dim, log_partition_forward,
                                 log_partition_backward, log_partition_work, log_partition_saved)
cdef Op* LOSS = new_crf(b"crf_loss", loss_dim, log_partition_forward, log_partition_backward, log_partition_work,
                        log_partition_saved)
cdef Op* MARGINALS = new_crf(b"crf_marginals", marginals_dim, marginals_forward, NULL, marginals_work)
MARGINALS.no_gradient_because = b"they are for decoding; they are themselves the gradient of crf_log_partition"
cdef Op* VITERBI = new_crf(b"crf_viterbi", viterbi_dim, viterbi_forward, NULL, viterbi_work)
chooses(VITERBI, b"the best sequence is constant almost everywhere")


def crf_log_partition(x, transitions, start, end):
    """Logarithm of the sum of e^score over all sequences of tags (Lafferty et al. 2001).

    The score of a sequence y is ``start[y_0] + sum x[y_t, t] + sum transitions[y_{t-1}, y_t] + end[y_{n-1}]``.
    Sentences of different lengths that share the transitions run together.  See `crf_loss`.

    Shapes: ``x {tags,n}``, ``transitions {tags,tags}``, ``start {tags}``, ``end {tags}`` -> ``{1}``.

    Args:
        x: the score of each tag for each word, a column for each word.
        transitions: the score of a tag (column) after another one (row); -inf: never.
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


def crf_loss(x, tags: Expression | _Ints, transitions, start, end):
    """Negative log-likelihood of a sequence of tags in a linear-chain conditional random field (Lafferty et al. 2001).

    Sentences of different lengths that share the transitions run together.

    Shapes: ``x {tags,n}``, ``transitions {tags,tags}``, ``start {tags}``, ``end {tags}`` -> ``{1}``.

    Args:
        x: the score of each tag for each word, a column for each word.
        tags: the n tags, at most 65535; the same for every batch element. Or a vector of n as an expression, which
            gets no gradient.
        transitions: the score of a tag (column) after another one (row).
        start, end: scores of the first and of the last tag.

    Raises:
        DimensionError: the shapes do not fit, or the number of tags is not that of words.
        IndexError: there is no such tag; if they are an expression, when the value is computed.
        ValueError: there are more than 65535 tags.

    Example:
        >>> x = dy.inputTensor([[2, 0, 0], [0, 3, 1]])                 # two tags, three words
        >>> transitions, ends = dy.zeros((2, 2)), dy.zeros(2)
        >>> round(dy.crf_loss(x, [0, 1, 1], transitions, ends, ends).value(), 4)
        0.4888
    """
    cdef Extra extra = no_extra()
    if isinstance(tags, Expression):
        return operators["crf_loss"](x, tags, transitions, start, end)
    _held = set_shared_indices(&extra, tags, "crf_loss", "tags")
    return apply(LOSS, (x, transitions, start, end), &extra)


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
    """The sequence of tags with the greatest score (Viterbi 1967), as a vector of integers; the first if several are
    equal.  See `crf_log_partition`.

    Shapes: ``x {tags,n}`` -> ``{n}``.  There is no gradient.

    Args:
        x, transitions, start, end: see `crf_log_partition`.

    Raises:
        DimensionError: the shapes do not fit.
        ValueError: a score is NaN, or each sequence has the score -inf, when the value is computed.

    Example:
        >>> x = dy.inputTensor([[2, 0, 0], [0, 3, 1]])              # two tags, three words
        >>> transitions, ends = dy.zeros((2, 2)), dy.zeros(2)
        >>> dy.crf_viterbi(x, transitions, ends, ends).value()
        [0, 1, 1]
    """
    cdef Extra extra = of_words(
        chooser_number("crf_viterbi", "no sequence of tags{batch} is possible: each has the score -inf",
                       ("x", "transitions", "start", "end")))
    return apply(VITERBI, (x, transitions, start, end), &extra)


# ==== label_chain =================================================================================
#
# Sums over the ways through a chain of states, which each frame leaves, keeps, or moves on by one or two: alignments.

# alpha_t[s] is the log-sum over all ways that are in state s at frame t, minus a constant for each frame; beta_t[s]
# that over all continuations.  The softmax of alpha_t + beta_t over the states is the gradient of frame t.  Items: for
# each state, whether it may be entered from the one before the previous one.

cdef int chain_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t states = axis_of(s.x[0], 0)
    if s.x[0].nd > 2 or cols_of(s.x[0]) == 0 or states == 0:
        raise DimensionError("x must be a matrix with a column for each frame, at least one")
    if s.n_items != states:
        raise DimensionError(f"skips has {s.n_items} elements for {states} states")
    return scalar(y)


cdef inline double log_sum_of(double a, double b, double c) noexcept nogil:
    """log(e^a + e^b + e^c)."""
    cdef double top = a
    if b > top or b != b:
        top = b
    if c > top or c != c:
        top = c
    if not isfinite(top):
        return top
    return top + log(exp(a - top) + exp(b - top) + exp(c - top))


cdef void chain_forward(const Call* c) noexcept nogil:
    cdef size_t states = rows_of(&c.x[0].dim), frames = cols_of(&c.x[0].dim), t, s
    cdef uint32_t b
    cdef const uint32_t* skips
    cdef const float* x
    cdef const float* last
    cdef float* now
    cdef double total
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], b)
        skips = c.items + b * states
        now = c.saved + b * states * frames
        total = 0
        for t in range(frames):
            last = now - states
            for s in range(states):
                if t == 0:
                    now[s] = x[s] if s < 2 else -INFINITY
                else:
                    now[s] = <float>(log_sum_of(last[s], last[s - 1] if s > 0 else -INFINITY,
                                                last[s - 2] if s > 1 and skips[s] else -INFINITY) + x[s])
            total += lowered_to(states, now, now)
            x += states
            now += states
        last = now - states
        c.y.v[b] = <float>(total + log_sum_of(last[states - 1], last[states - 2] if states > 1 else -INFINITY,
                                              -INFINITY))


cdef void chain_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t states = rows_of(&c.x[0].dim), frames = cols_of(&c.x[0].dim), t, s, at
    cdef uint32_t b
    cdef const uint32_t* skips
    cdef const float* x
    cdef float* alphas
    cdef float* dx
    cdef float* beta = c.work                   # of the frame, and of the next one with its scores
    cdef float* later = beta + states
    cdef float* weights = later + states
    cdef float[2] pair
    for b in range(c.y.dim.bd):
        x = element(&c.x[0], b)
        dx = element(&c.dx, b)
        skips = c.items + b * states
        alphas = c.saved + b * states * frames
        for t in range(frames, 0, -1):
            at = (t - 1) * states
            for s in range(states):
                if t == frames:
                    beta[s] = 0 if s + 2 >= states else -INFINITY
                else:
                    beta[s] = <float>log_sum_of(later[s], later[s + 1] if s + 1 < states else -INFINITY,
                                                later[s + 2] if s + 2 < states and skips[s + 2] else -INFINITY)
            lowered_to(states, beta, beta)
            K.binary_fwd[<int>DY_BINARY_add](states, alphas + at, 1, beta, 1, weights)
            K.logsumexp(states, 1, 1, weights, pair, NULL)
            K.unary_fwd[<int>DY_UNARY_shift](states, weights, -log_of(pair), 0, weights)
            K.unary_fwd[<int>DY_UNARY_exp](states, weights, 0, 0, weights)
            K.axpy(states, c.dy.v[b], weights, dx + at)
            K.binary_fwd[<int>DY_BINARY_add](states, beta, 1, x + at, 1, later)


cdef size_t chain_saved(const Call* c) noexcept nogil:
    return size_of(&c.x[0].dim) * c.y.dim.bd


cdef size_t chain_work(const Call* c, int i) noexcept nogil:
    return 3 * rows_of(&c.x[0].dim) if i >= 0 else 0


cdef Op* CHAIN = register(b"label_chain", b"x", chain_dim, chain_forward, chain_backward, RAGGED, chain_work,
                          chain_saved)          # ragged: sequences of different lengths


def label_chain(x, skips: _Ints):
    """Logarithm of the sum of e^score over all ways through a chain of states, as in `ctc_loss` (Graves et al. 2006).

    A way is in the first or the second state at the first frame, and in the last or the last but one at the last frame.
    From frame to frame it stays, goes on to the next state, or, where `skips` allows it, to the one after.  Its score
    is the sum of the scores of its states.  Time grows with the number of states; that of `crf_log_partition`, which
    allows all transitions, with its square.

    Shapes: ``x {states,frames}`` -> ``{1}``.

    Args:
        x: the score of each state in each frame, a column for each frame.
        skips: for each state, 1 if it may be entered from the one before the previous one, otherwise 0; at most
            65535, the same for every batch element.

    Raises:
        DimensionError: the shapes do not fit.
        ValueError: there are more than 65535 states.

    Example:
        >>> round(dy.label_chain(dy.zeros((3, 2)), [0, 0, 1]).value(), 4)       # 0-1, 0-2, 1-1, 1-2
        1.3863
        >>> round(float(np.log(4)), 4)
        1.3863
    """
    cdef Extra extra = no_extra()
    _held = set_shared_indices(&extra, skips, "label_chain", "states")
    return apply(CHAIN, (x,), &extra)
