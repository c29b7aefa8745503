from collections.abc import Iterable

from dynet_cy.graph import Expression
from dynet_cy.rnn.tree import ChildSumTreeLSTMBuilder, NaryTreeLSTMBuilder, TreeState

def nary_step(
    builder: NaryTreeLSTMBuilder, x: Expression | None, children: Iterable[TreeState | None]
) -> TreeState: ...
def child_sum_step(
    builder: ChildSumTreeLSTMBuilder, x: Expression | None, children: Iterable[TreeState | None]
) -> TreeState: ...
