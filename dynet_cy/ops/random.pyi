# Written by tools/derive.py

from typing_extensions import TypeAlias

from dynet_cy.graph.expressions import Expression

_Shape: TypeAlias = int | tuple[int, ...] | list[int]

def dropout(x: Expression, p: float) -> Expression:
    """Set each element to zero with a probability, and scale the others up."""

def dropout_dim(x: Expression, d: int, p: float) -> Expression:
    """Dropout with the same mask for all positions along an axis."""

def dropout_batch(x: Expression, p: float) -> Expression:
    """Dropout of whole batch elements."""

def block_dropout(x: Expression, p: float) -> Expression:
    """Dropout of all or nothing, decided for each batch element."""

def noise(x: Expression, stddev: float) -> Expression:
    """Add Gaussian noise."""

def sample(x: Expression, d: int = 0) -> Expression:
    """An index drawn with the probabilities ``softmax(x)`` along an axis, which is removed, as a value of the graph."""

def random_normal(dim: _Shape, mean: float = 0.0, stddev: float = 1.0, batch_size: int = 1) -> Expression:
    """Normally distributed numbers."""

def random_uniform(dim: _Shape, left: float, right: float, batch_size: int = 1) -> Expression:
    """Numbers from a uniform distribution."""

def random_bernoulli(dim: _Shape, p: float, scale: float = 1.0, batch_size: int = 1) -> Expression:
    """Numbers that are `scale` with a probability, else 0."""

def random_gumbel(dim: _Shape, mu: float = 0.0, beta: float = 1.0, batch_size: int = 1) -> Expression:
    """Numbers from a Gumbel distribution."""
