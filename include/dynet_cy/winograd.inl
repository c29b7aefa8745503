/* SPDX-License-Identifier: Apache-2.0
 *
 * Convolution of stride 1 by Winograd's minimal filtering (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural
 * Networks", 2016): a tile of 6 x 6 inputs and the filter are read as polynomials and evaluated at six points, where
 * convolution is a product of values; from these the outputs of the tile follow. With r filter rows a tile has 7 - r
 * rows of outputs, so one transform of the inputs serves filters of 2 to 5 rows and columns.
 *
 * All steps work on vectors of channels, so images are first laid out with the channels innermost ("channels last"),
 * padded by zeros to whole vectors. At each of the 36 points the tiles are the columns of a matrix of channels.
 *
 * The points are 0, +-3/4, +-3/2 and infinity: their powers are exact, and rounding errors are half of those with the
 * customary 0, +-1, +-2 and infinity (docs/kernels.md). Point p is number p % 6 of these along the rows of an image and
 * p / 6 along its columns. */

#define DY_A 0.75f
#define DY_B 1.5f
#define DY_AA (DY_A * DY_A)
#define DY_BB (DY_B * DY_B)
#define DY_POINTS 36

/* Transforms `count` lines of vectors: those of a line are `step` floats apart, lines `next`. */
#define DY_LINE_ARGUMENTS                                                                                              \
    size_t count, const float *x, ptrdiff_t step, ptrdiff_t next, float *y, size_t ystep, size_t ynext
typedef void (*DY_N(line_fn))(DY_LINE_ARGUMENTS);

/* Six inputs to six points. */
static void DY_N(winograd_inputs)(DY_LINE_ARGUMENTS) {
    for (; count--; x += next, y += ynext) {
        vf d[6];
        DY_UNROLL for (int i = 0; i < 6; i++) d[i] = ld(x + i * step);
        vf p = d[4] - C(DY_BB) * d[2], q = C(DY_A) * (d[3] - C(DY_BB) * d[1]);
        vf v = d[4] - C(DY_AA) * d[2], w = C(DY_B) * (d[3] - C(DY_AA) * d[1]);
        st(y, C(DY_AA * DY_BB) * d[0] - C(DY_AA + DY_BB) * d[2] + d[4]);
        st(y + ystep, p + q);
        st(y + 2 * ystep, p - q);
        st(y + 3 * ystep, v + w);
        st(y + 4 * ystep, v - w);
        st(y + 5 * ystep, C(DY_AA * DY_BB) * d[1] - C(DY_AA + DY_BB) * d[3] + d[5]);
    }
}

/* Values of a polynomial of N coefficients at the points. */
DY_INLINE void DY_N(winograd_evaluate)(const int N, DY_LINE_ARGUMENTS) {
    for (; count--; x += next, y += ynext) {
        vf d[6], p, q, v, w;
        DY_UNROLL for (int i = 0; i < N; i++) d[i] = ld(x + i * step);
        DY_UNROLL for (int i = N; i < 5; i++) d[i] = C(0.f);
        p = d[0] + C(DY_AA) * (d[2] + C(DY_AA) * d[4]);
        q = C(DY_A) * (d[1] + C(DY_AA) * d[3]);
        v = d[0] + C(DY_BB) * (d[2] + C(DY_BB) * d[4]);
        w = C(DY_B) * (d[1] + C(DY_BB) * d[3]);
        st(y, d[0]);
        st(y + ystep, p + q);
        st(y + 2 * ystep, p - q);
        st(y + 3 * ystep, v + w);
        st(y + 4 * ystep, v - w);
        st(y + 5 * ystep, d[N - 1]);
    }
}

/* The transpose of `evaluate`: N outputs from the points. */
DY_INLINE void DY_N(winograd_gather)(const int N, DY_LINE_ARGUMENTS) {
    for (; count--; x += next, y += ynext) {
        vf d[6], out[5];
        DY_UNROLL for (int i = 0; i < 6; i++) d[i] = ld(x + i * step);
        vf p = d[1] + d[2], q = C(DY_A) * (d[1] - d[2]), v = d[3] + d[4], w = C(DY_B) * (d[3] - d[4]);
        out[0] = d[0] + p + v;
        out[1] = q + w;
        out[2] = C(DY_AA) * p + C(DY_BB) * v;
        out[3] = C(DY_AA) * q + C(DY_BB) * w;
        out[4] = C(DY_AA * DY_AA) * p + C(DY_BB * DY_BB) * v;
        out[N - 1] += d[5];
        DY_UNROLL for (int i = 0; i < N; i++) st(y + i * ystep, out[i]);
    }
}

