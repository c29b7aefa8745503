/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel layer: one table of functions per instruction set. Plain C11; no state but the choice of the table. */
#ifndef DYNET_CY_KERNELS_H
#define DYNET_CY_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "optim.h"

/* DY_UNARY_tanh and so on: the rows of the .def files, in their order. */
#define UNARY(name, y, dx) DY_UNARY_##name,
enum {
#include "unary.def"
    DY_UNARY_COUNT
};
#undef UNARY
#define BINARY(name, y, da, db) DY_BINARY_##name,
enum {
#include "binary.def"
    DY_BINARY_COUNT
};
#undef BINARY
#define RNG(name, value) DY_RNG_##name,
enum {
#include "rng.def"
    DY_RNG_COUNT
};
#undef RNG

extern const char *const dy_unary_names[DY_UNARY_COUNT];
extern const char *const dy_binary_names[DY_BINARY_COUNT];
extern const char *const dy_optim_names[DY_OPTIM_COUNT];
extern const char *const dy_rng_names[DY_RNG_COUNT];
/* The number of state arrays of each optimiser. */
extern const int dy_optim_states[DY_OPTIM_COUNT];

/* Methods of sgemm: sums of a few columns of A, tiles of C, dot products, one row or column by sgemv, OpenBLAS, panels of
 * A that are packed during the product. */
enum { DY_SGEMM_RANK, DY_SGEMM_TILES, DY_SGEMM_DOTS, DY_SGEMM_VECTOR, DY_SGEMM_LIBRARY, DY_SGEMM_PANELS };
/* OpenBLAS takes 4, 6, 8, 12 or 24 columns at a time, and sums the remaining columns in another order. */
enum { DY_COLUMN_STEP = 24 };

/* Geometry of a convolution or pooling; see dy_window_init. Index 0 is the row direction, the contiguous one. */
typedef struct {
    size_t in[2], channels, size[2], stride[2], pad[2], out[2], dilation[2];
} dy_window;

typedef void (*dy_unary_fwd)(size_t n, const float *x, float p0, float p1, float *y);
typedef void (*dy_unary_bwd)(size_t n, const float *x, const float *y, const float *dy, float p0, float p1, float *dx,
                             int acc);
/* sa and sb are the element strides of a and b, 0 (one value for all) or 1. */
typedef void (*dy_binary_fwd)(size_t n, const float *a, int sa, const float *b, int sb, float *y);
/* The gradient of an argument of stride 0 is the sum, in dx[0]. */
typedef void (*dy_binary_bwd)(size_t n, const float *a, int sa, const float *b, int sb, const float *y, const float *dy,
                              float *dx, int acc);
typedef void (*dy_optim_step)(size_t n, const dy_optim *h, const float *g, float *p, float *s0, float *s1, float *s2);
/* Reads the values at p and writes them to q, which may be p. */
typedef void (*dy_optim_idle)(size_t n, const dy_idle *h, const float *p, float *q, float *s0, float *s1, float *s2);
/* Elements offset .. offset + n - 1 of a draw; an element depends on (key, stream, draw) and its index alone. */
typedef void (*dy_rng_fill)(uint64_t key, uint32_t stream, uint64_t draw, size_t offset, size_t n, float p0, float p1,
                            float *out);

typedef struct dy_kernels {
    const char *isa;
    int packs;                  /* whether sgemm_packed is enough faster than sgemm to be worth packing */
    size_t panel;               /* rows of a panel; sgemm_packed and pack can be divided at multiples of it */
    dy_unary_fwd unary_fwd[DY_UNARY_COUNT];
    dy_unary_bwd unary_bwd[DY_UNARY_COUNT];
    dy_binary_fwd binary_fwd[DY_BINARY_COUNT];
    dy_binary_bwd binary_bwd_a[DY_BINARY_COUNT];
    dy_binary_bwd binary_bwd_b[DY_BINARY_COUNT];
    dy_optim_step optim[DY_OPTIM_COUNT];
    dy_optim_idle idle[DY_OPTIM_COUNT];
    dy_rng_fill rng[DY_RNG_COUNT];
#define KERNEL(result, name, arguments) result (*name) arguments;
#include "kernels.def"
#undef KERNEL
} dy_kernels;

/* The table of an instruction set: "baseline", "neon", "avx2", "avx512"; NULL asks for the best one, or the one that the
 * environment variable DYNET_CY_ISA names. NULL when the name is unknown or the CPU lacks it; the environment
 * variable is then ignored instead. */
const dy_kernels *dy_kernels_get(const char *isa);

/* Products of matrices whose elements are rounded to bfloat16, with sums in float32; see bf16.inl. */
typedef struct {
    size_t panel;               /* rows of a panel, where `gemm` and what `pack` writes can be cut */
    /* C = op(A) op(B) + beta C. `panels` is NULL, or holds A as `pack` left it, in dy_bf16_panels(m, k) floats; `ta`: it
     * packs the transpose of a. Parts have the numbers of the whole, to the last bit. */
    void (*pack)(int ta, size_t m, size_t k, const float *a, size_t lda, float *panels);
    void (*gemm)(const float *panels, int ta, int tb, size_t m, size_t n, size_t k, const float *a, size_t lda,
                 const float *b, size_t ldb, float beta, float *c, size_t ldc);
} dy_bf16;

/* NULL where it is not there: `missing` says what is missing. */
const dy_bf16 *dy_bf16_get(const char **missing);

