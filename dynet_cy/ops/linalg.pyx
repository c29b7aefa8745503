"""Products of matrices and vectors."""

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from dynet_cy.core.tensor cimport (
    Call, Dim, Packed, Tensor, axis_of, cols_of, element, rows_of, same_shape, size_of, total_of,
)
from dynet_cy.graph.expressions cimport dim_of
from dynet_cy.graph.making cimport apply, apply2, apply2_for, expression
from dynet_cy.graph.origin cimport describe_dim
from dynet_cy.graph.structs cimport Extra, no_extra
from dynet_cy.kernels.kernels cimport K, DY_UNARY_logistic, DY_UNARY_tanh
from dynet_cy.kernels.product cimport ELEMENT_COST, gemm, in_ranges, product, product_plus, weight_gradient
from dynet_cy.ops.loops cimport Terms, begin_terms, end_terms, next_term, put_scaled, scalar, terms_work
from dynet_cy.ops.registry cimport (
    ASSIGNS, LIST, PRODUCT, SHARE, UNREAD_EVEN, UNREAD_FIRST, UNREAD_ODD, UNREAD_RESULT, Backward, DimRule,
    Factors, Forward, Op, Shapes, register, same_dim,
)
from dynet_cy.schedule.rewrite cimport add_rewrite, sums_of_products

from dynet_cy.graph.structs import results
from dynet_cy.ops.registry import DimensionError


cdef str factor(int i):
    """The name of a factor in errors: i is its place in the list of a sum, or -2 and -1 in a product."""
    return "a" if i == -2 else "b" if i == -1 else f"xs[{i}]"


cdef int product_dim(const Dim* a, const Dim* b, Dim* y, int i) except -1:
    """The shape of the product of factors i and i + 1; y is a vector if b is one."""
    if a.nd > 2 or b.nd > 2:
        raise DimensionError(f"{factor(i)} and {factor(i + 1)} must be matrices or vectors")
    if axis_of(a, 1) != axis_of(b, 0):
        raise DimensionError(
            f"{factor(i)} has {axis_of(a, 1)} columns but {factor(i + 1)} has {axis_of(b, 0)} rows"
            + ("; element by element: cmult" if i == -2 and same_shape(a, b) else ""))
    y.nd = 2 if b.nd == 2 else 1
    y.d[0] = axis_of(a, 0)
    y.d[1] = axis_of(b, 1)
    return 0


# ---- ops that are made of products, on any device ------------------------------------

cdef Op* product_op(const char* name, const char* args, DimRule dim, Forward forward, Backward backward) except NULL:
    cdef Op* op = register(name, args, dim, forward, backward, ASSIGNS)
    op.anywhere = True
    return op


cdef void product_here(void* on, bint ta, size_t m, size_t n, size_t k, const float* a, Packed* pack, const float* b,
                       float beta, float* c) noexcept nogil:
    product(ta, m, n, k, a, pack, b, beta, c)


cdef void gradient_here(void* on, bint of_parameter, size_t m, size_t k, size_t n, const float* dy, const float* x,
                        float beta, float* dw) noexcept nogil:
    if of_parameter:
        weight_gradient(m, k, n, dy, x, beta, dw)
    else:
        gemm(0, 1, m, k, n, 1, dy, m, x, k, beta, dw, m)


cdef void gemm_here(void* on, bint ta, bint tb, size_t m, size_t n, size_t k, float alpha, const float* a, size_t lda,
                    size_t stride_a, const float* b, size_t ldb, size_t stride_b, float beta, float* c, size_t ldc,
                    size_t stride_c, size_t count) noexcept nogil:
    cdef size_t i
    for i in range(count):
        gemm(ta, tb, m, n, k, alpha, a + i * stride_a, lda, b + i * stride_b, ldb, beta, c + i * stride_c, ldc)
        if stride_c == 0:
            beta = 1


cdef void zero_here(void* on, size_t n, float* to) noexcept nogil:
    K.fill(n, 0, to)


cdef struct Bias:
    const Tensor* b
    const Tensor* y


