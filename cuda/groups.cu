// SPDX-License-Identifier: Apache-2.0
//
// Several calls of one kernel as one launch: blockIdx.z says which call a block belongs to. The kernels of grouped.def are
// compiled here once more, as functions; as they are correct for any grid, calls of different sizes share one. Also
// products of matrices of different sizes.
#include "common.cuh"
#include "dynet_cy/gpu_group.h"

// Axes among the parameters of a call, where they are (gpu_group.h).
struct AxesOfCall {
    const uint64_t *words;
};
static __device__ __forceinline__ unsigned axes_in(const AxesOfCall &x) { return (unsigned)x.words[0]; }
static __device__ __forceinline__ uint64_t size_in(const AxesOfCall &x, unsigned k) { return x.words[1 + (1 + DY_ARRAYS) * k]; }
static __device__ __forceinline__ uint64_t stride_in(const AxesOfCall &x, unsigned array, unsigned k) {
    return x.words[2 + (1 + DY_ARRAYS) * k + array];
}

#pragma push_macro("__global__")
#pragma push_macro("__grid_constant__")
#undef __global__
#undef __grid_constant__
#define __grid_constant__  // only for parameters of kernels
#define dy_axes AxesOfCall
#ifdef CUDA_EMU
#define __global__  // static variables of inline functions would lie in another section than those of kernels
#else
#define __global__ __device__ __forceinline__
#endif
#include "along.cu"
#include "base.cu"
#include "binary.cu"
#include "shape.cu"
#include "softmax.cu"
#undef dy_axes
#pragma pop_macro("__global__")
#pragma pop_macro("__grid_constant__")

// ---- calls ------------------------------------------------------------------------
// Parameters, as gpu_group.h says.
template <class A> struct Parameter {
    static __device__ __forceinline__ unsigned words(const uint64_t *) { return (unsigned)((sizeof(A) + 7) / 8); }
    static __device__ __forceinline__ A read(const uint64_t *at) {
        A x;
        memcpy(&x, at, sizeof x);
        return x;
    }
};

template <> struct Parameter<AxesOfCall> {
    static __device__ __forceinline__ unsigned words(const uint64_t *at) { return 1 + (1 + DY_ARRAYS) * (unsigned)at[0]; }
    static __device__ __forceinline__ AxesOfCall read(const uint64_t *at) { return AxesOfCall{at}; }
};

// Where a parameter begins; `next` becomes where the next one does.
template <class A> static __device__ __forceinline__ unsigned pass(const uint64_t *at, unsigned *next) {
    unsigned first = *next;
    *next += Parameter<A>::words(at + first);
    return first;
}

template <size_t... k> struct Numbers {};
template <size_t n, size_t... k> struct UpTo : UpTo<n - 1, n - 1, k...> {};
template <size_t... k> struct UpTo<0, k...> { using List = Numbers<k...>; };

template <class F> struct Call;
template <class... A> struct Call<void (*)(A...)> {
    template <void (*kernel)(A...), size_t... k>
    static __device__ __forceinline__ void run(const uint64_t *at, Numbers<k...>) {
        unsigned next = 0;
        const unsigned first[] = {pass<A>(at, &next)...};
        kernel(Parameter<A>::read(at + first[k])...);
    }
    template <void (*kernel)(A...)> static __device__ __forceinline__ void run(const dy_group &group) {
        const dy_group_head &head = reinterpret_cast<const dy_group_head &>(group);
        run<kernel>(group.words + head.first[blockIdx.z], typename UpTo<sizeof...(A)>::List());
    }
};

#define GROUPED(name) \
    extern "C" __global__ void grouped_##name(const __grid_constant__ dy_group group) { \
        Call<decltype(&name)>::run<name>(group); \
    }
#include "dynet_cy/grouped.def"

// ---- products ----------------------------------------------------------------------
#define TILE 32

// Number `i` of row, or of column, `r` of a factor whose sum runs over its rows or columns.
static __device__ __forceinline__ float factor(const float *x, uint32_t ld, bool turned, size_t r, size_t i) {
    return turned ? x[r * ld + i] : x[i * ld + r];
}

static __device__ __forceinline__ void put(const dy_group_product &p, size_t i, size_t j, float sum) {
    float *c = p.c + j * p.ldc + i;
    *c = sum = p.alpha * sum + (p.beta == 0.f ? 0.f : p.beta * *c);
    if (p.also) p.also[j * p.m + i] = sum;
}

// Of products with few columns and A': each warp computes numbers of C.
static __device__ __forceinline__ void multiply_by_warps(const dy_group_product &p) {
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (size_t r = (size_t)blockIdx.x * warps + warp; r < (size_t)p.m * p.n; r += (size_t)gridDim.x * warps) {
        size_t i = r % p.m, j = r / p.m;
        float sum = 0.f;
        for (size_t l = lane; l < p.k; l += 32) sum = multiply_add(p.a[i * p.lda + l], factor(p.b, p.ldb, !p.tb, j, l), sum);
        sum = warp_sum(sum);
        if (lane == 0) put(p, i, j, sum);
    }
}

// Each block computes tiles of C, of which a thread has up to 4 numbers in one row.
static __device__ __forceinline__ void multiply_by_tiles(const dy_group_product &p, float (*left)[TILE + 1],
                                                         float (*right)[TILE + 1]) {
    unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    unsigned wide = 4 * warps < TILE ? 4 * warps : TILE;
    size_t down = (p.m + TILE - 1) / TILE, tiles = down * ((p.n + wide - 1) / wide);
    for (size_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        size_t i = t % down * TILE, j = t / down * wide;
        float sum[4] = {0.f, 0.f, 0.f, 0.f};
        for (size_t from = 0; from < p.k; from += TILE) {
            for (unsigned s = threadIdx.x; s < TILE * TILE; s += blockDim.x) {
                unsigned x = s % TILE, y = s / TILE;  // numbers with adjacent x are adjacent in memory
                size_t r = p.ta ? y : x, l = p.ta ? x : y;
                left[l][r] = i + r < p.m && from + l < p.k ? factor(p.a, p.lda, p.ta, i + r, from + l) : 0.f;
                r = p.tb ? x : y;
                l = p.tb ? y : x;
                right[l][r] = j + r < p.n && from + l < p.k ? factor(p.b, p.ldb, !p.tb, j + r, from + l) : 0.f;
            }
            __syncthreads();
            for (unsigned l = 0; l < TILE; l++)
                for (unsigned s = 0; s < 4; s++)
                    if (warp + s * warps < wide) sum[s] = multiply_add(left[l][lane], right[l][warp + s * warps], sum[s]);
            __syncthreads();
        }
        for (unsigned s = 0; s < 4; s++)
            if (warp + s * warps < wide && i + lane < p.m && j + warp + s * warps < p.n)
                put(p, i + lane, j + warp + s * warps, sum[s]);
    }
}

static __device__ __forceinline__ void copy(const dy_group_product &p) {
    for (EACH(i, (size_t)p.m)) {
        float x = p.a[i];
        p.c[i] = x;
        if (p.also) p.also[i] = x;
    }
}

extern "C" __global__ void multiply_group(const __grid_constant__ dy_group group) {
    __shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
    const dy_group_product &p = reinterpret_cast<const dy_group_product *>(group.words)[blockIdx.z];
    if (!p.b)
        copy(p);
    else if (p.ta && p.n <= 4)
        multiply_by_warps(p);
    else
        multiply_by_tiles(p, left, right);
}
