/* Elementwise functions of one argument: a forward and a backward
 * for each row of unary.def, over the kernels that the same row makes. */
#ifndef DYNET_CY_UNARY_H
#define DYNET_CY_UNARY_H

#include "kernels.h"
#include "ranges.h"
#include "tensor.h"

static const dy_kernels *dy_unary_kernels;
static dy_in_ranges dy_unary_in_ranges;

typedef struct {
    const dy_call *c;
    int which;
} dy_unary_job;

static void dy_unary_forward_range(void *job, size_t i, size_t end) {
    const dy_unary_job *j = job;
    const dy_call *c = j->c;
    dy_unary_kernels->unary_fwd[j->which](end - i, c->x[0].v + i, c->attrs[0].f, c->attrs[1].f, c->y.v + i);
}

static void dy_unary_backward_range(void *job, size_t i, size_t end) {
    const dy_unary_job *j = job;
    const dy_call *c = j->c;
    dy_unary_kernels->unary_bwd[j->which](end - i, c->x[0].v + i, c->y.v + i, c->dy.v + i, c->attrs[0].f, c->attrs[1].f,
                                          c->dx.v + i, c->accumulate);
}

static inline void dy_unary_run(const dy_call *c, int which, dy_range_run run) {
    dy_unary_job job = {c, which};
    size_t n = dy_total(&c->y.dim);
    if (n < DY_LEAST_DIVIDED) run(&job, 0, n);
    else dy_unary_in_ranges(n, DY_RANGE_STEP, DY_ELEMENT_COST, run, &job);
}

#define UNARY(name, value, slope) \
    static void dy_forward_##name(const dy_call *c) { dy_unary_run(c, DY_UNARY_##name, dy_unary_forward_range); } \
    static void dy_backward_##name(const dy_call *c, uint32_t i) { \
        (void)i; \
        dy_unary_run(c, DY_UNARY_##name, dy_unary_backward_range); \
    }
#include "unary.def"
#undef UNARY

#define UNARY(name, value, slope) dy_forward_##name,
static void (*const dy_unary_forward[])(const dy_call *) = {
#include "unary.def"
};
#undef UNARY
#define UNARY(name, value, slope) dy_backward_##name,
static void (*const dy_unary_backward[])(const dy_call *, uint32_t) = {
#include "unary.def"
};
#undef UNARY
#define UNARY(name, value, slope) #name,
static const char *const dy_unary_op_names[] = {
#include "unary.def"
};
#undef UNARY
#define UNARY(name, value, slope) #slope,
static const char *const dy_unary_slopes[] = {
#include "unary.def"
};
#undef UNARY

#endif
