# SPDX-License-Identifier: Apache-2.0
"""Kernels: loops over floats for this machine's instruction set, their precision, and random numbers for the host."""

from libc.stdint cimport uint32_t, uint64_t

from dynet_cy.core.threads cimport Flag, Number


# ==== kernels =====================================================================================
#
# The declarations of kernels.h; `K` is the table for this CPU, `BF16` that of products in bfloat16.

cdef extern from "dynet_cy/kernels.h" nogil:
    # derived: enumerators of the rows of .def files, by tools/derive.py
    enum:
        DY_UNARY_negate, DY_UNARY_tanh, DY_UNARY_exp, DY_UNARY_expm1, DY_UNARY_log, DY_UNARY_log1p, DY_UNARY_logistic,
        DY_UNARY_log_sigmoid, DY_UNARY_softplus, DY_UNARY_rectify, DY_UNARY_square, DY_UNARY_cube, DY_UNARY_sqrt,
        DY_UNARY_abs, DY_UNARY_softsign, DY_UNARY_erf, DY_UNARY_gelu, DY_UNARY_gelu_tanh, DY_UNARY_lgamma, DY_UNARY_sin,
        DY_UNARY_cos, DY_UNARY_tan, DY_UNARY_asin, DY_UNARY_acos, DY_UNARY_atan, DY_UNARY_sinh, DY_UNARY_cosh,
        DY_UNARY_asinh, DY_UNARY_acosh, DY_UNARY_atanh, DY_UNARY_floor, DY_UNARY_ceil, DY_UNARY_round, DY_UNARY_elu,
        DY_UNARY_selu, DY_UNARY_silu, DY_UNARY_scale, DY_UNARY_shift, DY_UNARY_reciprocal_scale, DY_UNARY_pow_const,
        DY_UNARY_min_const, DY_UNARY_max_const, DY_UNARY_clip, DY_UNARY_huber, DY_UNARY_leaky_relu, DY_UNARY_mish,
        DY_UNARY_hard_tanh, DY_UNARY_hard_swish, DY_UNARY_safe_sqrt, DY_UNARY_less_const, DY_UNARY_less_equal_const,
        DY_UNARY_greater_const, DY_UNARY_greater_equal_const, DY_UNARY_equal_const, DY_UNARY_not_equal_const,
        DY_UNARY_COUNT
    enum:
        DY_BINARY_add, DY_BINARY_sub, DY_BINARY_mul, DY_BINARY_div, DY_BINARY_min, DY_BINARY_max, DY_BINARY_pow,
        DY_BINARY_prelu, DY_BINARY_less, DY_BINARY_less_equal, DY_BINARY_equal, DY_BINARY_not_equal,
        DY_BINARY_where_true, DY_BINARY_where_false, DY_BINARY_logit_loss, DY_BINARY_squared_difference,
        DY_BINARY_abs_difference, DY_BINARY_binary_log_loss, DY_BINARY_COUNT
    enum:
        DY_OPTIM_sgd, DY_OPTIM_momentum, DY_OPTIM_nesterov, DY_OPTIM_adagrad, DY_OPTIM_adadelta, DY_OPTIM_rmsprop,
        DY_OPTIM_adam, DY_OPTIM_amsgrad, DY_OPTIM_signum, DY_OPTIM_lion, DY_OPTIM_COUNT
    enum:
        DY_RNG_uniform, DY_RNG_normal, DY_RNG_bernoulli, DY_RNG_gumbel, DY_RNG_COUNT
    # end of enumerators

    # derived: constants of DY_SGEMM_VECTOR, DY_SGEMM_LIBRARY, DY_SGEMM_PANELS, DY_STILL, DY_STEADY, DY_RATED,
    #     DY_FADING, DY_REPLAYED, DY_COLUMN_STEP
    int DY_SGEMM_VECTOR
    int DY_SGEMM_LIBRARY
    int DY_SGEMM_PANELS
    int DY_STILL
    int DY_STEADY
    int DY_RATED
    int DY_FADING
    int DY_REPLAYED
    int DY_COLUMN_STEP
    # end of constants
    # derived: variables of dy_unary_names, dy_binary_names, dy_optim_names, dy_rng_names, dy_optim_states
    const char* const dy_unary_names[]
    const char* const dy_binary_names[]
    const char* const dy_optim_names[]
    const char* const dy_rng_names[]
    const int dy_optim_states[]
    # end of variables
    # derived: structs of dy_optim, dy_idle, dy_window
    ctypedef struct dy_optim:
        float lr
        float grad_scale
        float step_scale
        float b1
        float b2
        float eps
        float eps_scale

    ctypedef struct dy_idle:
        float b1_power
        float b2_power
        float b1
        float b2
        float eps
        float sum
        uint32_t n
        const float* weights
        const float* fades
        const float* rates
        int keeps

    ctypedef struct dy_window:
        size_t inputs "in"[2]
        size_t channels
        size_t size[2]
        size_t stride[2]
        size_t pad[2]
        size_t out[2]
        size_t dilation[2]
    # end of structs
    # derived: types of dy_unary_fwd, dy_unary_bwd, dy_binary_fwd, dy_binary_bwd, dy_optim_step, dy_optim_idle,
    #     dy_rng_fill
    ctypedef void (*dy_unary_fwd)(size_t n, const float* x, float p0, float p1, float* y) noexcept nogil
    ctypedef void (*dy_unary_bwd)(
        size_t n, const float* x, const float* y, const float* dy, float p0, float p1, float* dx,
        int acc) noexcept nogil
    ctypedef void (*dy_binary_fwd)(
        size_t n, const float* a, int sa, const float* b, int sb, float* y) noexcept nogil
    ctypedef void (*dy_binary_bwd)(
        size_t n, const float* a, int sa, const float* b, int sb, const float* y, const float* dy, float* dx,
        int acc) noexcept nogil
    ctypedef void (*dy_optim_step)(
        size_t n, const dy_optim* h, const float* g, float* p, float* s0, float* s1, float* s2) noexcept nogil
    ctypedef void (*dy_optim_idle)(
        size_t n, const dy_idle* h, const float* p, float* q, float* s0, float* s1, float* s2) noexcept nogil
    ctypedef void (*dy_rng_fill)(
        uint64_t key, uint32_t stream, uint64_t draw, size_t offset, size_t n, float p0, float p1,
        float* out) noexcept nogil
    # end of types
    ctypedef struct dy_kernels:
        const char *isa
        int packs
        size_t panel
        dy_unary_fwd *unary_fwd
        dy_unary_bwd *unary_bwd
        dy_binary_fwd *binary_fwd
        dy_binary_bwd *binary_bwd_a
        dy_binary_bwd *binary_bwd_b
        dy_optim_step *optim
        dy_optim_idle *idle
        dy_rng_fill *rng
        # derived: kernels of kernels.def, by tools/derive.py
        void (*fill)(size_t n, float a, float *y) noexcept nogil
        void (*scale)(size_t n, float a, const float *x, float *y) noexcept nogil
        void (*axpy)(size_t n, float a, const float *x, float *y) noexcept nogil
        void (*add)(size_t n, const float *x, float *y) noexcept nogil
        float (*dot)(size_t n, const float *x, const float *y) noexcept nogil
        float (*sum)(size_t n, const float *x) noexcept nogil
        float (*sumsq)(size_t n, const float *x) noexcept nogil
        float (*max)(size_t n, const float *x) noexcept nogil
        size_t (*argmax)(size_t n, const float *x) noexcept nogil
        size_t (*next_beyond)(size_t n, const float *x, float limit, int above) noexcept nogil
        int (*all_finite)(size_t n, const float *x) noexcept nogil
        void (*take_rows)(size_t count, size_t n, const uint32_t *items, const float *x, float *y,
                          int acc) noexcept nogil
        void (*add_rows)(size_t count, size_t n, const uint32_t *items, const float *dy, float *x) noexcept nogil
        void (*add_lines)(size_t lines, size_t count, size_t length, const uint32_t *items, const float *dy,
                          float *x) noexcept nogil
        void (*repeat)(size_t rows, size_t cols, const float *b, float *y) noexcept nogil
        void (*bias_add)(size_t rows, size_t cols, const float *b, const float *x, float *y) noexcept nogil
        void (*bias_bwd)(size_t rows, size_t cols, const float *dy, float *db, int acc) noexcept nogil
        void (*softmax_part)(size_t rows, size_t cols, float *x, float *top, float *total, float *factor) noexcept nogil
        void (*exp_less)(size_t rows, size_t cols, const float *z, float *x) noexcept nogil
        void (*softmax_part_bwd)(size_t rows, size_t cols, const float *y, const float *mean, float *dy) noexcept nogil
        void (*lstm_gates)(size_t h, size_t cols, const float *pre, float forget_bias, float *gates) noexcept nogil
        void (*lstm_gates_bwd)(size_t h, size_t cols, const float *gates, const float *dgates, float *dpre,
                               int acc) noexcept nogil
        void (*lstm_c)(size_t h, size_t cols, const float *c_prev, const float *gates, float *c) noexcept nogil
        void (*lstm_c_bwd)(size_t h, size_t cols, const float *c_prev, const float *gates, const float *dc,
                           float *dc_prev, int acc_c, float *dgates, int acc_gates) noexcept nogil
        void (*lstm_h)(size_t h, size_t cols, const float *gates, const float *c, float *y) noexcept nogil
        void (*lstm_h_bwd)(size_t h, size_t cols, const float *gates, const float *c, const float *dy, float *dgates,
                           int acc_gates, float *dc, int acc_c) noexcept nogil
        void (*sgemm)(int ta, int tb, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                      const float *b, size_t ldb, float beta, float *c, size_t ldc) noexcept nogil
        int (*sgemm_way)(int ta, int tb, size_t m, size_t n, size_t k) noexcept nogil
        void (*sgemm_by)(int way, int ta, int tb, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                         const float *b, size_t ldb, float beta, float *c, size_t ldc) noexcept nogil
        void (*pack)(int ta, size_t m, size_t k, const float *a, size_t lda, float *panels) noexcept nogil
        void (*sgemm_packed)(size_t m, size_t n, size_t k, const float *panels, const float *b, size_t ldb, float beta,
                             const float *old, size_t ldold, float *c, size_t ldc) noexcept nogil
        void (*conv2d)(const dy_window *s, size_t outputs, size_t images, const float *x, const float *filter,
                       const float *bias, float *work, float *y) noexcept nogil
        void (*conv2d_bwd_x)(const dy_window *s, size_t outputs, size_t images, const float *filter, const float *dy,
                             float *work, float *dx, int acc) noexcept nogil
        void (*conv2d_bwd_filter)(const dy_window *s, size_t outputs, size_t images, const float *x, const float *dy,
                                  float *work, float *dfilter, int acc) noexcept nogil
        void (*maxpool2d)(const dy_window *s, const float *x, float *y) noexcept nogil
        void (*maxpool2d_bwd)(const dy_window *s, const float *x, const float *y, const float *dy, float *work,
                              float *dx, int acc) noexcept nogil
        void (*random_words)(uint64_t key, uint32_t stream, uint64_t draw, size_t offset, size_t n,
                             uint32_t *out) noexcept nogil
        void (*softmax)(size_t n, size_t step, size_t lines, const float *x, float *y, float *work) noexcept nogil
        void (*softmax_bwd)(size_t n, size_t step, size_t lines, const float *x, const float *y, const float *dy,
                            float *dx, float *work, int acc) noexcept nogil
        void (*log_softmax)(size_t n, size_t step, size_t lines, const float *x, float *y, float *work) noexcept nogil
        void (*log_softmax_bwd)(size_t n, size_t step, size_t lines, const float *x, const float *y, const float *dy,
                                float *dx, float *work, int acc) noexcept nogil
        void (*logsumexp)(size_t n, size_t step, size_t lines, const float *x, float *y, float *work) noexcept nogil
        void (*logsumexp_bwd)(size_t n, size_t step, size_t lines, const float *x, const float *y, const float *dy,
                              float *dx, float *work, int acc) noexcept nogil
        # end of kernels

    # derived: functions of dy_kernels_get
    const dy_kernels* dy_kernels_get(const char* isa)
    # end of functions
    # derived: structs of dy_bf16
    ctypedef struct dy_bf16:
        size_t panel
        void (*pack)(int ta, size_t m, size_t k, const float* a, size_t lda, float* panels) noexcept nogil
        void (*gemm)(
            const float* panels, int ta, int tb, size_t m, size_t n, size_t k, const float* a, size_t lda,
            const float* b, size_t ldb, float beta, float* c, size_t ldc) noexcept nogil
    # end of structs
    # derived: functions of dy_bf16_get, dy_window_init, dy_window_reach, dy_panels, dy_bf16_panels, dy_conv_work,
    #     dy_winograd_gains, dy_conv_work_back
    const dy_bf16* dy_bf16_get(const char** missing)
    void dy_window_init(
        dy_window* s, const size_t* inputs, size_t channels, const size_t* size, const size_t* stride,
        const size_t* dilation, const size_t* pad)
    size_t dy_window_reach(const dy_window* s, int d)
    size_t dy_panels(size_t m, size_t k)
    size_t dy_bf16_panels(size_t m, size_t k)
    size_t dy_conv_work(const dy_window* s, size_t outputs, size_t images)
    int dy_winograd_gains(const dy_window* s, size_t outputs, size_t images)
    size_t dy_conv_work_back(const dy_window* s, size_t outputs, size_t images)
    # end of functions


