// SPDX-License-Identifier: Apache-2.0
//
// Rows of tables that have not had all updates yet. The numbers are those of late.h, as on the CPU.
#include "updates.cuh"
#include "dynet_cy/late.h"

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

// What all numbers of a table need. It is read once, since the compiler does not know that writes leave it alone.
struct rule_of_table {
    int rule;
    uint32_t n;
    float *rows[3];

    __device__ explicit rule_of_table(const dy_late *late) : rule(late->rule), n(late->n) {
        for (int k = 0; k < 3; k++) rows[k] = late->rows[k];
    }

    // The current value of number i, and the state that belongs to it.
    __device__ float current(const dy_idle *h, float kept, size_t i, float value, float s[3]) const {
        for (int k = 0; k < 3; k++) s[k] = rows[k] ? rows[k][i] : 0.f;
        return kept * value + idle_step(rule, h, s[0], s[1], s[2]);
    }
};

// Begin anew: no row is late, and updates of this rule follow.
extern "C" __global__ void late_begin(dy_late *late, uint32_t *had, size_t rows, int rule, float b1, float b2, float eps,
                                      float *first, float *second, float *third) {
    for (EACH(r, rows)) had[r] = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        late->had = had;
        late->rows[0] = first;
        late->rows[1] = second;
        late->rows[2] = third;
        dy_late_begin(late, rule, b1, b2, eps);
    }
}

// y_b = row items_b, or first + b without items. Nothing is changed.
extern "C" __global__ void late_read(const dy_late *late, size_t rows, size_t n, const uint32_t *__restrict__ items,
                                     size_t first, const float *__restrict__ table, float *y) {
    __shared__ dy_idle step;
    __shared__ float weights[DY_MOST_LATE], fades[DY_MOST_LATE];
    rule_of_table t(late);
    for (ROWS(b, rows)) {
        size_t row = items ? items[b] : first + b;
        uint32_t had = late->had[row];
        float kept = (float)late->kept[had];
        if (had < t.n && threadIdx.x == 0) dy_late_step(late, had, &step, weights, fades);
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
extern "C" __global__ void late_catch_up(dy_late *late, size_t rows, size_t n, const uint32_t *__restrict__ items,
                                         size_t first, float *table, int notes, const dy_clip *__restrict__ clip) {
    __shared__ dy_idle step;
    __shared__ float weights[DY_MOST_LATE], fades[DY_MOST_LATE];
    rule_of_table t(late);
    uint32_t now = t.n + (notes && !left_out(clip));
    for (ROWS(b, rows)) {
        size_t row = items ? items[b] : first + b;
        uint32_t had = late->had[row];
        float kept = (float)late->kept[had];
        if (had < t.n && threadIdx.x == 0) dy_late_step(late, had, &step, weights, fades);
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
        if (threadIdx.x == 0) late->had[row] = now;
    }
}

// Note an update for the rows that have not been marked. One block.
extern "C" __global__ void late_note(dy_late *late, dy_hyper h, const dy_chosen *__restrict__ chosen,
                                     const dy_clip *__restrict__ clip) {
    bool made = !left_out(clip);
    double after = 1 - (double)h.decay, kept = after * (1 - (double)decoupled_of(h, chosen));
    double weight = after * dy_late_weight(late->rule, rate_of(h, chosen), 1.f);
    if (made)
        for (LANES(s, late->n + 1)) dy_late_add(late, (uint32_t)s, weight, kept);
    __syncthreads();
    if (made && threadIdx.x == 0) dy_late_added(late, rate_of(h, chosen));
}
