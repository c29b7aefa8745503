# Written by tools/derive.py
from dynet_cy.graph.expressions import Expression

def to_float(x: Expression) -> Expression:
    """Integers as floats: numbers beyond 2^24 are rounded."""

def to_int(x: Expression) -> Expression:
    """Floats as integers (int32), without their fractions."""
