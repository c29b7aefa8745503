/* SPDX-License-Identifier: Apache-2.0
 *
 * Two-dimensional cross-correlation as a product with a matrix of patches, where winograd.inl is not faster, and max
 * pooling. */

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
                size_t row = i * s->dilation[0], column = j * s->dilation[1];
                DY_N(inside)(s, 0, row, &low[0], &high[0]);
                DY_N(inside)(s, 1, column, &low[1], &high[1]);
                for (size_t o = 0; o < s->out[1]; o++, work += s->out[0]) {
                    size_t n = o < low[1] || o >= high[1] ? 0 : high[0] - low[0], t;
                    if (!back) {
                        memset(work, 0, low[0] * sizeof *work);
                        memset(work + low[0] + n, 0, (s->out[0] - low[0] - n) * sizeof *work);
                    }
                    if (!n) continue;
                    float *x = image + (o * s->stride[1] + column - s->pad[1]) * s->in[0] + (low[0] * step + row - s->pad[0]);
                    float *w = work + low[0];
                    if (back && step == 1) DY_N(add)(n, w, x);
                    else if (back) for (t = 0; t < n; t++) x[t * step] += w[t];
                    else if (step == 1) memcpy(w, x, n * sizeof *w);
                    else for (t = 0; t < n; t++) w[t] = x[t * step];
                }
            }
}

static void DY_N(conv2d)(const dy_window *s, size_t outputs, size_t images, const float *x, const float *filter,
                         const float *bias, float *work, float *y) {
    size_t rows = s->out[0] * s->out[1], inner = s->size[0] * s->size[1] * s->channels;
    if (dy_winograd_gains(s, outputs, images)) {
        DY_N(winograd_filter)(s, outputs, inner, s->channels, s->size[0] * s->size[1], 0, filter, work);
        DY_N(winograd)(s, outputs, images, x, bias, work, y, 0);
        return;
    }
    for (; images--; x += s->in[0] * s->in[1] * s->channels) {
        DY_N(patches)(0, s, (float *)x, work);
        DY_N(sgemm)(0, 0, rows, outputs, inner, 1, work, rows, filter, inner, 0, y, rows);
        for (size_t o = 0; o < outputs; o++, y += rows)
            if (bias) DY_N(unary_fwd_shift)(rows, y, bias[o], 0, y);
    }
}

static void DY_N(conv2d_bwd_x)(const dy_window *s, size_t outputs, size_t images, const float *filter, const float *dy,
                               float *work, float *dx, int acc) {
    size_t rows = s->out[0] * s->out[1], area = s->size[0] * s->size[1], inner = area * s->channels;
    size_t image = s->in[0] * s->in[1] * s->channels;
    dy_window back = dy_window_back(s, outputs);
    if (dy_winograd_gains(&back, s->channels, images)) {
        DY_N(winograd_filter)(s, s->channels, area, outputs, inner, 1, filter, work);
        DY_N(winograd)(&back, s->channels, images, dy, NULL, work, dx, acc);
        return;
    }
    for (; images--; dx += image, dy += rows * outputs) {
        if (!acc) DY_N(fill)(image, 0, dx);
        DY_N(sgemm)(0, 1, rows, inner, outputs, 1, dy, rows, filter, inner, 0, work, rows);
        DY_N(patches)(1, s, dx, work);
    }
}

static void DY_N(conv2d_bwd_filter)(const dy_window *s, size_t outputs, size_t images, const float *x, const float *dy,
                                    float *work, float *dfilter, int acc) {
    size_t rows = s->out[0] * s->out[1], inner = s->size[0] * s->size[1] * s->channels;
    if (dy_winograd_gains(s, outputs, images)) {
        DY_N(winograd_bwd_filter)(s, outputs, images, x, dy, work, dfilter, acc);
        return;
    }
    for (; images--; x += s->in[0] * s->in[1] * s->channels, dy += rows * outputs, acc = 1) {
        DY_N(patches)(0, s, (float *)x, work);
        DY_N(sgemm)(1, 0, inner, outputs, rows, 1, work, rows, dy, rows, acc ? 1 : 0, dfilter, inner);
    }
}

/* Runs the statements for every input element v under a row of outputs, with the number t of its output, in the order of
 * the window for each output. The elements are at p[t * step]; a literal step lets the compiler vectorize. */
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
static void DY_N(maxpool_columns)(const dy_window *s, const float *x, float *restrict y) {
    for (size_t q = 0; q < s->out[1]; q++, y += s->out[0]) {
        DY_N(fill)(s->out[0], -INFINITY, y);
        DY_POOL(y[t] = v > y[t] || v != v ? v : y[t];)
    }
}

