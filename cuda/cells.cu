// SPDX-License-Identifier: Apache-2.0
//
// The elementwise parts of recurrent cells. Of an LSTM: gates i, f, o, g; c = f c' + i g; h = o tanh(c). Also weight noise,
// dropout masks for parts of an input, and the steps of GRUs and Tree-LSTMs. A stride is 0 if the argument has batch size
// 1; its gradient is then the sum over the batch.
#include "dynet_cy/gpu_group.h"
#include "lstm_cell.cuh"
#include "rng.cuh"

/** op vanilla_lstm_gates(bias): step = SUMS, saved = NULL
 *  op vanilla_lstm_gates_projected(bias): step = SUMS, saved = NULL
 *  op vanilla_lstm_gates_noise(bias) draws: step = 0, saved = squares_saved
 *  set step = {step}
 *  set sums = gates_sums
 *  set same = same_as_sum
 *  set saved = {saved}
 *  set assigns = True
 *  uses linalg
 *  n = rows_of(&c.y.dim)
 *  h = n // 4
 *  forward:
 *      nothing if n == 0
 *      s = c.attrs[0].f
 *      first gates_sums(gpu, c)
 *      first squares_of_inputs(gpu, c)
 *      first add_weight_noise(norms = c.saved): each(batch * n) if s != 0
 *      lstm_gates_forward: each(batch * n)
 *  begin_backward:
 *      gates_backward(n = batch * n, rows = n, begin = 3 * h, squashed = h, dsums = c.work): each(batch * n)
 *  backward:
 *      first gates_backward(c, i)
 *      return noise_backward(gpu, c, i) if i and i % 2 == 0 and c.attrs[0].f != 0
 *      return gpu.error */
// y = act(sums + bias), in place: the first three blocks are logistic (with 1 added for f), the last is tanh.
extern "C" __global__ void lstm_gates_forward(size_t batch, unsigned h, const float *__restrict__ bias, size_t stride_bias,
                                              float *y) {
    size_t n = 4 * (size_t)h;
    for (EACH(i, batch * n)) {
        size_t e = i / n;
        unsigned j = (unsigned)(i - e * n), part = j / h;
        float sum = y[i] + bias[e * stride_bias + j];
        y[i] = part == 3 ? tanhf(sum) : LOGISTIC(part == 1 ? sum + 1.f : sum);
    }
}

// In place, for each column of `rows` sums: tanh for `squashed` rows from row `begin` on, logistic for all others.
extern "C" __global__ void gates_forward(size_t n, size_t rows, size_t begin, size_t squashed, float *y) {
    for (EACH(i, n)) y[i] = i % rows - begin < squashed ? tanhf(y[i]) : LOGISTIC(y[i]);  // unsigned
}

// The gradient of the sums, perhaps in place of that of the gates.
extern "C" __global__ void gates_backward(size_t n, size_t rows, size_t begin, size_t squashed, const float *__restrict__ y,
                                          const float *dy, float *dsums) {
    for (EACH(i, n)) dsums[i] = dy[i] * (i % rows - begin < squashed ? 1.f - y[i] * y[i] : y[i] * (1.f - y[i]));
}

// norms_b = |x_b|^2, or += that.
extern "C" __global__ void add_squares(size_t batch, size_t n, const float *__restrict__ x, size_t bstride, float *norms,
                                       int acc) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        float total = 0.f;
        for (LANES(i, n)) total += x[b * bstride + i] * x[b * bstride + i];
        total = block_sum(total, part);
        if (threadIdx.x == 0) store(norms + b, acc, total);
    }
}

// Add the effect of noise with standard deviation s on all weights and the bias: s |(x, 1)| z. norms_b = |x_b|^2.
extern "C" __global__ void add_weight_noise(size_t batch, size_t n, const uint64_t *__restrict__ seeds,
                                            const uint32_t *__restrict__ items, float s, const float *__restrict__ norms,
                                            float *y) {
    for (EACH_OF(i, b, j, batch, n)) y[i] += s * sqrtf(1.f + norms[b]) * draw_normal(seeds, items, b, j, 0.f, 1.f);
}

