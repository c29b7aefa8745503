"""Distances and losses between two expressions."""

import numbers

import numpy as np

from libc.math cimport exp, lgamma
from libc.stdint cimport uint32_t

from dynet_cy.core.tensor cimport Call, Dim, element, same_shape, size_of
from dynet_cy.graph.expressions cimport Expression, dim_of
from dynet_cy.graph.making cimport apply1x, apply2, apply2x, expression
from dynet_cy.graph.messages cimport describe_dim
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport (
    DY_BINARY_abs_difference, DY_BINARY_binary_log_loss, DY_BINARY_squared_difference,
    DY_BINARY_sub, DY_UNARY_clip, DY_UNARY_huber, K,
)
from dynet_cy.memory.bridge cimport shape_of
from dynet_cy.ops.indices cimport check_count, is_list, set_index, set_indices
from dynet_cy.ops.registry cimport FLAT, Backward, Forward, Op, Shapes, register
from dynet_cy.ops.terms cimport Terms, begin_terms, end_terms, next_term, terms_work

from dynet_cy.ops.inputs import constant, inputTensor
from dynet_cy.ops.registry import DimensionError


cdef int pair_dim(const Shapes* s, Dim* y) except -1:
    """One result for two arguments of one shape."""
    if not same_shape(s.x[0], s.x[1]):
        raise DimensionError("x and y differ in shape")
    y.nd = 1
    y.d[0] = 1
    return 0


# ---- squared_distance, l1_distance, binary_log_loss: y = sum_j f(x_j, y_j) ------
# f is a row of binary.def.

cdef inline void summed_forward(const Call* c, int which) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        K.binary_fwd[which](n, element(&c.x[0], b), 1, element(&c.x[1], b), 1, c.work)
        c.y.v[b] = K.sum(n, c.work)


cdef inline void summed_backward(const Call* c, uint32_t i, int which) noexcept nogil:
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


cdef void squared_distance_forward(const Call* c) noexcept nogil:
    summed_forward(c, <int>DY_BINARY_squared_difference)


cdef void squared_distance_backward(const Call* c, uint32_t i) noexcept nogil:
    summed_backward(c, i, <int>DY_BINARY_squared_difference)


cdef void l1_distance_forward(const Call* c) noexcept nogil:
    summed_forward(c, <int>DY_BINARY_abs_difference)


cdef void l1_distance_backward(const Call* c, uint32_t i) noexcept nogil:
    summed_backward(c, i, <int>DY_BINARY_abs_difference)


cdef void binary_log_loss_forward(const Call* c) noexcept nogil:
    summed_forward(c, <int>DY_BINARY_binary_log_loss)


cdef void binary_log_loss_backward(const Call* c, uint32_t i) noexcept nogil:
    summed_backward(c, i, <int>DY_BINARY_binary_log_loss)


cdef Op* new_pair_op(const char* name, Forward forward, Backward backward) except NULL:
    cdef Op* op = register(name, b"x y", pair_dim, forward, backward)
    op.work = pair_work
    op.assigns = True
    return op


cdef Op* SQUARED_DISTANCE = new_pair_op(b"squared_distance", squared_distance_forward,
                                        squared_distance_backward)
cdef Op* L1_DISTANCE = new_pair_op(b"l1_distance", l1_distance_forward, l1_distance_backward)
cdef Op* BINARY_LOG_LOSS = new_pair_op(b"binary_log_loss", binary_log_loss_forward,
                                       binary_log_loss_backward)


def squared_distance(x, y):
    """Sum of the squared differences of two expressions of one shape.

    Shapes: ``x`` and ``y`` of one shape -> ``{1}``.

    Raises:
        DimensionError: the shapes differ.

    Example:
        >>> dy.squared_distance(dy.inputVector([1, 2]), dy.inputVector([3, -1])).value()
        13.0
    """
    return apply2(SQUARED_DISTANCE, x, y)


def l1_distance(x, y):
    """Sum of the absolute differences of two expressions of one shape.

    Shapes: ``x`` and ``y`` of one shape -> ``{1}``.

    Raises:
        DimensionError: the shapes differ.

    Example:
        >>> dy.l1_distance(dy.inputVector([1, 2]), dy.inputVector([3, -1])).value()
        5.0
    """
    return apply2(L1_DISTANCE, x, y)


cdef object labels_like(Expression x, object labels):
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
            f"binary_log_loss: the labels have shape {array.shape}\n    x  {describe_dim(d)}")
    return inputTensor(np.asarray(array))


def binary_log_loss(x, y: Expression | npt.ArrayLike):
    """Negative log-likelihood of yes-or-no decisions: -sum y log x + (1 - y) log(1 - x).

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
    if not isinstance(y, (Expression, str)) and (is_list(y) or isinstance(y, numbers.Real)):
        y = labels_like(expression(x, "binary_log_loss", "x"), y)
    return apply2(BINARY_LOG_LOSS, x, y)


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
        if add:
            K.axpy(n, slope, c.work, dx)
        else:
            K.scale(n, slope, c.work, dx)
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
    cdef Extra extra = no_extra()
    extra.attrs[0].f = c
    return apply2x(HUBER_DISTANCE, x, y, &extra)


# ---- pairwise_rank_loss: y = max(m - x + y, 0), element by element ----------------
# Attributes: m.

cdef int pairwise_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t k
    pair_dim(s, y)
    y.nd = s.x[0].nd
    for k in range(y.nd):
        y.d[k] = s.x[0].d[k]
    return 0


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


cdef Op* PAIRWISE = register(b"pairwise_rank_loss", b"x y", pairwise_dim, pairwise_forward,
                             pairwise_backward)
PAIRWISE.batching = FLAT


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
    cdef Extra extra = no_extra()
    extra.attrs[0].f = m
    return apply2x(PAIRWISE, x, y, &extra)


# ---- poisson_loss: y = e^l - x l + log x! ------------------------------------------

cdef int poisson_dim(const Shapes* s, Dim* y) except -1:
    if size_of(s.x[0]) != 1:
        raise DimensionError("log_lambda must be a scalar")
    check_count(s, 1)
    y.nd = 1
    y.d[0] = 1
    return 0


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


cdef Op* POISSON_LOSS = register(b"poisson_loss", b"log_lambda", poisson_dim, poisson_forward,
                                 poisson_backward)


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
