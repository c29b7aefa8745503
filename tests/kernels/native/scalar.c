/* The code for compilers without vector extensions; with a limit of OpenBLAS that tests reach: a call above it does
 * nothing. */

#include "isa.h"

#define DY_LIBRARY_MOST 1050

static void limited_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                          int ldb, float beta, float *c, int ldc) {
    if (n <= DY_LIBRARY_MOST && k <= DY_LIBRARY_MOST)
        scipy_cblas_sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

static void limited_sgemv(int order, int ta, int m, int n, float alpha, const float *a, int lda, const float *x, int incx,
                          float beta, float *y, int incy) {
    enum { TRANSPOSED = 112 };
    if ((ta == TRANSPOSED ? n : m) <= DY_LIBRARY_MOST) /* sums are shorter than any limit */
        scipy_cblas_sgemv(order, ta, m, n, alpha, a, lda, x, incx, beta, y, incy);
}

#define scipy_cblas_sgemm limited_sgemm
#define scipy_cblas_sgemv limited_sgemv
#define DY_ISA scalar
#define DY_W 1
#include "dynet_cy/kernels.inl"
