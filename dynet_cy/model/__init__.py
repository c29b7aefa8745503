"""Models: collections of parameters."""

from dynet_cy.model.collection import ParameterCollection
from dynet_cy.model.parameters import (
    LookupExpression,
    LookupParameters,
    Parameters,
    const_parameter,
    lookup,
    lookup_batch,
    parameter,
)

__all__ = [
    "LookupExpression",
    "LookupParameters",
    "ParameterCollection",
    "Parameters",
    "const_parameter",
    "lookup",
    "lookup_batch",
    "parameter",
]