cdef void copy_bias(void* job, size_t first, size_t end) noexcept nogil:
    """Set some batch elements of the result to b, repeated for all columns."""
    cdef const Tensor* b = (<const Bias*>job).b
    cdef const Tensor* y = (<const Bias*>job).y
    cdef size_t m = rows_of(&y.dim), n = cols_of(&y.dim), i
    for i in range(first, end):
        if cols_of(&b.dim) == n:
            memcpy(element(y, <uint32_t>i), element(b, <uint32_t>i), m * n * sizeof(float))
        else:
            K.repeat(m, n, element(b, <uint32_t>i), element(y, <uint32_t>i))


cdef bint multiply_plus(const Tensor* a, const Tensor* b, const Tensor* old, const Tensor* y) noexcept nogil:
    """y = a b + old, if that is one product and `old` one matrix, or one column for all; False: nothing is done."""
    cdef size_t m = rows_of(&a.dim), n = cols_of(&b.dim) * b.dim.bd, ldold = m
    if a.dim.bd > 1 or b.dim.bd != y.dim.bd or old.list != NULL:
        return False
    if cols_of(&old.dim) == 1 and old.dim.bd == 1:
        ldold = 0
    elif cols_of(&old.dim) * old.dim.bd != n or old.dim.bd != b.dim.bd:
        return False
    product_plus(m, n, cols_of(&a.dim), a.v, a.pack, b.v, old.v, ldold, y.v)
    return True


cdef bint begin_sum_here(const Call* c) noexcept nogil:
    cdef Bias bias = Bias(&c.x[0], &c.y)
    if c.n > 1 and multiply_plus(&c.x[1], &c.x[2], &c.x[0], &c.y):
        return True
    in_ranges(c.y.dim.bd, 1, size_of(&c.y.dim) * ELEMENT_COST, copy_bias, &bias)
    return False


cdef void add_to_bias_here(void* on, const Tensor* dy, const Tensor* db, bint accumulate) noexcept nogil:
    cdef size_t m = rows_of(&dy.dim), n = cols_of(&dy.dim)
    cdef bint whole = cols_of(&db.dim) == n
    cdef uint32_t k
    if db.list == NULL and whole and db.dim.bd == dy.dim.bd:
        K.bias_bwd(m * n * dy.dim.bd, 1, dy.v, db.v, accumulate)
    elif db.list == NULL and db.dim.bd == 1 and cols_of(&db.dim) == 1:
        K.bias_bwd(m, n * dy.dim.bd, dy.v, db.v, accumulate)
    elif db.list == NULL and db.dim.bd == 1:
        K.bias_bwd(m * n, dy.dim.bd, dy.v, db.v, accumulate)
    else:
        for k in range(dy.dim.bd):
            K.bias_bwd(m * n if whole else m, 1 if whole else n, element(dy, k), element(db, k), accumulate)


cdef size_t parts_of(const Gates* g, size_t* parts) noexcept nogil:
    """The lengths of the parts of a column, logistic, tanh and logistic, and the number of all parts; with the same
    function everywhere, all columns are one."""
    cdef bint same = g.first == g.rows or g.tanh == g.rows
    cdef size_t columns = g.columns if same else 1
    parts[0], parts[1] = g.first * columns, g.tanh * columns
    parts[2] = g.rows * columns - parts[0] - parts[1]
    return 3 if same else 3 * g.columns


cdef inline int function_of(size_t part) noexcept nogil:
    return DY_UNARY_tanh if part % 3 == 1 else DY_UNARY_logistic


cdef void activate_here(void* on, const Gates* g, float* y) noexcept nogil:
    cdef size_t[3] parts
    cdef size_t i
    for i in range(parts_of(g, parts)):
        K.unary_fwd[function_of(i)](parts[i % 3], y, 0, 0, y)
        y += parts[i % 3]


cdef void activate_backward_here(void* on, const Gates* g, const float* y, const float* dy,
                                 float* dsums) noexcept nogil:
    cdef size_t[3] parts
    cdef size_t i, at = 0
    for i in range(parts_of(g, parts)):
        K.unary_bwd[function_of(i)](parts[i % 3], y + at, y + at, dy + at, 0, 0, dsums + at, 0)
        at += parts[i % 3]


