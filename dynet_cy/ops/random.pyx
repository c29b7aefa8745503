"""Random values: dropout, noise, samples, and random leaves.

Element j of a batch element depends on the seed, on the draw number that the
batch element got when its node was made, and on j, but not on batching.  A
dropout mask is therefore not saved, but drawn again in backward.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int32_t, uint32_t

from dynet_cy.core.tensor cimport Call, Dim, element, integers, size_of
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.making cimport apply1x, leaf
from dynet_cy.graph.structs cimport Extra
from dynet_cy.kernels.kernels cimport K, DY_BINARY_mul, DY_RNG_bernoulli, DY_RNG_gumbel, DY_RNG_normal, DY_RNG_uniform
from dynet_cy.ops.index cimport choice_dim, chooser_number, chooses, refuse
from dynet_cy.ops.inputs cimport axis_in, dim_with_batch, of_numbers, of_words
from dynet_cy.ops.loops cimport Split, best_of_line, draw, draw_mask, pass_on, split_at
from dynet_cy.ops.registry cimport ASSIGNS, RAGGED, RANDOM, UNREAD, Op, Shapes, register, same_dim

from dynet_cy.ops.registry import DimensionError


cdef Expression drop(const Op* op, object x, double p, int d):
    if not 0 <= p <= 1:
        raise ValueError(f"{op.name.decode()}: p must be a probability, not {p}")
    cdef Extra extra = of_numbers(<float>p)
    extra.attrs[1].i = d
    return apply1x(op, x, &extra)


# ---- dropout: y = x mask ---------------------------------------------------------

cdef void dropout_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        draw_mask(c, b, n, element(&c.y, b))
        K.binary_fwd[<int>DY_BINARY_mul](n, element(&c.y, b), 1, element(&c.x[0], b), 1,
                                         element(&c.y, b))


cdef void dropout_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        draw_mask(c, b, n, c.work)

        K.binary_bwd_b[<int>DY_BINARY_mul](n, c.work, 1, element(&c.x[0], b), 1, element(&c.y, b),
                                           element(&c.dy, b), element(&c.dx, b), 1)


cdef size_t dropout_work(const Call* c, int i) noexcept nogil:
    return size_of(&c.y.dim) if i >= 0 else 0


DROPOUT = register(b"dropout", b"x", same_dim, dropout_forward, dropout_backward, UNREAD | RAGGED | RANDOM,
                   dropout_work)                # ragged: sentences of different lengths still batch


def dropout(x, double p):
    """Set each element to zero with a probability, and scale the others up.

    Args:
        x: any expression.
        p: the probability of zero; the others are divided by 1 - p.

    Raises:
        ValueError: p is not a probability.

    Example:
        >>> dropped = dy.dropout(dy.ones(1000), 0.5).npvalue()
        >>> sorted(set(dropped.tolist()))
        [0.0, 2.0]
        >>> bool(400 < (dropped == 0).sum() < 600)
        True
    """
    return drop(DROPOUT, x, p, 0)


# ---- dropout_dim: the same mask all along axis d ----------------------------------

cdef int dropout_dim_dim(const Shapes* s, Dim* y) except -1:
    if s.attrs[1].i < 0 or <uint32_t>s.attrs[1].i >= s.x[0].nd:
        raise DimensionError(f"x has no axis {s.attrs[1].i}")
    return same_dim(s, y)


cdef void dropout_dim_forward(const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.y.dim, c.attrs[1].u)
    cdef size_t o, k, at
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        draw_mask(c, b, s.pre * s.post, c.work)
        for o in range(s.post):
            for k in range(s.len):
                at = (o * s.len + k) * s.pre
                K.binary_fwd[<int>DY_BINARY_mul](s.pre, c.work + o * s.pre, 1,
                                                 element(&c.x[0], b) + at, 1, element(&c.y, b) + at)


cdef void dropout_dim_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.y.dim, c.attrs[1].u)
    cdef size_t o, k, at
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        draw_mask(c, b, s.pre * s.post, c.work)
        for o in range(s.post):
            for k in range(s.len):
                at = (o * s.len + k) * s.pre
                K.binary_bwd_b[<int>DY_BINARY_mul](s.pre, c.work + o * s.pre, 1,
                                                   element(&c.x[0], b) + at, 1, element(&c.y, b) + at,
                                                   element(&c.dy, b) + at, element(&c.dx, b) + at, 1)


cdef size_t dropout_dim_work(const Call* c, int i) noexcept nogil:
    cdef Split s = split_at(&c.y.dim, c.attrs[1].u)
    return s.pre * s.post


cdef Op* DROPOUT_DIM = register(b"dropout_dim", b"x", dropout_dim_dim, dropout_dim_forward, dropout_dim_backward,
                                UNREAD | RANDOM, dropout_dim_work)


def dropout_dim(x, d: int, double p):
    """Dropout with the same mask for all positions along an axis.

    Args:
        x: any expression.
        d: the axis; with 0, whole columns of a matrix are dropped.
        p: the probability of zero.

    Raises:
        DimensionError: x has no axis d.

    Example:
        >>> dropped = dy.dropout_dim(dy.ones((2, 100)), 0, 0.5).npvalue()
        >>> bool((dropped[0] == dropped[1]).all())
        True
    """
    return drop(DROPOUT_DIM, x, p, <int>axis_in(x, d, "dropout_dim"))


# ---- dropout_batch: y = x mask, one mask value for each batch element --------------

cdef void dropout_batch_forward(const Call* c) noexcept nogil:
    cdef uint32_t b
    cdef float mask
    for b in range(c.y.dim.bd):
        draw_mask(c, b, 1, &mask)
        K.scale(size_of(&c.y.dim), mask, element(&c.x[0], b), element(&c.y, b))


cdef void dropout_batch_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef uint32_t b
    cdef float mask
    for b in range(c.y.dim.bd):
        draw_mask(c, b, 1, &mask)
        K.axpy(size_of(&c.y.dim), mask, element(&c.dy, b), element(&c.dx, b))


cdef Op* DROPOUT_BATCH = register(b"dropout_batch", b"x", same_dim, dropout_batch_forward, dropout_batch_backward,
                                  UNREAD | RANDOM)
cdef Op* BLOCK_DROPOUT = register(b"block_dropout", b"x", same_dim, dropout_batch_forward, dropout_batch_backward,
                                  UNREAD | RANDOM)


def dropout_batch(x, double p):
    """Dropout of whole batch elements.

    Args:
        x: any expression.
        p: the probability of zero.

    Example:
        >>> dy.dropout_batch(dy.inputTensor([[1, 3], [2, 4]], batched=True), 0.0).npvalue()
        array([[1., 3.],
               [2., 4.]])
    """
    return drop(DROPOUT_BATCH, x, p, 0)


def block_dropout(x, double p):
    """Dropout of all or nothing, decided for each batch element.

    Args:
        x: any expression.
        p: the probability of zero.

    Example:
        >>> dy.block_dropout(dy.inputVector([1, 2]), 0.0).npvalue()
        array([1., 2.])
    """
    return drop(BLOCK_DROPOUT, x, p, 0)


# ---- noise: y = x + deviation z -----------------------------------------------------

cdef void noise_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        draw(c, b, <int>DY_RNG_normal, n, 0, c.attrs[0].f, element(&c.y, b))
        K.add(n, element(&c.x[0], b), element(&c.y, b))


cdef void noise_backward(const Call* c, uint32_t i) noexcept nogil:
    pass_on(c, 1)


NOISE = register(b"noise", b"x", same_dim, noise_forward, noise_backward, UNREAD | ASSIGNS | RANDOM)


cdef int check_deviation(str op, float stddev) except -1:
    if not stddev >= 0:
        raise ValueError(f"{op}: stddev must not be negative, but it is {stddev}")
    return 0


def noise(x, float stddev):
    """Add Gaussian noise.

    Args:
        x: any expression.
        stddev: deviation of the noise.

    Raises:
        ValueError: stddev is negative or nan.

    Example:
        >>> dy.noise(dy.inputVector([1, 2]), 0.0).npvalue()
        array([1., 2.])
        >>> bool(dy.noise(dy.zeros(1000), 1.0).npvalue().std() > 0.9)
        True
    """
    check_deviation("noise", stddev)
    cdef Extra extra = of_numbers(stddev)
    return apply1x(NOISE, x, &extra)


# ---- sample: an index drawn with the probabilities softmax(x) along an axis --------------
# The index of the greatest x + noise from a Gumbel distribution (Gumbel 1954; Maddison et al. 2014, "A* sampling").

cdef void sample_forward(const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[0].u)
    cdef size_t line, first, best, n = s.pre * s.post
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        draw(c, b, <int>DY_RNG_gumbel, n * s.len, 0, 1, c.work)
        K.add(n * s.len, element(&c.x[0], b), c.work)
        for line in range(n):
            first = line // s.pre * s.pre * s.len + line % s.pre
            best = best_of_line(c.work + first, s.pre, s.len, 1)
            integers(element(&c.y, b))[line] = <int32_t>best
            if not c.work[first + best * s.pre] > -INFINITY:        # NaN is not either
                refuse(c.attrs[3].u, &c.x[0], b, first + best * s.pre, 0)


cdef size_t sample_work(const Call* c, int i) noexcept nogil:
    return size_of(&c.x[0].dim) if i < 0 else 0


cdef Op* SAMPLE = register(b"sample", b"x", choice_dim, sample_forward, NULL, RAGGED | RANDOM, sample_work)
chooses(SAMPLE, b"indices have no gradient; gumbel_softmax has one")


def sample(x, d=0):
    """An index drawn with the probabilities ``softmax(x)`` along an axis, which is removed, as a value of the graph.

    The draw depends on the seed and on its position in the stream of random numbers of the graph, as that of `dropout`
    does, but not on batching. The result can be used as an index: ``table[dy.sample(scores)]``. No gradient flows
    through it; that of a policy is ``dy.pickneglogsoftmax(scores, action) * reward``.

    Args:
        x: scores, such as logits or logarithms of probabilities; an element of -inf is never drawn.
            Divide them by a temperature to draw more or less freely.
        d: the axis (default: 0).

    Raises:
        DimensionError: x has no axis d, or no elements along it.
        ValueError: an element is NaN, or all along the axis are -inf, when the value is computed.

    Example:
        >>> dy.sample(dy.log(dy.inputVector([0, 1, 0]))).value()
        1
        >>> drawn = dy.sample(dy.zeros((2, 1000))).npvalue()
        >>> bool(400 < drawn.sum() < 600)
        True
    """
    cdef Extra extra = of_words(<uint32_t>axis_in(x, d, "sample"), 0, 0, chooser_number(
        "sample", "no element can be drawn: all along the axis are -inf, from element {k}{batch}"))
    return apply1x(SAMPLE, x, &extra)


# ---- random_normal, random_uniform, random_bernoulli, random_gumbel: leaves ----------

cdef void random_forward(const Call* c) noexcept nogil:
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        draw(c, b, c.attrs[2].i, size_of(&c.y.dim), c.attrs[0].f, c.attrs[1].f, element(&c.y, b))


cdef Op* new_random_leaf(const char* name) except NULL:
    cdef Op* op = register(name, b"", NULL, random_forward, NULL, RANDOM)
    op.no_gradient_because = b"a leaf that is not trained"
    return op


cdef Op* RANDOM_NORMAL = new_random_leaf(b"random_normal")
cdef Op* RANDOM_UNIFORM = new_random_leaf(b"random_uniform")
cdef Op* RANDOM_BERNOULLI = new_random_leaf(b"random_bernoulli")
cdef Op* RANDOM_GUMBEL = new_random_leaf(b"random_gumbel")


cdef Expression random_leaf(const Op* op, int distribution, object shape, object batch_size, float p0, float p1):
    cdef Dim dim
    dim_with_batch(shape, batch_size, &dim, op.name.decode())
    cdef Extra extra = of_numbers(p0, p1)
    extra.attrs[2].i = distribution
    return leaf(op, &dim, &extra)


def random_normal(dim: _Shape, float mean=0.0, float stddev=1.0, batch_size=1):
    """Normally distributed numbers.

    Args:
        dim: shape, a tuple or one number.
        mean, stddev: of the distribution (defaults: 0 and 1).
        batch_size: number of batch elements (default: 1).

    Raises:
        ValueError: stddev is negative or nan.

    Example:
        >>> abs(dy.mean_elems(dy.random_normal(10000, mean=5)).value() - 5) < 0.1
        True
    """
    check_deviation("random_normal", stddev)
    return random_leaf(RANDOM_NORMAL, DY_RNG_normal, dim, batch_size, mean, stddev)


def random_uniform(dim: _Shape, float left, float right, batch_size=1):
    """Numbers from a uniform distribution.

    Args:
        dim: shape, a tuple or one number.
        left, right: bounds.
        batch_size: number of batch elements (default: 1).

    Raises:
        ValueError: left is greater than right, or one of them is nan.

    Example:
        >>> x = dy.random_uniform(1000, -1, 1).npvalue()
        >>> bool(-1 <= x.min() < x.max() <= 1)
        True
    """
    if not left <= right:
        raise ValueError(
            f"random_uniform: left must not be greater than right, but they are {left} and {right}")
    return random_leaf(RANDOM_UNIFORM, DY_RNG_uniform, dim, batch_size, left, right)


def random_bernoulli(dim: _Shape, float p, float scale=1.0, batch_size=1):
    """Numbers that are `scale` with a probability, else 0.

    Args:
        dim: shape, a tuple or one number.
        p: the probability.
        scale: the value that is not 0 (default: 1).
        batch_size: number of batch elements (default: 1).

    Raises:
        ValueError: p is not from 0 to 1.

    Example:
        >>> set(dy.random_bernoulli(100, 0.5, scale=2.0).value()) == {0.0, 2.0}
        True
    """
    if not 0 <= p <= 1:
        raise ValueError(f"random_bernoulli: p must be a probability, not {p}")
    return random_leaf(RANDOM_BERNOULLI, DY_RNG_bernoulli, dim, batch_size, p, scale)


def random_gumbel(dim: _Shape, float mu=0.0, float beta=1.0, batch_size=1):
    """Numbers from a Gumbel distribution.

    Args:
        dim: shape, a tuple or one number.
        mu, beta: location and scale (defaults: 0 and 1).
        batch_size: number of batch elements (default: 1).

    Example:
        >>> dy.random_gumbel((2, 3)).dim()
        ((2, 3), 1)
    """
    return random_leaf(RANDOM_GUMBEL, DY_RNG_gumbel, dim, batch_size, mu, beta)
