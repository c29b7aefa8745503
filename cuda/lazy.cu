// SPDX-License-Identifier: Apache-2.0
//
// Deferred updates of rows of tables. The formulas are those of lazy.h, as on the CPU.
#include "updates.cuh"
#include "dynet_cy/lazy.h"

// The step of each rule without a gradient.
#define OPTIM(name, states, rule, kind, idle) \
    static __device__ __forceinline__ float idle_##name(const dy_idle *h, float b1_power, float b2_power, float b1, float b2, \
                                                        float eps, float sum, float &s0, float &s1, float &s2) { \
        float d = 0.f; \
        idle \
        DY_REPLAY(kind, rule) \
        return d; \
    }
#include "dynet_cy/optim.def"
#undef OPTIM

static __device__ __forceinline__ float idle_step(int rule, const dy_idle *h, float &s0, float &s1, float &s2) {
    switch (rule) {
#define OPTIM(name, states, formula, kind, idle) \
    case DY_OPTIM_##name: \
        return idle_##name(h, h->b1_power, h->b2_power, h->b1, h->b2, h->eps, h->sum, s0, s1, s2);
#include "dynet_cy/optim.def"
#undef OPTIM
    }
    return 0.f;
}

// The constants of a table. They are copied once, since the compiler does not know that writes leave them unchanged.
struct rule_of_table {
    int rule;
    uint32_t n;
    float *rows[3];

    __device__ explicit rule_of_table(const dy_lazy *lazy) : rule(lazy->rule), n(lazy->n) {
        for (int k = 0; k < 3; k++) rows[k] = lazy->rows[k];
    }

    // The current value of number i, and the state that belongs to it.
    __device__ float current(const dy_idle *h, float kept, size_t i, float value, float s[3]) const {
        for (int k = 0; k < 3; k++) s[k] = rows[k] ? rows[k][i] : 0.f;
        return kept * value + idle_step(rule, h, s[0], s[1], s[2]);
    }
};

// Start without deferred updates; updates of this rule follow.
extern "C" __global__ void lazy_begin(dy_lazy *lazy, uint32_t *had, size_t rows, int rule, float b1, float b2,
                                      float eps, float *first, float *second, float *third) {
    for (EACH(r, rows)) had[r] = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        lazy->had = had;
        lazy->rows[0] = first;
        lazy->rows[1] = second;
        lazy->rows[2] = third;
        dy_lazy_begin(lazy, rule, b1, b2, eps);
    }
}

// y_b = row items_b, or first + b without items. Nothing is changed. An item that is no row (lookup.cu) gives zeros.
extern "C" __global__ void lazy_read(const dy_lazy *lazy, size_t rows, size_t n, const uint32_t *__restrict__ items,
                                     size_t first, const float *__restrict__ table, float *y) {
    __shared__ dy_idle step;
    __shared__ float weights[DY_MOST_DEFERRED], fades[DY_MOST_DEFERRED];
    rule_of_table t(lazy);
    for (ROWS(b, rows)) {
        size_t row = items ? items[b] : first + b;
        if (row == 0xffffffffu) {
            for (LANES(i, n)) y[b * n + i] = 0.f;
            continue;
        }
        uint32_t had = lazy->had[row];
        float kept = had < t.n ? (float)lazy->kept[had] : 1.f;
        if (had < t.n && threadIdx.x == 0) dy_lazy_step(lazy, had, &step, weights, fades);
        __syncthreads();
        for (LANES(i, n)) {
            float value = table[row * n + i], s[3];
            y[b * n + i] = had < t.n ? t.current(&step, kept, row * n + i, value, s) : value;
        }
        __syncthreads();  // step is written again
    }
}

// Apply all noted updates to rows. If `notes`, mark them as having had the update that is noted next, unless that one is
// left out.
extern "C" __global__ void lazy_catch_up(dy_lazy *lazy, size_t rows, size_t n, const uint32_t *__restrict__ items,
                                         size_t first, float *table, int notes, const dy_clip *__restrict__ clip) {
    __shared__ dy_idle step;
    __shared__ float weights[DY_MOST_DEFERRED], fades[DY_MOST_DEFERRED];
    rule_of_table t(lazy);
    uint32_t now = t.n + (notes && !left_out(clip));
    for (ROWS(b, rows)) {
        size_t row = items ? items[b] : first + b;
        uint32_t had = lazy->had[row];
        float kept = had < t.n ? (float)lazy->kept[had] : 1.f;
        if (had < t.n && threadIdx.x == 0) dy_lazy_step(lazy, had, &step, weights, fades);
        __syncthreads();
        if (had < t.n) {
            for (LANES(j, n)) {
                size_t i = row * n + j;
                float s[3];
                table[i] = t.current(&step, kept, i, table[i], s);
                for (int k = 0; k < 3; k++)
                    if (t.rows[k]) t.rows[k][i] = s[k];
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) lazy->had[row] = now;
    }
}

// Note an update for the rows that have not been marked. One block.
extern "C" __global__ void lazy_defer(dy_lazy *lazy, dy_hyper h, const dy_chosen *__restrict__ chosen,
                                      const dy_clip *__restrict__ clip) {
    bool made = !left_out(clip);
    double after = 1 - (double)h.decay, kept = after * (1 - (double)decoupled_of(h, chosen));
    double weight = after * dy_lazy_weight(lazy->rule, rate_of(h, chosen), 1.f);
    float eps_scale = eps_scale_of(h, chosen);
    if (made)
        for (LANES(s, lazy->n + 1)) dy_lazy_add(lazy, (uint32_t)s, weight, eps_scale, kept);
    __syncthreads();
    if (made && threadIdx.x == 0) dy_lazy_added(lazy, rate_of(h, chosen), eps_scale);
}
