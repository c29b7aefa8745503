/* SPDX-License-Identifier: Apache-2.0
 *
 * Structs that the host fills and kernels of the GPU read stand in one header each, which both include. DY_SIZE says how
 * many bytes such a struct has, so that neither compiler puts padding where the other does not. */
#ifndef DYNET_CY_GPU_SIZE_H
#define DYNET_CY_GPU_SIZE_H

#ifdef __cplusplus
#define DY_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type " has another size")
#else
#define DY_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has another size")
#endif

#endif
