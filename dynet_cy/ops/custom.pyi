# Written by tools/derive.py
from collections.abc import Callable
from typing import Any

from dynet_cy.graph.expressions import Expression

def custom_op(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    shape: Callable[..., Any] | None = None,
) -> Callable[..., Expression]:
    """A new op, made from functions of NumPy arrays."""
