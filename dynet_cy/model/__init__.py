"""Models: collections of parameters."""

from dynet_cy.model.parameters import (
    LookupParameters,
    ParameterCollection,
    Parameters,
    const_parameter,
    lookup,
    lookup_batch,
    parameter,
)

__all__ = [
    "LookupParameters",
    "ParameterCollection",
    "Parameters",
    "const_parameter",
    "lookup",
    "lookup_batch",
    "parameter",
]
