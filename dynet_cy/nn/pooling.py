"""Pooling and flattening: windows of an image, means of channels, an image as a vector."""

from __future__ import annotations

import abc
import math

from dynet_cy.functions.arguments import Input, as_input
from dynet_cy.graph import Expression
from dynet_cy.nn.convolution import Pair, _from_zero, _sizes
from dynet_cy.nn.layer import Layer
from dynet_cy.ops import api as ops
from dynet_cy.ops.registry import DimensionError

__all__ = ["AvgPool2d", "Flatten", "GlobalAvgPool2d", "MaxPool2d"]


class _Pool2d(Layer):
    """Pooling by windows."""

    def __init__(self, size: Pair, stride: Pair | None = None, padding: Pair = 0) -> None:
        name = type(self).__name__
        self.size = _sizes(self, size, "size")
        self.stride = self.size if stride is None else _sizes(self, stride, "stride")
        self.padding = _from_zero(self, padding, "padding")
        if any(2 * around > n for around, n in zip(self.padding, self.size)):
            raise ValueError(f"{name}: argument padding: expected at most half of size, {size!r}, got {padding!r}")
        super().__init__(None, (self.size, self.stride, self.padding))

    @abc.abstractmethod
    def _pool(self, x: Expression) -> Expression:
        """One element for each window."""

    def __call__(self, x: Input) -> Expression:
        """The greatest element or the mean of each window.

        Args:
            x: shape ``{h,w,channels}``

        Returns:
            Expression of shape ``{h',w',channels}`` with h' = (h + 2 padding - size) // stride + 1.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: more than three axes, or an image smaller than a window
        """
        return self._pool(as_input(x, type(self).__name__))


class MaxPool2d(_Pool2d):
    """Max pooling over the windows of an image, channel by channel, like `maxpooling2d`.

    The last axis has the channels. An image that has them first, as in PyTorch, is pooled along wrong axes without an
    error: its shape does not show it.

    Args:
        size: rows and columns of a window, or one number for both
        stride: steps along rows and columns, or one number for both; None, the default: the size
        padding: the number of rows and columns that windows may reach beyond the image on each side, or one number for
            both, at most half of the size

    Raises:
        TypeError: a number is not an integer
        ValueError: a number is out of its range

    Example:
        >>> import dynet_cy as dy
        >>> dy.nn.MaxPool2d(3, 2, padding=1)(dy.zeros((8, 8, 16))).dim()
        ((4, 4, 16), 1)
    """

    def _pool(self, x: Expression) -> Expression:
        return ops.maxpooling2d(x, self.size, self.stride, True, self.padding)


class AvgPool2d(_Pool2d):
    """Average pooling over the windows of an image, channel by channel, like `avgpooling2d`.

    Args:
        size, stride, padding: see `MaxPool2d`. What is beyond the image does not count, as in PyTorch with
            `count_include_pad=False`. Its default counts zeros there: ``AvgPool2d(3, 2)`` of
            ``dy.pad(x, [(1, 1), (1, 1), (0, 0)])`` for a padding of 1.

    Raises:
        TypeError: a number is not an integer
        ValueError: a number is out of its range

    Example:
        >>> import dynet_cy as dy
        >>> dy.nn.AvgPool2d(2)(dy.zeros((8, 8, 16))).dim()
        ((4, 4, 16), 1)
    """

    def _pool(self, x: Expression) -> Expression:
        return ops.avgpooling2d(x, self.size, self.stride, True, self.padding)


class GlobalAvgPool2d(Layer):
    """Global average pooling: the mean of each channel, as a vector (Lin et al., "Network in network", ICLR 2014).

    The last axis has the channels; as in `MaxPool2d`, its shape does not show an image that has them first.

    Example:
        >>> import dynet_cy as dy
        >>> dy.nn.GlobalAvgPool2d()(dy.zeros((8, 6, 16))).dim()
        ((16,), 1)
    """

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, x: Input) -> Expression:
        """The means.

        Args:
            x: shape ``{h,w,channels}``

        Returns:
            Expression of shape ``{channels}``.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: other than three axes, or an image without pixels
        """
        x = as_input(x, "GlobalAvgPool2d")
        shape, _ = x.dim()
        if len(shape) != 3 or 0 in shape[:2]:
            raise DimensionError(f"GlobalAvgPool2d: argument x: expected rows, columns and channels, got {shape}")
        return ops.mean_dim(x, [0, 1], False)


class Flatten(Layer):
    """Flattens an image or a matrix to a vector, in the order of PyTorch's `Flatten`: channel by channel, each
    one by rows. So a `Linear` after it takes the weights of PyTorch's.

    Example:
        >>> import dynet_cy as dy
        >>> dy.nn.Flatten()([[[1, 10], [2, 20]], [[3, 30], [4, 40]]]).npvalue().tolist()
        [1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0]
    """

    def __init__(self) -> None:
        super().__init__(None)

    def __call__(self, x: Input) -> Expression:
        """The vector.

        Args:
            x: shape ``{h,w,channels}``; ``{channels,n}``, as `Conv1d` gives it; or a vector, which stays as it is

        Returns:
            Expression of shape ``{n}`` with all elements of x: ``transpose(x, [2, 0, 1])`` of an image, then
            ``reshape`` with ``order="C"``.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: more than three axes
        """
        x = as_input(x, "Flatten")
        shape, _ = x.dim()
        if len(shape) > 3:
            raise DimensionError(f"Flatten: argument x: expected rows, columns and channels, got {shape}")
        by_channels = ops.transpose(x, [2, 0, 1]) if len(shape) == 3 else x
        return by_channels.reshape((math.prod(shape),), order="C")
