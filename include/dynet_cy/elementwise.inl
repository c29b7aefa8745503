/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops behind unary.def, binary.def and optim.def, and the flat kernels without a reduction. */

static void DY_N(fill)(size_t n, float a, float *y) { DY_EACH(S(y, C(a));); }
static void DY_N(scale)(size_t n, float a, const float *x, float *y) { DY_EACH(S(y, C(a) * L(x));); }
static void DY_N(axpy)(size_t n, float a, const float *x, float *y) { DY_EACH(S(y, L(y) + C(a) * L(x));); }
static void DY_N(add)(size_t n, const float *x, float *y) { DY_EACH(S(y, L(y) + L(x));); }

#define UNARY(name, value, derivative)                                         \
    DY_INLINE vf DY_N(f_##name)(vf x, vf p0, vf p1) {                          \
        (void)x; (void)p0; (void)p1;                                           \
        return value;                                                          \
    }                                                                          \
    DY_INLINE vf DY_N(d_##name)(vf x, vf y, vf p0, vf p1) {                    \
        (void)x; (void)y; (void)p0; (void)p1;                                  \
        return derivative;                                                     \
    }                                                                          \
    static void DY_N(unary_fwd_##name)(size_t n, const float *x, float p0, float p1, float *y) { \
        DY_EACH(S(y, DY_N(f_##name)(L(x), C(p0), C(p1))););                    \
    }                                                                          \
    static void DY_N(unary_bwd_##name)(size_t n, const float *x, const float *y, const float *dy, float p0, float p1, \
                                       float *dx, int acc) {                   \
        (void)x; (void)y;                                                      \
        DY_EACH(DY_GRADIENT(dx, acc, L(dy) * DY_N(d_##name)(L(x), L(y), C(p0), C(p1)));); \
    }
#include "unary.def"
#undef UNARY

/* A scalar argument is loaded once; the choice by stride is hoisted out of the loop. Its gradient is a sum in blocks. */
#define DY_ARGUMENT(p, s) ((s) ? L(p) : p##_all)
#define DY_BINARY_BWD(name, side, stride)                                      \
    static void DY_N(binary_bwd_##side##_##name)(size_t n, const float *a, int sa, const float *b, int sb, const float *y, \
                                                 const float *dy, float *dx, int acc) { \
        if (!n) {                                                              \
            if (!stride && !acc) *dx = 0;                                      \
            return;                                                            \
        }                                                                      \
        vf a_all = C(*a), b_all = C(*b), total = C(0.f);                       \
        (void)y;                                                               \
        if (stride)                                                            \
            DY_EACH(DY_GRADIENT(dx, acc, L(dy) * DY_N(d##side##_##name)(DY_ARGUMENT(a, sa), DY_ARGUMENT(b, sb), L(y)));); \
        else {                                                                 \
            double sum = 0;                                                    \
            for (size_t left = n; left; left -= n) {                           \
                n = left < DY_BLOCK ? left : DY_BLOCK;                         \
                total = C(0.f);                                                \
                DY_EACH(total += K(L(dy) * DY_N(d##side##_##name)(DY_ARGUMENT(a, sa), DY_ARGUMENT(b, sb), L(y)));); \
                sum += hsum(total);                                            \
                a += sa ? n : 0;                                               \
                b += sb ? n : 0;                                               \
                y += n;                                                        \
                dy += n;                                                       \
            }                                                                  \
            *dx = (acc ? *dx : 0) + (float)sum;                                \
        }                                                                      \
    }
#define BINARY(name, value, da, db)                                            \
    DY_INLINE vf DY_N(f2_##name)(vf a, vf b) { return value; }                 \
    DY_INLINE vf DY_N(da_##name)(vf a, vf b, vf y) {                           \
        (void)a; (void)b; (void)y;                                             \
        return da;                                                             \
    }                                                                          \
    DY_INLINE vf DY_N(db_##name)(vf a, vf b, vf y) {                           \
        (void)a; (void)b; (void)y;                                             \
        return db;                                                             \
    }                                                                          \
    static void DY_N(binary_fwd_##name)(size_t n, const float *a, int sa, const float *b, int sb, float *y) { \
        if (!n) return;                                                        \
        vf a_all = C(*a), b_all = C(*b);                                       \
        DY_EACH(S(y, DY_N(f2_##name)(DY_ARGUMENT(a, sa), DY_ARGUMENT(b, sb)));); \
    }                                                                          \
    DY_BINARY_BWD(name, a, sa)                                                 \
    DY_BINARY_BWD(name, b, sb)
#include "binary.def"
#undef BINARY
#undef DY_BINARY_BWD
#undef DY_ARGUMENT

#define OPTIM(name, states, rule, kind, idle)                                  \
    static void DY_N(optim_##name)(size_t n, const dy_optim *h, const float *grad, float *p, float *p_s0, float *p_s1, \
                                   float *p_s2) {                              \
        vf lr = C(h->lr), b1 = C(h->b1), b2 = C(h->b2), eps = C(h->eps * h->eps_scale); \
        vf grad_scale = C(h->grad_scale), step_scale = C(h->step_scale);       \
        (void)lr; (void)b1; (void)b2; (void)eps; (void)p_s0; (void)p_s1; (void)p_s2; \
        DY_EACH(                                                               \
            vf g = grad_scale * L(grad), s0 = C(0.f), s1 = s0, s2 = s0, d;     \
            if (states > 0) s0 = L(p_s0);                                      \
            if (states > 1) s1 = L(p_s1);                                      \
            if (states > 2) s2 = L(p_s2);                                      \
            rule                                                               \
            S(p, L(p) + step_scale * d);                                       \
            if (states > 0) S(p_s0, s0);                                       \
            if (states > 1) S(p_s1, s1);                                       \
            if (states > 2) S(p_s2, s2);                                       \
        );                                                                     \
    }                                                                          \
    static void DY_N(idle_##name)(size_t n, const dy_idle *h, const float *p, float *q, float *p_s0, float *p_s1, \
                                  float *p_s2) {                               \
        vf b1_power = C(h->b1_power), b2_power = C(h->b2_power), sum = C(h->sum), b1 = C(h->b1), b2 = C(h->b2); \
        vf eps = C(h->eps);                                                    \
        (void)b1_power; (void)b2_power; (void)b1; (void)b2; (void)eps; (void)sum; (void)p_s0; (void)p_s1; (void)p_s2; \
        DY_EACH(                                                               \
            vf s0 = C(0.f), s1 = s0, s2 = s0, d = s0;                          \
            if (states > 0) s0 = L(p_s0);                                      \
            if (states > 1) s1 = L(p_s1);                                      \
            if (states > 2) s2 = L(p_s2);                                      \
            idle                                                               \
            DY_REPLAY(kind, rule)                                              \
            S(q, L(p) + d);                                                    \
            if (states > 0 && h->keeps) S(p_s0, s0);                           \
            if (states > 1 && h->keeps) S(p_s1, s1);                           \
            if (states > 2 && h->keeps) S(p_s2, s2);                           \
        );                                                                     \
    }
#include "optim.def"
#undef OPTIM
