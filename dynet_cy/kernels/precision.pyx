# SPDX-License-Identifier: Apache-2.0
"""The precision of products of weights: float32, or factors in bfloat16 where a program asks for them."""

from dynet_cy.kernels.kernels import bf16_missing

PRECISIONS = ("float32", "bf16")


def check_precision(precision):
    """See that products of weights can have a precision.

    Raises:
        ValueError: it is none of `PRECISIONS`.
        RuntimeError: this machine does not have it.
    """
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ValueError(f"precision must be 'float32' or 'bf16', not {precision!r}")
    missing = bf16_missing()
    if precision == "bf16" and missing:
        raise RuntimeError(f"precision='bf16': {missing}")


def set_precision(precision):
    """Set the precision of products of weights, for all threads; errors as of `check_precision`."""
    global in_bf16
    check_precision(precision)
    in_bf16 = precision == "bf16"


def precision():
    """The precision of products of weights: one of `PRECISIONS`."""
    return PRECISIONS[in_bf16]
