// SPDX-License-Identifier: Apache-2.0
//
// Convolution as a product with a matrix of patches (im2col), and pooling over lines. Images are rows x columns x channels.
// The blocks of one row of the grid share adjacent elements; rows of the grid take different columns or channels.
#include "common.cuh"
#include "dynet_cy/gpu_window.h"

// The outputs [*low, *high) along axis d whose windows span input i. Dilated windows may skip it.
static __device__ __forceinline__ void windows_of(const dy_gpu_window &w, int d, unsigned i, unsigned *low,
                                                  unsigned *high) {
    unsigned at = i + w.pad[d], end = at / w.stride[d] + 1, reach = (w.size[d] - 1) * w.dilation[d] + 1;
    *low = at < reach ? 0 : (at - reach) / w.stride[d] + 1;
    *high = end < w.out[d] ? end : w.out[d];
}

/** op conv2d()
 *  op conv2d_bias()
 *  uses conv
 *  Product p = conv_product(c, &c.x[0].dim)
 *  forward: convolve(gpu, c, &p)
 *  backward:
 *      return set_image(gpu, &p, &c.x[1], &c.dy, c.work, &c.dx, c.accumulate) if i == 0
 *      return set_filters(gpu, &p, &c.x[0], &c.dy, c.work, &c.dx, c.accumulate) if i == 1
 *      return sum_to_bias(gpu, c, &p, c.accumulate)
 *  work: product_work(&p, i) if i < 2 else 0 */
/** op conv_transpose2d()
 *  uses conv
 *  Product p = conv_product(c, &c.y.dim)
 *  forward: set_image(gpu, &p, &c.x[1], &c.x[0], c.work, &c.y, False)
 *  backward:
 *      return set_filters(gpu, &p, &c.dy, &c.x[0], c.work, &c.dx, c.accumulate) if i == 1
 *      return set_result(gpu, &p, &c.dy, &c.x[1], c.work, &c.dx, c.accumulate)
 *  work: product_work(&p, i) */
/** op filter1d_narrow()
 *  uses conv
 *  Product p = filter_product(c)
 *  forward: set_result(gpu, &p, &c.x[0], &c.x[1], c.work, &c.y, 0)
 *  backward:
 *      return set_image(gpu, &p, &c.x[1], &c.dy, c.work, &c.dx, c.accumulate) if i == 0
 *      return set_filters(gpu, &p, &c.x[0], &c.dy, c.work, &c.dx, c.accumulate)
 *  work: product_work(&p, i) */
// The matrix of patches: a row for each output position of each image, a column for each (filter row, filter column,
// channel); zero beyond the image.
extern "C" __global__ void patches(size_t images, dy_gpu_window w, const float *__restrict__ x, size_t stride_x,
                                   float *work) {
    size_t rows = images * w.out[0] * w.out[1];
    for (PLANES(c, (size_t)w.size[0] * w.size[1] * w.channels)) {
        unsigned i = (unsigned)c % w.size[0], j = (unsigned)c / w.size[0] % w.size[1];
        unsigned channel = (unsigned)c / w.size[0] / w.size[1];
        const float *plane = x + (size_t)channel * w.in[0] * w.in[1];
        for (EACH(r, rows)) {
            unsigned k = (unsigned)r / w.out[0], image = k / w.out[1];
            unsigned row = ((unsigned)r - k * w.out[0]) * w.stride[0] + i * w.dilation[0] - w.pad[0];
            unsigned column = (k - image * w.out[1]) * w.stride[1] + j * w.dilation[1] - w.pad[1];
            bool inside = row < w.in[0] && column < w.in[1];  // false for negative positions too: they are unsigned
            work[c * rows + r] = inside ? plane[image * stride_x + (size_t)column * w.in[0] + row] : 0.f;
        }
    }
}

// Each pixel of dx is the sum over all patches that contain it. dx has `elements` images, stride_x floats apart: as many
// as the batch, or one, which is the sum over it.
extern "C" __global__ void add_patches(size_t images, dy_gpu_window w, const float *__restrict__ work, size_t elements,
                                       float *dx, size_t stride_x, int acc) {
    size_t rows = images * w.out[0] * w.out[1], uses = images / elements, pixels = (size_t)w.in[0] * w.in[1];
    for (PLANES(p, elements * w.channels)) {
        size_t e = p / w.channels, channel = p - e * w.channels;
        for (EACH(i, pixels)) {
            unsigned column = (unsigned)i / w.in[0], row = (unsigned)i - column * w.in[0], t0, t1, o0, o1;
            float total = 0.f;
            windows_of(w, 0, row, &t0, &t1);
            windows_of(w, 1, column, &o0, &o1);
            for (size_t b = e * uses; b < (e + 1) * uses; b++)
                for (unsigned o = o0; o < o1; o++) {
                    unsigned ahead = column + w.pad[1] - o * w.stride[1];
                    if (ahead % w.dilation[1]) continue;
                    size_t j = channel * w.size[1] + ahead / w.dilation[1];
                    for (unsigned t = t0; t < t1; t++) {
                        unsigned above = row + w.pad[0] - t * w.stride[0];
                        if (above % w.dilation[0]) continue;
                        size_t c = j * w.size[0] + above / w.dilation[0];
                        total += work[c * rows + (b * w.out[1] + o) * w.out[0] + t];
                    }
                }
            store(dx + e * stride_x + channel * pixels + i, acc, total);
        }
    }
}

// ---- kmh_ngram: y_ij = the sum of x_i(j+k), k from 0 to n - 1 -------------------------

/** op kmh_ngram(x)
 *  rows = c.y.dim.d[0]
 *  columns = c.y.dim.d[1]
 *  terms = c.attrs[0].u
 *  forward:
 *      ngram_forward: each(total_of(&c.y.dim))
 *  backward:
 *      ngram_backward: each(total_of(&c.dx.dim)) */
extern "C" __global__ void ngram_forward(size_t batch, size_t rows, size_t columns, size_t terms,
                                         const float *__restrict__ x, size_t stride_x, float *y) {
    for (EACH_OF(i, b, j, batch, rows * columns)) {
        float total = 0.f;
        for (size_t k = 0; k < terms; k++) total += x[b * stride_x + j + k * rows];
        y[i] = total;
    }
}

extern "C" __global__ void ngram_backward(size_t batch, size_t rows, size_t columns, size_t terms,
                                          const float *__restrict__ dy, size_t elements, float *dx, int acc) {
    sum_slopes(batch, rows * (columns + terms - 1), elements, dx, acc, [=](size_t b, size_t j) {
        size_t column = j / rows, low = column + 1 < terms ? 0 : column + 1 - terms;
        double total = 0;
        for (size_t k = low; k < (column < columns ? column + 1 : columns); k++) total += dy[(b * columns + k) * rows + j % rows];
        return total;
    });
}
