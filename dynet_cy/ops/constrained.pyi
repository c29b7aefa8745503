# Written by tools/derive.py
from dynet_cy.graph.expressions import Expression

def constrained_softmax(x: Expression, y: Expression) -> Expression: ...