here = Algebra(product_here, gradient_here, gemm_here, zero_here, begin_sum_here, add_to_bias_here, activate_here,
               activate_backward_here)


cdef void multiply(void* on, const Tensor* a, const Tensor* b, const Tensor* y, float beta) noexcept nogil:
    """y = a b + beta y, batch element by element."""
    cdef const Algebra* la = algebra_of(on)
    cdef size_t m = rows_of(&a.dim), k = cols_of(&a.dim), n = cols_of(&b.dim)
    if a.dim.bd == 1 and b.dim.bd == y.dim.bd:
        # One matrix for all: the columns of all batch elements are one wide b.
        la.product(on, 0, m, n * b.dim.bd, k, a.v, a.pack, b.v, beta, y.v)
    else:
        la.gemm(on, 0, 0, m, n, k, 1, a.v, m, a.bstride, b.v, k, b.bstride, beta, y.v, m, y.bstride, y.dim.bd)


cdef void multiply_backward_a(void* on, const Tensor* a, const Tensor* b, const Tensor* dy, const Tensor* da,
                              bint accumulate) noexcept nogil:
    """da = dy b' (+ da)."""
    cdef const Algebra* la = algebra_of(on)
    cdef size_t m = rows_of(&da.dim), k = cols_of(&da.dim), n = cols_of(&b.dim)
    if da.dim.bd == 1 and b.dim.bd == dy.dim.bd:
        la.gradient(on, a.pack != NULL, m, k, n * b.dim.bd, dy.v, b.v, accumulate, da.v)
    else:
        la.gemm(on, 0, 1, m, k, n, 1, dy.v, m, dy.bstride, b.v, k, b.bstride, accumulate, da.v, m, da.bstride,
                dy.dim.bd)


cdef void multiply_backward_b(void* on, const Tensor* a, const Tensor* dy, const Tensor* db,
                              bint accumulate) noexcept nogil:
    """db = a' dy (+ db)."""
    cdef const Algebra* la = algebra_of(on)
    cdef size_t m = rows_of(&a.dim), k = cols_of(&a.dim), n = cols_of(&db.dim)
    if a.dim.bd == 1 and db.dim.bd == dy.dim.bd:
        la.product(on, 1, k, n * db.dim.bd, m, a.v, a.pack, dy.v, accumulate, db.v)
    else:
        la.gemm(on, 1, 0, k, n, m, 1, a.v, m, a.bstride, dy.v, m, dy.bstride, accumulate, db.v, k, db.bstride,
                dy.dim.bd)


cdef void factors_of_a(const Tensor* a, const Tensor* b, const Tensor* dy, Factors* f) noexcept nogil:
    """The factors of da = dy b', if all batch elements share one a."""
    if a.dim.bd == 1 and b.dim.bd == dy.dim.bd:
        f.left = dy.v
        f.right = b.v
        f.rows = rows_of(&a.dim)
        f.cols = cols_of(&a.dim)
        f.n = cols_of(&b.dim) * b.dim.bd


# ---- matmul: y = a b ---------------------------------------------------------

cdef int matmul_dim(const Shapes* s, Dim* y) except -1:
    return product_dim(s.x[0], s.x[1], y, -2)


cdef void matmul_forward(const Call* c) noexcept nogil:
    multiply(c.on, &c.x[0], &c.x[1], &c.y, 0)


cdef void matmul_backward(const Call* c, uint32_t i) noexcept nogil:
    if i == 0:
        multiply_backward_a(c.on, &c.x[0], &c.x[1], &c.dy, &c.dx, c.accumulate)
    else:
        multiply_backward_b(c.on, &c.x[0], &c.dy, &c.dx, c.accumulate)


cdef void matmul_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil:
    if i == 0:
        factors_of_a(&c.x[0], &c.x[1], &c.dy, f)


MATMUL = product_op(b"matmul", b"a b", matmul_dim, matmul_forward, matmul_backward)
MATMUL.unread = UNREAD_RESULT
MATMUL.over = UNREAD_ODD
results[MATMUL.id] = "scores"
# Nodes that multiply by the same a run as one product with a wider b.
MATMUL.rule[0] = SHARE
# Other products, such as those of one matrix per sentence, may differ in size.
MATMUL.columns = True
MATMUL.ragged = True
MATMUL.joins = True
MATMUL.factors = matmul_factors
MATMUL.role = PRODUCT


