from typing import NamedTuple

from dynet_cy.graph.expressions import ComputationGraph

class Counts(NamedTuple):
    """Numbers of nodes that ran since the graph was made, or since its random state was saved or restored."""

    ran: int
    early: int
    unused: int

def switch(is_to_be: bool) -> None:
    """Set whether values of the same group as the requested one may be computed early, together with it."""

def is_on() -> bool:
    """Whether values of the same group as the requested one may be computed early."""

def counts(graph: ComputationGraph) -> Counts:
    """How many nodes of a graph ran early, as Counts."""