cdef const dy_kernels *K
cdef const dy_bf16 *BF16          # NULL where this machine has no such kernels


cdef inline double squares_of(size_t n, const float* x) noexcept nogil:
    """The sum of squares, also where it does not fit in a float, as of numbers from 2e19 on."""
    cdef double total = K.sumsq(n, x)
    cdef size_t i
    if 1e-30 < total < 1e30:
        return total
    total = 0
    for i in range(n):
        total += <double>x[i] * x[i]
    return total


# ==== precision ===================================================================================

cdef enum:                      # places in PRECISIONS
    FLOAT32
    BFLOAT16
    TF32

cdef Number chosen_precision    # of products: one of these
cdef Flag in_bf16               # whether the CPU makes products of weights in bfloat16; only where BF16 is there


# ==== draws =======================================================================================
#
# Random numbers for the host: initial values.  The module owns the seed of all streams.

# The item of a batched map that runs in this thread, if any: each item has its own random draws.
cdef extern from "dynet_cy/draws.h":
    # derived: structs of DrawingItem
    ctypedef struct DrawingItem "dy_drawing_item":
        uint64_t key
        uint64_t draws
        int inside
    # end of structs


cdef DrawingItem* drawing_item() noexcept

cdef uint64_t random_seed() noexcept nogil
