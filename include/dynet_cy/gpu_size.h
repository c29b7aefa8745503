/* SPDX-License-Identifier: Apache-2.0
 *
 * Each struct that the host fills and GPU kernels read is defined in one header, which both include. DY_SIZE asserts its
 * size, so that a difference in padding between the two compilers is an error. */
#ifndef DYNET_CY_GPU_SIZE_H
#define DYNET_CY_GPU_SIZE_H

#ifdef __cplusplus
#define DY_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type " has another size")
#else
#define DY_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has another size")
#endif

#endif
