"""Convolution and pooling.  Images are rows x columns x channels."""

from libc.math cimport INFINITY
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from dynet_cy.core.tensor cimport MOST_ALONG, Call, Dim, Tensor, axis_of, element, size_of, total_of
from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.graph.expressions cimport Expression
from dynet_cy.graph.making cimport apply, apply1x, apply2, apply2x
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport K, dy_conv_work, dy_conv_work_back, dy_window, dy_window_reach
from dynet_cy.kernels.product cimport ELEMENT_COST, gemm, in_parts, in_ranges
from dynet_cy.ops.inputs cimport of_words, whole
from dynet_cy.ops.loops cimport Split, Terms, add_where, dy_terms_begin, dy_terms_next, dy_terms_work, end_terms, matrix
from dynet_cy.ops.registry cimport ASSIGNS, SHARE, UNREAD, UNREAD_RESULT, Op, Shapes, as_many_as_y, register, same_dim

from dynet_cy.ops.registry import DimensionError


# ==== conv ========================================================================================

cdef inline bint adds(bint accumulate, const Tensor* dx, uint32_t b) noexcept nogil:
    """Whether batch element b adds to dx rather than assigns it."""
    return accumulate or (b > 0 and dx.dim.bd == 1)


cdef int check_image(const Dim* x, const dy_window* w, bint same, str what) except -1:
    cdef int k
    if x.nd > 3:
        raise DimensionError("x must have at most 3 axes: rows, columns, channels")
    if <size_t>axis_of(x, 0) * axis_of(x, 1) > MOST_ALONG:          # they are the rows of a matrix
        raise DimensionError(f"an image has at most {MOST_ALONG} elements in each channel (2^31 - 1)")
    if w.size[0] == 0 or w.size[1] == 0 or w.stride[0] == 0 or w.stride[1] == 0:
        raise DimensionError(f"sizes and strides of the {what} must be positive")
    if same:
        return 0
    for k in range(2):
        if dy_window_reach(w, k) > w.inputs[k] + 2 * w.pad[k] or (w.pad[k] > 0 and w.inputs[k] == 0):
            more = f" and a padding of {w.pad[0]} x {w.pad[1]}" if w.pad[0] or w.pad[1] else ""
            raise DimensionError(
                f"the {what} of {dy_window_reach(w, 0)} x {dy_window_reach(w, 1)} is larger than the image of "
                f"{w.inputs[0]} x {w.inputs[1]}{more}, which is possible only with is_valid=False")
    return 0


cdef int set_pair(Extra* extra, int at, object values, str op, str name, int least=1,
                  int most=0x7FFFFFFF) except -1:
    """Two whole numbers, for rows and for columns, into attributes.  In a program written for DyNet more may follow,
    which count no more than there."""
    cdef int k
    cdef Py_ssize_t n
    numbers = list(values)
    if len(numbers) < 2 or (len(numbers) > 2 and not follows_dynet()):
        raise ValueError(f"{op}: {name} must have two numbers, for rows and columns, not {values!r}")
    for k in range(2):
        n = whole(numbers[k], op, name)
        if n < least:
            raise ValueError(f"{op}: {name} must be {'positive' if least else 'at least 0'}, not {values!r}")
        if n > most:
            raise ValueError(f"{op}: {name} must be at most {most}, not {values!r}")
        extra.attrs[at + k].i = <int>n
    return 0


cdef int set_halves(Extra* extra, int at, const Extra* upper) except -1:
    """Put two more attributes into the upper halves."""
    cdef int k
    for k in range(2):
        extra.attrs[at + k].u |= upper.attrs[k].u << 16
    return 0


cdef int set_padding(Extra* extra, object padding, bint valid, str op) except -1:
    """The first two attributes: the number of rows and of columns that windows may reach beyond the image."""
    set_pair(extra, 0, padding, op, "padding", 0, MOST_PADDING)
    if not valid and (extra.attrs[0].i or extra.attrs[1].i):
        raise ValueError(f"{op}: padding is {padding!r}, but is_valid=False chooses it")
    return 0


# ---- shared by convolution and its transpose ----------------------------------------------
# An image, filters, and the result: from any two of these, or their gradients, the third is computed.

cdef struct Filters:
    dy_window w                     # over the channels of one group
    size_t groups
    size_t outputs                  # of one group
    uint32_t batch
    uint32_t images                 # of one kernel call
    size_t image                    # floats of one group of an image
    size_t filters                  # floats of one group of the filters
    size_t result                   # floats of one group of a result


cdef Filters filters_of(const Call* c, const Dim* image) noexcept nogil:
    """The geometry of a call, whose argument 1 holds the filters, for one image."""
    cdef const Dim* f = &c.x[1].dim
    cdef Filters v
    v.w = conv_window(image, f, c.attrs)
    v.groups = c.attrs[GROUPS].u
    v.outputs = axis_of(f, 3) // v.groups
    v.batch = c.y.dim.bd
    # If filters or biases differ between images, or there are groups, each kernel call handles one image.
    v.images = 1 if f.bd > 1 or v.groups > 1 or (c.n == 3 and c.x[2].dim.bd > 1) else v.batch
    v.image = v.w.inputs[0] * v.w.inputs[1] * v.w.channels
    v.filters = v.w.size[0] * v.w.size[1] * v.w.channels * v.outputs
    v.result = v.w.out[0] * v.w.out[1] * v.outputs
    return v


