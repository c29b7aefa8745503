# Written by tools/derive.py
from collections.abc import Callable
from typing import Any

from dynet_cy.graph.graph import Expression

def custom_op(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    shape: Callable[..., Any] | None = None,
) -> Callable[..., Expression]: ...