/* The gradient goes to the first of the largest inputs. */
static void DY_N(maxpool_columns_bwd)(const dy_window *s, const float *x, const float *y, const float *dy,
                                      float *restrict left, float *restrict dx) {
    for (size_t q = 0; q < s->out[1]; q++, y += s->out[0], dy += s->out[0]) {
        memcpy(left, dy, s->out[0] * sizeof *dy);
        DY_POOL(
            int32_t hit = -((v == y[t]) | (v != v)), g, rest; /* masks: a branch would be mispredicted */
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

/* Whether windows are the usual ones: 2 x 2, adjacent, and inside the image. */
static int DY_N(pool_halves)(const dy_window *s) {
    for (int i = 0; i < 2; i++)
        if (s->size[i] != 2 || s->stride[i] != 2 || 2 * s->out[i] > s->in[i]) return 0;
    return 1;
}

/* The first and the second numbers of n pairs, n up to DY_W, and back. */
DY_INLINE void DY_N(ld_pairs)(const float *p, size_t n, vf *first, vf *second) {
    vf high = C(0.f);
    if (2 * n > DY_W) high = n == DY_W ? ld(p + DY_W) : ld_n(p + DY_W, 2 * n - DY_W);
    DY_N(unzip)(2 * n >= DY_W ? ld(p) : ld_n(p, 2 * n), high, first, second);
}
DY_INLINE void DY_N(st_pairs)(float *p, size_t n, vf first, vf second, int acc) {
    vf low, high;
    if (acc) {
        vf a, b;
        DY_N(ld_pairs)(p, n, &a, &b);
        first += a;
        second += b;
    }
    DY_N(zip)(first, second, &low, &high);
    if (2 * n >= DY_W) st(p, low);
    else st_n(p, low, 2 * n);
    if (n == DY_W) st(p + DY_W, high);
    else if (2 * n > DY_W) st_n(p + DY_W, high, 2 * n - DY_W);
}

static void DY_N(maxpool_halves)(const dy_window *s, const float *x, float *y) {
    size_t n = s->out[0], rows = s->in[0];
    for (size_t q = 0; q < s->out[1]; q++, x += 2 * rows, y += n)
        DY_EACH(
            size_t pairs = whole ? DY_W : n - i;
            vf a, b, c, d;
            DY_N(ld_pairs)(x + 2 * i, pairs, &a, &b);
            DY_N(ld_pairs)(x + 2 * i + rows, pairs, &c, &d);
            b = SEL((b > a) | (b != b), b, a);
            d = SEL((d > c) | (d != d), d, c);
            S(y, SEL((d > b) | (d != d), d, b));
        );
}

static void DY_N(maxpool_halves_bwd)(const dy_window *s, const float *x, const float *y, const float *dy, float *dx, int acc) {
    size_t n = s->out[0], rows = s->in[0];
    for (size_t q = 0; q < s->out[1]; q++, x += 2 * rows, dx += 2 * rows, y += n, dy += n) {
        DY_EACH(
            size_t pairs = whole ? DY_W : n - i;
            vf a, b, c, d, best = L(y), left = L(dy), zero = C(0.f);
            DY_N(ld_pairs)(x + 2 * i, pairs, &a, &b);
            DY_N(ld_pairs)(x + 2 * i + rows, pairs, &c, &d);
            vi hit = (a == best) | (a != a);
            a = SEL(hit, left, zero);
            left = SEL(hit, zero, left);
            hit = (b == best) | (b != b);
            b = SEL(hit, left, zero);
            left = SEL(hit, zero, left);
            hit = (c == best) | (c != c);
            c = SEL(hit, left, zero);
            left = SEL(hit, zero, left); /* what remains belongs to the last one */
            DY_N(st_pairs)(dx + 2 * i, pairs, a, b, acc);
            DY_N(st_pairs)(dx + 2 * i + rows, pairs, c, left, acc);
        );
        if (!acc && 2 * n < rows) dx[rows - 1] = dx[2 * rows - 1] = 0; /* the last row and column are in no window */
    }
    if (!acc && 2 * s->out[1] < s->in[1]) DY_N(fill)(rows, 0, dx);
}

static void DY_N(maxpool2d)(const dy_window *s, const float *x, float *y) {
    int halves = DY_N(pool_halves)(s);
    for (size_t ch = 0; ch < s->channels; ch++, x += s->in[0] * s->in[1], y += s->out[0] * s->out[1])
        if (halves) DY_N(maxpool_halves)(s, x, y);
        else DY_N(maxpool_columns)(s, x, y);
}

/* `work` holds s->out[0] floats. */
static void DY_N(maxpool2d_bwd)(const dy_window *s, const float *x, const float *y, const float *dy, float *work, float *dx,
                                int acc) {
    size_t in = s->in[0] * s->in[1], out = s->out[0] * s->out[1];
    int halves = DY_N(pool_halves)(s);
    if (!acc && !halves) DY_N(fill)(in * s->channels, 0, dx);
    for (size_t ch = 0; ch < s->channels; ch++, x += in, dx += in, y += out, dy += out)
        if (halves) DY_N(maxpool_halves_bwd)(s, x, y, dy, dx, acc);
        else DY_N(maxpool_columns_bwd)(s, x, y, dy, work, dx);
}
