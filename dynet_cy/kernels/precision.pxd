# SPDX-License-Identifier: Apache-2.0

cdef bint in_bf16               # whether products of weights are made in bfloat16; only where BF16 is there
