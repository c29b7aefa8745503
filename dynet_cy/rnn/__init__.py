"""Recurrent networks."""

from dynet_cy.rnn.birnn import BiRNNBuilder
from dynet_cy.rnn.builder import _RNNBuilder
from dynet_cy.rnn.gru import GRUBuilder
from dynet_cy.rnn.lstm import (
    CompactVanillaLSTMBuilder,
    CoupledLSTMBuilder,
    FastLSTMBuilder,
    LSTMBuilder,
    SparseLSTMBuilder,
    VanillaLSTMBuilder,
)
from dynet_cy.rnn.simple import SimpleRNNBuilder
from dynet_cy.rnn.stacked import StackedRNNState
from dynet_cy.rnn.state import RNNState
from dynet_cy.rnn.tree import ChildSumTreeLSTMBuilder, NaryTreeLSTMBuilder, TreeState

__all__ = [
    "BiRNNBuilder",
    "ChildSumTreeLSTMBuilder",
    "CompactVanillaLSTMBuilder",
    "CoupledLSTMBuilder",
    "FastLSTMBuilder",
    "GRUBuilder",
    "LSTMBuilder",
    "NaryTreeLSTMBuilder",
    "RNNState",
    "SimpleRNNBuilder",
    "SparseLSTMBuilder",
    "StackedRNNState",
    "TreeState",
    "VanillaLSTMBuilder",
    "_RNNBuilder",
]
