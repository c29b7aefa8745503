"""Graphs of expressions."""

from dynet_cy.graph.expressions import (
    ComputationGraph,
    Expression,
    StaleExpressionError,
    cg,
    cg_checkpoint,
    cg_revert,
    cg_version,
    forward,
    npvalues,
    renew_cg,
    values,
)

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
