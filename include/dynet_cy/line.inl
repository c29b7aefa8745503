/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels of the rows of line.def. Lines that are contiguous are computed one by one, along each; of lines that lie side
 * by side, whose elements are n floats apart, each lane of a vector has one, from lane i on: `along` says which, a
 * constant in each of the copies. */

#include "collisions.h"

/* What a line has in y, and in dy: PAIRS have nothing for each element, so that there formulas use x only. */
enum { DY_N(PAIRS), DY_N(NUMBERS), DY_N(AGAIN) };

/* The statements for each vector of the elements of a line or, across lines, for each element. */
#define DY_ELEMENTS(...)                                                       \
    vf x = L(px + k * n), y = L(py + k * n), dy = L(pdy + k * n);              \
    (void)x; (void)y; (void)dy;                                                \
    __VA_ARGS__;
#define DY_ACROSS(...) for (size_t k = 0; k < length; k++) { DY_ELEMENTS(__VA_ARGS__) }
#define DY_ROWS(...)                                                           \
    if (along) DY_EACH(enum { k = 0 }; DY_ELEMENTS(__VA_ARGS__));              \
    else DY_ACROSS(__VA_ARGS__)
#define DY_LANES (whole ? DY_W : n - i)
/* t becomes the sum of f in each lane across lines, as `bias_bwd` would compute it: of many terms recursively, by halves. */
#define DY_ADD_UP(t, f)                                                        \
    t = C(0.f);                                                                \
    if (length <= DY_COLUMNS) {                                                \
        DY_ACROSS(t += DY_N(rounded)(f))                                       \
    } else {                                                                   \
        DY_ACROSS(if (whole) st(work + k * DY_W, f); else st_n(work + k * (n - i), f, n - i)) \
        t = DY_N(sum_columns)(DY_LANES, DY_LANES, length, work);               \
    }
/* t by a kernel, or as this sum. */
#define DY_REDUCE(t, kernel, f)                                                \
    vf t = C(0.f);                                                             \
    if (along) t = C(kernel);                                                  \
    else { DY_ADD_UP(t, f) }

#define TOP(m)                                                                 \
    vf m = C(-INFINITY);                                                       \
    if (along) m = C(DY_N(max)(n, px));                                        \
    else DY_ACROSS(m = DY_N(larger)(m, x))
#define EXPONENTIALS(s, m)                                                     \
    vf s = C(0.f);                                                             \
    if (along) s = C((float)DY_N(sum_exp)(n, DY_LANE(m, 0), px, to));          \
    else {                                                                     \
        DY_ACROSS(S(to + k * n, EXP(x - m)))                                   \
        s = DY_N(sum_columns)(DY_LANES, n, length, to + i);                    \
    }
