"""Normalization of layers, weights and channels."""

from libc.math cimport INFINITY, sqrt
from libc.stdint cimport uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport Call, Dim, axis_of, element, size_of
from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.graph.making cimport apply, apply1x, apply2
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport K, DY_BINARY_add, DY_BINARY_mul, DY_UNARY_shift
from dynet_cy.ops.inputs cimport axis_in, of_words
from dynet_cy.ops.loops cimport (
    COUNT, DROPPED, EPSILON, FIRST, NONE, Split, Terms, columns_of, covered, draw_mask, dy_terms_begin,
    dy_terms_next, dy_terms_work, end_terms, is_usual, lines_of, matrix, norm_of, split_at,
)
from dynet_cy.ops.registry cimport (
    SHARE, UNREAD_EVEN, UNREAD_FIRST, UNREAD_RESULT, Op, Shapes, need_axis, register, same_dim,
)

from dynet_cy.ops.registry import DimensionError


# ==== norm ========================================================================================
#
# Normalization of layers and weights.

# ---- layer_norm: y = g z + b, z = (x - mean x) / sqrt(variance of x + eps) ------------
# x is divided into lines, which are normalized separately: a line has the elements along
# some consecutive axes.  g and b have one element for each element of a line, or fewer,
# which repeat along it, or the shape of x.  The mean and the factor of every line are saved.

cdef double TINY = 1e-8

cdef inline size_t line_at(const Split* s, size_t line) noexcept nogil:
    """The offset of a line in its batch element."""
    return line // s.pre * s.pre * s.len + line % s.pre


cdef bint fits(const Dim* part, const Dim* x, uint32_t first, uint32_t last) noexcept nogil:
    """Whether part has an element for each element of a line, or repeats along it, or has the shape of x."""
    cdef uint32_t k = covered(part, x, first, last)
    # Lines whose elements are not contiguous are not split.
    return k == last - first or (k != NONE and (first == 0 or k == 0)) or covered(part, x, 0, x.nd) == x.nd


cdef int layer_norm_dim(const Shapes* s, Dim* y) except -1:
    cdef const Dim* x = s.x[0]
    cdef uint32_t first = s.attrs[FIRST].u, last = first + s.attrs[COUNT].u
    if first == last:
        last = covered(s.x[1], x, 0, x.nd)
        if last == NONE or covered(s.x[2], x, 0, x.nd) != last or (size_of(s.x[1]) == 1 and size_of(x) != 1):
            raise DimensionError("g and b must both have the shape of x, or both that of its first axes, which are "
                                 "then normalized; use axis= for other axes")
    elif last > x.nd:
        raise DimensionError(f"x has no axis {last - 1}")
    elif not fits(s.x[1], x, first, last) or not fits(s.x[2], x, first, last):
        raise DimensionError("g and b must have the shape of the axes of x that are normalized, or of x")
    return same_dim(s, y)


cdef inline void moments(const float* x, size_t n, size_t stride, double* mean, double* deviation) noexcept nogil:
    cdef double total = 0, t
    cdef size_t j
    for j in range(n):
        total += x[j * stride]
    mean[0] = total / n
    total = 0
    for j in range(n):
        t = x[j * stride] - mean[0]
        total += t * t
    deviation[0] = sqrt(total / n)


cdef inline void adjacent_moments(const float* x, size_t n, float* work, double* mean,
                                  double* deviation) noexcept nogil:
    """Mean and deviation of adjacent elements, vectorized; subtracting an approximate mean avoids cancellation."""
    cdef float about = K.sum(n, x) / n
    cdef double off, square
    K.unary_fwd[<int>DY_UNARY_shift](n, x, -about, 0, work)
    off = K.sum(n, work) / <double>n
    square = K.sumsq(n, work) / <double>n - off * off
    mean[0] = about + off
    deviation[0] = sqrt(square) if square > 0 else square if square != square else 0


