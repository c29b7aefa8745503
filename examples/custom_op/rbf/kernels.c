#include "kernels.h"

#include <math.h>

void rbf_forward(size_t d, size_t k, float gamma, const float *x, const float *c, float *y) {
    for (size_t j = 0; j < k; j++, c += d) {
        float total = 0;
        for (size_t i = 0; i < d; i++) total += (x[i] - c[i]) * (x[i] - c[i]);
        y[j] = expf(-gamma * total);
    }
}

void rbf_add_dx(size_t d, size_t k, float gamma, const float *x, const float *c, const float *y, const float *dy, float *dx) {
    for (size_t j = 0; j < k; j++, c += d)
        for (size_t i = 0; i < d; i++) dx[i] -= 2 * gamma * dy[j] * y[j] * (x[i] - c[i]);
}

void rbf_add_dc(size_t d, size_t k, float gamma, const float *x, const float *c, const float *y, const float *dy, float *dc) {
    for (size_t j = 0; j < k; j++, c += d, dc += d)
        for (size_t i = 0; i < d; i++) dc[i] += 2 * gamma * dy[j] * y[j] * (x[i] - c[i]);
}
