// SPDX-License-Identifier: Apache-2.0
//
// Batch normalization: channels normalized by the statistics of a minibatch. A batch element of x is
// post x channels x pre. Sums over a channel are in double precision.
#include "common.cuh"

struct Channels {
    size_t pre, channels, post;

    __device__ size_t count() const { return pre * post; }
    __device__ size_t size() const { return pre * channels * post; }
    // Element i of a channel.
    __device__ size_t at(size_t channel, size_t i) const { return (i / pre * channels + channel) * pre + i % pre; }
    __device__ size_t of(size_t i) const { return i / pre % channels; }
};

// The sum over a block of at most 1024 threads, returned in all threads.
static __device__ inline double block_total(double x, double *part) {
    part[threadIdx.x] = x;
    __syncthreads();
    for (unsigned n = blockDim.x; n > 1;) {
        unsigned half = (n + 1) / 2;
        if (threadIdx.x + half < n) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
        n = half;
    }
    x = part[0];
    __syncthreads();  // part may be written again
    return x;
}

/** op batch_moments(x)
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  pre = s.pre
 *  channels = s.len
 *  post = s.post
 *  elements = batch
 *  uses = c.x[0].dim.bd // batch
 *  forward:
 *      moments_forward: rows(elements * channels, uses * pre * post)
 *  backward:
 *      moments_backward: each(total_of(&c.x[0].dim)) */
// y has `elements` batch elements of channels x 2: means and variances, each over `uses` batch elements of x.
extern "C" __global__ void moments_forward(size_t elements, size_t uses, size_t pre, size_t channels, size_t post,
                                           const float *__restrict__ x, float *y) {
    __shared__ double part[1024];
    Channels s = {pre, channels, post};
    double n = (double)uses * s.count();
    for (ROWS(r, elements * channels)) {
        size_t e = r / channels, k = r - e * channels;
        double total = 0, squares = 0;
        for (LANES(i, uses * s.count()))
            total += x[(e * uses + i / s.count()) * s.size() + s.at(k, i % s.count())];
        float mean = (float)(block_total(total, part) / n);
        for (LANES(i, uses * s.count())) {
            double t = x[(e * uses + i / s.count()) * s.size() + s.at(k, i % s.count())] - mean;
            squares += t * t;
        }
        squares = block_total(squares, part);
        if (threadIdx.x == 0) {
            y[2 * e * channels + k] = mean;
            y[(2 * e + 1) * channels + k] = (float)(squares / n);
        }
    }
}

extern "C" __global__ void moments_backward(size_t elements, size_t uses, size_t pre, size_t channels, size_t post,
                                            const float *__restrict__ x, const float *__restrict__ y,
                                            const float *__restrict__ dy, float *dx, int acc) {
    Channels s = {pre, channels, post};
    float n = (float)((double)uses * s.count());
    for (EACH(i, elements * uses * s.size())) {
        size_t mean = 2 * (i / s.size() / uses) * channels + s.of(i % s.size()), variance = mean + channels;
        store(dx + i, acc, dy[mean] / n + 2.f * dy[variance] / n * (x[i] - y[mean]));
    }
}

// Mean, variance, factor and summand, with their strides between batch elements.
struct Vectors {
    const float *mean, *variance, *factor, *summand;
    size_t stride_mean, stride_variance, stride_factor, stride_summand;
    float eps;

    __device__ double root(size_t b, size_t k) const { return sqrt((double)variance[b * stride_variance + k] + eps); }
    __device__ float of_factor(size_t b, size_t k) const { return (float)(factor[b * stride_factor + k] / root(b, k)); }
};

/** op channel_norm(x, mean, variance, factor, summand)
 *  Split s = split_at(&c.x[0].dim, c.attrs[0].u)
 *  pre = s.pre
 *  channels = s.len
 *  post = s.post
 *  eps = c.attrs[1].f
 *  forward:
 *      channel_forward: each(total_of(&c.y.dim))
 *  backward:
 *      n = total_of(&c.dx.dim)
 *      channel_backward_x: each(n) if i == 0
 *      channel_backward(which = i): rows(n, batch // elements * pre * post) */
extern "C" __global__ void channel_forward(size_t batch, size_t pre, size_t channels, size_t post, float eps,
                                           const float *__restrict__ x, size_t stride_x, const float *mean,
                                           size_t stride_mean, const float *variance, size_t stride_variance,
                                           const float *factor, size_t stride_factor, const float *summand,
                                           size_t stride_summand, float *y) {
    Channels s = {pre, channels, post};
    Vectors v = {mean, variance, factor, summand, stride_mean, stride_variance, stride_factor, stride_summand, eps};
    for (EACH_OF(i, b, j, batch, s.size())) {
        size_t k = s.of(j);
        y[i] = (x[b * stride_x + j] - mean[b * stride_mean + k]) * v.of_factor(b, k) + summand[b * stride_summand + k];
    }
}

extern "C" __global__ void channel_backward_x(size_t batch, size_t pre, size_t channels, size_t post, float eps,
                                              const float *variance, size_t stride_variance, const float *factor,
                                              size_t stride_factor, const float *__restrict__ dy, size_t elements,
                                              float *dx, int acc) {
    Channels s = {pre, channels, post};
    Vectors v = {0, variance, factor, 0, 0, stride_variance, stride_factor, 0, eps};
    sum_slopes(batch, s.size(), elements, dx, acc,
               [=](size_t b, size_t j) { return dy[b * s.size() + j] * v.of_factor(b, s.of(j)); });
}

// The gradient of argument number `which`: 1 the mean, 2 the variance, 3 the factor, 4 the summand.
extern "C" __global__ void channel_backward(size_t batch, size_t pre, size_t channels, size_t post, float eps, int which,
                                            const float *__restrict__ x, size_t stride_x, const float *mean,
                                            size_t stride_mean, const float *variance, size_t stride_variance,
                                            const float *factor, size_t stride_factor, const float *__restrict__ dy,
                                            size_t elements, float *dx, int acc) {
    __shared__ double part[1024];
    Channels s = {pre, channels, post};
    Vectors v = {mean, variance, factor, 0, stride_mean, stride_variance, stride_factor, 0, eps};
    size_t uses = batch / elements, n = s.count();
    for (ROWS(r, elements * channels)) {
        size_t e = r / channels, k = r - e * channels;
        double total = 0;
        for (LANES(i, uses * n)) {
            size_t b = e * uses + i / n, at = s.at(k, i % n);
            double slope = dy[b * s.size() + at], root = v.root(b, k);
            if (which == 2 || which == 3) slope *= x[b * stride_x + at] - mean[b * stride_mean + k];
            if (which == 1) slope *= -factor[b * stride_factor + k] / root;
            else if (which == 2) slope *= -factor[b * stride_factor + k] / (2 * root * root * root);
            else if (which == 3) slope /= root;
            total += slope;
        }
        total = block_total(total, part);
        if (threadIdx.x == 0) store(dx + r, acc, (float)total);
    }
}
