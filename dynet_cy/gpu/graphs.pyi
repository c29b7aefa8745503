# Written by tools/derive.py

from dynet_cy.graph.expressions import ComputationGraph

def device_bytes(graph: ComputationGraph, device: int) -> dict[str, int]:
    """The memory of a device that a graph holds, and what its passes have needed."""
