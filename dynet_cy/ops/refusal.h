/* An index that is out of range. */
#ifndef DYNET_CY_REFUSAL_H
#define DYNET_CY_REFUSAL_H

#include <stddef.h>
#include <stdint.h>

/* The first index of the last call of this thread that is not one; `n` is 0 if there is none. */
typedef struct {
    uint32_t function, b, n, any;
    size_t k;
    double v;
    uint32_t node;          /* 1 + its number, once an executor has found it; 0: unknown */
} dy_refusal;
static _Thread_local dy_refusal dy_refused;

#endif
