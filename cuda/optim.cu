// SPDX-License-Identifier: Apache-2.0
//
// Trainers: updates by the rows of optim.def over segments of flat planes, clipping, moving averages, and gradients that
// go to other processes.
#include "common.cuh"

// A range of the planes, as in dynet_cy/gpu/update.pyx.
struct Segment {
    size_t at, n;
};

struct Hyper {
    float lr, grad_scale, b1, b2, eps, decay;
};

// What clipping has found, as in dynet_cy/gpu/update.pyx.
struct Clip {
    double norm;                  // that was not finite
    float factor;                 // of gradients in this update
    unsigned clips;               // updates that were clipped
    unsigned skipped;             // updates that were left out: the first had a norm that is not finite
};

// The gradient becomes zero; the value, after its step, loses the share `decay`. Nothing happens in an update that is
// left out. `clip` is NULL without clipping.
#define OPTIM(name, states, rule) \
    static __device__ __forceinline__ float step_##name(float g, float lr, float b1, float b2, float eps, float &s0, \
                                                        float &s1, float &s2) { \
        float d; \
        rule \
        return d; \
    } \
    extern "C" __global__ void optim_##name(const Segment *__restrict__ segments, unsigned count, Hyper h, float *values, \
                                            float *grads, float *first, float *second, float *third, \
                                            const Clip *__restrict__ clip) { \
        if (clip && clip->skipped) return; \
        float scale = clip ? clip->factor : h.grad_scale; \
        for (unsigned k = blockIdx.y; k < count; k += gridDim.y) { \
            Segment s = segments[k]; \
            for (EACH(j, s.n)) { \
                size_t i = s.at + j; \
                float s0 = states > 0 ? first[i] : 0.f, s1 = states > 1 ? second[i] : 0.f; \
                float s2 = states > 2 ? third[i] : 0.f; \
                float v = values[i] + step_##name(scale * grads[i], h.lr, h.b1, h.b2, h.eps, s0, s1, s2); \
                values[i] = v - h.decay * v; \
                grads[i] = 0.f; \
                if (states > 0) first[i] = s0; \
                if (states > 1) second[i] = s1; \
                if (states > 2) third[i] = s2; \
            } \
        } \
    }
#include "dynet_cy/optim.def"

extern "C" __global__ void decay_values(const Segment *__restrict__ segments, unsigned count, float decay,
                                        float *values, const Clip *__restrict__ clip) {
    if (clip && clip->skipped) return;
    for (unsigned k = blockIdx.y; k < count; k += gridDim.y) {
        Segment s = segments[k];
        for (EACH(j, s.n)) values[s.at + j] -= decay * values[s.at + j];
    }
}

// target = a target + b source, where a is 0 without reading it.
extern "C" __global__ void blend(const Segment *__restrict__ segments, unsigned count, float a, float b,
                                 const float *__restrict__ source, float *target, const Clip *__restrict__ clip) {
    if (clip && clip->skipped) return;
    for (unsigned k = blockIdx.y; k < count; k += gridDim.y) {
        Segment s = segments[k];
        for (EACH(j, s.n)) {
            size_t i = s.at + j;
            target[i] = a == 0.f ? b * source[i] : a * target[i] + b * source[i];
        }
    }
}

// The sum over a block of doubles, in its first thread. `part` is 32 doubles of shared memory.
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

// Sums of squares: each block writes those of its share, in double, and `clip_factor` adds them up.
extern "C" __global__ void squares(const Segment *__restrict__ segments, unsigned count, const float *__restrict__ grads,
                                   double *sums) {
    __shared__ double part[32];
    double total = 0;
    for (unsigned k = blockIdx.y; k < count; k += gridDim.y) {
        Segment s = segments[k];
        for (EACH(j, s.n)) {
            double g = grads[s.at + j];
            total += g * g;
        }
    }
    total = sum_to_first(total, part);
    if (threadIdx.x == 0) sums[blockIdx.y * gridDim.x + blockIdx.x] = total;
}

struct Limit {
    double scale, threshold;      // of gradients before all else; of their norm after it
};

// What gradients are to be multiplied by. One block.
extern "C" __global__ void clip_factor(const double *__restrict__ sums, unsigned count, Limit limit, Clip *clip) {
    __shared__ double part[32];
    double total = 0;
    for (LANES(i, count)) total += sums[i];
    total = sum_to_first(total, part);
    if (threadIdx.x == 0) {
        double norm = limit.scale * sqrt(total);
        bool larger = norm > limit.threshold;
        if (clip->skipped || !isfinite(norm)) {
            if (!clip->skipped) clip->norm = norm;
            clip->skipped++;
        } else {
            clip->factor = (float)(larger ? limit.scale * (limit.threshold / norm) : limit.scale);
            clip->clips += larger;
        }
    }
}

// A segment of a plane, and where it lies where all of them lie side by side.
struct Packed {
    size_t at, n, to;
};

extern "C" __global__ void pack(const Packed *__restrict__ segments, unsigned count, const float *__restrict__ plane,
                                float *packed) {
    for (unsigned k = blockIdx.y; k < count; k += gridDim.y) {
        Packed s = segments[k];
        for (EACH(j, s.n)) packed[s.to + j] = plane[s.at + j];
    }
}

extern "C" __global__ void unpack(const Packed *__restrict__ segments, unsigned count, const float *__restrict__ packed,
                                  float *plane) {
    for (unsigned k = blockIdx.y; k < count; k += gridDim.y) {
        Packed s = segments[k];
        for (EACH(j, s.n)) plane[s.at + j] = packed[s.to + j];
    }
}
