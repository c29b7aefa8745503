"""Expressions on devices."""

from __future__ import annotations

from dynet_cy.graph.graph import Expression, bind

__all__ = ["to_device"]


def to_device(e: Expression, device_str: str) -> Expression:
    """An expression with the value of `e` on a device.

    A graph runs on one device so far: that of the first parameter in it, or the one that was asked for first. So it is
    `e` itself, and the graph runs on that device.

    Args:
        e: of any shape
        device_str: "CPU", or "GPU:0" and so on; "" for the device that the graph has

    Raises:
        TypeError: `e` is not an Expression, or `device_str` not a string
        RuntimeError: there is no such device
        NotImplementedError: the graph runs on another device
        StaleExpressionError: the graph of `e` was renewed
    """
    if not isinstance(e, Expression):
        raise TypeError(f"to_device: e must be an Expression, not {type(e).__name__}")
    bind(e, device_str, "to_device")
    return e