# ---- affine_transform: y = b + W1 x1 + W2 x2 + ... ----------------------------

cdef void matrix_of(const Dim* x, Dim* y) noexcept:
    """The shape of x without trailing axes of size 1 after the first two."""
    y.nd = x.nd
    while y.nd > 2 and x.d[y.nd - 1] == 1:
        y.nd -= 1
    for i in range(y.nd):
        y.d[i] = x.d[i]


cdef int affine_transform_dim(const Shapes* s, Dim* y) except -1:
    cdef Dim x, wx
    cdef uint32_t i
    if s.n % 2 == 0:
        raise DimensionError(
            f"{s.n} arguments given: an odd number is needed, b and then pairs of W and x")
    if s.n == 1:
        return same_dim(s, y)
    matrix_of(s.x[0], y)
    if y.nd > 2:
        raise DimensionError("b must be a matrix or a vector")
    for i in range(1, s.n, 2):
        matrix_of(s.x[i + 1], &x)
        product_dim(s.x[i], &x, &wx, <int>i - 1)
        if i == 1 and axis_of(&wx, 0) == axis_of(y, 0) and axis_of(y, 1) == 1:
            y.nd = wx.nd                                # a vector b is added to every column
            y.d[1] = wx.d[1]
        elif not same_shape(&wx, y):
            raise DimensionError(
                f"xs[{i - 1}] xs[{i}] has shape {axis_of(&wx, 0)} x {axis_of(&wx, 1)} "
                f"but the sum so far has {axis_of(y, 0)} x {axis_of(y, 1)}")
    if axis_of(y, 1) == 1:
        y.nd = 1                                        # one column is a vector, as in DyNet
    return 0


cdef void affine_transform_forward(const Call* c) noexcept nogil:
    add_products(c, 1 + 2 * algebra_of(c.on).begin_sum(c))


cdef void add_products(const Call* c, uint32_t first) noexcept nogil:
    """Add the products of a sum to y, from argument `first` on."""
    cdef uint32_t i
    for i in range(first, c.n, 2):
        multiply(c.on, &c.x[i], &c.x[i + 1], &c.y, 1)


cdef void backward_of_sum(const Call* c, const Tensor* dsum, uint32_t i) noexcept nogil:
    if i == 0:
        algebra_of(c.on).add_to_bias(c.on, dsum, &c.dx, c.accumulate)
    elif i % 2:
        multiply_backward_a(c.on, &c.x[i], &c.x[i + 1], dsum, &c.dx, c.accumulate)
    else:
        multiply_backward_b(c.on, &c.x[i - 1], dsum, &c.dx, c.accumulate)


cdef void factors_of_sum(const Call* c, const Tensor* dsum, uint32_t i, Factors* f) noexcept nogil:
    if i % 2:
        factors_of_a(&c.x[i], &c.x[i + 1], dsum, f)
    elif i == 0 and c.on != NULL:
        columns_to_sum(&c.x[0], dsum, f)


cdef void columns_to_sum(const Tensor* b, const Tensor* dy, Factors* f) noexcept nogil:
    """The gradient of a vector b that is added to all columns is their sum, if that is not dy itself.  Devices collect
    such sums, too."""
    cdef size_t rows = rows_of(&dy.dim), n = total_of(&dy.dim)
    if b.list == NULL and total_of(&b.dim) == rows and rows_of(&b.dim) == rows and n > rows:
        f.left = dy.v
        f.right = NULL
        f.rows = rows
        f.cols = 1
        f.n = n // rows


cdef void affine_transform_backward(const Call* c, uint32_t i) noexcept nogil:
    backward_of_sum(c, &c.dy, i)


cdef void affine_transform_factors(const Call* c, uint32_t i, Factors* f) noexcept nogil:
    factors_of_sum(c, &c.dy, i, f)


AFFINE = product_op(b"affine_transform", b"b xs...", affine_transform_dim, affine_transform_forward,
                    affine_transform_backward)
