"""Gradients as expressions: second and higher orders. See docs/training.md.

Bottom up: steps (a node whose gradient is known), table (the rules by operation), then a module of rules for each kind
of operation, and gradients (the walk from a loss back to what it depends on).
"""

from dynet_cy.derivatives import (  # noqa: F401 - they fill the table
    attention,
    cells,
    chains,
    convolutions,
    elementwise,
    products,
    reductions,
    selections,
)
from dynet_cy.derivatives.gradients import gradients, hessian_vector_product

__all__ = ["gradients", "hessian_vector_product"]