#define DY_LINES(name, N)                                                                                              \
    static void DY_N(winograd_##name##_##N)(DY_LINE_ARGUMENTS) {                                                       \
        DY_N(winograd_##name)(N, count, x, step, next, y, ystep, ynext);                                               \
    }
#define DY_LINES_OF(name)                                                                                              \
    DY_LINES(name, 2) DY_LINES(name, 3) DY_LINES(name, 4) DY_LINES(name, 5)                                            \
    static const DY_N(line_fn) DY_N(winograd_##name##_lines)[6] = {[2] = DY_N(winograd_##name##_2),                    \
        [3] = DY_N(winograd_##name##_3), [4] = DY_N(winograd_##name##_4), [5] = DY_N(winograd_##name##_5)};
DY_LINES_OF(evaluate)
DY_LINES_OF(gather)

/* A tile of vectors transformed along its rows, then along its columns: `cols` columns, of which the first function makes
 * `made` vectors each. Vectors are `step` floats apart along the rows, `next` along the columns. */
DY_INLINE void DY_N(winograd_tile)(DY_N(line_fn) first, DY_N(line_fn) second, size_t cols, size_t made, const float *x,
                                   ptrdiff_t step, ptrdiff_t next, float *y, size_t ystep, size_t ynext) {
    float between[DY_POINTS * DY_W];
    first(cols, x, step, next, between, DY_W, 6 * DY_W);
    second(made, between, 6 * DY_W, DY_W, y, ynext, ystep);
}

/* The weight of a point in Lagrange interpolation: 1 over the product of its differences from the other finite points, and
 * 1 for infinity. In two dimensions, the product of the weights along both axes. It is multiplied into the values of
 * filters, and of gradients of filters. */
DY_INLINE float DY_N(winograd_scale)(int point) {
    const float a = 1 / (2 * DY_AA * (DY_AA - DY_BB)), b = 1 / (2 * DY_BB * (DY_BB - DY_AA));
    const float scale[6] = {1 / (DY_AA * DY_BB), a, a, b, b, 1};
    return scale[point / 6] * scale[point % 6];
}

/* Copies `cols` columns of an image, from `first` on, and `rows` rows, to the layout with channels last. The image begins
 * pad[0] rows and pad[1] columns after the origin and ends before the last row; everything outside it is zero. */
static void DY_N(channels_last)(const float *x, const size_t in[2], size_t channels, const size_t pad[2], size_t first,
                                size_t cols, size_t rows, float *y) {
    size_t width = (channels + DY_W - 1) / DY_W * DY_W, behind = rows - pad[0] - in[0];
    for (size_t j = 0; j < cols; j++) {
        int inside = first + j >= pad[1] && first + j - pad[1] < in[1];
        DY_N(fill)((inside ? pad[0] : rows) * width, 0, y + j * rows * width);
        if (inside) DY_N(fill)(behind * width, 0, y + ((j + 1) * rows - behind) * width);
    }
    size_t low = first < pad[1] ? pad[1] - first : 0, high = in[1] + pad[1] - first < cols ? in[1] + pad[1] - first : cols;
    for (size_t c = 0; c < channels; c += DY_W)
        for (size_t j = low; j < high; j++)
            DY_N(to_lanes)(in[0], channels - c < DY_W ? channels - c : DY_W, x + (c * in[1] + first + j - pad[1]) * in[0],
                           in[0] * in[1], y + (j * rows + pad[0]) * width + c, width);
}

/* The filter at all points: matrices of `lanes` x `depth`, the lanes padded to whole vectors. Lanes and depth are output
 * and input channels, whose filters are `lane` and `deep` floats apart; `flip` turns the filter around. */
static void DY_N(winograd_filter)(const dy_window *s, size_t lanes, size_t lane, size_t depth, size_t deep, int flip,
                                  const float *filter, float *points) {
    size_t r = s->size[0], q = s->size[1], width = (lanes + DY_W - 1) / DY_W * DY_W, apart = dy_apart(width * depth);
    ptrdiff_t step = flip ? -DY_W : DY_W;
    for (size_t l = 0; l < lanes; l += DY_W)
        for (size_t d = 0; d < depth; d++) {
            float x[25 * DY_W], y[DY_POINTS * DY_W], *first = flip ? x + (r * q - 1) * DY_W : x;
            DY_N(to_lanes)(r * q, lanes - l < DY_W ? lanes - l : DY_W, filter + l * lane + d * deep, lane, x, DY_W);
            DY_N(winograd_tile)(DY_N(winograd_evaluate_lines)[r], DY_N(winograd_evaluate_lines)[q], q, 6, first, step,
                                (ptrdiff_t)r * step, y, DY_W, 6 * DY_W);
            for (int p = 0; p < DY_POINTS; p++)
                st(points + p * apart + d * width + l, C(DY_N(winograd_scale)(p)) * ld(y + p * DY_W));
        }
}

/* The data shared by the passes over all images. Columns of tiles are strips, numbered through all images. */
typedef struct {
    dy_winograd t;
    size_t in, out;              /* channels, padded to whole vectors */
    size_t in_apart, out_apart;  /* from point to point */
    size_t apart;                /* from point to point, of the matrices */
    float *matrices;             /* the filters, or the sums that become their gradient */
    float *image, *inputs, *outputs, *result;
} DY_N(winograd_work);

static void DY_N(winograd_divide)(DY_N(winograd_work) *k, const dy_window *s, size_t outputs, size_t images, int back,
                                  float *work) {
    dy_winograd_init(&k->t, s, images);
    size_t tiles = k->t.strips * k->t.count[0];
    k->in = (s->channels + DY_W - 1) / DY_W * DY_W;
    k->out = (outputs + DY_W - 1) / DY_W * DY_W;
    k->in_apart = dy_apart(tiles * k->in);
    k->out_apart = dy_apart(tiles * k->out);
    k->apart = dy_apart(back ? k->in * outputs : k->out * s->channels);
    k->matrices = work;
    k->image = k->matrices + DY_POINTS * k->apart;
    k->inputs = k->image + k->t.margin * k->in;
    k->outputs = k->inputs + DY_POINTS * k->in_apart;
    k->result = k->outputs + DY_POINTS * k->out_apart;
}

/* At most n strips from `at` on that belong to one image: returns how many, the image, and the first of its strips. */
DY_INLINE size_t DY_N(winograd_strips)(const dy_winograd *t, size_t at, size_t n, size_t *image, size_t *strip) {
    *image = at / t->count[1];
    *strip = at % t->count[1];
    return t->count[1] - *strip < n ? t->count[1] - *strip : n;
}

/* The tiles of n strips at all points. The sides of a tile are 6 for inputs, else those of its outputs. */
static void DY_N(winograd_read)(const dy_winograd *t, int inputs, const size_t in[2], size_t channels, const size_t pad[2],
                                const float *x, size_t at, size_t n, float *image, float *points, size_t apart) {
    size_t width = (channels + DY_W - 1) / DY_W * DY_W, side[2];
    DY_N(line_fn) lines[2];
    for (int i = 0; i < 2; i++) {
        side[i] = inputs ? 6 : t->tile[i];
        lines[i] = inputs ? DY_N(winograd_inputs) : DY_N(winograd_evaluate_lines)[side[i]];
    }
    size_t rows = (t->count[0] - 1) * t->tile[0] + side[0];
    for (size_t now, b, first; n; n -= now, at += now) {
        now = DY_N(winograd_strips)(t, at, n, &b, &first);
        DY_N(channels_last)(x + b * in[0] * in[1] * channels, in, channels, pad, first * t->tile[1],
                            (now - 1) * t->tile[1] + side[1], rows, image);
        for (size_t u = 0; u < now; u++)
            for (size_t v = 0; v < t->count[0]; v++, points += width)
                for (size_t c = 0; c < width; c += DY_W)
                    DY_N(winograd_tile)(lines[0], lines[1], side[1], 6,
                                        image + (u * t->tile[1] * rows + v * t->tile[0]) * width + c, width, rows * width,
                                        points + c, apart, 6 * apart);
    }
}

/* The outputs of n strips from their values at all points. */
static void DY_N(winograd_write)(const DY_N(winograd_work) *k, const dy_window *s, size_t outputs, const float *bias, float *y,
                                 size_t at, size_t n, int acc) {
    const dy_winograd *t = &k->t;
    const float *points = k->outputs;
    size_t rows = t->count[0] * t->tile[0];
    for (size_t now, b, first; n; n -= now, at += now) {
        now = DY_N(winograd_strips)(t, at, n, &b, &first);
        for (size_t u = 0; u < now; u++)
            for (size_t v = 0; v < t->count[0]; v++, points += k->out)
                for (size_t c = 0; c < k->out; c += DY_W)
                    DY_N(winograd_tile)(DY_N(winograd_gather_lines)[t->tile[0]], DY_N(winograd_gather_lines)[t->tile[1]], 6,
                                        t->tile[0], points + c, k->out_apart, 6 * k->out_apart,
                                        k->result + (u * t->tile[1] * rows + v * t->tile[0]) * k->out + c, k->out,
                                        rows * k->out);
        first *= t->tile[1];
        size_t cols = now * t->tile[1] < s->out[1] - first ? now * t->tile[1] : s->out[1] - first;
        for (size_t c = 0; c < outputs; c += DY_W)
            for (size_t j = 0; j < cols; j++)
                DY_N(from_lanes)(s->out[0], outputs - c < DY_W ? outputs - c : DY_W, k->result + j * rows * k->out + c, k->out,
                                 bias ? bias + c : NULL, y + ((b * outputs + c) * s->out[1] + first + j) * s->out[0],
                                 s->out[0] * s->out[1], acc);
    }
}

/* y = x * filter + bias, or adds it. `work` begins with the filter at all points. */
static void DY_N(winograd)(const dy_window *s, size_t outputs, size_t images, const float *x, const float *bias, float *work,
                           float *y, int acc) {
    DY_N(winograd_work) k;
    DY_N(winograd_divide)(&k, s, outputs, images, 0, work);
    size_t strips = images * k.t.count[1];
    for (size_t at = 0, n; at < strips; at += n) {
        n = strips - at < k.t.strips ? strips - at : k.t.strips;
        DY_N(winograd_read)(&k.t, 1, s->in, s->channels, s->pad, x, at, n, k.image, k.inputs, k.in_apart);
        for (size_t p = 0; p < DY_POINTS; p++)
            DY_N(sgemm)(0, 0, k.out, n * k.t.count[0], s->channels, 1, k.matrices + p * k.apart, k.out,
                        k.inputs + p * k.in_apart, k.in, 0, k.outputs + p * k.out_apart, k.out);
        DY_N(winograd_write)(&k, s, outputs, bias, y, at, n, acc);
    }
}

/* Gradient of the filter: at each point a product over all tiles. */
static void DY_N(winograd_bwd_filter)(const dy_window *s, size_t outputs, size_t images, const float *x, const float *dy,
                                      float *work, float *dfilter, int acc) {
    DY_N(winograd_work) k;
    const size_t none[2] = {0, 0};
    DY_N(winograd_divide)(&k, s, outputs, images, 1, work);
    size_t strips = images * k.t.count[1], area = s->size[0] * s->size[1];
    for (size_t at = 0, n; at < strips; at += n) {
        n = strips - at < k.t.strips ? strips - at : k.t.strips;
        DY_N(winograd_read)(&k.t, 1, s->in, s->channels, s->pad, x, at, n, k.image, k.inputs, k.in_apart);
        DY_N(winograd_read)(&k.t, 0, s->out, outputs, none, dy, at, n, k.result, k.outputs, k.out_apart);
        for (size_t p = 0; p < DY_POINTS; p++)
            DY_N(sgemm)(0, 1, k.in, outputs, n * k.t.count[0], 1, k.inputs + p * k.in_apart, k.in,
                        k.outputs + p * k.out_apart, k.out, at > 0, k.matrices + p * k.apart, k.in);
    }
    for (size_t o = 0; o < outputs; o++)
        for (size_t c = 0; c < s->channels; c += DY_W) {
            float sum[DY_POINTS * DY_W], df[25 * DY_W];
            for (int p = 0; p < DY_POINTS; p++)
                st(sum + p * DY_W, C(DY_N(winograd_scale)(p)) * ld(k.matrices + p * k.apart + o * k.in + c));
            DY_N(winograd_tile)(DY_N(winograd_gather_lines)[s->size[0]], DY_N(winograd_gather_lines)[s->size[1]], 6, s->size[0],
                                sum, DY_W, 6 * DY_W, df, DY_W, s->size[0] * DY_W);
            DY_N(from_lanes)(area, s->channels - c < DY_W ? s->channels - c : DY_W, df, DY_W, NULL,
                             dfilter + (o * s->channels + c) * area, area, acc);
        }
}

#undef DY_A
#undef DY_B
#undef DY_AA
#undef DY_BB
#undef DY_POINTS
#undef DY_LINE_ARGUMENTS
#undef DY_LINES
#undef DY_LINES_OF
