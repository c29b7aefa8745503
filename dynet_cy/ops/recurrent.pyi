# Written by tools/derive.py
from collections.abc import Iterable

from dynet_cy.graph.expressions import Expression

def vanilla_lstm_gates(
    x_t: Expression, h_tm1: Expression, Wx: Expression, Wh: Expression, b: Expression, weightnoise_std: float = 0.0
) -> Expression: ...
def vanilla_lstm_gates_concat(
    x_t: Iterable[Expression],
    h_tm1: Expression,
    Wx: Expression,
    Wh: Expression,
    b: Expression,
    weightnoise_std: float = 0.0,
) -> Expression: ...
def vanilla_lstm_gates_projected(p_t: Expression, h_tm1: Expression, Wh: Expression) -> Expression: ...
def vanilla_lstm_gates_dropout(
    x_t: Expression,
    h_tm1: Expression,
    Wx: Expression,
    Wh: Expression,
    b: Expression,
    dropout_mask_x: Expression,
    dropout_mask_h: Expression,
    weightnoise_std: float = 0.0,
) -> Expression: ...
def vanilla_lstm_gates_dropout_concat(
    x_t: Iterable[Expression],
    h_tm1: Expression,
    Wx: Expression,
    Wh: Expression,
    b: Expression,
    dropout_mask_x: Expression,
    dropout_mask_h: Expression,
    weightnoise_std: float = 0.0,
) -> Expression: ...
def vanilla_lstm_c(c_tm1: Expression, gates_t: Expression) -> Expression: ...
def vanilla_lstm_h(c_t: Expression, gates_t: Expression) -> Expression: ...
def logistic_affine(exprs: Iterable[Expression]) -> Expression: ...
def tanh_affine(exprs: Iterable[Expression]) -> Expression: ...
def tree_lstm_gates(exprs: Iterable[Expression], children: int) -> Expression: ...
def gru_h(h_tm1: Expression, z_t: Expression, g_t: Expression) -> Expression: ...
def tree_lstm_c(gates: Expression, cells: Iterable[Expression], children: int = -1) -> Expression: ...
def tree_lstm_h(c: Expression, gates: Expression) -> Expression: ...
