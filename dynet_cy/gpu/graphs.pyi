# Written by tools/derive.py
from dynet_cy.graph.expressions import ComputationGraph

def set_limits(graphs: int, nodes: int) -> tuple[int, int]:
    """Limit the CUDA graphs that each computation graph keeps on its device."""

def device_bytes(graph: ComputationGraph, device: int) -> dict[str, int]:
    """The memory of a device that a graph holds, and what its passes have needed."""
