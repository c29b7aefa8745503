// SPDX-License-Identifier: Apache-2.0
//
// What an update on a device depends on: `chosen` and `clip` are NULL without clipping.
#pragma once
#include "common.cuh"
#include "dynet_cy/gpu_update.h"

typedef float vf;  // what the rules of optim.def compute with

// An update that is left out changes nothing.
static __device__ __forceinline__ bool left_out(const dy_clip *clip) { return clip && (clip->skipped || clip->drops); }

static __device__ __forceinline__ float rate_of(const dy_hyper &h, const dy_chosen *chosen) {
    return chosen ? chosen->rates.lr : h.lr;
}

static __device__ __forceinline__ float eps_scale_of(const dy_hyper &h, const dy_chosen *chosen) {
    return chosen ? chosen->rates.eps_scale : h.eps_scale;
}

// The share of weight decay taken off before the step.
static __device__ __forceinline__ float decoupled_of(const dy_hyper &h, const dy_chosen *chosen) {
    return chosen && h.decoupled != 0.f ? chosen->rates.decoupled : h.decoupled;
}
