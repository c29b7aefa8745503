"""Normalization of channels: by the statistics of a minibatch, and of groups of channels."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dynet_cy.functions.arguments import Input, as_input, positive
from dynet_cy.functions.norms import batch_norm, group_norm
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.model.weights import Weights
from dynet_cy.nn.layer import Layer, Stored, share
from dynet_cy.ops.registry import DimensionError

__all__ = ["BatchNorm", "GroupNorm"]


class BatchNorm(Layer):
    """Each channel normalized to mean 0 and variance 1 over a minibatch, then times g and plus b (Ioffe and Szegedy,
    "Batch normalization", ICML 2015).

    The statistics are those of the argument of **one call**: of all positions of all its batch elements. Examples that
    the engine computes together because their graphs are alike are not a minibatch: the result for an example never
    depends on other examples. So a minibatch must be made by hand, or x must have many positions, like an image or a
    sentence.

    In training mode, a call immediately computes x and its statistics, and updates the running statistics: r becomes
    (1 - momentum) r + momentum s, with the unbiased variance. In evaluation mode, it uses the running statistics, and
    adds a few nodes to the graph, like other layers.

    Parameters: g (dim,), ones; b (dim,), zeros; the running statistics mean (dim,), zeros, and var (dim,), ones, which
    are saved with the others and which trainers do not change.

    Args:
        dim: number of channels
        model: where the parameters go
        axis: the axis of the channels: 0 for columns, -1 for images
        momentum: the weight of a minibatch in the running statistics, from 0 to 1
        eps: added to the variance

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is out of its range

    Example:
        >>> import dynet_cy as dy
        >>> norm = dy.nn.BatchNorm(16, dy.ParameterCollection(), axis=-1)
        >>> norm(dy.random_normal((8, 8, 16), batch_size=4)).dim()
        ((8, 8, 16), 4)
    """

    def __init__(
        self, dim: int, model: ParameterCollection, axis: int = 0, momentum: float = 0.1, eps: float = 1e-5
    ) -> None:
        self.dim = self._size(dim, "dim")
        self.axis = int(axis)
        self.momentum = share(momentum, "BatchNorm", "momentum")
        self.eps = positive(eps, "BatchNorm", "argument eps")
        super().__init__(model, (self.dim, self.axis, self.momentum, self.eps))
        self.g = self._vector(self.dim, 1.0, "g")
        self.b = self._vector(self.dim)
        self.mean = self._vector(self.dim, 0.0, "mean")
        self.var = self._vector(self.dim, 1.0, "var")
        self.mean.set_updated(False)
        self.var.set_updated(False)

    def _trained(self) -> Iterator[Stored]:
        yield from (self.g, self.b)

    def __call__(self, x: Input) -> Expression:
        """The normalized channels.

        Args:
            x: a tensor whose axis `axis` has length dim, with a batch or without

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of channels
            ValueError: in training mode, a channel has only one element
        """
        x = as_input(x, "BatchNorm")
        shape, batch = x.dim()
        axis = _axis_of_channels(self, x, self.axis, self.dim)
        if self.training and batch * prod(shape) // self.dim < 2:
            raise ValueError("BatchNorm: argument x: in training mode a channel needs more than one element")
        return batch_norm(x, self.g, self.b, self.mean, self.var, self.training, self.momentum, axis, self.eps)

    def _take_pytorch(self, weights: Weights) -> None:
        weights.take(self.g, "weight")
        weights.take(self.b, "bias")
        weights.take(self.mean, "running_mean")
        weights.take(self.var, "running_var")
        weights.skip("num_batches_tracked")


class GroupNorm(Layer):
    """Groups of channels normalized to mean 0 and variance 1 over all positions of one example, then times g and plus b
    (Wu and He, "Group normalization", ECCV 2018). So it needs no minibatch, and has no running statistics.

    Parameters: g (channels,), ones; b (channels,), zeros.

    Args:
        groups: how many; channels that follow each other are a group
        channels: the number of channels, a multiple of `groups`
        model: where the parameters go
        axis: the axis of the channels: -1 for images, the default; 0 for columns
        eps: added to the variance (default: 1e-5)

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is out of its range, or the channels cannot be divided into so many groups

    Example:
        >>> import dynet_cy as dy
        >>> norm = dy.nn.GroupNorm(4, 16, dy.ParameterCollection())
        >>> norm(dy.random_normal((8, 8, 16))).dim()
        ((8, 8, 16), 1)
    """

    def __init__(
        self, groups: int, channels: int, model: ParameterCollection, axis: int = -1, eps: float = 1e-5
    ) -> None:
        self.groups = self._size(groups, "groups")
        self.channels = self._size(channels, "channels")
        if self.channels % self.groups:
            raise ValueError(f"GroupNorm: argument groups: {channels} channels cannot be divided into {groups} groups")
        self.axis = int(axis)
        self.eps = positive(eps, "GroupNorm", "argument eps")
        super().__init__(model, (self.groups, self.channels, self.axis, self.eps))
        self.g = self._vector(self.channels, 1.0, "g")
        self.b = self._vector(self.channels)

    def __call__(self, x: Input) -> Expression:
        """The normalized channels.

        Args:
            x: a tensor whose axis `axis` has a position for each channel, with a batch or without

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of channels
        """
        x = as_input(x, "GroupNorm")
        axis = _axis_of_channels(self, x, self.axis, self.channels)
        return group_norm(x, self.groups, self.g, self.b, axis, self.eps)

    def _take_pytorch(self, weights: Weights) -> None:
        weights.take(self.g, "weight")
        weights.take(self.b, "bias")


def _axis_of_channels(layer: Layer, x: Expression, axis: int, channels: int) -> int:
    """The axis of the channels, counted from the first one."""
    shape, _ = x.dim()
    found = axis + len(shape) if axis < 0 else axis
    if not 0 <= found < len(shape) or shape[found] != channels:
        raise DimensionError(f"{type(layer).__name__}: argument x: expected {channels} as axis {axis}, got {shape}")
    return found