# The images of a kernel call are divided among threads.  The parts depend on sizes only, so that results do not depend
# on the number of threads: the number of images in a part decides the method of a convolution and the order in which
# gradients of filters are added up.
cdef enum:
    MOST_PARTS = 4                  # each has its own working memory
    LEAST_IMAGES = 32               # smaller parts make one thread 1 to 3 % slower
    LEAST_WORK = 2500000            # multiplications

cdef struct Divided:
    const Filters* v
    const Tensor* image
    const Tensor* f
    const Tensor* bias              # may be NULL
    const Tensor* result
    size_t group
    uint32_t first, count           # images
    uint32_t parts
    size_t part_work                # floats of working memory of a part
    float* work
    bint accumulate


cdef inline size_t multiplications(const Filters* v, size_t images) noexcept nogil:
    return v.result * v.w.size[0] * v.w.size[1] * v.w.channels * images


cdef uint32_t parts_of(const Filters* v, uint32_t images) noexcept nogil:
    """The number of parts into which the images of a kernel call are divided."""
    cdef size_t most = min(<size_t>MOST_PARTS, <size_t>images // LEAST_IMAGES, multiplications(v, images) // LEAST_WORK)
    return <uint32_t>most if v.images > 1 and most > 1 else 1


cdef size_t work_of_part(const Filters* v, uint32_t images, bint back) noexcept nogil:
    """Floats of working memory of each part; the method may differ between parts with one image more or less."""
    cdef uint32_t parts = parts_of(v, images), least = images // parts, most = least + (images % parts > 0)
    if back:
        return padded(max(dy_conv_work_back(&v.w, v.outputs, least), dy_conv_work_back(&v.w, v.outputs, most)))
    return padded(max(dy_conv_work(&v.w, v.outputs, least), dy_conv_work(&v.w, v.outputs, most)))


cdef size_t result_work(const Filters* v) noexcept nogil:
    """Working memory of `set_result`."""
    return parts_of(v, v.images) * work_of_part(v, v.images, False)


cdef size_t image_work(const Filters* v) noexcept nogil:
    """Working memory of `set_image`."""
    return parts_of(v, v.images) * work_of_part(v, v.images, True)


cdef inline uint32_t images_of(const Divided* d, size_t i, uint32_t* first) noexcept nogil:
    """The number of images in part i; `first` is set to the index of the first one."""
    first[0] = <uint32_t>(d.first + <size_t>d.count * i // d.parts)
    return <uint32_t>(d.first + <size_t>d.count * (i + 1) // d.parts) - first[0]


cdef Divided divided(const Filters* v, const Tensor* image, const Tensor* f, const Tensor* result, float* work,
                     bint accumulate) noexcept nogil:
    """The job of a kernel call; callers set the group, the first image and the size of a part's working memory."""
    cdef Divided d
    d.v = v
    d.image = image
    d.f = f
    d.bias = NULL
    d.result = result
    d.work = work
    d.accumulate = accumulate
    d.parts = parts_of(v, v.images)
    d.count = v.images
    d.group = d.first = d.part_work = 0
    return d


cdef void run_parts(const Divided* d, void (*run)(void* job, size_t part) noexcept nogil) noexcept nogil:
    cdef Divided one
    cdef size_t i
    if in_parts(d.parts, multiplications(d.v, d.count), run, <void*>d):
        return
    one = d[0]
    one.part_work = 0               # parts that run in turn share memory, which stays in the cache
    for i in range(d.parts):
        run(&one, i)


cdef void result_part(void* job, size_t i) noexcept nogil:
    cdef const Divided* d = <const Divided*>job
    cdef const Filters* v = d.v
    cdef uint32_t b, n = images_of(d, i, &b)
    cdef size_t g = d.group
    K.conv2d(&v.w, v.outputs, n, element(d.image, b) + g * v.image, element(d.f, b) + g * v.filters,
             element(d.bias, b) + g * v.outputs if d.bias != NULL else NULL, d.work + i * d.part_work,
             element(d.result, b) + g * v.result)


cdef void run_all(Divided* d, void (*run)(void* job, size_t part) noexcept nogil) noexcept nogil:
    """Run the parts of each group, for as many images at a time as a call takes."""
    cdef uint32_t k
    cdef size_t g
    for k in range(d.v.batch // d.v.images):
        d.first = k * d.v.images
        for g in range(d.v.groups):
            d.group = g
            run_parts(d, run)


cdef void set_result(const Filters* v, const Tensor* image, const Tensor* f, const Tensor* bias, float* work,
                     const Tensor* y) noexcept nogil:
    """The result of images and filters, perhaps with a bias."""
    cdef Divided d = divided(v, image, f, y, work, False)
    d.bias = bias
    d.part_work = work_of_part(v, v.images, False)
    run_all(&d, result_part)


cdef void image_part(void* job, size_t i) noexcept nogil:
    cdef const Divided* d = <const Divided*>job
    cdef const Filters* v = d.v
    cdef uint32_t b, n = images_of(d, i, &b)
    cdef size_t g = d.group
    K.conv2d_bwd_x(&v.w, v.outputs, n, element(d.f, b) + g * v.filters, element(d.result, b) + g * v.result,
                   d.work + i * d.part_work, element(d.image, b) + g * v.image, adds(d.accumulate, d.image, b))


cdef void set_image(const Filters* v, const Tensor* f, const Tensor* dy, float* work, const Tensor* dx,
                    bint accumulate) noexcept nogil:
    """The image, or its gradient, from the filters and the result, or its gradient."""
    cdef Divided d = divided(v, dx, f, dy, work, accumulate)
    d.part_work = work_of_part(v, v.images, True)
    run_all(&d, image_part)


# Gradients of filters are sums over all images.  Long sums are split into blocks of this many images, which are added
# up in double precision.
cdef enum:
    MOST_IMAGES = 256


cdef void set_filters(const Filters* v, const Tensor* image, const Tensor* dy, float* work, const Tensor* df,
                      bint accumulate) noexcept nogil:
    """The gradient of filters, from images and the gradient of their results."""
    cdef float* to
    cdef double* total = <double*>(work + padded(v.filters))
    cdef float* rest = work + (3 * padded(v.filters) if v.batch > MOST_IMAGES else 0)
    cdef size_t g, j
    cdef uint32_t b, count
    for g in range(v.groups):
        if df.dim.bd > 1:
            for b in range(v.batch):
                add_filters(v, image, dy, b, 1, g, rest, element(df, b) + g * v.filters, accumulate)
            continue
        to = df.v + g * v.filters
        if v.batch <= MOST_IMAGES:
            add_filters(v, image, dy, 0, v.batch, g, rest, to, accumulate)
            continue
        memset(total, 0, v.filters * sizeof(double))
        b = 0
        while b < v.batch:
            count = min(v.batch - b, <uint32_t>MOST_IMAGES)
            add_filters(v, image, dy, b, count, g, rest, work, False)
            for j in range(v.filters):
                total[j] += work[j]
            b += count
        for j in range(v.filters):
            to[j] = <float>((to[j] if accumulate else 0) + total[j])


cdef void filters_part(void* job, size_t i) noexcept nogil:
    """The gradient of the filters from part i; those of all parts stand before the working memory."""
    cdef const Divided* d = <const Divided*>job
    cdef const Filters* v = d.v
    cdef uint32_t b, n = images_of(d, i, &b)
    K.conv2d_bwd_filter(&v.w, v.outputs, n, element(d.image, b) + d.group * v.image,
                        element(d.result, b) + d.group * v.result,
                        d.work + d.parts * padded(v.filters) + i * d.part_work,
                        d.work + i * padded(v.filters), 0)


cdef void add_filters(const Filters* v, const Tensor* image, const Tensor* dy, uint32_t first, uint32_t count,
                      size_t g, float* work, float* df, bint accumulate) noexcept nogil:
    """The gradient of the filters of one group, from some of the images."""
    cdef uint32_t images = min(v.images, count), k, b
    cdef Divided d
    if images == count and parts_of(v, count) > 1:
        d = divided(v, image, NULL, dy, work, accumulate)
        d.group = g
        d.first = first
        d.count = count
        d.parts = parts_of(v, count)
        d.part_work = work_of_part(v, count, False)
        run_parts(&d, filters_part)
        for k in range(d.parts):
            if accumulate or k > 0:
                K.add(v.filters, work + k * padded(v.filters), df)
            else:
                memcpy(df, work, v.filters * sizeof(float))
        return
    for k in range(count // images):
        b = first + k * images
        K.conv2d_bwd_filter(&v.w, v.outputs, images, element(image, b) + g * v.image, element(dy, b) + g * v.result,
                            work, df, accumulate or k > 0)


cdef inline size_t padded(size_t n) noexcept nogil:
    """Room for n floats before others that begin on a cache line."""
    return (n + 15) // 16 * 16


cdef size_t block_work(const Filters* v, uint32_t images) noexcept nogil:
    """Working memory of `add_filters`."""
    cdef uint32_t parts = parts_of(v, images)
    return parts * ((padded(v.filters) if parts > 1 else 0) + work_of_part(v, images, False))


cdef size_t filters_work(const Filters* v) noexcept nogil:
    """Working memory of `set_filters`."""
    cdef size_t sums = 3 * padded(v.filters) if v.batch > MOST_IMAGES else 0
    if v.images <= MOST_IMAGES:
        return sums + block_work(v, v.images)
    # The last block may be smaller, and its method another.
    return sums + max(block_work(v, MOST_IMAGES), block_work(v, (v.images - 1) % MOST_IMAGES + 1))


cdef int set_geometry(Extra* extra, object stride, object dilation, object groups, bint valid, object padding,
                      str op) except -1:
    """The attributes of a convolution."""
    cdef Extra other
    cdef Py_ssize_t n = whole(groups, op, "groups")
    set_pair(extra, 0, stride, op, "stride", 1, 0xFFFF)
    set_pair(&other, 0, dilation, op, "dilation", 1, 0xFFFF)
    set_halves(extra, 0, &other)
    if not 1 <= n <= 0x7FFFFFFF:
        raise ValueError(f"{op}: groups must be at least 1, not {groups!r}")
    set_padding(&other, padding, valid, op)
    extra.attrs[PADDING].u = 1 + other.attrs[0].u + (other.attrs[1].u << 15) if valid else 0
    extra.attrs[GROUPS].u = <uint32_t>n
    return 0


# ---- conv2d: y[o] = sum_c x[c] * f[c, o] (+ b[o]) -------------------------------------

cdef int conv2d_dim(const Shapes* s, Dim* y) except -1:
    cdef const Dim* x = s.x[0]
    cdef const Dim* f = s.x[1]
    cdef dy_window w = conv_window(x, f, s.attrs)
    cdef uint32_t groups = s.attrs[GROUPS].u
    if f.nd > 4:
        raise DimensionError("f must have 4 axes: rows, columns, channels in and out")
    check_image(x, &w, s.attrs[PADDING].u == 0, "filter")
    if axis_of(x, 2) % groups or axis_of(f, 3) % groups:
        raise DimensionError(f"{axis_of(x, 2)} channels of x and {axis_of(f, 3)} of the result cannot be divided into "
                             f"{groups} groups")
    if axis_of(f, 2) != axis_of(x, 2) // groups:
        in_groups = f" in {groups} groups" if groups > 1 else ""
        raise DimensionError(f"x has {axis_of(x, 2)} channels{in_groups} but f takes {axis_of(f, 2)}")
    if s.n == 3 and (s.x[2].nd > 1 or axis_of(s.x[2], 0) != axis_of(f, 3)):
        raise DimensionError(f"b must be a vector of the {axis_of(f, 3)} output channels")
    y.nd = 3
    y.d[0] = <uint32_t>w.out[0]
    y.d[1] = <uint32_t>w.out[1]
    y.d[2] = axis_of(f, 3)
    return 0


cdef void conv2d_forward(const Call* c) noexcept nogil:
    cdef Filters v = filters_of(c, &c.x[0].dim)
    set_result(&v, &c.x[0], &c.x[1], &c.x[2] if c.n == 3 else NULL, c.work, &c.y)


cdef void conv2d_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Filters v = filters_of(c, &c.x[0].dim)
    cdef size_t o, outputs = v.outputs * v.groups, n = v.w.out[0] * v.w.out[1]
    cdef uint32_t b
    cdef float* dy
    cdef float* dx
    if i == 0:
        set_image(&v, &c.x[1], &c.dy, c.work, &c.dx, c.accumulate)
    elif i == 1:
        set_filters(&v, &c.x[0], &c.dy, c.work, &c.dx, c.accumulate)
    else:
        for b in range(c.y.dim.bd):
            dy = element(&c.dy, b)
            dx = element(&c.dx, b)
            for o in range(outputs):
                dx[o] = (dx[o] if adds(c.accumulate, &c.dx, b) else 0) + K.sum(n, dy + o * n)


cdef size_t conv2d_work(const Call* c, int i) noexcept nogil:
    cdef Filters v = filters_of(c, &c.x[0].dim)
    if i == 2:
        return 0
    if i == 0:
        return image_work(&v)
    return filters_work(&v) if i == 1 else result_work(&v)


cdef Op* new_conv_op(const char* name, const char* args) except NULL:
    cdef Op* op = register(name, args, conv2d_dim, conv2d_forward, conv2d_backward, UNREAD_RESULT | ASSIGNS,
                           conv2d_work)
    op.rule[1] = op.rule[2] = SHARE
    return op


cdef Op* CONV2D = new_conv_op(b"conv2d", b"x f")
cdef Op* CONV2D_BIAS = new_conv_op(b"conv2d_bias", b"x f b")


def conv2d(x, f, stride: Sequence[int], bint is_valid=True, dilation: Sequence[int] = (1, 1), groups: _Int = 1,
           padding: Sequence[int] = (0, 0)):
    """Two-dimensional convolution (without flipping the filter).

    Shapes: ``x {h,w,ci}``, ``f {fh,fw,ci,co}`` -> ``{oh,ow,co}``; with groups ``f {fh,fw,ci/groups,co}``.

    Args:
        x: image.
        f: filters.
        stride: steps along rows and columns.
        is_valid: whether the filter stays inside the image; else the image is
            padded with zeros such that the result has the size of x divided by
            the stride. Default: True.
        dilation: the distance, in rows and columns of the image, between neighbouring rows and columns of the
            filter (Yu and Koltun 2016). Default: (1, 1).
        groups: the number of groups of channels, each of which is filtered separately; with a group for each
            channel, the convolution is depthwise (Chollet 2017). Default: 1.
        padding: the number of rows and of columns of zeros on each side of the image, with is_valid. Default: (0, 0).

    Raises:
        DimensionError: the shapes do not fit, or the channels cannot be divided into so many groups.
        ValueError: a stride, a dilation or groups is below 1, or there is a padding without is_valid.

    Example:
        >>> image, filters = dy.ones((4, 4, 1)), dy.ones((3, 3, 1, 2))
        >>> dy.conv2d(image, filters, [1, 1]).dim()
        ((2, 2, 2), 1)
        >>> dy.conv2d(image, filters, [1, 1]).npvalue()[0, 0].round(3)
        array([9., 9.])
        >>> dy.conv2d(dy.ones((9, 9, 4)), dy.ones((3, 3, 1, 8)), [1, 1], dilation=[2, 2], groups=4).dim()
        ((5, 5, 8), 1)
    """
    cdef Extra extra = no_extra()
    set_geometry(&extra, stride, dilation, groups, is_valid, padding, "conv2d")
    return apply2x(CONV2D, x, f, &extra)


def conv2d_bias(x, f, b, stride: Sequence[int], bint is_valid=True, dilation: Sequence[int] = (1, 1),
                groups: _Int = 1, padding: Sequence[int] = (0, 0)):
    """`conv2d` with a bias for each output channel.

    Args:
        x, f, stride, is_valid, dilation, groups, padding: see `conv2d`.
        b: vector with one element for each output channel.

    Example:
        >>> image, filters = dy.ones((4, 4, 1)), dy.ones((3, 3, 1, 2))
        >>> dy.conv2d_bias(image, filters, dy.inputVector([0, 1]), [1, 1]).npvalue()[0, 0].round(3)
        array([ 9., 10.])
    """
    cdef Extra extra = no_extra()
    set_geometry(&extra, stride, dilation, groups, is_valid, padding, "conv2d_bias")
    return apply(CONV2D_BIAS, (x, f, b), &extra)


# ---- conv_transpose2d: the gradient of conv2d with respect to its image; conv2d of y has the shape of x ----

cdef int conv_transpose2d_dim(const Shapes* s, Dim* y) except -1:
    cdef const Dim* x = s.x[0]
    cdef const Dim* f = s.x[1]
    cdef size_t[2] stride, dilation
    cdef size_t n
    cdef uint32_t groups = s.attrs[GROUPS].u
    cdef int k
    if x.nd > 3:
        raise DimensionError("x must have at most 3 axes: rows, columns, channels")
    if f.nd > 4:
        raise DimensionError("f must have 4 axes: rows, columns, channels out and in")
    if axis_of(f, 3) != axis_of(x, 2):
        raise DimensionError(f"x has {axis_of(x, 2)} channels but f takes {axis_of(f, 3)}")
    if axis_of(x, 2) % groups:
        raise DimensionError(f"{axis_of(x, 2)} channels of x cannot be divided into {groups} groups")
    halves_of(s.attrs, stride, dilation)
    y.nd = 3
    for k in range(2):
        if axis_of(x, k) == 0 or axis_of(f, k) == 0:
            raise DimensionError("x and f must have rows and columns")
        n = axis_of(x, k) * stride[k]
        if s.attrs[PADDING].u:
            n += (axis_of(f, k) - 1) * dilation[k] + 1 - stride[k]
        if n > 0xFFFFFFFF:
            raise DimensionError(f"the result would have {n} {'columns' if k else 'rows'}")
        y.d[k] = <uint32_t>n
    if <uint64_t>axis_of(f, 2) * groups > 0xFFFFFFFF:
        raise DimensionError(f"the result would have {<uint64_t>axis_of(f, 2) * groups} channels")
    y.d[2] = axis_of(f, 2) * groups
    return 0


cdef void conv_transpose2d_forward(const Call* c) noexcept nogil:
    cdef Filters v = filters_of(c, &c.y.dim)
    if v.outputs == 0:                          # x has no channels
        K.fill(total_of(&c.y.dim), 0, c.y.v)
        return
    set_image(&v, &c.x[1], &c.x[0], c.work, &c.y, False)


cdef void conv_transpose2d_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Filters v = filters_of(c, &c.y.dim)
    cdef Tensor found = c.dx
    cdef size_t n = size_of(&c.dx.dim)
    cdef uint32_t b
    if i == 1:
        set_filters(&v, &c.dy, &c.x[0], c.work, &c.dx, c.accumulate)
    elif c.accumulate or c.dx.dim.bd < v.batch:
        found.v = c.work
        found.bstride = n
        set_result(&v, &c.dy, &c.x[1], NULL, c.work + padded(n * v.batch), &found)
        for b in range(v.batch):
            if adds(c.accumulate, &c.dx, b):
                K.add(n, element(&found, b), element(&c.dx, b))
            else:
                memcpy(c.dx.v, found.v, n * sizeof(float))
    else:
        set_result(&v, &c.dy, &c.x[1], NULL, c.work, &c.dx)


cdef size_t conv_transpose2d_work(const Call* c, int i) noexcept nogil:
    cdef Filters v = filters_of(c, &c.y.dim)
    if i < 0:
        return image_work(&v)
    if i == 1:
        return filters_work(&v)
    return padded(size_of(&c.x[0].dim) * v.batch) + result_work(&v)


cdef Op* CONV_TRANSPOSE2D = register(b"conv_transpose2d", b"x f", conv_transpose2d_dim, conv_transpose2d_forward,
                                     conv_transpose2d_backward, UNREAD_RESULT | ASSIGNS, conv_transpose2d_work)
CONV_TRANSPOSE2D.rule[1] = SHARE


def conv_transpose2d(x, f, stride: Sequence[int], bint is_valid=True, dilation: Sequence[int] = (1, 1),
                     groups: _Int = 1):
    """Transposed convolution: each pixel of x adds the filters, times its value, to the result (Zeiler et al. 2010).

    It is the gradient of `conv2d` with respect to its image: with the same filters, stride and `is_valid`, `conv2d` of
    the result has the shape of x.

    Shapes: ``x {h,w,ci}``, ``f {fh,fw,co,ci}`` -> ``{oh,ow,co}`` with oh = (h - 1) stride + dilation (fh - 1) + 1; with
    groups ``f {fh,fw,co/groups,ci}``.

    Args:
        x: image.
        f: filters.
        stride: the distance, in rows and columns of the result, between the filters of neighbouring pixels.
        is_valid: whether the result is as large as the filters reach; else it has the size of x times the stride.
            Default: True.
        dilation: the distance, in rows and columns of the result, between neighbouring rows and columns of a
            filter. Default: (1, 1).
        groups: the number of groups of channels, each of which is processed separately. Default: 1.

    Raises:
        DimensionError: the shapes do not fit, or the channels cannot be divided into so many groups.
        ValueError: a stride, a dilation or groups is below 1.

    Example:
        >>> dy.conv_transpose2d(dy.ones((2, 2, 1)), dy.ones((2, 2, 3, 1)), [2, 2]).dim()
        ((4, 4, 3), 1)
    """
    cdef Extra extra = no_extra()
    set_geometry(&extra, stride, dilation, groups, is_valid, (0, 0), "conv_transpose2d")
    return apply2x(CONV_TRANSPOSE2D, x, f, &extra)


# ---- maxpooling2d: y = greatest of each window, channel by channel -----------------------
# Attributes: see `pool_window`.

cdef int set_windows(Extra* extra, object ksize, object stride, bint valid, object padding, str op) except -1:
    """The attributes of pooling."""
    cdef int k
    cdef Extra other
    set_pair(extra, 0, ksize, op, "ksize")
    set_pair(extra, 2, stride, op, "stride", 1, 0xFFFF)
    set_padding(&other, padding, valid, op)
    for k in range(2):
        if other.attrs[k].i > extra.attrs[k].i // 2:
            raise ValueError(f"{op}: padding must be at most half of ksize, {ksize!r}, not {padding!r}")
    set_halves(extra, 2, &other)
    if not valid:
        extra.attrs[0].i = -extra.attrs[0].i
    return 0


cdef int pooled_dim(const Shapes* s, Dim* y) except -1:
    """The shape rule of pooling of all kinds."""
    cdef Pooling p = pooling_by(s.x[0], s.attrs)
    cdef dy_window w
    if not p.adaptive:
        w = pool_window(s.x[0], s.attrs)
        check_image(s.x[0], &w, s.attrs[0].i < 0, "window")
    elif s.x[0].nd > 3:
        raise DimensionError("x must have at most 3 axes: rows, columns, channels")
    elif p.inputs[0] == 0 or p.inputs[1] == 0:
        raise DimensionError("x must have rows and columns")
    same_dim(s, y)
    y.nd = max(s.x[0].nd, <uint32_t>2)
    y.d[0] = p.out[0]
    y.d[1] = p.out[1]
    return 0


cdef void pooled_images(void* job, size_t first, size_t end) noexcept nogil:
    cdef const Call* c = <const Call*>job
    cdef dy_window w = pool_window(&c.x[0].dim, c.attrs)
    cdef size_t b
    for b in range(first, end):
        K.maxpool2d(&w, element(&c.x[0], <uint32_t>b), element(&c.y, <uint32_t>b))


cdef void maxpooling2d_forward(const Call* c) noexcept nogil:
    in_ranges(c.y.dim.bd, 1, size_of(&c.x[0].dim) * ELEMENT_COST, pooled_images, <void*>c)


cdef void images_before_pooling(void* job, size_t first, size_t end) noexcept nogil:
    cdef const Call* c = <const Call*>job
    cdef dy_window w = pool_window(&c.x[0].dim, c.attrs)
    cdef size_t b
    for b in range(first, end):
        K.maxpool2d_bwd(&w, element(&c.x[0], <uint32_t>b), element(&c.y, <uint32_t>b), element(&c.dy, <uint32_t>b),
                        c.work + b * axis_of(&c.y.dim, 0), element(&c.dx, <uint32_t>b),
                        adds(c.accumulate, &c.dx, <uint32_t>b))


cdef void maxpooling2d_backward(const Call* c, uint32_t i) noexcept nogil:
    in_ranges(c.y.dim.bd, 1, size_of(&c.x[0].dim) * ELEMENT_COST, images_before_pooling, <void*>c)


cdef size_t maxpooling2d_work(const Call* c, int i) noexcept nogil:
    """One block for each image, as several may be processed at once."""
    return <size_t>axis_of(&c.y.dim, 0) * c.y.dim.bd if i >= 0 else 0


cdef Op* MAXPOOLING2D = register(b"maxpooling2d", b"x", pooled_dim, maxpooling2d_forward, maxpooling2d_backward,
                                 ASSIGNS, maxpooling2d_work)


def maxpooling2d(x, ksize: Sequence[int], stride: Sequence[int], bint is_valid=True,
                 padding: Sequence[int] = (0, 0)):
    """Greatest element of each window of an image, channel by channel.

    Shapes: ``x {h,w,c}`` -> ``{oh,ow,c}``.

    Args:
        x: image.
        ksize: rows and columns of the window.
        stride: steps along rows and columns.
        is_valid: whether windows stay inside the image; else those at its edges
            may reach beyond it. Default: True.
        padding: the number of rows and of columns that windows may reach beyond the image on each side, with is_valid,
            up to half of the window. Default: (0, 0).

    Raises:
        DimensionError: the window does not fit.
        ValueError: a number is out of its range, or there is a padding without is_valid.

    Example:
        >>> image = dy.reshape(dy.inputVector([1, 2, 3, 4]), (2, 2, 1))
        >>> dy.maxpooling2d(image, [2, 2], [2, 2]).npvalue()
        array([[[4.]]])
    """
    cdef Extra extra = no_extra()
    set_windows(&extra, ksize, stride, is_valid, padding, "maxpooling2d")
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
    return matrix(y, axis_of(f, 2), axis_of(x, 1) - axis_of(f, 1) + 1)


cdef void filter1d_forward(const Call* c) noexcept nogil:
    cdef size_t r = axis_of(&c.x[0].dim, 0), k = axis_of(&c.x[1].dim, 1), j
    cdef size_t o = c.y.dim.d[0], n = c.y.dim.d[1]
    cdef uint32_t b
    cdef Terms terms
    cdef float* y
    cdef int add
    for b in range(c.y.dim.bd):
        dy_terms_begin(&terms, o * n, k, c.work, element(&c.y, b), False)
        for j in range(k):
            y = dy_terms_next(&terms, &add)
            gemm(1, 0, o, n, r, 1, element(&c.x[1], b) + j * r, r * k, element(&c.x[0], b) + j * r, r, add, y, o)
        end_terms(&terms)


cdef size_t filter1d_work(const Call* c, int i) noexcept nogil:
    return dy_terms_work(size_of(&c.y.dim), axis_of(&c.x[1].dim, 1)) if i < 0 else 0


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


cdef Op* FILTER1D = register(b"filter1d_narrow", b"x y", filter1d_dim, filter1d_forward, filter1d_backward,
                             UNREAD_RESULT, filter1d_work)
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


# ---- kmh_ngram: y_ij = sum_k x_i(j+k), k from 0 to n - 1 --------------------------

cdef int kmh_ngram_dim(const Shapes* s, Dim* y) except -1:
    cdef uint32_t n = s.attrs[0].u
    if s.x[0].nd > 2:
        raise DimensionError("x must be a matrix")
    if n > axis_of(s.x[0], 1):
        raise DimensionError(f"x has {axis_of(s.x[0], 1)} columns, {n} are needed")
    return matrix(y, axis_of(s.x[0], 0), axis_of(s.x[0], 1) - n + 1)


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


cdef Op* KMH_NGRAM = register(b"kmh_ngram", b"x", kmh_ngram_dim, kmh_ngram_forward, kmh_ngram_backward, UNREAD)


def kmh_ngram(x, v: int):
    """Sums of v adjacent columns of a matrix.

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
    cdef Py_ssize_t n = whole(v, "kmh_ngram", "v")
    if n < 1:
        raise ValueError(f"kmh_ngram: v must be at least 1, not {v}")
    cdef Extra extra = of_words(<uint32_t>n)
    return apply1x(KMH_NGRAM, x, &extra)


# ==== pooling =====================================================================================
#
# Average and adaptive pooling.  Images are rows x columns x channels.

# ---- averages: y = mean of the part of each window that is inside the image ----------

cdef void average(const Call* c) noexcept nogil:
    cdef Pooling p = pooling_by(&c.x[0].dim, c.attrs)
    cdef size_t channel, pixels = <size_t>p.inputs[0] * p.inputs[1], j
    cdef uint32_t b, o, t, i, low, high, first, last
    cdef double total
    cdef const float* x
    cdef float* y
    for b in range(c.y.dim.bd):
        y = element(&c.y, b)
        for channel in range(p.channels):
            x = element(&c.x[0], b) + channel * pixels
            for o in range(p.out[1]):
                pooled(&p, 1, o, &first, &last)
                for t in range(p.out[0]):
                    pooled(&p, 0, t, &low, &high)
                    total = 0
                    for i in range(first, last):
                        for j in range(low, high):
                            total += x[i * <size_t>p.inputs[0] + j]
                    y[0] = <float>(total / ((last - first) * <size_t>(high - low)))
                    y += 1


cdef void average_backward(const Call* c, uint32_t argument) noexcept nogil:
    cdef Pooling p = pooling_by(&c.x[0].dim, c.attrs)
    cdef size_t channel, pixels = <size_t>p.inputs[0] * p.inputs[1], j
    cdef uint32_t b, o, t, i, low, high, first, last
    cdef float g
    cdef const float* dy
    cdef float* dx
    for b in range(c.y.dim.bd):
        dy = element(&c.dy, b)
        for channel in range(p.channels):
            dx = element(&c.dx, b) + channel * pixels
            for o in range(p.out[1]):
                pooled(&p, 1, o, &first, &last)
                for t in range(p.out[0]):
                    pooled(&p, 0, t, &low, &high)
                    g = dy[0] / ((last - first) * <size_t>(high - low))
                    dy += 1
                    for i in range(first, last):
                        for j in range(low, high):
                            dx[i * <size_t>p.inputs[0] + j] += g


# ---- avgpooling2d: attributes: see `pool_window` -----------------------------------------

cdef Op* AVGPOOLING2D = register(b"avgpooling2d", b"x", pooled_dim, average, average_backward, UNREAD)


def avgpooling2d(x, ksize: Sequence[int], stride: Sequence[int], bint is_valid=True,
                 padding: Sequence[int] = (0, 0)):
    """Mean of each window of an image, channel by channel.

    Shapes: ``x {h,w,c}`` -> ``{oh,ow,c}``.

    Args:
        x: image.
        ksize: rows and columns of the window.
        stride: steps along rows and columns.
        is_valid: whether windows stay inside the image; else those at its edges may reach beyond it, and the mean is
            over the part inside. Default: True.
        padding: the number of rows and of columns that windows may reach beyond the image on each side, with is_valid,
            up to half of the window; these do not count in the mean. Default: (0, 0).

    Raises:
        DimensionError: the window does not fit.
        ValueError: a number is out of its range, or there is a padding without is_valid.

    Example:
        >>> image = dy.reshape(dy.inputVector([1, 2, 3, 4]), (2, 2, 1))
        >>> dy.avgpooling2d(image, [2, 2], [2, 2]).npvalue()
        array([[[2.5]]])
    """
    cdef Extra extra = no_extra()
    set_windows(&extra, ksize, stride, is_valid, padding, "avgpooling2d")
    return apply1x(AVGPOOLING2D, x, &extra)


# ---- adaptive pooling: attributes: rows and columns of the result -----------------------
# Along an axis of m elements, window o of n goes from floor(o m / n) up to ceil((o + 1) m / n).

cdef Op* ADAPTIVE_AVG = register(b"adaptive_avgpooling2d", b"x", pooled_dim, average, average_backward)


cdef Expression apply_adaptive(const Op* op, object x, object size, str function):
    cdef Extra extra = no_extra()
    set_pair(&extra, 0, size, function, "size")
    return apply1x(op, x, &extra)


def adaptive_avgpooling2d(x, size: Sequence[int]):
    """Average pooling with a given number of windows that cover an image evenly, channel by channel.

    Along an axis of m elements, window o of n goes from ``floor(o m / n)`` up to ``ceil((o + 1) m / n)``; with
    ``[1, 1]`` there is one, the whole image. Images of all sizes give results of the same size.

    Shapes: ``x {h,w,c}`` -> ``{oh,ow,c}``.

    Args:
        x: image.
        size: rows and columns of the result.

    Raises:
        DimensionError: x is no image.
        ValueError: a size is below 1.

    Example:
        >>> image = dy.reshape(dy.inputVector([1, 2, 3, 4, 5, 6]), (3, 2, 1))
        >>> dy.adaptive_avgpooling2d(image, [2, 1]).npvalue().ravel()
        array([3., 4.])
    """
    return apply_adaptive(ADAPTIVE_AVG, x, size, "adaptive_avgpooling2d")


# For each window, the position of its greatest element in the channel is saved: the first of equal ones, or the first
# NaN.

cdef void adaptive_max_forward(const Call* c) noexcept nogil:
    cdef Pooling p = pooling_by(&c.x[0].dim, c.attrs)
    cdef size_t channel, pixels = <size_t>p.inputs[0] * p.inputs[1], j
    cdef uint32_t b, o, t, i, low, high, first, last
    cdef uint32_t* where = <uint32_t*>c.saved
    cdef float top, v
    cdef const float* x
    cdef float* y
    for b in range(c.y.dim.bd):
        y = element(&c.y, b)
        for channel in range(p.channels):
            x = element(&c.x[0], b) + channel * pixels
            for o in range(p.out[1]):
                pooled(&p, 1, o, &first, &last)
                for t in range(p.out[0]):
                    pooled(&p, 0, t, &low, &high)
                    top = -INFINITY
                    where[0] = <uint32_t>(first * <size_t>p.inputs[0] + low)
                    for i in range(first, last):
                        for j in range(i * <size_t>p.inputs[0] + low, i * <size_t>p.inputs[0] + high):
                            v = x[j]
                            if v > top or (v != v and top == top):
                                top = v
                                where[0] = <uint32_t>j
                    y[0] = top
                    y += 1
                    where += 1


cdef void adaptive_max_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef Pooling p = pooling_by(&c.x[0].dim, c.attrs)
    cdef Split channels
    channels.pre = 1
    channels.len = <size_t>p.inputs[0] * p.inputs[1]
    channels.post = p.channels
    add_where(c, channels, <size_t>p.out[0] * p.out[1])


cdef Op* ADAPTIVE_MAX = register(b"adaptive_maxpooling2d", b"x", pooled_dim, adaptive_max_forward,
                                 adaptive_max_backward, 0, NULL, as_many_as_y)


def adaptive_maxpooling2d(x, size: Sequence[int]):
    """Max pooling with a given number of windows that cover an image evenly: see `adaptive_avgpooling2d`.

    Shapes: ``x {h,w,c}`` -> ``{oh,ow,c}``.

    Args:
        x: image.
        size: rows and columns of the result.

    Raises:
        DimensionError: x is no image.
        ValueError: a size is below 1.

    Example:
        >>> image = dy.reshape(dy.inputVector([1, 2, 3, 4, 5, 6]), (3, 2, 1))
        >>> dy.adaptive_maxpooling2d(image, [2, 1]).npvalue().ravel()
        array([5., 6.])
    """
    return apply_adaptive(ADAPTIVE_MAX, x, size, "adaptive_maxpooling2d")
