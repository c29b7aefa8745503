/* SPDX-License-Identifier: Apache-2.0
 *
 * Which lines that lie side by side are computed in copies (line.inl): kernels and the working memory of ops agree on it. */
#ifndef DYNET_CY_COLLISIONS_H
#define DYNET_CY_COLLISIONS_H

#include <stddef.h>

/* Elements that are a multiple of 2 KiB apart share a few places of the first-level cache: more of them than a place holds
 * push each other out. */
static inline int dy_lines_collide(size_t length, size_t step) {
    return step % 512 == 0 && length > 8 && length <= 1024;
}

#endif