/* How many inputs a window reaches over along direction d. */
static inline size_t dy_window_reach(const dy_window *s, int d) { return (s->size[d] - 1) * s->dilation[d] + 1; }

/* `pad`: how many elements beyond the image windows may reach, on both sides; NULL: SAME padding, the larger half behind.
 * The elements of a window are `dilation` inputs apart. */
static inline void dy_window_init(dy_window *s, const size_t in[2], size_t channels, const size_t size[2],
                                  const size_t stride[2], const size_t dilation[2], const size_t *pad) {
    s->channels = channels;
    for (int i = 0; i < 2; i++) {
        s->in[i] = in[i];
        s->size[i] = size[i];
        s->stride[i] = stride[i];
        s->dilation[i] = dilation[i];
        s->pad[i] = pad ? pad[i] : 0;
        size_t reach = dy_window_reach(s, i), whole = in[i] + 2 * s->pad[i];
        if (pad) {
            s->out[i] = whole < reach ? 0 : (whole - reach) / stride[i] + 1;
        } else {
            s->out[i] = (in[i] + stride[i] - 1) / stride[i];
            size_t covered = s->out[i] ? (s->out[i] - 1) * stride[i] + reach : 0;
            if (covered > in[i]) s->pad[i] = (covered - in[i]) / 2;
        }
    }
}

/* Floats of an m x k matrix that is packed. */
static inline size_t dy_panels(size_t m, size_t k) { return (m + 15) / 16 * 16 * k; }
static inline size_t dy_bf16_panels(size_t m, size_t k) { return dy_panels(m, (k + 1) / 2); }

/* Numbers of the patches of an image: a row per output position, a column per filter row, filter column and channel. */
static inline size_t dy_conv_patches(const dy_window *s) {
    return s->out[0] * s->out[1] * s->size[0] * s->size[1] * s->channels;
}

/* The window of the gradient of the input, which is a convolution of the gradient of the result by the filters turned
 * around; for strides of 1. */
static inline dy_window dy_window_back(const dy_window *s, size_t outputs) {
    dy_window back = *s;
    back.channels = outputs;
    for (int i = 0; i < 2; i++) {
        back.in[i] = s->out[i];
        back.out[i] = s->in[i];
        back.pad[i] = s->size[i] - 1 - s->pad[i];
    }
    return back;
}

/* How winograd.inl divides images: into tiles of 6 x 6 inputs, in strips one tile wide. It works on enough strips at a
 * time to make the products large, but not more than fit into the cache. */
typedef struct {
    size_t tile[2], count[2];   /* outputs of a tile along each direction, tiles of an image */
    size_t strips;              /* at a time */
    size_t margin, area;        /* most pixels at a time: of an image, including a margin; and of its result */
} dy_winograd;

static inline void dy_winograd_init(dy_winograd *t, const dy_window *s, size_t images) {
    enum { TILES = 84 };
    for (int i = 0; i < 2; i++) {
        t->tile[i] = 7 - s->size[i];
        t->count[i] = (s->out[i] + t->tile[i] - 1) / t->tile[i];
    }
    size_t all = images * t->count[1], rows = t->count[0] * t->tile[0];
    t->strips = t->count[0] < TILES ? TILES / t->count[0] : 1;
    if (t->strips > all) t->strips = all;
    size_t cols = (t->strips < t->count[1] ? t->strips : t->count[1]) * t->tile[1];
    t->margin = (rows + s->size[0] - 1) * (cols + s->size[1] - 1);
    t->area = rows * cols;
}

/* Whether Winograd's method is faster than a product with patches: compares the multiplications of both, plus those that
 * could be done during its transforms. */
static inline int dy_winograd_gains(const dy_window *s, size_t outputs, size_t images) {
    for (int i = 0; i < 2; i++)
        if (s->stride[i] != 1 || s->dilation[i] != 1 || s->size[i] < 2 || s->size[i] > 5 || !s->out[i] ||
            s->pad[i] >= s->size[i]) /* also where `dy_window_back` would be below 0: it is unsigned */
            return 0;
    dy_winograd t;
    dy_winograd_init(&t, s, images);
    double pairs = (double)s->channels * outputs, lanes = (s->channels + 7) / 8 * 8 + (outputs + 7) / 8 * 8;
    double patches = (double)dy_conv_patches(s) * outputs, tiles = (double)(t.count[0] * t.count[1]);
    return images * (patches - tiles * (36 * pairs + 300 * lanes)) > 400 * pairs;
}

/* The distance of the matrices of two points: not a multiple of 1 KiB, since all 36 would then compete for the same cache
 * lines. */
static inline size_t dy_apart(size_t n) { return n % 256 ? n : n + 16; }

/* Floats of working memory of a convolution and the gradient of its filter; `dy_conv_work_back`, of the gradient of its
 * input. */
static inline size_t dy_conv_work(const dy_window *s, size_t outputs, size_t images) {
    if (!dy_winograd_gains(s, outputs, images)) return dy_conv_patches(s);
    dy_winograd t;
    dy_winograd_init(&t, s, images);
    size_t in = (s->channels + 15) / 16 * 16, out = (outputs + 15) / 16 * 16, tiles = t.strips * t.count[0];
    return 36 * (in * out + tiles * (in + out) + 48) + t.margin * in + t.area * out;
}

static inline size_t dy_conv_work_back(const dy_window *s, size_t outputs, size_t images) {
    dy_window back = dy_window_back(s, outputs);
    return dy_winograd_gains(&back, s->channels, images) ? dy_conv_work(&back, s->channels, images) : dy_conv_patches(s);
}

#endif
