# Written by tools/derive.py
from dynet_cy.graph.expressions import ComputationGraph

def counts() -> tuple[int, int]:
    """The number of plans made, and of plans taken from the cache, since `reset`."""

def reset() -> None:
    """Count from zero again."""

def set_limits(plans: int, bytes: int) -> tuple[int, int]:
    """Limit the cache of each graph."""

def set_hash_mask(mask: int) -> None:
    """Use only these bits of hashes: for tests, which need different structures with equal hashes."""

def cached_in(graph: ComputationGraph) -> tuple[int, int]:
    """The number of plans in the cache of a graph, and their size in bytes."""
