"""Models: collections of parameters."""

from dynet_cy.model.parameters import LookupParameters, ParameterCollection, Parameters

__all__ = ["LookupParameters", "ParameterCollection", "Parameters"]
