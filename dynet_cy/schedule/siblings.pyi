from typing import NamedTuple

from dynet_cy.graph.expressions import ComputationGraph

class Counts(NamedTuple):
    ran: int
    early: int
    unused: int

def switch(is_to_be: bool) -> None: ...
def is_on() -> bool: ...
def counts(graph: ComputationGraph) -> Counts: ...