// The gradient of x_b through the standard deviation of the noise is slopes_b x_b.
extern "C" __global__ void weight_noise_slopes(size_t batch, size_t n, const uint64_t *__restrict__ seeds,
                                               const uint32_t *__restrict__ items, float s,
                                               const float *__restrict__ norms, const float *__restrict__ dsums,
                                               float *slopes) {
    __shared__ float part[32];
    for (ROWS(b, batch)) {
        float total = 0.f;
        for (LANES(i, n)) total += dsums[b * n + i] * draw_normal(seeds, items, b, i, 0.f, 1.f);
        total = block_sum(total, part);
        if (threadIdx.x == 0) slopes[b] = s * total / sqrtf(1.f + norms[b]);
    }
}

// ---- whole cells ------------------------------------------------------------------
// All elementwise steps of LSTM cells with h numbers, one for each line of the table. gpu/cells lists them; the lines of
// few cells are passed by value.
template <class Cell> static __device__ __forceinline__ void run_cells(size_t n, size_t h, const Cell *cells) {
    for (EACH(k, n)) lstm_alone(cells[k / h], h, k - k / h * h);
}

#define CELLS(direction, cell) \
    extern "C" __global__ void lstm_cell_##direction(size_t n, size_t h, const cell *__restrict__ cells) { \
        run_cells(n, h, cells); \
    } \
    extern "C" __global__ void few_lstm_cells_##direction(size_t n, size_t h, const __grid_constant__ dy_group cells) { \
        run_cells(n, h, reinterpret_cast<const cell *>(cells.words)); \
    }

CELLS(forward, dy_lstm_cell)
CELLS(backward, dy_lstm_cell_back)

// ---- masks of a part -------------------------------------------------------------

/** op dropout_mask(x, whole_mask)
 *  n = rows_of(&c.y.dim)
 *  offset = c.attrs[0].i
 *  forward:
 *      part_masked(mask = c.x[1].v + offset, stride_mask = c.x[1].bstride): each(batch * n)
 *  backward:
 *      other = c.x[1 - i].v + (0 if i else offset)
 *      dx = c.dx.v + (offset if i else 0)
 *      dx_stride = size_of(&c.dx.dim)
 *      part_masked_backward: each(elements * n) */
// y = x mask, where `mask` points to the part of the mask for x.
extern "C" __global__ void part_masked(size_t batch, size_t n, const float *__restrict__ x, size_t stride_x,
                                       const float *__restrict__ mask, size_t stride_mask, float *y) {
    for (EACH_OF(i, b, j, batch, n)) y[i] = x[b * stride_x + j] * mask[b * stride_mask + j];
}

// dx += dy other. dx has `elements` batch elements, dx_stride floats apart: as many as dy, or one for the sum over the
// batch.
extern "C" __global__ void part_masked_backward(size_t batch, size_t n, const float *__restrict__ other, size_t stride_other,
                                                const float *__restrict__ dy, size_t elements, float *dx,
                                                size_t dx_stride) {
    size_t uses = batch / elements;
    for (EACH_OF(i, e, j, elements, n)) {
        float total = dx[e * dx_stride + j];
        for (size_t b = e * uses; b < (e + 1) * uses; b++) total += dy[b * n + j] * other[b * stride_other + j];
        dx[e * dx_stride + j] = total;
    }
}

// ---- cell and output ---------------------------------------------------------------

/** op vanilla_lstm_c(before, gates)
 *  set step = STATE
 *  h = rows_of(&c.y.dim)
 *  forward:
 *      lstm_c_forward: each(batch * h)
 *  backward:
 *      f = c.x[1].v + h
 *      forgotten_backward(stride_f = c.x[1].bstride): each(elements * h) if i == 0
 *      lstm_c_backward_gates: each(elements * h) */
extern "C" __global__ void lstm_c_forward(size_t batch, size_t h, const float *__restrict__ before, size_t stride_before,
                                          const float *__restrict__ gates, size_t stride_gates, float *y) {
    for (EACH_OF(k, b, j, batch, h)) {
        const float *g = gates + b * stride_gates + j;
        y[k] = g[h] * before[b * stride_before + j] + g[0] * g[3 * h];
    }
}

