/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses among the kernels of all instruction sets at run time. */

#include <stdlib.h>
#include <string.h>

#include "isa.h"
#ifdef DY_BF16
#include <cpuid.h>
#endif

/* The best first. */
static const dy_kernels *dy_find(const char *isa) {
#ifdef DY_X86
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#endif
    const struct {
        const dy_kernels *table;
        int usable;
    } all[] = {
#ifdef DY_X86
        {&dy_table_avx512, avx512},
        {&dy_table_avx2, avx2},
#endif
#ifdef DY_ARM
        {&dy_table_neon, 1},
#endif
        {&dy_table_baseline, 1},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].usable && (!isa || !strcmp(isa, all[i].table->isa))) return all[i].table;
    return NULL;
}

const dy_kernels *dy_kernels_get(const char *isa) {
    const dy_kernels *found = NULL;
    if (isa) return dy_find(isa);
    const char *wanted = getenv("DYNET_CY_ISA");
    if (wanted) found = dy_find(wanted);
    return found ? found : dy_find(NULL);
}

const dy_bf16 *dy_bf16_get(const char **missing) {
#ifdef DY_BF16
    unsigned eax = 0, ebx, ecx, edx;
    if (!dy_find("avx512") || !__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !(eax & 1u << 5))
        *missing = "this CPU does not have the instructions AVX-512-BF16 (AMD since Zen 4, Intel Xeon since Cooper Lake have)";
    else if (strcmp(dy_kernels_get(NULL)->isa, "avx512"))
        *missing = "DYNET_CY_ISA asks for kernels without AVX-512";
    else
        return &dy_table_avx512bf16;
#elif defined(DY_X86)
    *missing = "dynet_cy was built by a compiler that does not know the instructions AVX-512-BF16 (GCC 10, Clang 9 do)";
#else
    *missing = "it needs the instructions AVX-512-BF16 of x86-64";
#endif
    return NULL;
}
