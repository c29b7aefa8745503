# Written by tools/derive.py
from collections.abc import Callable, Mapping
from typing import Any

from dynet_cy.graph.expressions import Expression

def custom_op(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    shape: Callable[..., Any] | None = None,
    *,
    cuda: str | Mapping[str, str] | None = None,
) -> Callable[..., Expression]:
    """A new op, made from functions of NumPy arrays, and of kernels in CUDA for GPUs."""
