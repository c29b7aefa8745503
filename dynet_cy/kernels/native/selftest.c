/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernels once more, with the tables that only tests use. */

#define DY_TEST_ISAS
#include "kernels.c"
