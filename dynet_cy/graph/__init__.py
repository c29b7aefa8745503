"""Graphs of expressions."""

from dynet_cy.graph.expressions import Expression, StaleExpressionError
from dynet_cy.graph.graph import ComputationGraph, cg, cg_checkpoint, cg_revert, cg_version, renew_cg
from dynet_cy.graph.values import forward, npvalues, values

__all__ = [
    "ComputationGraph",
    "Expression",
    "StaleExpressionError",
    "cg",
    "cg_checkpoint",
    "cg_revert",
    "cg_version",
    "forward",
    "npvalues",
    "renew_cg",
    "values",
]
