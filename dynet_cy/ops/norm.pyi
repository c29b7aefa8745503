# Written by tools/derive.py
from collections.abc import Sequence
from typing import Any

import numpy as np
from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Int: TypeAlias = int | np.integer[Any]

def layer_norm(
    x: Expression, g: Expression, b: Expression, axis: int | Sequence[int] | None = None, eps: float | None = None
) -> Expression:
    """Layer normalization: elements scaled to mean 0 and deviation 1, then times g and plus b (Ba et al. 2016)."""

def residual_layer_norm(
    x: Expression, r: Expression, g: Expression, b: Expression, dropout: float = 0.0, eps: float | None = None
) -> Expression:
    """A residual connection, normalized column by column: ``layer_norm(x + dropout(r), g, b)`` in one pass (Vaswani et al., "Attention is all you need", NeurIPS 2017)."""

def weight_norm(w: Expression, g: Expression) -> Expression:
    """Weight normalization: w scaled to the norm g (Salimans and Kingma 2016)."""

def batch_moments(x: Expression, axis: _Int = 0) -> Expression:
    """Mean and variance of each channel, over all batch elements and all other axes."""

def channel_norm(
    x: Expression, mean: Expression, var: Expression, g: Expression, b: Expression, axis: _Int = 0, eps: float = 1e-5
) -> Expression:
    """Normalize each channel with given statistics: ``(x - mean) / sqrt(var + eps) * g + b``; see `batch_norm`."""
