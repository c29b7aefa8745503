"""Gradients as expressions: second and higher orders."""

from dynet_cy.derivatives import attention, cells, chains, convolutions, elementwise, products, reductions, selections
from dynet_cy.derivatives.gradients import gradients, hessian_vector_product

__all__ = ["gradients", "hessian_vector_product"]

# Importing these modules fills the table.
_FAMILIES = (attention, cells, chains, convolutions, elementwise, products, reductions, selections)
