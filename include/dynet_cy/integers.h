/* Elementwise functions of integers, with broadcasting, for each row of integers.def, and conversions.
 *
 * A node has two arguments, or one and a constant: attribute 0 says which, attribute 1 is its value. */
#ifndef DYNET_CY_INTEGERS_H
#define DYNET_CY_INTEGERS_H

#include "tensor.h"

enum { DY_NO_CONSTANT, DY_CONSTANT_A, DY_CONSTANT_B };

/* n elements of y, from a and b, of which each has one for each of y (step 1), or one for all (step 0). */
typedef void (*dy_integer_run)(size_t n, const dy_int *a, size_t step_a, const dy_int *b, size_t step_b, float *y);

#define INTEGER(name, value) \
    static void dy_run_##name(size_t n, const dy_int *as, size_t step_a, const dy_int *bs, size_t step_b, float *y) { \
        for (size_t i = 0; i < n; i++) { \
            int32_t a = as[i * step_a], b = bs[i * step_b]; \
            dy_integers(y)[i] = value; \
        } \
    }
#define COMPARISON(name, holds) \
    static void dy_run_##name(size_t n, const dy_int *as, size_t step_a, const dy_int *bs, size_t step_b, float *y) { \
        for (size_t i = 0; i < n; i++) { \
            int32_t a = as[i * step_a], b = bs[i * step_b]; \
            y[i] = holds; \
        } \
    }
#include "integers.def"
#undef INTEGER
#undef COMPARISON

/* The offset of element i, counted without axis 0, in an argument that may have one element along an axis of y. */
static size_t dy_integer_offset(const dy_dim *x, const dy_dim *y, size_t i) {
    size_t at = 0, step = dy_axis(x, 0);
    for (uint32_t k = 1; k < y->nd; k++) {
        size_t size = y->d[k], own = dy_axis(x, k);
        at += own == 1 ? 0 : i % size * step;
        step *= own;
        i /= size;
    }
    return at;
}

static void dy_integer_forward(const dy_call *c, dy_integer_run run) {
    const dy_int constant = c->attrs[1].i;
    const dy_dim *y = &c->y.dim;
    const dy_tensor *a = &c->x[0], *b = &c->x[c->n - 1];
    if (c->n == 1) {
        const dy_int *x = dy_const_integers(a->v);
        int first = c->attrs[0].u == DY_CONSTANT_A;
        run(dy_total(y), first ? &constant : x, !first, first ? x : &constant, first, c->y.v);
        return;
    }
    if (dy_total(&a->dim) == dy_total(y) && dy_total(&b->dim) == dy_total(y)) {
        run(dy_total(y), dy_const_integers(a->v), 1, dy_const_integers(b->v), 1, c->y.v);
        return;
    }
    size_t n = dy_axis(y, 0), outer = dy_size(y) / n;
    for (uint32_t k = 0; k < y->bd; k++)
        for (size_t i = 0; i < outer; i++)
            run(n, dy_const_integers(dy_element(a, k)) + dy_integer_offset(&a->dim, y, i), dy_axis(&a->dim, 0) != 1,
                dy_const_integers(dy_element(b, k)) + dy_integer_offset(&b->dim, y, i), dy_axis(&b->dim, 0) != 1,
                dy_element(&c->y, k) + i * n);
}

#define INTEGER(name, value) \
    static void dy_forward_##name(const dy_call *c) { dy_integer_forward(c, dy_run_##name); }
#define COMPARISON INTEGER
#include "integers.def"
#undef INTEGER

/* By number of the row. */
#define INTEGER(name, value) dy_forward_##name,
static void (*const dy_integer_forwards[])(const dy_call *) = {
#include "integers.def"
};
#undef INTEGER
#define INTEGER(name, value) #name,
static const char *const dy_integer_names[] = {
#include "integers.def"
};
#undef INTEGER
#define INTEGER(name, value) DY_##name,
enum {
#include "integers.def"
    DY_INTEGER_COUNT
};
#undef INTEGER
#undef COMPARISON
#define INTEGER(name, value) DY_INTEGERS,
#define COMPARISON(name, value) DY_FLOATS,
static const uint8_t dy_integer_results[] = {
#include "integers.def"
};
#undef INTEGER
#undef COMPARISON

static void dy_to_float_forward(const dy_call *c) {
    const dy_int *x = dy_const_integers(c->x[0].v);
    for (size_t i = 0, n = dy_total(&c->y.dim); i < n; i++) c->y.v[i] = (float)x[i];
}

/* The fraction is dropped.  Beyond the range: the nearest integer; NaN: 0. */
static void dy_to_int_forward(const dy_call *c) {
    const float *x = c->x[0].v;
    dy_int *y = dy_integers(c->y.v);
    for (size_t i = 0, n = dy_total(&c->y.dim); i < n; i++)
        y[i] = x[i] >= 2147483648.f ? INT32_MAX : x[i] > -2147483648.f ? (int32_t)x[i] : x[i] == x[i] ? INT32_MIN : 0;
}

#endif
