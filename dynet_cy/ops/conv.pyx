"""Convolution and pooling.  Images are rows x columns x channels."""

from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memset

from dynet_cy.core.tensor cimport (
    Call, Dim, Tensor, axis_of, element, size_of, total_of,
)
from dynet_cy.graph.graph cimport Extra, apply, apply1x, apply2, apply2x
from dynet_cy.kernels.kernels cimport (
    K, dy_conv_work, dy_conv_work_back, dy_window, dy_window_init,
)
from dynet_cy.kernels.product cimport gemm
from dynet_cy.ops.indices cimport axis_in, whole
from dynet_cy.ops.registry cimport SHARE, Op, Shapes, register, same_dim

from dynet_cy.ops.registry import DimensionError


cdef inline bint adds(const Call* c, uint32_t b) noexcept nogil:
    """Whether batch element b adds to dx rather than assigns it."""
    return c.accumulate or (b > 0 and c.dx.dim.bd == 1)


cdef dy_window window_of(const Dim* x, uint32_t rows, uint32_t cols, uint32_t row_stride,
                         uint32_t col_stride, bint valid) noexcept nogil:
    cdef dy_window w
    cdef size_t image[2]
    cdef size_t size[2]
    cdef size_t stride[2]
    image[0] = axis_of(x, 0)
    image[1] = axis_of(x, 1)
    size[0] = rows
    size[1] = cols
    stride[0] = row_stride
    stride[1] = col_stride
    dy_window_init(&w, image, axis_of(x, 2), size, stride, valid)
    return w


cdef int check_image(const Dim* x, const dy_window* w, bint valid, str what) except -1:
    if x.nd > 3:
        raise DimensionError("x must have at most 3 axes: rows, columns, channels")
    if w.size[0] == 0 or w.size[1] == 0 or w.stride[0] == 0 or w.stride[1] == 0:
        raise DimensionError(f"sizes and strides of the {what} must be positive")
    if valid and (w.size[0] > axis_of(x, 0) or w.size[1] > axis_of(x, 1)):
        raise DimensionError(
            f"the {what} of {w.size[0]} x {w.size[1]} is larger than the image of "
            f"{axis_of(x, 0)} x {axis_of(x, 1)}, which is possible only with is_valid=False")
    return 0


cdef int set_pair(Extra* extra, int at, object values, str op, str name) except -1:
    """Two positive whole numbers, for rows and for columns, into attributes."""
    numbers = list(values)
    if len(numbers) != 2:
        raise ValueError(f"{op}: {name} must have two numbers, for rows and columns, not {values!r}")
    extra.attrs[at].i = numbers[0]
    extra.attrs[at + 1].i = numbers[1]
    if extra.attrs[at].i < 1 or extra.attrs[at + 1].i < 1:
        raise ValueError(f"{op}: {name} must be positive, not {values!r}")
    return 0


# ---- conv2d: y[o] = sum_c x[c] * f[c, o] (+ b[o]) -------------------------------------
# Attributes: strides, valid.

cdef inline dy_window conv_window(const Dim* x, const Dim* f, const Call* c) noexcept nogil:
    return window_of(x, axis_of(f, 0), axis_of(f, 1), c.attrs[0].u, c.attrs[1].u, c.attrs[2].i)


cdef int conv2d_dim(const Shapes* s, Dim* y) except -1:
    cdef const Dim* x = s.x[0]
    cdef const Dim* f = s.x[1]
    cdef dy_window w = window_of(x, axis_of(f, 0), axis_of(f, 1), s.attrs[0].u, s.attrs[1].u,
                                 s.attrs[2].i)
    if f.nd > 4:
        raise DimensionError("f must have 4 axes: rows, columns, channels in and out")
    check_image(x, &w, s.attrs[2].i, "filter")
    if axis_of(f, 2) != w.channels:
        raise DimensionError(f"x has {w.channels} channels but f takes {axis_of(f, 2)}")
    if s.n == 3 and (s.x[2].nd > 1 or axis_of(s.x[2], 0) != axis_of(f, 3)):
        raise DimensionError(f"b must be a vector of the {axis_of(f, 3)} output channels")
    y.nd = 3
    y.d[0] = <uint32_t>w.out[0]
    y.d[1] = <uint32_t>w.out[1]
    y.d[2] = axis_of(f, 3)
    return 0


