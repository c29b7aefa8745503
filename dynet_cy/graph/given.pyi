import numpy as np
import numpy.typing as npt

from dynet_cy.graph.graph import ComputationGraph

def given(graph: ComputationGraph, index: int) -> npt.NDArray[np.float64]: ...
def keep_given(graph: ComputationGraph, target: int) -> tuple[dict[int, tuple[object, int]], object] | None: ...
