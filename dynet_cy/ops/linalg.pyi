# Written by tools/derive.py
from collections.abc import Iterable

from dynet_cy.graph.expressions import Expression

def affine_transform(exprs: Iterable[Expression]) -> Expression:
    """b + W1 x1 + W2 x2 + ...: a layer without its activation."""

def dot_product(x: Expression, y: Expression) -> Expression:
    """Sum of the products of corresponding elements."""

def trace_of_product(x: Expression, y: Expression) -> Expression:
    """Trace of x y', the product of a matrix and the transpose of another."""
