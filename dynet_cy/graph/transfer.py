"""Expressions on devices."""

from __future__ import annotations

from dynet_cy.devices import check_device
from dynet_cy.graph.graph import Expression

__all__ = ["to_device"]


def to_device(e: Expression, device_str: str) -> Expression:
    """An expression with the value of `e` on a device.

    There is only the CPU so far, so it is `e` itself.

    Args:
        e: of any shape
        device_str: "CPU", or "" for the default device

    Raises:
        TypeError: `e` is not an Expression, or `device_str` not a string
        RuntimeError: there is no such device
        StaleExpressionError: the graph of `e` was renewed
    """
    if not isinstance(e, Expression):
        raise TypeError(f"to_device: e must be an Expression, not {type(e).__name__}")
    check_device(device_str, "to_device")
    e.dim()  # it must be of a graph that is there
    return e
