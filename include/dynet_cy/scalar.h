/* SPDX-License-Identifier: Apache-2.0
 *
 * Scalar functions that libm lacks. */
#ifndef DYNET_CY_SCALAR_H
#define DYNET_CY_SCALAR_H

#include <math.h>

/* Derivative of lgamma. Recurrence up to x >= 6, then the asymptotic series; in double, because the recurrence
 * cancels near the root at 1.4616. Poles give NaN, like the limit from both sides. */
static inline float dy_digammaf(float xf) {
    double x = xf, r = 0;
    if (x <= 0) {
        if (x == floor(x)) return NAN;
        r = -3.14159265358979323846 / tan(3.14159265358979323846 * x);
        x = 1 - x;
    }
    while (x < 6) {
        r -= 1 / x;
        x += 1;
    }
    double z = 1 / (x * x);
    return (float)(r + log(x) - 0.5 / x - z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z / 132)))));
}

/* lgammaf writes the global signgam, a data race between threads; the reentrant form does not. */
static inline float dy_lgammaf(float x) {
#if defined(__linux__) || defined(__APPLE__)
    int sign;
    return lgammaf_r(x, &sign);
#else
    return lgammaf(x);
#endif
}

#endif