AFFINE.unread = UNREAD_RESULT | UNREAD_FIRST
AFFINE.over = UNREAD_EVEN
results[AFFINE.id] = "scores"
AFFINE.rule[0] = LIST               # b is copied to the result anyway
AFFINE.rule[1] = SHARE
AFFINE.columns = True
AFFINE.one_column[0] = True
AFFINE.joins = True
AFFINE.factors = affine_transform_factors
add_rewrite("sums", sums_of_products, AFFINE)


def affine_transform(exprs: Iterable[Expression]):
    """b + W1 x1 + W2 x2 + ...: a layer without its activation.

    Args:
        exprs: the list ``[b, W1, x1, W2, x2, ...]`` with ``b {m}`` or ``{m,n}``,
            ``W {m,k}`` and ``x {k}`` or ``{k,n}``; a vector b is added to every column.
            Trailing axes of size 1 after the first two of b and x are ignored.

    Returns:
        ``{m,n}``, or ``{m}`` if n is 1.

    Raises:
        DimensionError: the shapes do not fit.

    Example:
        >>> b, W, x = dy.inputVector([10, 20]), dy.inputTensor([[1, 2], [3, 4]]), dy.inputVector([1, 1])
        >>> dy.affine_transform([b, W, x]).npvalue()
        array([13., 27.])
    """
    return apply(AFFINE, exprs, NULL)


# ---- dot_product: y = sum_i a_i b_i -------------------------------------------

cdef int dot_product_dim(const Shapes* s, Dim* y) except -1:
    if size_of(s.x[0]) != size_of(s.x[1]):
        raise DimensionError(f"a has {size_of(s.x[0])} elements but b has {size_of(s.x[1])}")
    return scalar(y)


cdef void dot_product_forward(const Call* c) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t i
    for i in range(c.y.dim.bd):
        c.y.v[i] = K.dot(n, element(&c.x[0], i), element(&c.x[1], i))


cdef void dot_product_backward(const Call* c, uint32_t i) noexcept nogil:
    cdef size_t n = size_of(&c.x[0].dim)
    cdef uint32_t k
    cdef float* dx
    cdef int add
    cdef Terms terms
    begin_terms(&terms, c, c.work)
    for k in range(c.y.dim.bd):
        dx = next_term(&terms, c, k, &add)
        put_scaled(n, c.dy.v[k], element(&c.x[1 - i], k), dx, add)
    end_terms(&terms)


cdef size_t dot_product_work(const Call* c, int i) noexcept nogil:
    return terms_work(c, i) if i >= 0 else 0


cdef Op* DOT_PRODUCT = register(b"dot_product", b"a b", dot_product_dim, dot_product_forward, dot_product_backward,
                                UNREAD_RESULT | ASSIGNS, dot_product_work)


def dot_product(x, y):
    """Sum of the products of corresponding elements.

    Shapes: ``x`` and ``y`` with equally many elements -> ``{1}``.

    Raises:
        DimensionError: x and y have different numbers of elements.

    Example:
        >>> dy.dot_product(dy.inputVector([1, 2]), dy.inputVector([3, 4])).value()
        11.0
    """
    return apply2(DOT_PRODUCT, x, y)


# ---- trace_of_product: y = tr(a b') = sum_ij a_ij b_ij --------------------------

def trace_of_product(x, y):
    """Trace of x y', the product of a matrix and the transpose of another.

    Shapes: ``x {m,n}``, ``y {m,n}`` -> ``{1}``.

    Raises:
        DimensionError: x and y are not matrices of one shape.

    Example:
        >>> dy.trace_of_product(dy.inputTensor([[1, 2], [3, 4]]), dy.inputTensor([[1, 0], [0, 1]])).value()
        5.0
    """
    cdef Extra extra = no_extra()
    cdef const Dim* a = dim_of(expression(x, "trace_of_product", "x"))
    cdef const Dim* b = dim_of(expression(y, "trace_of_product", "y"))
    if a.nd > 2 or not same_shape(a, b):
        raise DimensionError("trace_of_product: a and b must be matrices of one shape\n"
                             f"    a  {describe_dim(a)}\n    b  {describe_dim(b)}")
    return apply2_for("trace_of_product", NULL, DOT_PRODUCT, x, y, &extra)
