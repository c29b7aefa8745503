"""Recurrent networks."""

# derived: imports, by tools/derive.py
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

# end of imports

__all__ = [
    # derived: names, by tools/derive.py
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
    # end of names
    "_RNNBuilder",
]
