# SPDX-License-Identifier: Apache-2.0

from dynet_cy.core.atomic cimport Flag

cdef Flag in_bf16               # whether products of weights are made in bfloat16; only where BF16 is there