cdef inline void norm_line(size_t n, size_t stride, const float* x, const float* g, size_t ng, size_t step_g,
                           const float* b, size_t nb, size_t step_b, double eps, float* saved,
                           float* y) noexcept nogil:
    """Normalize one line of n elements; g and b have ng and nb elements, which repeat."""
    cdef double mean, deviation
    cdef float middle, factor
    cdef size_t j, k, at
    if stride == 1:
        adjacent_moments(x, n, y, &mean, &deviation)
    else:
        moments(x, n, stride, &mean, &deviation)
    middle = saved[0] = <float>mean
    if eps > 0:
        factor = saved[1] = saved[2] = <float>(1 / sqrt(deviation * deviation + eps))
    else:
        factor = saved[1] = <float>(1 / (deviation + TINY))
        saved[2] = <float>(1 / deviation) if deviation > 0 else 0
    for j in range(n // ng):
        for k in range(ng):
            at = (j * ng + k) * stride
            y[at] = g[k * step_g] * ((x[at] - middle) * factor)
    for j in range(n // nb):
        for k in range(nb):
            y[(j * nb + k) * stride] += b[k * step_b]


# The factors or summands of a line: n of them, `step` apart, which repeat if the line is longer.
cdef struct ParameterPart:
    const float* v
    size_t n
    size_t step


cdef inline ParameterPart part_of(const Call* c, uint32_t i, const Split* s, uint32_t e, size_t at) noexcept nogil:
    """The part of argument i that belongs to the line at offset `at` of batch element e."""
    cdef ParameterPart p
    p.v = element(&c.x[i], e)
    p.n = size_of(&c.x[i].dim)
    p.step = 1
    if p.n > s.len:                             # of the shape of x
        p.v += at
        p.n = s.len
        p.step = s.pre
    return p


cdef void layer_norm_forward(const Call* c) noexcept nogil:
    cdef Split s = lines_of(&c.y.dim, &c.x[1].dim, c.attrs)
    cdef double eps = c.attrs[EPSILON].f
    cdef size_t line, at, lines = s.pre * s.post
    cdef uint32_t e
    cdef float* saved = c.saved
    cdef float* x
    cdef float* y
    cdef ParameterPart g, b
    if size_of(&c.y.dim) == 0:
        return
    for e in range(c.y.dim.bd):
        for line in range(lines):
            at = line_at(&s, line)
            g = part_of(c, 1, &s, e, at)
            b = part_of(c, 2, &s, e, at)
            x = element(&c.x[0], e) + at
            y = element(&c.y, e) + at
            if s.pre == 1:                      # inlined with constant strides
                norm_line(s.len, 1, x, g.v, g.n, 1, b.v, b.n, 1, eps, saved, y)
            else:
                norm_line(s.len, s.pre, x, g.v, g.n, g.step, b.v, b.n, b.step, eps, saved, y)
            saved += 3


cdef inline void line_backward(size_t n, size_t stride, const float* x, const float* g, size_t ng, size_t step_g,
                               const float* saved, const float* dy, float* dz, float* dx) noexcept nogil:
    # dz = g dy;  dx = factor (dz - mean dz - (x - mean x) mean(dz z) / deviation)
    cdef float middle = saved[0], factor = saved[1], mean
    cdef double total = 0, along = 0, slope
    cdef size_t j, k, at
    for j in range(n // ng):
        for k in range(ng):
            dz[j * ng + k] = g[k * step_g] * dy[(j * ng + k) * stride]
    for j in range(n):
        total += dz[j]
        along += <double>dz[j] * (x[j * stride] - middle)
    mean = <float>(total / n)
    slope = along * factor * saved[2] / n
    for j in range(n):
        at = j * stride
        dx[at] += factor * (dz[j] - mean - <float>slope * (x[at] - middle))


cdef void layer_norm_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = lines_of(&c.y.dim, &c.x[1].dim, c.attrs)
    cdef size_t line, at, lines = s.pre * s.post
    cdef uint32_t e
    cdef const float* saved = c.saved
    cdef float* x
    cdef float* dy
    cdef float* dx
    cdef ParameterPart g
    if size_of(&c.y.dim) == 0:
        return
    if i and terms_of_part(c, i, &s):
        part_backward(c, i, &s, c.x[0].v, c.x[0].bstride, i == 1, c.work)
        return
    for e in range(c.y.dim.bd):
        for line in range(lines):
            at = line_at(&s, line)
            x = element(&c.x[0], e) + at
            dy = element(&c.dy, e) + at
            dx = element(&c.dx, e)
            if i == 0:
                g = part_of(c, 1, &s, e, at)
                if s.pre == 1:
                    line_backward(s.len, 1, x, g.v, g.n, 1, saved, dy, c.work, dx + at)
                else:
                    line_backward(s.len, s.pre, x, g.v, g.n, g.step, saved, dy, c.work, dx + at)
            elif s.pre == 1:                    # of the shape of x
                part_of_line(i == 1, s.len, 1, x, saved, dy, True, 1, dx + at)
            else:
                part_of_line(i == 1, s.len, s.pre, x, saved, dy, True, s.pre, dx + at)
            saved += 3


cdef inline void part_of_line(bint of_factors, size_t n, size_t stride, const float* x, const float* saved,
                              const float* dy, bint add, size_t step, float* dx) noexcept nogil:
    """The gradients of the factors, or the summands, of n elements of a line, `step` apart."""
    cdef float middle = saved[0], factor = saved[1], slope
    cdef size_t k
    for k in range(n):
        slope = dy[k * stride] * ((x[k * stride] - middle) * factor) if of_factors else dy[k * stride]
        dx[k * step] = dx[k * step] + slope if add else slope


cdef inline size_t terms_of_part(const Call* c, uint32_t i, const Split* s) noexcept nogil:
    """How many elements of a batch element use each factor or summand; 0 if these have the shape of x."""
    cdef size_t m = size_of(&c.x[i].dim)
    return 0 if m > s.len else s.len // m * s.pre * s.post


cdef void part_backward(const Call* c, uint32_t i, const Split* s, const float* xs, size_t stride,
                        bint of_factors, float* work) noexcept nogil:
    """The gradient of factors or summands that all lines share.

    Args:
        i: number of the argument.
        xs, stride: the values that were normalized, and the distance of their batch elements.
        of_factors: whether the argument holds factors, not summands.
        work: memory for partial sums.
    """
    cdef size_t line, at, j, m = size_of(&c.dx.dim), lines = s.pre * s.post
    cdef uint32_t e, first, uses = c.y.dim.bd // c.dx.dim.bd
    cdef const float* saved = c.saved
    cdef const float* x
    cdef float* dy
    cdef float* dx
    cdef int add
    cdef Terms terms
    for first in range(c.dx.dim.bd):
        dy_terms_begin(&terms, m, terms_of_part(c, i, s) * uses, work, element(&c.dx, first), True)
        for e in range(first, first + uses):
            for line in range(lines):
                for j in range(s.len // m):
                    at = line_at(s, line) + j * m * s.pre
                    x = xs + e * stride + at
                    dy = element(&c.dy, e) + at
                    dx = dy_terms_next(&terms, &add)
                    if s.pre == 1:
                        part_of_line(of_factors, m, 1, x, saved, dy, add, 1, dx)
                    else:
                        part_of_line(of_factors, m, s.pre, x, saved, dy, add, 1, dx)
                saved += 3
        end_terms(&terms)


cdef size_t layer_norm_saved(const Call* c) noexcept nogil:
    cdef Split s = lines_of(&c.y.dim, &c.x[1].dim, c.attrs)
    return 3 * s.pre * s.post * c.y.dim.bd


cdef size_t layer_norm_work(const Call* c, int i) noexcept nogil:
    cdef Split s = lines_of(&c.y.dim, &c.x[1].dim, c.attrs)
    if i <= 0:
        return s.len if i == 0 else 0
    return dy_terms_work(size_of(&c.x[i].dim), terms_of_part(c, i, &s) * c.y.dim.bd)


cdef Op* LAYER_NORM = register(b"layer_norm", b"x g b", layer_norm_dim, layer_norm_forward, layer_norm_backward,
                               UNREAD_RESULT, layer_norm_work, layer_norm_saved)
LAYER_NORM.rule[1] = LAYER_NORM.rule[2] = SHARE


def layer_norm(x, g, b, axis: int | Sequence[int] | None = None, eps: float | None = None):
    """Layer normalization: elements scaled to mean 0 and deviation 1, then times g and plus b
    (Ba et al. 2016).

    ``layer_norm(x, g, b)`` of a matrix x and vectors g and b with an element for each row
    normalizes each column, as Transformers need; with g and b of the shape of x it
    normalizes all elements together.

    Args:
        x: any expression; each batch element is normalized separately.
        g: factors, in the shape of x or of its first axes; with `axis`, in the shape of those axes or of x.  If the
            axes begin with the first one, g may have only the first of them; it is then repeated along the others.
        b: summands, likewise; without `axis`, b must have the same axes as g.
        axis: the axis to normalize along, or several consecutive axes, separately for each position along the
            others.  Default: the axes of g.
        eps: added to the variance (default: 1e-5, as in PyTorch); 0: 1e-8 is added to the deviation instead, as in
            DyNet, which is the default of programs written for it.  A line of equal numbers then has gradients of 1e8.

    Raises:
        DimensionError: the shapes do not fit, or there is no such axis.
        ValueError: eps is negative.

    Example:
        >>> dy.layer_norm(dy.inputVector([1, 2, 3]), dy.ones(3), dy.zeros(3)).npvalue().round(3)
        array([-1.225,  0.   ,  1.225])
    """
    cdef Extra extra = no_extra()
    if axis is not None:
        requested = axis if isinstance(axis, (list, tuple)) else (axis,)
        axes = sorted([axis_in(x, d, "layer_norm", "an axis") for d in requested])
        if not axes or axes[0] < 0 or axes[-1] > 6 or axes != list(range(axes[0], axes[0] + len(axes))):
            raise DimensionError(f"layer_norm: axis must be an axis, or several consecutive ones, not {axis!r}")
        extra.attrs[FIRST].u = <uint32_t>axes[0]
        extra.attrs[COUNT].u = <uint32_t>len(axes)
    set_epsilon(&extra, "layer_norm", eps)
    return apply(LAYER_NORM, (x, g, b), &extra)


cdef int set_epsilon(Extra* extra, str op, object eps) except -1:
    if eps is None:
        extra.attrs[EPSILON].f = 0 if follows_dynet() else 1e-5
        return 0
    extra.attrs[EPSILON].f = eps
    if not 0 <= extra.attrs[EPSILON].f < INFINITY:
        raise ValueError(f"{op}: eps must be a number of at least 0, not {eps!r}")
    return 0


# ---- residual_layer_norm: y = layer_norm(x + mask r) of each column ----------------------
# Saved: for each column what `norm_line` saves, then the sums z = x + mask r, then memory for their gradients, which
# both x and r need.

cdef int residual_layer_norm_dim(const Shapes* s, Dim* y) except -1:
    cdef const Dim* x = s.x[0]
    cdef const Dim* g = s.x[1]
    cdef const Dim* r = s.x[2]
    cdef const Dim* b = s.x[3]
    cdef uint32_t k
    for k in range(x.nd if x.nd > r.nd else r.nd):
        if axis_of(x, k) != axis_of(r, k):
            raise DimensionError("r must have the shape of x")
    if size_of(g) != axis_of(x, 0) or size_of(b) != axis_of(x, 0) or axis_of(g, 0) != axis_of(b, 0) or (
            axis_of(g, 0) != axis_of(x, 0)):
        raise DimensionError(f"g and b must be vectors of {axis_of(x, 0)} elements, as many as x has rows")
    return same_dim(s, y)


cdef inline float* sums_of(const Call* c) noexcept nogil:
    cdef Split s = columns_of(&c.y.dim)
    return c.saved + 3 * s.post * c.y.dim.bd


cdef void residual_layer_norm_forward(const Call* c) noexcept nogil:
    cdef Split s = columns_of(&c.y.dim)
    cdef size_t n = size_of(&c.y.dim), line
    cdef uint32_t e
    cdef float* saved = c.saved
    cdef float* z = sums_of(c)
    cdef float* g
    cdef float* b
    if n == 0:
        return
    for e in range(c.y.dim.bd):
        if c.attrs[DROPPED].f > 0:
            draw_mask(c, e, n, z)
            K.binary_fwd[<int>DY_BINARY_mul](n, z, 1, element(&c.x[2], e), 1, z)
            K.add(n, element(&c.x[0], e), z)
        else:
            K.binary_fwd[<int>DY_BINARY_add](n, element(&c.x[0], e), 1, element(&c.x[2], e), 1, z)
        g = element(&c.x[1], e)
        b = element(&c.x[3], e)
        for line in range(s.post):
            norm_line(s.len, 1, z, g, s.len, 1, b, s.len, 1, c.attrs[EPSILON].f, saved,
                      element(&c.y, e) + line * s.len)
            saved += 3
            z += s.len


cdef void residual_layer_norm_prepare(const Call* c) noexcept nogil:
    """The gradients of the sums."""
    cdef Split s = columns_of(&c.y.dim)
    cdef size_t n = size_of(&c.y.dim), line, at
    cdef uint32_t e
    cdef const float* z = sums_of(c)
    cdef const float* saved = c.saved
    cdef float* dz = c.work
    memset(dz, 0, n * c.y.dim.bd * sizeof(float))
    for e in range(c.y.dim.bd):
        for line in range(s.post):
            at = e * n + line * s.len
            line_backward(s.len, 1, z + at, element(&c.x[1], e), s.len, 1, saved,
                          element(&c.dy, e) + line * s.len, dz + n * c.y.dim.bd, dz + at)
            saved += 3


cdef void residual_layer_norm_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = columns_of(&c.y.dim)
    cdef size_t n = size_of(&c.y.dim)
    cdef uint32_t e
    cdef const float* dz = c.work
    cdef float* rest = c.work + n * c.y.dim.bd
    if i & 1:
        part_backward(c, i, &s, sums_of(c), n, i == 1, rest)
        return
    for e in range(c.y.dim.bd):
        if i == 2 and c.attrs[DROPPED].f > 0:
            draw_mask(c, e, n, rest)
            K.binary_bwd_b[<int>DY_BINARY_mul](n, rest, 1, rest, 1, dz + e * n, dz + e * n, element(&c.dx, e), 1)
        else:
            K.add(n, dz + e * n, element(&c.dx, e))


cdef size_t residual_layer_norm_saved(const Call* c) noexcept nogil:
    return (3 * columns_of(&c.y.dim).post + size_of(&c.y.dim)) * c.y.dim.bd


cdef size_t residual_layer_norm_prepared(const Call* c) noexcept nogil:
    """For the gradients of the sums, and one after the other a line, partial sums, and a mask."""
    cdef Split s = columns_of(&c.y.dim)
    cdef size_t n = size_of(&c.y.dim), rest = dy_terms_work(s.len, s.post * c.y.dim.bd)
    rest = rest if rest > s.len else s.len
    if c.attrs[DROPPED].f > 0 and n > rest:
        rest = n
    return n * c.y.dim.bd + rest


cdef Op* new_residual_layer_norm(const char* name) except NULL:
    cdef Op* op = register(name, b"x g r b", residual_layer_norm_dim, residual_layer_norm_forward,
                           residual_layer_norm_backward, UNREAD_RESULT | UNREAD_FIRST | UNREAD_EVEN, NULL,
                           residual_layer_norm_saved)       # the sums x + mask r are saved
    op.prepare = residual_layer_norm_prepare
    op.prepared = residual_layer_norm_prepared
    op.rule[1] = SHARE                          # g and b; x and r follow rule 0 and 2
    return op


cdef Op* RESIDUAL = new_residual_layer_norm(b"residual_layer_norm")
RESIDUAL.columns = True
cdef Op* RESIDUAL_DROPOUT = new_residual_layer_norm(b"residual_layer_norm_dropout")
RESIDUAL_DROPOUT.random = True
RESIDUAL_DROPOUT.ragged = True                  # sentences of different lengths stay in step


def residual_layer_norm(x, r, g, b, double dropout=0.0, eps: float | None = None):
    """A residual connection, normalized column by column: ``layer_norm(x + dropout(r), g, b)`` in one pass
    (Vaswani et al., "Attention is all you need", NeurIPS 2017).

    Args:
        x: the input of a layer, ``{d}``, ``{d,n}`` or with more axes.
        r: the output of the layer, in the shape of x.
        g: factors, ``{d}``.
        b: summands, ``{d}``.
        dropout: the probability that an element of r is set to 0; the others are divided by 1 - dropout (default: 0).
        eps: added to the variance (default: 1e-5, as in PyTorch); 0: 1e-8 is added to the deviation instead, as in
            DyNet, which is the default of programs written for it.  A line of equal numbers then has gradients of 1e8.

    Returns:
        Expression of the shape of x.

    Raises:
        DimensionError: the shape of r is not that of x, or g or b does not have one element per row of x.
        ValueError: dropout is not a probability, or eps is negative.

    Example:
        >>> x, r = dy.inputVector([1, 0, 3]), dy.inputVector([0, 2, 0])
        >>> dy.residual_layer_norm(x, r, dy.ones(3), dy.zeros(3)).npvalue().round(3)
        array([-1.225,  0.   ,  1.225])
    """
    cdef Extra extra = no_extra()
    if not 0 <= dropout <= 1:
        raise ValueError(f"residual_layer_norm: dropout must be a probability, not {dropout}")
    extra.attrs[DROPPED].f = <float>dropout
    set_epsilon(&extra, "residual_layer_norm", eps)
    return apply(RESIDUAL_DROPOUT if dropout > 0 else RESIDUAL, (x, g, r, b), &extra)


# ---- weight_norm: y = g w / |w| -------------------------------------------------------

cdef int weight_norm_dim(const Shapes* s, Dim* y) except -1:
    if size_of(s.x[1]) != 1:
        raise DimensionError("g must be a scalar")
    return same_dim(s, y)


cdef void weight_norm_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.y.dim), j
    cdef uint32_t b
    cdef float* w
    cdef float* y
    cdef double norm, factor
    for b in range(c.y.dim.bd):
        w = element(&c.x[0], b)
        y = element(&c.y, b)
        norm = norm_of(n, w)
        factor = element(&c.x[1], b)[0] / norm
        if is_usual(norm):
            K.scale(n, <float>factor, w, y)
        else:                                   # the factor may not fit in a float
            for j in range(n):
                y[j] = <float>(factor * w[j])


cdef void weight_norm_backward(const Call* c, uint32_t i) noexcept nogil:
    # dw = g / |w| (dy - u (u dy)), dg = u dy, with the unit vector u = w / |w|
    cdef size_t n = size_of(&c.y.dim), j
    cdef uint32_t b
    cdef float* w
    cdef float* dx
    cdef float* dy
    cdef double norm, factor, along
    for b in range(c.y.dim.bd):
        w = element(&c.x[0], b)
        dy = element(&c.dy, b)
        dx = element(&c.dx, b)
        norm = norm_of(n, w)
        factor = element(&c.x[1], b)[0] / norm
        if is_usual(norm):
            along = K.dot(n, w, dy) / norm
        else:
            along = 0
            for j in range(n):
                along += w[j] / norm * dy[j]
        if i == 1:
            dx[0] += <float>along
        elif is_usual(norm):
            K.axpy(n, <float>factor, dy, dx)
            K.axpy(n, <float>(-factor * along / norm), w, dx)
        else:
            for j in range(n):
                dx[j] += <float>(factor * (dy[j] - w[j] / norm * along))


cdef Op* WEIGHT_NORM = register(b"weight_norm", b"w g", weight_norm_dim, weight_norm_forward, weight_norm_backward,
                                UNREAD_RESULT)


def weight_norm(w, g):
    """Weight normalization: w scaled to the norm g (Salimans and Kingma 2016).

    Args:
        w: any expression, not all zeros.
        g: a scalar.

    Raises:
        DimensionError: g is not a scalar.

    Example:
        >>> dy.weight_norm(dy.inputVector([3, 4]), dy.scalarInput(10)).npvalue()
        array([6., 8.])
    """
    return apply2(WEIGHT_NORM, w, g)


# ==== batch norm ==================================================================================
#
# Channels normalized by the statistics of a minibatch.

# Attributes: the axis of the channels; the number added to variances.
cdef enum:
    AXIS
    EPS


# ---- batch_moments: mean and variance of each channel, over all batch elements of a node -----------
# Nodes without a batch are put side by side: each batch element is then a separate minibatch.

cdef int batch_moments_dim(const Shapes* s, Dim* y) except -1:
    need_axis(s)
    if size_of(s.x[0]) == 0:
        raise DimensionError("x has no elements")
    y.bd = 1
    return matrix(y, axis_of(s.x[0], s.attrs[AXIS].u), 2)


cdef void add_channels(const Split* s, const float* x, const float* middle, double* total) noexcept nogil:
    """Add up the elements of each channel or, given the means, their squared distances from the means."""
    cdef size_t k, p
    cdef double sum, t
    for _ in range(s.post):
        for k in range(s.len):
            sum = 0
            for p in range(s.pre):
                if middle == NULL:
                    sum += x[p]
                else:
                    t = x[p] - middle[k]
                    sum += t * t
            total[k] += sum
            x += s.pre


cdef void batch_moments_forward(const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[AXIS].u)
    cdef uint32_t e, b, uses = c.x[0].dim.bd // c.y.dim.bd
    cdef size_t k
    cdef double n = <double>(s.pre * s.post) * uses
    cdef double* total = <double*>c.work
    cdef float* y
    for e in range(c.y.dim.bd):
        y = element(&c.y, e)
        memset(total, 0, s.len * sizeof(double))
        for b in range(e * uses, (e + 1) * uses):
            add_channels(&s, element(&c.x[0], b), NULL, total)
        for k in range(s.len):
            y[k] = <float>(total[k] / n)
        memset(total, 0, s.len * sizeof(double))
        for b in range(e * uses, (e + 1) * uses):
            add_channels(&s, element(&c.x[0], b), y, total)
        for k in range(s.len):
            y[s.len + k] = <float>(total[k] / n)


cdef void batch_moments_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[AXIS].u)
    cdef uint32_t b, uses = c.x[0].dim.bd // c.y.dim.bd
    cdef size_t k, p
    cdef float n = <float>(<double>(s.pre * s.post) * uses), d_mean, slope
    cdef const float* x
    cdef const float* y
    cdef const float* dy
    cdef float* dx
    for b in range(c.x[0].dim.bd):
        y, dy = element(&c.y, b // uses), element(&c.dy, b // uses)
        x, dx = element(&c.x[0], b), element(&c.dx, b)
        for _ in range(s.post):
            for k in range(s.len):
                d_mean = dy[k] / n
                slope = 2 * dy[s.len + k] / n
                for p in range(s.pre):
                    dx[p] += d_mean + slope * (x[p] - y[k])
                x += s.pre
                dx += s.pre


cdef size_t doubles_of_channels(const Call* c, int i) noexcept nogil:
    return 2 * axis_of(&c.x[0].dim, c.attrs[AXIS].u) if i < 0 else 0


cdef Op* BATCH_MOMENTS = register(b"batch_moments", b"x", batch_moments_dim, batch_moments_forward,
                                  batch_moments_backward, 0, doubles_of_channels)


def batch_moments(x, axis: _Int = 0):
    """Mean and variance of each channel, over all batch elements and all other axes.

    Shapes: ``x {..., c, ...}`` -> ``{c,2}``, batch size 1.

    Args:
        x: any expression.
        axis: the axis of the channels; a negative one counts from the end.

    Raises:
        DimensionError: there is no such axis.

    Example:
        >>> dy.batch_moments(dy.inputTensor([[1, 3], [2, 6]], batched=True)).npvalue()
        array([[2., 1.],
               [4., 4.]])
    """
    cdef Extra extra = of_words(<uint32_t>axis_in(x, axis, "batch_moments"))
    return apply1x(BATCH_MOMENTS, x, &extra)


# ---- channel_norm: y = g (x - mean) / sqrt(var + eps) + b, channel by channel -------------------------

cdef enum:
    X
    MEAN
    VARIANCE
    FACTOR
    SUMMAND


cdef int channel_norm_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t i, channels
    need_axis(s)
    channels = axis_of(s.x[0], s.attrs[AXIS].u)
    for i in range(1, 5):
        if size_of(s.x[i]) != channels or axis_of(s.x[i], 0) != channels:
            raise DimensionError(f"mean, var, g and b must be vectors of {channels} elements, one for each channel")
    return same_dim(s, y)


cdef void channel_norm_forward(const Call* c) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[AXIS].u)
    cdef uint32_t b
    cdef size_t k, p
    cdef float factor
    cdef const float* x
    cdef const float* mean
    cdef const float* summand
    cdef float* factors = c.work
    cdef float* y
    for b in range(c.y.dim.bd):
        set_factors(c, b, s.len, factors)
        x, mean, summand, y = element(&c.x[X], b), element(&c.x[MEAN], b), element(&c.x[SUMMAND], b), element(&c.y, b)
        for _ in range(s.post):
            if s.pre == 1:
                for k in range(s.len):
                    y[k] = (x[k] - mean[k]) * factors[k] + summand[k]
                x += s.len
                y += s.len
                continue
            for k in range(s.len):
                factor = factors[k]
                for p in range(s.pre):
                    y[p] = (x[p] - mean[k]) * factor + summand[k]
                x += s.pre
                y += s.pre


cdef inline void set_factors(const Call* c, uint32_t b, size_t channels, float* factors) noexcept nogil:
    """The factor of each channel: g / sqrt(var + eps)."""
    cdef const float* variance = element(&c.x[VARIANCE], b)
    cdef const float* g = element(&c.x[FACTOR], b)
    cdef size_t k
    for k in range(channels):
        factors[k] = <float>(g[k] / sqrt(<double>variance[k] + c.attrs[EPS].f))


cdef void channel_norm_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Split s = split_at(&c.x[0].dim, c.attrs[AXIS].u)
    cdef uint32_t b, uses = c.y.dim.bd // c.dx.dim.bd
    cdef size_t k, p
    cdef const float* dy
    cdef float* factors = c.work
    cdef float* dx
    cdef double* total = <double*>c.work
    cdef double* sum = total + s.len
    if i != X:
        for b in range(c.y.dim.bd):
            if b % uses == 0:
                memset(total, 0, s.len * sizeof(double))
            memset(sum, 0, s.len * sizeof(double))
            add_slopes(c, b, i, &s, sum)
            scale_slopes(c, b, i, s.len, sum, total)
            if (b + 1) % uses == 0:
                dx = element(&c.dx, b // uses)
                for k in range(s.len):
                    dx[k] += <float>total[k]
        return
    for b in range(c.y.dim.bd):
        set_factors(c, b, s.len, factors)
        dy, dx = element(&c.dy, b), element(&c.dx, b)
        for _ in range(s.post):
            for k in range(s.len):
                for p in range(s.pre):
                    dx[p] += dy[p] * factors[k]
                dx += s.pre
                dy += s.pre


cdef void add_slopes(const Call* c, uint32_t b, uint32_t i, const Split* s, double* sum) noexcept nogil:
    """The sum over each channel of a batch element: of dy (x - mean) for the variance and the factor, else of dy."""
    cdef const float* x = element(&c.x[X], b)
    cdef const float* mean = element(&c.x[MEAN], b)
    cdef const float* dy = element(&c.dy, b)
    cdef size_t k, p
    cdef double t
    for _ in range(s.post):
        for k in range(s.len):
            t = 0
            for p in range(s.pre):
                t += <double>dy[p] * (x[p] - mean[k]) if i == VARIANCE or i == FACTOR else dy[p]
            sum[k] += t
            x += s.pre
            dy += s.pre


cdef void scale_slopes(const Call* c, uint32_t b, uint32_t i, size_t channels, const double* sum,
                       double* total) noexcept nogil:
    """Add the contribution of a batch element's sums to the gradient of argument i."""
    cdef const float* variance = element(&c.x[VARIANCE], b)
    cdef const float* g = element(&c.x[FACTOR], b)
    cdef size_t k
    cdef double root
    for k in range(channels):
        root = sqrt(<double>variance[k] + c.attrs[EPS].f)
        if i == MEAN:
            total[k] -= sum[k] * g[k] / root
        elif i == VARIANCE:
            total[k] -= sum[k] * g[k] / (2 * root * root * root)
        elif i == FACTOR:
            total[k] += sum[k] / root
        else:
            total[k] += sum[k]


cdef size_t channel_norm_work(const Call* c, int i) noexcept nogil:
    return 4 * axis_of(&c.x[0].dim, c.attrs[AXIS].u)


cdef Op* CHANNEL_NORM = register(b"channel_norm", b"x mean var g b", channel_norm_dim, channel_norm_forward,
                                 channel_norm_backward, UNREAD_RESULT, channel_norm_work)
CHANNEL_NORM.rule[1] = CHANNEL_NORM.rule[2] = SHARE


def channel_norm(x, mean, var, g, b, axis: _Int = 0, float eps=1e-5):
    """Normalize each channel with given statistics: ``(x - mean) / sqrt(var + eps) * g + b``; see `batch_norm`.

    Args:
        x: any expression.
        mean, var, g, b: vectors with one element for each channel.
        axis: the axis of the channels; a negative one counts from the end.
        eps: added to variances. Default: 1e-5.

    Raises:
        DimensionError: the shapes do not fit, or there is no such axis.
        ValueError: eps is negative or not a number.

    Example:
        >>> one, zero = dy.ones(2), dy.zeros(2)
        >>> dy.channel_norm(dy.inputVector([3, 5]), one, dy.inputVector([4, 16]), one, zero).npvalue().round(3)
        array([1., 1.])
    """
    if not eps >= 0:
        raise ValueError(f"channel_norm: eps must be at least 0, not {eps}")
    cdef Extra extra = of_words(<uint32_t>axis_in(x, axis, "channel_norm"))
    extra.attrs[EPS].f = eps
    return apply(CHANNEL_NORM, (x, mean, var, g, b), &extra)
