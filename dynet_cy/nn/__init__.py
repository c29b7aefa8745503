"""Layers: objects that own parameters and are called on expressions. docs/layers.md explains them."""

from dynet_cy.nn.basic import Activation, Dropout, Embedding, Highway, LayerNorm, Linear, RMSNorm
from dynet_cy.nn.containers import LayerList, Sequential
from dynet_cy.nn.layer import Layer

__all__ = [
    "Activation",
    "Dropout",
    "Embedding",
    "Highway",
    "Layer",
    "LayerList",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "Sequential",
]
