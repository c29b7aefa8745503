// SPDX-License-Identifier: Apache-2.0
//
// Trainers: updates by the rows of optim.def over segments of flat planes, and the norm of gradients.
#include "common.cuh"

// A range of the planes, as in dynet_cy/gpu/update.pyx.
struct Segment {
    size_t at, n;
};

struct Hyper {
    float lr, grad_scale, b1, b2, eps, decay;
};

// The gradient becomes zero; the value, after its step, loses the share `decay`.
#define OPTIM(name, states, rule) \
    static __device__ __forceinline__ float step_##name(float g, float lr, float b1, float b2, float eps, float &s0, \
                                                        float &s1, float &s2) { \
        float d; \
        rule \
        return d; \
    } \
    extern "C" __global__ void optim_##name(const Segment *__restrict__ segments, unsigned count, Hyper h, float *values, \
                                            float *grads, float *first, float *second, float *third) { \
        for (unsigned k = blockIdx.y; k < count; k += gridDim.y) { \
            Segment s = segments[k]; \
            for (EACH(j, s.n)) { \
                size_t i = s.at + j; \
                float s0 = states > 0 ? first[i] : 0.f, s1 = states > 1 ? second[i] : 0.f; \
                float s2 = states > 2 ? third[i] : 0.f; \
                float v = values[i] + step_##name(h.grad_scale * grads[i], h.lr, h.b1, h.b2, h.eps, s0, s1, s2); \
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
                                        float *values) {
    for (unsigned k = blockIdx.y; k < count; k += gridDim.y) {
        Segment s = segments[k];
        for (EACH(j, s.n)) values[s.at + j] -= decay * values[s.at + j];
    }
}

// Sums of squares: each block writes those of its share, in double, and the host adds them up.
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
    for (int o = 16; o > 0; o >>= 1) total += __shfl_xor_sync(FULL_MASK, total, o);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0;
        for (unsigned w = 0; w < blockDim.x >> 5; w++) total += part[w];
        sums[blockIdx.y * gridDim.x + blockIdx.x] = total;
    }
}
