/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs kernels of one instruction set, and writes a line before and after each: count.py counts the instructions between
 * them. */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dynet_cy/kernels.h"

static const dy_kernels *k;
static float *a, *b, *c, *d;

static void product(int ta, int tb, size_t m, size_t n, size_t inner) {
    k->sgemm(ta, tb, m, n, inner, 1, a, ta ? inner : m, b, tb ? n : inner, 0, c, m);
}

#define UNARY(f, n) k->unary_fwd[DY_UNARY_##f](n, a, 0, 0, c)
#define RNG(f, n) k->rng[DY_RNG_##f](1, 2, 3, 0, n, 0, 1, c)

/* What is counted; how many elements it has, or fours of multiplications. */
#define CASES(CASE)                                                                                                    \
    CASE("nothing", 1, (void)0)                                                                                        \
    CASE("tanh of 4,096", 4096, UNARY(tanh, 4096))                                                                     \
    CASE("square root of 4,096", 4096, UNARY(sqrt, 4096))                                                              \
    CASE("tanh of 3", 3, UNARY(tanh, 3))                                                                               \
    CASE("sum of two vectors of 50", 50, k->add(50, a, c))                                                             \
    CASE("dot product of 50", 50, k->dot(50, a, b))                                                                    \
    CASE("largest of 50", 50, k->max(50, a))                                                                           \
    CASE("softmax of 50", 50, k->softmax(50, 1, a, c))                                                                 \
    CASE("4,096 normal numbers", 4096, RNG(normal, 4096))                                                              \
    CASE("4,096 uniform numbers", 4096, RNG(uniform, 4096))                                                            \
    CASE("packing 200 x 200, transposed", 40000, k->pack(1, 200, 200, a, 200, c))                                      \
    CASE("product 50 x 50, one column", 50 * 50 / 4, product(0, 0, 50, 1, 50))                                         \
    CASE("product 200 x 200, 4 columns", 200 * 200, product(0, 0, 200, 4, 200))                                        \
    CASE("product 200 x 200 packed, 4 columns", 200 * 200, k->sgemm_packed(200, 4, 200, d, b, 200, 0, c, 200))                            \
    CASE("product 200 x 200, 16 columns", 200 * 200 * 4, product(0, 0, 200, 16, 200))                                  \
    CASE("product 200 x 200 packed, 16 columns", 200 * 200 * 4, k->sgemm_packed(200, 16, 200, d, b, 200, 0, c, 200))                       \
    CASE("product 200 x 200 transposed, 4 columns", 200 * 200, product(1, 0, 200, 4, 200))                             \
    CASE("product 200 x 200 with 4 columns transposed", 200 * 200, product(0, 1, 200, 200, 4))                         \
    CASE("product 256 x 256, 256 columns", 256 * 256 * 64, product(0, 0, 256, 256, 256))

static void say(const char *line, int length) {
    if (write(STDERR_FILENO, line, (size_t)length) != length) exit(1);
}

int main(int argc, char **argv) {
    enum { ROOM = 256 * 256 };
    static const char end[] = "\nkernel 1 \n";
    char line[100];
    int length;
    float **arrays[] = {&a, &b, &c, &d};
    k = argc == 2 ? dy_kernels_get(argv[1]) : NULL;
    if (!k) return 1;
    for (int i = 0; i < 4; i++) {
        float *x = *arrays[i] = malloc(ROOM * sizeof *x);
        for (int j = 0; j < ROOM; j++) x[j] = (float)(j % 7 + 1) / 8;
    }
    k->pack(0, 200, 200, a, 200, d);
    say("\n", 1);
    /* The first call allocates. */
#define RUN(name, count, call)                                                                                         \
    call;                                                                                                              \
    length = snprintf(line, sizeof line, "\nkernel %d %s\n", count, name);                                             \
    say(line, length);                                                                                                 \
    call;                                                                                                              \
    say(end, sizeof end - 1);
    CASES(RUN)
    return 0;
}
