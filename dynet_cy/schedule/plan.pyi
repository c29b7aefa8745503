# Written by tools/derive.py

from dynet_cy.graph.expressions import ComputationGraph

def cached_in(graph: ComputationGraph) -> tuple[int, int]:
    """The number of plans in the cache of a graph, and their size in bytes."""
