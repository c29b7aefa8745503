/* SPDX-License-Identifier: Apache-2.0
 *
 * Two-dimensional cross-correlation as a product with a matrix of patches, and max pooling. */

/* Output positions [low, high) along direction d whose input at filter offset f lies in the image. */
static void DY_N(inside)(const dy_window *s, int d, size_t f, size_t *low, size_t *high) {
    size_t stride = s->stride[d], pad = s->pad[d], end = s->in[d] + pad;
    *low = f < pad ? (pad - f + stride - 1) / stride : 0;
    *high = f < end ? (end - f + stride - 1) / stride : 0;
    if (*high > s->out[d]) *high = s->out[d];
    if (*low > *high) *low = *high;
}

/* The patch matrix has a row per output position and a column per (filter row, filter column, channel). Fills it from
 * the image, or when `back` is set, adds it to the image. */
DY_INLINE void DY_N(patches)(const int back, const dy_window *s, float *image, float *work) {
    size_t low[2], high[2], step = s->stride[0];
    for (size_t ch = 0; ch < s->channels; ch++, image += s->in[0] * s->in[1])
        for (size_t j = 0; j < s->size[1]; j++)
            for (size_t i = 0; i < s->size[0]; i++) {
                DY_N(inside)(s, 0, i, &low[0], &high[0]);
                DY_N(inside)(s, 1, j, &low[1], &high[1]);
                for (size_t o = 0; o < s->out[1]; o++, work += s->out[0]) {
                    size_t n = o < low[1] || o >= high[1] ? 0 : high[0] - low[0], t;
                    if (!back) {
                        memset(work, 0, low[0] * sizeof *work);
                        memset(work + low[0] + n, 0, (s->out[0] - low[0] - n) * sizeof *work);
                    }
                    if (!n) continue;
                    float *x = image + (o * s->stride[1] + j - s->pad[1]) * s->in[0] + (low[0] * step + i - s->pad[0]);
                    float *w = work + low[0];
                    if (back && step == 1) DY_N(add)(n, w, x);
                    else if (back) for (t = 0; t < n; t++) x[t * step] += w[t];
                    else if (step == 1) memcpy(w, x, n * sizeof *w);
                    else for (t = 0; t < n; t++) w[t] = x[t * step];
                }
            }
}

static void DY_N(conv2d)(const dy_window *s, size_t out_channels, const float *x, const float *filter, float *work, float *y) {
    size_t rows = s->out[0] * s->out[1], inner = s->size[0] * s->size[1] * s->channels;
    DY_N(patches)(0, s, (float *)x, work);
    DY_N(sgemm)(0, 0, rows, out_channels, inner, 1, work, rows, filter, inner, 0, y, rows);
}

static void DY_N(conv2d_bwd_x)(const dy_window *s, size_t out_channels, const float *filter, const float *dy, float *work,
                               float *dx, int acc) {
    size_t rows = s->out[0] * s->out[1], inner = s->size[0] * s->size[1] * s->channels;
    if (!acc) DY_N(fill)(s->in[0] * s->in[1] * s->channels, 0, dx);
    DY_N(sgemm)(0, 1, rows, inner, out_channels, 1, dy, rows, filter, inner, 0, work, rows);
    DY_N(patches)(1, s, dx, work);
}

static void DY_N(conv2d_bwd_filter)(const dy_window *s, size_t out_channels, const float *x, const float *dy, float *work,
                                    float *dfilter, int acc) {
    size_t rows = s->out[0] * s->out[1], inner = s->size[0] * s->size[1] * s->channels;
    DY_N(patches)(0, s, (float *)x, work);
    DY_N(sgemm)(1, 0, inner, out_channels, rows, 1, work, rows, dy, rows, acc ? 1 : 0, dfilter, inner);
}

/* Input range [low, high) along d under output position o. */
DY_INLINE void DY_N(under)(const dy_window *s, int d, size_t o, size_t *low, size_t *high) {
    size_t start = o * s->stride[d], pad = s->pad[d];
    *low = start > pad ? start - pad : 0;
    *high = start + s->size[d] - pad;
    if (*high > s->in[d]) *high = s->in[d];
}

/* Runs the statements for every output element with `best`, the first largest input (or a NaN) of its window. */
#define DY_POOL(...)                                                           \
    for (size_t ch = 0; ch < s->channels; ch++, x += s->in[0] * s->in[1])      \
        for (size_t q = 0; q < s->out[1]; q++)                                 \
            for (size_t p = 0; p < s->out[0]; p++) {                           \
                size_t low[2], high[2], best;                                  \
                DY_N(under)(s, 0, p, &low[0], &high[0]);                       \
                DY_N(under)(s, 1, q, &low[1], &high[1]);                       \
                best = low[1] * s->in[0] + low[0];                             \
                for (size_t j = low[1]; j < high[1]; j++)                      \
                    for (size_t i = low[0]; i < high[0]; i++) {                \
                        float v = x[j * s->in[0] + i];                         \
                        if (v > x[best] || v != v) best = j * s->in[0] + i;    \
                    }                                                          \
                __VA_ARGS__                                                    \
            }

static void DY_N(maxpool2d)(const dy_window *s, const float *x, float *y) { DY_POOL(*y++ = x[best];) }

static void DY_N(maxpool2d_bwd)(const dy_window *s, const float *x, const float *dy, float *dx, int acc) {
    if (!acc) DY_N(fill)(s->in[0] * s->in[1] * s->channels, 0, dx);
    DY_POOL(dx[ch * s->in[0] * s->in[1] + best] += *dy++;)
}
#undef DY_POOL
