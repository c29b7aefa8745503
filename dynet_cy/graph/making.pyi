# Written by tools/derive.py

from dynet_cy.graph.expressions import Expression

def to_device(e: Expression, device_str: str) -> Expression:
    """An expression with the value of `e` on a device; its gradient goes back to where `e` is."""
