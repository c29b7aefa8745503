"""Gradients as expressions: second and higher orders. See docs/training.md.

Bottom up: steps (a node whose gradient is known), table (the rules by operation), then a module of rules for each kind
of operation, rules (all of them), and gradients (the walk from a loss back to what it depends on).
"""

from typing import TYPE_CHECKING

from dynet_cy.core.later import later

if TYPE_CHECKING:
    from dynet_cy.derivatives import rules
else:
    rules = later("dynet_cy.derivatives.rules")

from dynet_cy.derivatives.gradients import gradients, hessian_vector_product

__all__ = ["gradients", "hessian_vector_product"]
