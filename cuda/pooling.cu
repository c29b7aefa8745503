// SPDX-License-Identifier: Apache-2.0
//
// Pooling of images, by windows of one size or adaptive. Images are rows x columns x channels. The blocks of one row of the grid share the pixels
// of a channel; rows of the grid take different channels.
#include "common.cuh"
#include "dynet_cy/pooling.h"

/** op avgpooling2d(x)
 *  op adaptive_avgpooling2d(x)
 *  Pooling w = pooling_by(&c.x[0].dim, c.attrs)
 *  forward:
 *      nothing if total_of(&c.y.dim) == 0
 *      average_forward: grid(across(gpu, <size_t>w.out[0] * w.out[1]), planes(batch * w.channels))
 *  backward:
 *      nothing if total_of(&c.dx.dim) == 0
 *      average_backward: grid(across(gpu, <size_t>w.inputs[0] * w.inputs[1]), planes(elements * w.channels)) */
// The mean of the part of each window that is inside the image.
extern "C" __global__ void average_forward(size_t batch, dy_pooling w, const float *__restrict__ x, size_t stride_x,
                                           float *y) {
    size_t outputs = (size_t)w.out[0] * w.out[1], pixels = (size_t)w.in[0] * w.in[1];
    for (PLANES(p, batch * w.channels)) {
        size_t b = p / w.channels;
        const float *plane = x + b * stride_x + (p - b * w.channels) * pixels;
        for (EACH(k, outputs)) {
            unsigned o = (unsigned)k / w.out[0], low, high, first, last;
            dy_pooled(&w, 0, (unsigned)k - o * w.out[0], &low, &high);
            dy_pooled(&w, 1, o, &first, &last);
            double total = 0;
            for (unsigned i = first; i < last; i++)
                for (unsigned j = low; j < high; j++) total += plane[(size_t)i * w.in[0] + j];
            y[p * outputs + k] = (float)(total / ((last - first) * (size_t)(high - low)));
        }
    }
}

// dx has `elements` images: as many as the batch, or one, which is the sum over it.
extern "C" __global__ void average_backward(size_t batch, dy_pooling w, const float *__restrict__ dy, size_t elements,
                                            float *dx, int acc) {
    size_t outputs = (size_t)w.out[0] * w.out[1], pixels = (size_t)w.in[0] * w.in[1], uses = batch / elements;
    for (PLANES(p, elements * w.channels)) {
        size_t e = p / w.channels, channel = p - e * w.channels;
        for (EACH(i, pixels)) {
            unsigned column = (unsigned)i / w.in[0], row = (unsigned)i - column * w.in[0], t0, t1, o0, o1;
            unsigned low, high, first, last;
            float total = 0.f;
            dy_pooling_of(&w, 0, row, &t0, &t1);
            dy_pooling_of(&w, 1, column, &o0, &o1);
            for (unsigned o = o0; o < o1; o++) {
                dy_pooled(&w, 1, o, &first, &last);
                for (unsigned t = t0; t < t1; t++) {
                    dy_pooled(&w, 0, t, &low, &high);
                    float share = 1.f / ((last - first) * (size_t)(high - low));
                    for (size_t b = e * uses; b < (e + 1) * uses; b++)
                        total += share * dy[(b * w.channels + channel) * outputs + (size_t)o * w.out[0] + t];
                }
            }
            store(dx + p * pixels + i, acc, total);
        }
    }
}

/** op maxpooling2d(x)
 *  op adaptive_maxpooling2d(x)
 *  Pooling w = pooling_by(&c.x[0].dim, c.attrs)
 *  where = c.saved
 *  forward:
 *      nothing if total_of(&c.y.dim) == 0
 *      greatest_forward: grid(across(gpu, <size_t>w.out[0] * w.out[1]), planes(batch * w.channels))
 *  backward:
 *      nothing if total_of(&c.dx.dim) == 0
 *      greatest_backward: grid(across(gpu, <size_t>w.inputs[0] * w.inputs[1]), planes(elements * w.channels))
 *  saved: total_of(&c.y.dim) */
// The maximum of each window, NaN if there is one; of equal maxima, the first. `where` gets its position in the image.
extern "C" __global__ void greatest_forward(size_t batch, dy_pooling w, const float *__restrict__ x, size_t stride_x,
                                            uint32_t *where, float *y) {
    size_t outputs = (size_t)w.out[0] * w.out[1], pixels = (size_t)w.in[0] * w.in[1];
    for (PLANES(p, batch * w.channels)) {
        size_t b = p / w.channels;
        const float *plane = x + b * stride_x + (p - b * w.channels) * pixels;
        for (EACH(k, outputs)) {
            unsigned o = (unsigned)k / w.out[0], low, high, first, last;
            dy_pooled(&w, 0, (unsigned)k - o * w.out[0], &low, &high);
            dy_pooled(&w, 1, o, &first, &last);
            float top = -INFINITY;
            uint32_t at = first * w.in[0] + low;
            for (unsigned i = first; i < last; i++)
                for (unsigned j = low; j < high; j++) {
                    float v = plane[(size_t)i * w.in[0] + j];
                    if (v > top || (v != v && top == top)) {
                        top = v;
                        at = i * w.in[0] + j;
                    }
                }
            y[p * outputs + k] = top;
            where[p * outputs + k] = at;
        }
    }
}

extern "C" __global__ void greatest_backward(size_t batch, dy_pooling w, const uint32_t *__restrict__ where,
                                             const float *__restrict__ dy, size_t elements, float *dx, int acc) {
    size_t outputs = (size_t)w.out[0] * w.out[1], pixels = (size_t)w.in[0] * w.in[1], uses = batch / elements;
    for (PLANES(p, elements * w.channels)) {
        size_t e = p / w.channels, channel = p - e * w.channels;
        for (EACH(i, pixels)) {
            unsigned column = (unsigned)i / w.in[0], row = (unsigned)i - column * w.in[0], t0, t1, o0, o1;
            float total = 0.f;
            dy_pooling_of(&w, 0, row, &t0, &t1);
            dy_pooling_of(&w, 1, column, &o0, &o1);
            for (size_t b = e * uses; b < (e + 1) * uses; b++)
                for (unsigned o = o0; o < o1; o++)
                    for (unsigned t = t0; t < t1; t++) {
                        size_t k = (b * w.channels + channel) * outputs + (size_t)o * w.out[0] + t;
                        if (where[k] == i) total += dy[k];
                    }
            store(dx + p * pixels + i, acc, total);
        }
    }
}