// The gradient of a state that gates f forget: dx = dy f.
extern "C" __global__ void forgotten_backward(size_t batch, size_t h, const float *__restrict__ f, size_t stride_f,
                                              const float *__restrict__ dy, size_t elements, float *dx, int acc) {
    sum_slopes(batch, h, elements, dx, acc, [=](size_t b, size_t j) { return dy[b * h + j] * f[b * stride_f + j]; });
}

extern "C" __global__ void lstm_c_backward_gates(size_t batch, size_t h, const float *__restrict__ before,
                                                 size_t stride_before, const float *__restrict__ gates, size_t stride_gates,
                                                 const float *__restrict__ dy, size_t elements, float *dx, int acc) {
    size_t uses = batch / elements;
    for (EACH_OF(k, e, j, elements, h)) {
        float di = 0.f, df = 0.f, dg = 0.f, *to = dx + e * 4 * h + j;
        for (size_t b = e * uses; b < (e + 1) * uses; b++) {
            const float *g = gates + b * stride_gates + j;
            float d = dy[b * h + j];
            di += d * g[3 * h];
            df += d * before[b * stride_before + j];
            dg += d * g[0];
        }
        store(to, acc, di);
        store(to + h, acc, df);
        if (!acc) to[2 * h] = 0.f;
        store(to + 3 * h, acc, dg);
    }
}

/** op vanilla_lstm_h(c, gates): block = 2
 *  set step = OUTPUT
 *  h = rows_of(&c.y.dim)
 *  at = {block} * h
 *  o = c.x[1].v + at
 *  stride_o = c.x[1].bstride
 *  rows = rows_of(&c.x[1].dim)
 *  forward:
 *      lstm_h_forward: each(batch * h)
 *  backward:
 *      lstm_h_backward_c: each(elements * h) if i == 0
 *      lstm_h_backward_gates: each(elements * rows) */
/** op tree_lstm_h(c, gates): block = 1
 *  h = rows_of(&c.y.dim)
 *  at = {block} * h
 *  o = c.x[1].v + at
 *  stride_o = c.x[1].bstride
 *  rows = rows_of(&c.x[1].dim)
 *  forward:
 *      lstm_h_forward: each(batch * h)
 *  backward:
 *      lstm_h_backward_c: each(elements * h) if i == 0
 *      lstm_h_backward_gates: each(elements * rows)
 *  saved: 0 */
// `o` points to the gate o. In the gradient of the gates, which has `rows` rows, it begins at row `at`.
extern "C" __global__ void lstm_h_forward(size_t batch, size_t h, const float *__restrict__ c, size_t stride_c,
                                          const float *__restrict__ o, size_t stride_o, float *y) {
    for (EACH_OF(k, b, j, batch, h)) y[k] = o[b * stride_o + j] * tanhf(c[b * stride_c + j]);
}

extern "C" __global__ void lstm_h_backward_c(size_t batch, size_t h, const float *__restrict__ c, size_t stride_c,
                                             const float *__restrict__ o, size_t stride_o,
                                             const float *__restrict__ dy, size_t elements, float *dx, int acc) {
    sum_slopes(batch, h, elements, dx, acc, [=](size_t b, size_t j) {
        float t = tanhf(c[b * stride_c + j]);
        return dy[b * h + j] * o[b * stride_o + j] * (1.f - t * t);
    });
}

extern "C" __global__ void lstm_h_backward_gates(size_t batch, size_t h, size_t rows, size_t at,
                                                 const float *__restrict__ c, size_t stride_c,
                                                 const float *__restrict__ dy, size_t elements, float *dx, int acc) {
    size_t uses = batch / elements;
    for (EACH(i, elements * rows)) {
        size_t e = i / rows, j = i - e * rows - at;
        float total = 0.f;
        if (j >= h) {  // also rows before `at`, since j is unsigned
            if (!acc) dx[i] = 0.f;
            continue;
        }
        for (size_t b = e * uses; b < (e + 1) * uses; b++) total += dy[b * h + j] * tanhf(c[b * stride_c + j]);
        store(dx + i, acc, total);
    }
}

