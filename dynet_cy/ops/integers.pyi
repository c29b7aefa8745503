# Written by tools/derive.py

from dynet_cy.graph.expressions import Expression

def to_float(x: Expression) -> Expression:
    """Convert integers to floats; numbers beyond 2^24 are rounded."""

def to_int(x: Expression) -> Expression:
    """Convert floats to integers (int32) without fractions."""
