# Written by tools/derive.py
from collections.abc import Iterable

from dynet_cy.graph.expressions import Expression

def vanilla_lstm_gates(
    x_t: Expression, h_tm1: Expression, Wx: Expression, Wh: Expression, b: Expression, weightnoise_std: float = 0.0
) -> Expression:
    """All gates of an LSTM cell: logistic or tanh of Wx x + Wh h + b."""

def vanilla_lstm_gates_concat(
    x_t: Iterable[Expression],
    h_tm1: Expression,
    Wx: Expression,
    Wh: Expression,
    b: Expression,
    weightnoise_std: float = 0.0,
) -> Expression:
    """`vanilla_lstm_gates` of a list of inputs, as if they were concatenated."""

def vanilla_lstm_gates_projected(p_t: Expression, h_tm1: Expression, Wh: Expression) -> Expression:
    """`vanilla_lstm_gates` with the input's part of the sums, Wx x + b, already computed."""

def vanilla_lstm_gates_dropout(
    x_t: Expression,
    h_tm1: Expression,
    Wx: Expression,
    Wh: Expression,
    b: Expression,
    dropout_mask_x: Expression,
    dropout_mask_h: Expression,
    weightnoise_std: float = 0.0,
) -> Expression:
    """`vanilla_lstm_gates` of inputs multiplied by dropout masks."""

def vanilla_lstm_gates_dropout_concat(
    x_t: Iterable[Expression],
    h_tm1: Expression,
    Wx: Expression,
    Wh: Expression,
    b: Expression,
    dropout_mask_x: Expression,
    dropout_mask_h: Expression,
    weightnoise_std: float = 0.0,
) -> Expression:
    """`vanilla_lstm_gates_dropout` of a list of inputs, as if they were concatenated; dropout_mask_x covers all of them."""

def vanilla_lstm_c(c_tm1: Expression, gates_t: Expression) -> Expression:
    """The cell of an LSTM: f c + i g."""

def vanilla_lstm_h(c_t: Expression, gates_t: Expression) -> Expression:
    """The output of an LSTM: o tanh(c)."""

def logistic_affine(exprs: Iterable[Expression]) -> Expression:
    """`logistic` of `affine_transform`, as one node."""

def tanh_affine(exprs: Iterable[Expression]) -> Expression:
    """`tanh` of `affine_transform`, as one node."""

def tree_lstm_gates(exprs: Iterable[Expression], children: int) -> Expression:
    """All gates of a node of a Tree-LSTM (Tai, Socher and Manning, ACL 2015), from `affine_transform` of its input and of the outputs of its children."""

def gru_h(h_tm1: Expression, z_t: Expression, g_t: Expression) -> Expression:
    """The output of a gated recurrent unit: (1 - z) h + z g."""

def tree_lstm_c(gates: Expression, cells: Iterable[Expression], children: int = -1) -> Expression:
    """The cell of a node of a Tree-LSTM: i u + f1 c1 + f2 c2 + ..."""

def tree_lstm_h(c: Expression, gates: Expression) -> Expression:
    """The output of a node of a Tree-LSTM: o tanh(c)."""
