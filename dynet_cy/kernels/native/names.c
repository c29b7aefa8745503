/* SPDX-License-Identifier: Apache-2.0
 *
 * The names of the functions in the .def files, in the order of their numbers. */

#include "dynet_cy/kernels.h"

#define NAME(name, ...) #name,
#define UNARY NAME
#define BINARY NAME
#define OPTIM NAME
#define RNG NAME
const char *const dy_unary_names[DY_UNARY_COUNT] = {
#include "dynet_cy/unary.def"
};
const char *const dy_binary_names[DY_BINARY_COUNT] = {
#include "dynet_cy/binary.def"
};
const char *const dy_optim_names[DY_OPTIM_COUNT] = {
#include "dynet_cy/optim.def"
};
const char *const dy_rng_names[DY_RNG_COUNT] = {
#include "dynet_cy/rng.def"
};
#undef OPTIM
#define OPTIM(name, states, ...) states,
const int dy_optim_states[DY_OPTIM_COUNT] = {
#include "dynet_cy/optim.def"
};
