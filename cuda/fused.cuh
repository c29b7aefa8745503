// SPDX-License-Identifier: Apache-2.0
//
// What kernels of several elementwise ops are made of. Their sources are written at run time (gpu/fused_source).
//
// Such a kernel reads a table of words. It begins with two words for each node of the ops: where the values of its
// instances are, one after the other, and its two constants. A line for each instance follows, with the addresses of
// what comes from elsewhere. The low bits of the address of a gradient say what happens there.
#pragma once
#include "elementwise.cuh"
#include "dynet_cy/gpu_group.h"

#define LOW_BITS 3u
#define HAS_GRADIENT 1u  // of a node: it has a gradient from elsewhere; of an argument: it is added to
#define IS_ASKED_FOR 2u  // of a node: its whole gradient is stored

static __device__ __forceinline__ float *place(uint64_t word) {
    return (float *)(uintptr_t)(word & ~(uint64_t)LOW_BITS);
}

static __device__ __forceinline__ float constant(uint64_t word, int which) {
    return __int_as_float((int)(which ? word >> 32 : word));
}

// The line of element k, if lines have `size` elements: 32-bit division is much faster, and nearly always sufficient.
static __device__ __forceinline__ size_t line_of(size_t k, size_t size) {
    return (k | size) >> 32 ? k / size : (uint32_t)k / (uint32_t)size;
}

// The gradient of a node that comes from elsewhere.
static __device__ __forceinline__ float gradient(uint64_t word, size_t j) {
    return word & HAS_GRADIENT ? place(word)[j] : 0.f;
}

static __device__ __forceinline__ void keep(uint64_t word, size_t j, float x) {
    if (word & IS_ASKED_FOR) place(word)[j] = x;
}

// Add to the gradient of an argument, or assign it; 0: it needs none.
static __device__ __forceinline__ void pass_on(uint64_t word, size_t j, float x) {
    if (word) store(place(word) + j, (int)(word & HAS_GRADIENT), x);
}
