"""Layers: objects that own parameters and are called on expressions. docs/layers.md explains them."""

from dynet_cy.files.places import name_all
from dynet_cy.graph.structs import give_attributes
from dynet_cy.hints.equivalents import elsewhere, of_module

# isort: split
# derived: imports, by tools/derive.py
from dynet_cy.nn.attention import BiaffineAttention, KeysValues, MultiHeadAttention, PointerAttention
from dynet_cy.nn.basic import Activation, Dropout, Embedding, GatedLinear, Highway, LayerNorm, Linear, RMSNorm
from dynet_cy.nn.batch_norm import BatchNorm, GroupNorm
from dynet_cy.nn.containers import LayerList, Sequential
from dynet_cy.nn.convolution import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from dynet_cy.nn.crf import CRF
from dynet_cy.nn.layer import Layer
from dynet_cy.nn.pooling import AvgPool2d, Flatten, GlobalAvgPool2d, MaxPool2d
from dynet_cy.nn.positions import RelativeBias, SinusoidalPositions, alibi, rotate
from dynet_cy.nn.recurrent import GRU, LSTM, RNN
from dynet_cy.nn.residual import ResidualBlock
from dynet_cy.nn.transformer import (
    DecoderState,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from dynet_cy.nn.vectors import WordVectors, read_vectors

# end of imports

__all__ = [
    # derived: names, by tools/derive.py
    "Activation",
    "AvgPool2d",
    "BatchNorm",
    "BiaffineAttention",
    "CRF",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "DecoderState",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRU",
    "GatedLinear",
    "GlobalAvgPool2d",
    "GroupNorm",
    "Highway",
    "KeysValues",
    "LSTM",
    "Layer",
    "LayerList",
    "LayerNorm",
    "Linear",
    "MaxPool2d",
    "MultiHeadAttention",
    "PointerAttention",
    "RMSNorm",
    "RNN",
    "RelativeBias",
    "ResidualBlock",
    "Sequential",
    "SinusoidalPositions",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "WordVectors",
    "alibi",
    "read_vectors",
    "rotate",
    # end of names
]

# Errors of names that other libraries have say what to write.
globals()["__getattr__"] = of_module("nn", __name__)  # not for mypy
give_attributes(Layer, elsewhere("layer", Layer))
name_all(__name__)
