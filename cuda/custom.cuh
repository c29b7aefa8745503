// SPDX-License-Identifier: Apache-2.0
//
// For the kernels of custom ops, whose source a program gives (ops/cuda_source.py): docs/custom-op.md describes what they
// may use.
#pragma once
#include "common.cuh"
#include "dynet_cy/gpu_custom.h"

#undef C  // of the .def files: a program may call an array so

#ifdef CUDA_EMU  // whose compiler refuses what nvcc only warns of
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wsign-compare"
#endif

// End the kernel with an error, after which the device cannot be used: a wrong number would be worse.
static __device__ __noinline__ void wrong_indices(int nd, int axes) {
#ifdef CUDA_EMU
    emu::fail("an array of %d axes, and the batch, has no element with %d indices", nd, axes + 1);
#else
    __trap();
#endif
}

// An array of `batch` elements, each column-major with `size` numbers. x(i, j, b) is an element of a batch of matrices.
template <class T> struct Array {
    T *v;
    size_t size, stride;
    int batch, nd, shape[7];

    __device__ explicit Array(const dy_array &x) : v(x.v), size(x.size), stride(x.stride), batch(x.batch), nd(x.nd) {
        for (int a = 0; a < 7; a++) shape[a] = x.shape[a];
    }

    // The numbers of a batch element.
    __device__ T *element(size_t b) const { return v + b * stride; }

    template <class... Index> __device__ T &operator()(Index... index) const {
        const size_t at[] = {(size_t)index...};
        constexpr int axes = (int)sizeof...(index) - 1;
        size_t place = at[axes] * stride, step = 1;
        if (axes != nd) wrong_indices(nd, axes);
        for (int a = 0; a < axes; a++) {
            place += at[a] * step;
            step *= (size_t)shape[a];
        }
        return v[place];
    }

    // The number that belongs to number i of batch element b of y: axes of length 1 are repeated, and the last axes of both
    // correspond, as in NumPy.
    template <class Y> __device__ T &repeated(const Y &y, size_t i, size_t b) const {
        size_t place = 0, step = 1;
        if (size == y.size) return v[b * stride + i];
        for (int a = 0; a < y.nd; a++) {
            const size_t length = (size_t)y.shape[a], j = i % length, own = a < y.nd - nd ? 1 : (size_t)shape[a - y.nd + nd];
            if (own != 1) place += j * step;
            step *= own;
            i /= length;
        }
        return v[b * stride + place];
    }
};

using In = Array<const float>;
using Out = Array<float>;

// The parameter of a kernel.
template <int ARRAYS, int NUMBERS> struct Given {
    dy_array arrays[ARRAYS];
    double numbers[NUMBERS];
};
