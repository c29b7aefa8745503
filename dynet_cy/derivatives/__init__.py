"""Gradients as expressions: second and higher orders."""

from dynet_cy.derivatives.gradients import gradients, hessian_vector_product

__all__ = ["gradients", "hessian_vector_product"]
