/* Elementwise functions of one argument: a forward and a backward
 * for each row of unary.def, over the kernels that the same row makes. */
#ifndef DYNET_CY_UNARY_H
#define DYNET_CY_UNARY_H

#include "kernels.h"
#include "tensor.h"

static const dy_kernels *dy_unary_kernels;

#define UNARY(name, value, slope) \
    static void dy_forward_##name(const dy_call *c) { \
        dy_unary_kernels->unary_fwd[DY_UNARY_##name]( \
            dy_total(&c->y.dim), c->x[0].v, c->attrs[0].f, c->attrs[1].f, c->y.v); \
    } \
    static void dy_backward_##name(const dy_call *c, uint32_t i) { \
        (void)i; \
        dy_unary_kernels->unary_bwd[DY_UNARY_##name]( \
            dy_total(&c->y.dim), c->x[0].v, c->y.v, c->dy.v, c->attrs[0].f, \
            c->attrs[1].f, c->dx.v, c->accumulate); \
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

#endif
