// SPDX-License-Identifier: Apache-2.0
//
// Trainers: updates by the rows of optim.def over segments of flat planes, clipping, moving averages, and gathering
// gradients for other processes.
#include "updates.cuh"

// for (SEGMENTS(k, count)) for (NUMBERS(i, segments[k])): the rows of blocks of the grid share segments, and the blocks of a
// row the numbers i of a segment.
#define SEGMENTS(k, count) unsigned k = blockIdx.y; k < (count); k += gridDim.y
#define NUMBERS(i, segment) \
    size_t i = (segment).at + (size_t)blockIdx.x * blockDim.x + threadIdx.x, end = (segment).at + (segment).n; i < end; \
    i += (size_t)gridDim.x * blockDim.x

// An update sets gradients to zero. Weight decay is applied before the step (decoupled) and after it.
#define OPTIM(name, states, rule, kind, idle) \
    static __device__ __forceinline__ float step_##name(float g, float lr, float b1, float b2, float eps, float &s0, \
                                                        float &s1, float &s2) { \
        float d; \
        rule \
        return d; \
    } \
    extern "C" __global__ void optim_##name(const dy_range *__restrict__ segments, unsigned count, dy_hyper h, float *values, \
                                            float *grads, float *first, float *second, float *third, \
                                            const dy_chosen *__restrict__ chosen, const dy_clip *__restrict__ clip) { \
        if (left_out(clip)) return; \
        float scale = chosen ? chosen->scale : h.grad_scale, lr = rate_of(h, chosen), decoupled = decoupled_of(h, chosen); \
        float eps = h.eps * eps_scale_of(h, chosen); \
        for (SEGMENTS(k, count)) \
            for (NUMBERS(i, segments[k])) { \
                float s0 = states > 0 ? first[i] : 0.f, s1 = states > 1 ? second[i] : 0.f; \
                float s2 = states > 2 ? third[i] : 0.f; \
                float v = values[i] - decoupled * values[i]; \
                v += step_##name(scale * grads[i], lr, h.b1, h.b2, eps, s0, s1, s2); \
                values[i] = v - h.decay * v; \
                grads[i] = 0.f; \
                if (states > 0) first[i] = s0; \
                if (states > 1) second[i] = s1; \
                if (states > 2) third[i] = s2; \
            } \
    }
#include "dynet_cy/optim.def"

extern "C" __global__ void decay_values(const dy_range *__restrict__ segments, unsigned count, float decay,
                                        float *values, const dy_chosen *__restrict__ chosen,
                                        const dy_clip *__restrict__ clip) {
    if (left_out(clip)) return;
    if (chosen) decay = chosen->rates.decoupled;
    for (SEGMENTS(k, count))
        for (NUMBERS(i, segments[k])) values[i] -= decay * values[i];
}

// target = a target + b source; if a is 0, target is not read.
extern "C" __global__ void axpby(const dy_range *__restrict__ segments, unsigned count, float a, float b,
                                 const float *__restrict__ source, float *target, const dy_clip *__restrict__ clip) {
    if (left_out(clip)) return;
    for (SEGMENTS(k, count))
        for (NUMBERS(i, segments[k])) target[i] = a == 0.f ? b * source[i] : a * target[i] + b * source[i];
}

// The sum of doubles over a block, returned in its first thread. `part` is 32 doubles of shared memory.
static __device__ inline double sum_to_first(double x, double *part) {
    for (int o = 16; o > 0; o >>= 1) x += __shfl_xor_sync(FULL_MASK, x, o);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
    __syncthreads();
    x = 0;
    if (threadIdx.x == 0) {
        for (unsigned w = 0; w < blockDim.x >> 5; w++) x += part[w];
    }
    return x;
}

// Sums of squares, in double precision: each block writes the sum of its part, and `clip_groups` adds them up.
extern "C" __global__ void squares(const dy_range *__restrict__ segments, unsigned count, const float *__restrict__ grads,
                                   double *sums) {
    __shared__ double part[32];
    double total = 0;
    for (SEGMENTS(k, count))
        for (NUMBERS(i, segments[k])) total += (double)grads[i] * grads[i];
    total = sum_to_first(total, part);
    if (threadIdx.x == 0) sums[blockIdx.y * gridDim.x + blockIdx.x] = total;
}

// Computes the factors for gradients, and chooses the learning rates. One block; `totals` is working memory, a number for
// each group.
extern "C" __global__ void clip_groups(const double *__restrict__ sums, const dy_clip_group *__restrict__ groups,
                                       const dy_rates *__restrict__ rates, dy_clip_limits limits, double *totals,
                                       dy_chosen *chosen, dy_clip *clip) {
    __shared__ double part[32];
    double all = 0;
    for (unsigned g = 0; g < limits.groups; g++) {
        double total = 0;
        for (LANES(i, groups[g].sums)) total += sums[groups[g].first_sum + i];
        total = sum_to_first(total, part);
        __syncthreads();
        if (threadIdx.x == 0) {
            totals[g] = total;
            if (g && !groups[g].own_norm) totals[0] += total;
            all += total;
        }
    }
    if (threadIdx.x == 0) {
        double norm = limits.scale * sqrt(all);
        bool larger = false;
        clip->drops = 0;
        clip->done++;
        if (clip->skipped || !isfinite(norm)) {
            if (!clip->skipped) clip->norm = norm;
            if (limits.skips && !clip->skipped) {
                clip->drops = 1;
                clip->dropped++;
            } else {
                clip->skipped++;
            }
            return;
        }
        clip->norm = norm;
        unsigned dropped = clip->dropped - limits.known;
        if (dropped >= limits.rates) dropped = limits.rates - 1;
        for (unsigned g = 0; g < limits.groups; g++) {
            double own = limits.scale * sqrt(totals[groups[g].own_norm ? g : 0]), threshold = groups[g].threshold;
            bool over = threshold > 0 && own > threshold;
            chosen[g].scale = (float)(over ? limits.scale * (threshold / own) : limits.scale);
            chosen[g].rates = rates[g * limits.rates + dropped];
            larger = larger || over;
        }
        clip->clips += larger;
    }
}

// Set the gradients of a dropped update to zero.
extern "C" __global__ void drop_gradients(const dy_range *__restrict__ segments, unsigned count, float *grads,
                                          const dy_clip *__restrict__ clip) {
    if (clip->skipped || !clip->drops) return;
    for (SEGMENTS(k, count))
        for (NUMBERS(i, segments[k])) grads[i] = 0.f;
}

// Between a plane and a buffer in which its segments lie side by side.
extern "C" __global__ void gather_ranges(const dy_gather_range *__restrict__ segments, unsigned count,
                                         const float *__restrict__ plane, float *buffer) {
    for (SEGMENTS(k, count))
        for (NUMBERS(i, segments[k])) buffer[segments[k].to + i - segments[k].at] = plane[i];
}

extern "C" __global__ void scatter_ranges(const dy_gather_range *__restrict__ segments, unsigned count,
                                          const float *__restrict__ buffer, float *plane) {
    for (SEGMENTS(k, count))
        for (NUMBERS(i, segments[k])) plane[i] = buffer[segments[k].to + i - segments[k].at];
}
