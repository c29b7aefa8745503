/* One example: x has d elements, c is d x k with its columns one after the other. */
#ifndef RBF_KERNELS_H
#define RBF_KERNELS_H

#include <stddef.h>

void rbf_forward(size_t d, size_t k, float gamma, const float *x, const float *c, float *y);
void rbf_add_dx(size_t d, size_t k, float gamma, const float *x, const float *c, const float *y, const float *dy, float *dx);
void rbf_add_dc(size_t d, size_t k, float gamma, const float *x, const float *c, const float *y, const float *dy, float *dc);

#endif