# Gradients of filters are sums over all images: longer ones are made in blocks of so many.
cdef enum:
    MOST_IMAGES = 1024


cdef inline uint32_t together(const Call* c) noexcept nogil:
    """Images of one call of a kernel: all, unless filters or bias differ from image to image."""
    if c.x[1].dim.bd > 1 or (c.n == 3 and c.x[2].dim.bd > 1):
        return 1
    return c.y.dim.bd


cdef void conv2d_forward(const Call* c) noexcept nogil:
    cdef const Tensor* f = &c.x[1]
    cdef dy_window w = conv_window(&c.x[0].dim, &f.dim, c)
    cdef uint32_t b, k, images = together(c)
    for k in range(c.y.dim.bd // images):
        b = k * images
        K.conv2d(&w, axis_of(&f.dim, 3), images, element(&c.x[0], b), element(f, b),
                 element(&c.x[2], b) if c.n == 3 else NULL, c.work, element(&c.y, b))


cdef void conv2d_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef const Tensor* f = &c.x[1]
    cdef dy_window w = conv_window(&c.x[0].dim, &f.dim, c)
    cdef size_t o, outputs = axis_of(&f.dim, 3), n = w.out[0] * w.out[1]
    cdef uint32_t b, k, images = together(c)
    cdef float* dy
    cdef float* dx
    if i == 2:
        for b in range(c.y.dim.bd):
            dy = element(&c.dy, b)
            dx = element(&c.dx, b)
            for o in range(outputs):
                dx[o] = (dx[o] if adds(c, b) else 0) + K.sum(n, dy + o * n)
        return
    for k in range(c.y.dim.bd // images):
        b = k * images
        dy = element(&c.dy, b)
        dx = element(&c.dx, b)
        if i == 0:
            K.conv2d_bwd_x(&w, outputs, images, element(f, b), dy, c.work, dx, adds(c, b))
        elif images <= MOST_IMAGES:
            K.conv2d_bwd_filter(&w, outputs, images, element(&c.x[0], b), dy, c.work, dx, adds(c, b))
        else:
            filter_backward(&w, outputs, images, element(&c.x[0], b), dy, c.work, &c.dx.dim, dx, adds(c, b))


cdef void filter_backward(const dy_window* w, size_t outputs, size_t images, const float* x, const float* dy,
                          float* work, const Dim* filters, float* df, bint accumulate) noexcept nogil:
    """The sum over many images, in blocks of them."""
    cdef size_t n = size_of(filters), image = w.inputs[0] * w.inputs[1] * w.channels
    cdef size_t out = w.out[0] * w.out[1] * outputs
    cdef size_t count, done = 0
    cdef float* block = work                    # the sum of a block; the kernel's own room is behind it
    if not accumulate:
        K.fill(n, 0, df)
    while done < images:
        count = min(images - done, <size_t>MOST_IMAGES)
        K.conv2d_bwd_filter(w, outputs, count, x + done * image, dy + done * out, work + padded(n), block, 0)
        K.add(n, block, df)
        done += count


cdef inline size_t padded(size_t n) noexcept nogil:
    """Room for n floats before others that begin on a cache line."""
    return (n + 15) // 16 * 16


cdef size_t conv2d_work(const Call* c, int i) noexcept nogil:
    cdef dy_window w = conv_window(&c.x[0].dim, &c.x[1].dim, c)
    cdef size_t outputs = axis_of(&c.x[1].dim, 3)
    cdef uint32_t images = together(c)
    if i == 2:
        return 0
    if i == 0:
        return dy_conv_work_back(&w, outputs, images)
    if i != 1 or images <= MOST_IMAGES:
        return dy_conv_work(&w, outputs, images)
    # The last block has fewer, for which there may be another way.
    return padded(size_of(&c.x[1].dim)) + max(dy_conv_work(&w, outputs, MOST_IMAGES),
                                              dy_conv_work(&w, outputs, (images - 1) % MOST_IMAGES + 1))


cdef Op* new_conv_op(const char* name, const char* args) except NULL:
    cdef Op* op = register(name, args, conv2d_dim, conv2d_forward, conv2d_backward)
    op.rule[1] = SHARE
    op.rule[2] = SHARE
    op.work = conv2d_work
    op.assigns = True
    return op


cdef Op* CONV2D = new_conv_op(b"conv2d", b"x f")
cdef Op* CONV2D_BIAS = new_conv_op(b"conv2d_bias", b"x f b")


def conv2d(x, f, stride: Sequence[int], bint is_valid=True):
    """Two-dimensional convolution (without flipping the filter).

    Shapes: ``x {h,w,ci}``, ``f {fh,fw,ci,co}`` -> ``{oh,ow,co}``.

    Args:
        x: image.
        f: filters.
        stride: steps along rows and columns.
        is_valid: whether the filter stays inside the image; else the image is
            padded with zeros such that the result has the size of x divided by
            the stride. Default: True.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> image, filters = dy.ones((4, 4, 1)), dy.ones((3, 3, 1, 2))
        >>> dy.conv2d(image, filters, [1, 1]).dim()
        ((2, 2, 2), 1)
        >>> dy.conv2d(image, filters, [1, 1]).npvalue()[0, 0].round(3)
        array([9., 9.])
    """
    cdef Extra extra
    memset(&extra, 0, sizeof(Extra))
    set_pair(&extra, 0, stride, "conv2d", "stride")
    extra.attrs[2].i = is_valid
    return apply2x(CONV2D, x, f, &extra)


def conv2d_bias(x, f, b, stride: Sequence[int], bint is_valid=True):
    """`conv2d` with a summand for each output channel.

    Args:
        x, f, stride, is_valid: see `conv2d`.
        b: vector of as many elements as f has output channels.

    Example:
        >>> image, filters = dy.ones((4, 4, 1)), dy.ones((3, 3, 1, 2))
        >>> dy.conv2d_bias(image, filters, dy.inputVector([0, 1]), [1, 1]).npvalue()[0, 0].round(3)
        array([ 9., 10.])
    """
    cdef Extra extra
    memset(&extra, 0, sizeof(Extra))
    set_pair(&extra, 0, stride, "conv2d_bias", "stride")
    extra.attrs[2].i = is_valid
    return apply(CONV2D_BIAS, (x, f, b), &extra)


# ---- maxpooling2d: y = greatest of each window, channel by channel -----------------------
# Attributes: size, stride; valid is the sign of the first size.

cdef inline dy_window pool_window(const Dim* x, const Call* c) noexcept nogil:
    cdef int32_t rows = c.attrs[0].i
    return window_of(x, <uint32_t>(rows if rows > 0 else -rows), c.attrs[1].u, c.attrs[2].u,
                     c.attrs[3].u, rows > 0)


cdef int maxpooling2d_dim(const Shapes* s, Dim* y) except -1:
    cdef Call c
    c.attrs = s.attrs
    cdef dy_window w = pool_window(s.x[0], &c)
    check_image(s.x[0], &w, s.attrs[0].i > 0, "window")
    same_dim(s, y)
    y.nd = max(s.x[0].nd, <uint32_t>2)
    y.d[0] = <uint32_t>w.out[0]
    y.d[1] = <uint32_t>w.out[1]
    return 0


cdef void maxpooling2d_forward(const Call* c) noexcept nogil:
    cdef dy_window w = pool_window(&c.x[0].dim, c)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        K.maxpool2d(&w, element(&c.x[0], b), element(&c.y, b))


cdef void maxpooling2d_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef dy_window w = pool_window(&c.x[0].dim, c)
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        K.maxpool2d_bwd(&w, element(&c.x[0], b), element(&c.y, b), element(&c.dy, b), c.work,
                        element(&c.dx, b), adds(c, b))


cdef size_t maxpooling2d_work(const Call* c, int i) noexcept nogil:
    return axis_of(&c.y.dim, 0) if i >= 0 else 0


cdef Op* MAXPOOLING2D = register(b"maxpooling2d", b"x", maxpooling2d_dim, maxpooling2d_forward,
                                 maxpooling2d_backward)
MAXPOOLING2D.assigns = True
MAXPOOLING2D.work = maxpooling2d_work


def maxpooling2d(x, ksize: Sequence[int], stride: Sequence[int], bint is_valid=True):
    """Greatest element of each window of an image, channel by channel.

    Shapes: ``x {h,w,c}`` -> ``{oh,ow,c}``.

    Args:
        x: image.
        ksize: rows and columns of the window.
        stride: steps along rows and columns.
        is_valid: whether windows stay inside the image; else those at its edges
            may reach beyond it. Default: True.

    Raises:
        DimensionError: the window does not fit.

    Example:
        >>> image = dy.reshape(dy.inputVector([1, 2, 3, 4]), (2, 2, 1))
        >>> dy.maxpooling2d(image, [2, 2], [2, 2]).npvalue()
        array([[[4.]]])
    """
    cdef Extra extra
    memset(&extra, 0, sizeof(Extra))
    set_pair(&extra, 0, ksize, "maxpooling2d", "ksize")
    set_pair(&extra, 2, stride, "maxpooling2d", "stride")
    if not is_valid:
        extra.attrs[0].i = -extra.attrs[0].i
    return apply1x(MAXPOOLING2D, x, &extra)


# ---- filter1d_narrow: y[o, t] = sum_ij f[i, j, o] x[i, t + j] ------------------------------
# One product for each column j of the filter.

cdef int filter1d_dim(const Shapes* s, Dim* y) except -1:
    cdef const Dim* x = s.x[0]
    cdef const Dim* f = s.x[1]
    if x.nd > 2 or f.nd > 3:
        raise DimensionError("x must be a matrix, and y have at most 3 axes")
    if axis_of(x, 0) != axis_of(f, 0):
        raise DimensionError(f"x has {axis_of(x, 0)} rows but the filter {axis_of(f, 0)}")
    if axis_of(f, 1) > axis_of(x, 1) or axis_of(f, 1) == 0:
        raise DimensionError(f"the filter has {axis_of(f, 1)} columns and x only {axis_of(x, 1)}")
    y.nd = 2
    y.d[0] = axis_of(f, 2)
    y.d[1] = axis_of(x, 1) - axis_of(f, 1) + 1
    return 0


cdef void filter1d_forward(const Call* c) noexcept nogil:
    cdef size_t r = axis_of(&c.x[0].dim, 0), k = axis_of(&c.x[1].dim, 1), j
    cdef size_t o = c.y.dim.d[0], n = c.y.dim.d[1]
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        for j in range(k):
            gemm(1, 0, o, n, r, 1, element(&c.x[1], b) + j * r, r * k,
                 element(&c.x[0], b) + j * r, r, j > 0, element(&c.y, b), o)


cdef void filter1d_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t r = axis_of(&c.x[0].dim, 0), k = axis_of(&c.x[1].dim, 1), j
    cdef size_t o = c.y.dim.d[0], n = c.y.dim.d[1]
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        for j in range(k):
            if i == 0:
                gemm(0, 0, r, n, o, 1, element(&c.x[1], b) + j * r, r * k, element(&c.dy, b), o,
                     1, element(&c.dx, b) + j * r, r)
            else:
                gemm(0, 1, r, o, n, 1, element(&c.x[0], b) + j * r, r, element(&c.dy, b), o,
                     1, element(&c.dx, b) + j * r, r * k)


cdef Op* FILTER1D = register(b"filter1d_narrow", b"x y", filter1d_dim, filter1d_forward,
                             filter1d_backward)
FILTER1D.rule[1] = SHARE


def filter1d_narrow(x, y):
    """One-dimensional convolution along columns, without padding.

    Shapes: ``x {r,n}``, ``y {r,k}`` or ``{r,k,o}`` -> ``{1,n-k+1}`` or ``{o,n-k+1}``.

    Args:
        x: a sequence of columns.
        y: filters.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> dy.filter1d_narrow(dy.inputTensor([[1, 2, 3]]), dy.inputTensor([[1, 1]])).npvalue()
        array([[3., 5.]])
    """
    return apply2(FILTER1D, x, y)


# ---- kmax_pooling: the k greatest along axis d, in their order ------------------------------
# Attributes: k, d.  Where they come from is saved.

cdef int kmax_dim(const Shapes* s, Dim* y) except -1:
    cdef int32_t k = s.attrs[0].i, d = s.attrs[1].i
    if d < 0 or <uint32_t>d >= s.x[0].nd:
        raise DimensionError(f"x has no axis {d}")
    if k < 1 or <uint32_t>k > s.x[0].d[d]:
        raise DimensionError(f"k is {k}, but axis {d} has {s.x[0].d[d]} elements")
    same_dim(s, y)
    y.d[d] = <uint32_t>k
    return 0


cdef inline void kmax_axes(const Call* c, size_t* inner, size_t* n, size_t* k,
                           size_t* outer) noexcept nogil:
    cdef uint32_t i, d = c.attrs[1].u
    inner[0] = 1
    for i in range(d):
        inner[0] *= c.y.dim.d[i]
    n[0] = c.x[0].dim.d[d]
    k[0] = c.attrs[0].u
    outer[0] = 1
    for i in range(d + 1, c.y.dim.nd):
        outer[0] *= c.y.dim.d[i]


cdef void kmax_forward(const Call* c) noexcept nogil:
    cdef size_t inner, n, k, outer, o, p, j, m, rank
    cdef uint32_t b
    cdef uint32_t* source
    cdef float* x
    cdef float* y
    cdef float* best = c.work                   # the k greatest so far, falling
    cdef float v
    kmax_axes(c, &inner, &n, &k, &outer)
    for b in range(c.y.dim.bd):
        source = <uint32_t*>c.saved + b * size_of(&c.y.dim)
        for o in range(outer):
            for p in range(inner):
                x = element(&c.x[0], b) + o * n * inner + p
                y = element(&c.y, b) + o * k * inner + p
                m = 0
                for j in range(n):
                    v = x[j * inner]
                    if m == k and not v > best[k - 1]:
                        continue
                    rank = m if m < k else k - 1
                    while rank > 0 and v > best[rank - 1]:
                        best[rank] = best[rank - 1]
                        rank -= 1
                    best[rank] = v
                    m += m < k
                # All above the least of them, and of its equals the first.
                rank = 0
                for j in range(k):
                    rank += best[j] == best[k - 1]
                m = 0
                for j in range(n):
                    v = x[j * inner]
                    if v > best[k - 1] or (v == best[k - 1] and rank > 0) or n - j <= k - m:
                        rank -= v == best[k - 1] and rank > 0
                        y[m * inner] = v
                        source[o * k * inner + m * inner + p] = <uint32_t>j
                        m += 1
                        if m == k:
                            break


cdef void kmax_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t inner, n, k, outer, o, p, m, at
    cdef uint32_t b
    cdef const uint32_t* source
    kmax_axes(c, &inner, &n, &k, &outer)
    for b in range(c.y.dim.bd):
        source = <const uint32_t*>c.saved + b * size_of(&c.y.dim)
        for o in range(outer):
            for m in range(k):
                for p in range(inner):
                    at = (o * k + m) * inner + p
                    element(&c.dx, b)[(o * n + source[at]) * inner + p] += element(&c.dy, b)[at]


cdef size_t kmax_saved(const Call* c) noexcept nogil:
    return total_of(&c.y.dim)


cdef size_t kmax_work(const Call* c, int i) noexcept nogil:
    return <size_t>c.attrs[0].i if i < 0 else 0


cdef Op* KMAX = register(b"kmax_pooling", b"x", kmax_dim, kmax_forward, kmax_backward)
KMAX.saved = kmax_saved
KMAX.work = kmax_work


def kmax_pooling(x, int k, d=1):
    """The k greatest elements along an axis, in the order of x; of equal ones the first.

    Args:
        x: any expression.
        k: how many.
        d: the axis (default: 1).

    Raises:
        DimensionError: x has no axis d, or fewer than k elements along it.

    Example:
        >>> dy.kmax_pooling(dy.inputTensor([[3, 1, 2]]), 2).npvalue()
        array([[3., 2.]])
    """
    cdef Extra extra
    memset(&extra, 0, sizeof(Extra))
    extra.attrs[0].i = k
    extra.attrs[1].i = <int>axis_in(x, d, "kmax_pooling")
    return apply1x(KMAX, x, &extra)


# ---- kmh_ngram: y_ij = sum_k x_i(j+k), k from 0 to n - 1 --------------------------

cdef int kmh_ngram_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t n = s.attrs[0].u
    if s.x[0].nd > 2:
        raise DimensionError("x must be a matrix")
    if n > axis_of(s.x[0], 1):
        raise DimensionError(f"x has {axis_of(s.x[0], 1)} columns, {n} are needed")
    y.nd = 2
    y.d[0] = axis_of(s.x[0], 0)
    y.d[1] = axis_of(s.x[0], 1) - n + 1
    return 0


cdef void kmh_ngram_forward(const Call* c) noexcept nogil:
    cdef size_t m = c.y.dim.d[0], columns = axis_of(&c.y.dim, 1), k
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        for k in range(columns):
            K.bias_bwd(m, c.attrs[0].u, element(&c.x[0], b) + k * m, element(&c.y, b) + k * m, 0)


cdef void kmh_ngram_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t m = c.y.dim.d[0], size = size_of(&c.y.dim), k
    cdef uint32_t b
    for b in range(c.y.dim.bd):
        for k in range(c.attrs[0].u):
            K.add(size, element(&c.dy, b), element(&c.dx, b) + k * m)


cdef Op* KMH_NGRAM = register(b"kmh_ngram", b"x", kmh_ngram_dim, kmh_ngram_forward,
                              kmh_ngram_backward)


def kmh_ngram(x, v: int):
    """Sums of v neighbouring columns of a matrix.

    Shapes: ``x {m,n}`` -> ``{m,n-v+1}``.

    Args:
        x: a matrix.
        v: how many columns go into each sum.

    Raises:
        DimensionError: x is not a matrix, or has fewer than v columns.
        ValueError: v is below 1.

    Example:
        >>> dy.kmh_ngram(dy.inputTensor([[1, 2, 3]]), 2).npvalue()
        array([[3., 5.]])
    """
    cdef Extra extra
    cdef Py_ssize_t n = whole(v, "kmh_ngram", "v")
    if n < 1:
        raise ValueError(f"kmh_ngram: v must be at least 1, not {v}")
    memset(&extra, 0, sizeof(Extra))
    extra.attrs[0].u = <uint32_t>min(n, <Py_ssize_t>0xFFFFFFFF)
    return apply1x(KMH_NGRAM, x, &extra)
