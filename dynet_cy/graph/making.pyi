# Written by tools/derive.py
from dynet_cy.graph.expressions import Expression

def to_device(e: Expression, device_str: str) -> Expression: ...
