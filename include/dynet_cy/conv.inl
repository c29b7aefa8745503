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

/* Runs the statements for every input element v under a row of outputs, with the number t of its output; those of one
 * output come in the order of the window. They stand at p[t * step]; with a literal step the compiler sees how. */
#define DY_POOL_ROW(step, ...)                                                 \
    for (size_t t = low; t < high; t++) {                                      \
        float v = x[at + (t - low) * (step)];                                  \
        __VA_ARGS__                                                            \
    }
#define DY_POOL(...)                                                           \
    for (size_t j = 0; j < s->size[1]; j++) {                                  \
        size_t column = q * s->stride[1] + j - s->pad[1];                      \
        if (column >= s->in[1]) continue; /* also below 0: it is unsigned */   \
        for (size_t i = 0; i < s->size[0]; i++) {                              \
            size_t low, high, step = s->stride[0];                             \
            DY_N(inside)(s, 0, i, &low, &high);                                \
            size_t at = column * s->in[0] + low * step + i - s->pad[0];        \
            if (step == 1) DY_POOL_ROW(1, __VA_ARGS__)                         \
            else if (step == 2) DY_POOL_ROW(2, __VA_ARGS__)                    \
            else DY_POOL_ROW(step, __VA_ARGS__)                                \
        }                                                                      \
    }

/* The largest input of each window in a column of outputs; NaN if there is one. */
DY_INLINE void DY_N(maxpool_column)(const dy_window *s, size_t q, const float *x, float *restrict y) {
    DY_N(fill)(s->out[0], -INFINITY, y);
    DY_POOL(y[t] = v > y[t] || v != v ? v : y[t];)
}

static void DY_N(maxpool2d)(const dy_window *s, const float *x, float *y) {
    for (size_t ch = 0; ch < s->channels; ch++, x += s->in[0] * s->in[1])
        for (size_t q = 0; q < s->out[1]; q++, y += s->out[0]) DY_N(maxpool_column)(s, q, x, y);
}

/* The gradient goes to the first of the largest. `work` holds 2 s->out[0] floats. */
static void DY_N(maxpool2d_bwd)(const dy_window *s, const float *x, const float *dy, float *work, float *dx, int acc) {
    float *restrict best = work, *restrict left = work + s->out[0];
    if (!acc) DY_N(fill)(s->in[0] * s->in[1] * s->channels, 0, dx);
    for (size_t ch = 0; ch < s->channels; ch++, x += s->in[0] * s->in[1], dx += s->in[0] * s->in[1])
        for (size_t q = 0; q < s->out[1]; q++, dy += s->out[0]) {
            DY_N(maxpool_column)(s, q, x, best);
            memcpy(left, dy, s->out[0] * sizeof *dy);
            DY_POOL(
                int32_t hit = -((v == best[t]) | (v != v)), g, rest; /* masks: a branch would be mispredicted */
                float add;
                memcpy(&g, left + t, sizeof g);
                rest = g & ~hit;
                g &= hit;
                memcpy(&add, &g, sizeof g);
                memcpy(left + t, &rest, sizeof g);
                dx[at + (t - low) * step] += add;
            )
        }
}
#undef DY_POOL
#undef DY_POOL_ROW