// ---- GRUs and Tree-LSTMs -----------------------------------------------------------

/** op gru_h(h, z, g)
 *  n = size_of(&c.y.dim)
 *  forward:
 *      gru_h_forward: each(batch * n)
 *  backward:
 *      gru_h_backward(argument = i): each(elements * n) */
// y = h + z (g - h).
extern "C" __global__ void gru_h_forward(size_t batch, size_t n, const float *__restrict__ hs, size_t stride_h,
                                         const float *__restrict__ zs, size_t stride_z, const float *__restrict__ gs,
                                         size_t stride_g, float *y) {
    for (EACH_OF(i, b, j, batch, n)) {
        float h = hs[b * stride_h + j];
        y[i] = h + zs[b * stride_z + j] * (gs[b * stride_g + j] - h);
    }
}

// The gradient of h, z or g: argument 0, 1 or 2.
extern "C" __global__ void gru_h_backward(size_t batch, size_t n, unsigned argument, const float *__restrict__ hs,
                                          size_t stride_h, const float *__restrict__ zs, size_t stride_z,
                                          const float *__restrict__ gs, size_t stride_g, const float *__restrict__ dy,
                                          size_t elements, float *dx, int acc) {
    sum_slopes(batch, n, elements, dx, acc, [=](size_t b, size_t j) {
        float z = zs[b * stride_z + j];
        return dy[b * n + j] * (argument == 1 ? gs[b * stride_g + j] - hs[b * stride_h + j] : argument == 2 ? z : 1.f - z);
    });
}

/** op tree_lstm_c(gates)
 *  h = rows_of(&c.y.dim)
 *  nothing if h == 0
 *  forward:
 *      tree_c_forward: some(batch * h, 1)
 *  backward:
 *      f = c.x[0].v + (2 + i) * h
 *      forgotten_backward(stride_f = c.x[0].bstride): each(elements * h) if i
 *      rows = rows_of(&c.x[0].dim)
 *      tree_c_backward_gates: some(elements * rows, 1)
 *  saved: 0 */
// y = i u + f1 c1 + f2 c2 + ... Gates are i, o, u, f1, f2... The launch with the first cells begins the sum, others add.
extern "C" __global__ void tree_c_forward(size_t batch, size_t h, const float *__restrict__ gates, size_t stride_gates,
                                          dy_some cells, float *y) {
    for (EACH_OF(i, b, j, batch, h)) {
        const float *g = gates + b * stride_gates + j;
        float total = cells.first ? y[i] : g[0] * g[2 * h];
        for (unsigned k = 0; k < cells.count; k++) total += g[(3 + cells.first + k) * h] * number_of(cells, k, i, j);
        y[i] = total;
    }
}

// The gradient of the gates, which have `rows` rows. The launch with the first cells also writes those of i, o and u, and
// of the gates f of all later cells.
extern "C" __global__ void tree_c_backward_gates(size_t batch, size_t h, size_t rows, const float *__restrict__ gates,
                                                 size_t stride_gates, dy_some cells, const float *__restrict__ dy,
                                                 size_t elements, float *dx, int acc) {
    size_t uses = batch / elements;
    for (EACH(i, elements * rows)) {
        size_t e = i / rows, row = i - e * rows, block = row / h, j = row - block * h;
        size_t k = block - 3 - cells.first;
        bool of_cell = k < cells.count;  // unsigned
        if (!of_cell && cells.first) continue;
        float total = 0.f;
        if (of_cell || block == 0 || block == 2)
            for (size_t b = e * uses; b < (e + 1) * uses; b++) {
                float other = of_cell ? number_of(cells, (unsigned)k, b * h + j, j)
                                      : gates[b * stride_gates + (2 - block) * h + j];
                total += dy[b * h + j] * other;
            }
        store(dx + i, acc || cells.first, total);
    }
}