#define LOG_SUM(m, s)                                                          \
    vf m = C(-INFINITY), s = m;                                                \
    if (along) {                                                               \
        float m##_1 = DY_N(max)(n, px);                                        \
        m##_1 = m##_1 - m##_1 == 0 ? m##_1 : 0; /* inf - inf would be NaN; without it the sum is 0 or inf, as it should be */ \
        float s##_1 = (float)DY_N(sum_exp)(n, m##_1, px, NULL);                \
        m = C(s##_1 == INFINITY ? INFINITY : m##_1);                           \
        s = C(s##_1 == INFINITY ? 1 : s##_1);                                  \
    } else {                                                                   \
        DY_ACROSS(m = DY_N(larger)(m, x))                                      \
        m = SEL(m - m == C(0.f), m, C(0.f));                                   \
        DY_ADD_UP(s, EXP(x - m))                                               \
        m = SEL(s == C(INFINITY), C(INFINITY), m);                             \
        s = SEL(s == C(INFINITY), C(1.f), s);                                  \
    }
#define LOG_OF(z, s) vf z = along ? C(logf(DY_LANE(s, 0))) : LOG(s);
#define SUM(t, a) DY_REDUCE(t, DY_N(sum)(n, p##a), a)
#define DOT(t, a, b) DY_REDUCE(t, DY_N(dot)(n, p##a, p##b), a * b)
#define SAVE(m, s)                                                             \
    for (size_t j = 0; j < (along ? 1 : DY_LANES); j++) {                      \
        to[2 * (i + j)] = DY_LANE(m, j);                                       \
        to[2 * (i + j) + 1] = DY_LANE(s, j);                                   \
    }
#define SAVED(m, t)                                                            \
    vf m = C(0.f), t = m;                                                      \
    for (size_t j = 0; j < (along ? 1 : DY_LANES); j++) {                      \
        float s = of_y[2 * (i + j) + 1];                                       \
        DY_LANE(m, j) = of_y[2 * (i + j)];                                     \
        DY_LANE(t, j) = of_dy[i + j] / (s == 0 ? 1 : s); /* of numbers that are all -inf: the gradient is 0 */ \
    }                                                                          \
    if (along) {                                                               \
        m = C(DY_LANE(m, 0));                                                  \
        t = C(DY_LANE(t, 0));                                                  \
    }
#define Y(...) DY_ROWS(S(to + k * n, __VA_ARGS__))
#define DX(...) DY_ROWS(DY_GRADIENT(dx_to + k * n, acc, __VA_ARGS__))
#define TIMES(a, b) (along ? (a) * (b) : DY_N(rounded)((a) * (b)))
#define EXP_LESS(x, m) (along ? EXP(x - m) : SEL((x - x == C(0.f)) | (x != x), EXP(x - m), C(0.f)))

/* Lines that collide, of a row that reads its results again (AGAIN), are computed in copies of a vector of lines. Rows that
 * read only x lose by that. */
#define DY_IN_COPIES(result) (DY_N(result) == DY_N(AGAIN) && dy_lines_collide(length, n))
static void DY_N(copy_lines)(size_t length, const float *from, size_t step, float *to, size_t to_step) {
    for (; length; length--, from += step, to += to_step) st(to, ld(from));
}

#define LINE(name, result, forward, backward)                                  \
    DY_INLINE void DY_N(line_##name)(int along, int whole, size_t i, size_t length, size_t n, const float *px, float *to, \
                                     float *work) {                            \
        const float *py = DY_N(result) ? to : px, *pdy = px;                   \
        (void)whole; (void)i; (void)length; (void)py; (void)pdy; (void)work;   \
        forward                                                                \
    }                                                                          \
    DY_INLINE void DY_N(line_##name##_bwd)(int along, int whole, size_t i, size_t length, size_t n, const float *px, \
                                           const float *of_y, const float *of_dy, float *dx_to, float *work, int acc) { \
        const float *py = DY_N(result) ? of_y : px, *pdy = DY_N(result) ? of_dy : px; \
        (void)whole; (void)i; (void)length; (void)work;                        \
        backward                                                               \
    }                                                                          \
    __attribute__((noinline)) static void DY_N(across_##name)(size_t length, size_t n, size_t lines, const float *x, float *y, \
                                                              float *work) {   \
        float *own = work + length * DY_W;                                     \
        for (; lines; lines -= n, x += n * length, y += n * (DY_N(result) ? length : 2)) { \
            if (!DY_IN_COPIES(result)) {                                       \
                DY_EACH(DY_N(line_##name)(0, whole, i, length, n, x, y, work);); \
                continue;                                                      \
            }                                                                  \
            for (size_t i = 0; i < n; i += DY_W) {                             \
                DY_N(copy_lines)(length, x + i, n, own, DY_W);                 \
                DY_N(across_##name)(length, DY_W, DY_W, own, own + length * DY_W, work); \
                DY_N(copy_lines)(length, own + length * DY_W, DY_W, y + i, n); \
            }                                                                  \
        }                                                                      \
    }                                                                          \
    __attribute__((noinline)) static void DY_N(across_##name##_bwd)(           \
        size_t length, size_t n, size_t lines, const float *x, const float *y, const float *dy, float *dx, float *work, \
        int acc) {                                                             \
        size_t size = length * DY_W;                                           \
        float *own_y = work + size, *own_dy = own_y + size, *own_dx = own_dy + size; \
        for (; lines; lines -= n, x += n * length, dx += n * length) {         \
            if (!DY_IN_COPIES(result))                                         \
                DY_EACH(DY_N(line_##name##_bwd)(0, whole, i, length, n, x, y, dy, dx, work, acc);); \
            else for (size_t i = 0; i < n; i += DY_W) {                        \
                DY_N(copy_lines)(length, y + i, n, own_y, DY_W);               \
                DY_N(copy_lines)(length, dy + i, n, own_dy, DY_W);             \
                if (acc) DY_N(copy_lines)(length, dx + i, n, own_dx, DY_W);    \
                DY_N(across_##name##_bwd)(length, DY_W, DY_W, own_y, own_y, own_dy, own_dx, work, acc); \
                DY_N(copy_lines)(length, own_dx, DY_W, dx + i, n);             \
            }                                                                  \
            y += n * (DY_N(result) ? length : 2);                              \
            dy += n * (DY_N(result) ? length : 1);                             \
        }                                                                      \
    }                                                                          \
    static void DY_N(name)(size_t n, size_t step, size_t lines, const float *x, float *y, float *work) { \
        if (step == 1)                                                         \
            for (; lines; lines--, x += n, y += DY_N(result) ? n : 2) DY_N(line_##name)(1, 1, 0, n, n, x, y, work); \
        else DY_N(across_##name)(n, step, lines, x, y, work);                  \
    }                                                                          \
    static void DY_N(name##_bwd)(size_t n, size_t step, size_t lines, const float *x, const float *y, const float *dy, \
                                 float *dx, float *work, int acc) {            \
        if (step == 1)                                                         \
            for (; lines; lines--, x += n, dx += n, y += DY_N(result) ? n : 2, dy += DY_N(result) ? n : 1) \
                DY_N(line_##name##_bwd)(1, 1, 0, n, n, x, y, dy, dx, work, acc); \
        else DY_N(across_##name##_bwd)(n, step, lines, x, y, dy, dx, work, acc); \
    }
#include "line.def"
#undef LINE
