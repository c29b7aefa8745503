"""Convolutions: along a sentence, and over an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.nn.layer import Layer
from dynet_cy.nn.weights import Weights
from dynet_cy.ops import api as ops
from dynet_cy.ops.registry import DimensionError

__all__ = ["Conv1d", "Conv2d"]

Pair = Union[int, Sequence[int]]


class Conv1d(Layer):
    """W times each window of neighbouring columns, plus b (Waibel et al., "Phoneme recognition using time-delay neural
    networks", 1989). The windows are columns of a matrix, so that those of all sentences are one product.

    Parameters: W (output_dim, width input_dim), Glorot, whose columns go over the columns of the window one after the
    other; b (output_dim,), zeros.

    Args:
        input_dim: length of the columns of x
        output_dim: length of those of the result
        width: how many columns a window has
        model: where the parameters go
        stride: how many columns on the next window begins
        padding: how many columns of zeros come before the first and after the last; "valid" for 0; "same" for as many
            that the result has as many columns as x, for a stride of 1
        dilation: how many columns on the next column of a window is
        bias: whether there is b

    Raises:
        TypeError: a number is not an integer, or `model` is no `ParameterCollection`
        ValueError: a number is less than 1, there is no such padding, or it is "same" with another stride than 1

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.Conv1d(8, 16, 3, dy.ParameterCollection(), padding="same")
        >>> layer(dy.zeros((8, 5))).dim()
        ((16, 5), 1)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        width: int,
        model: ParameterCollection,
        stride: int = 1,
        padding: int | str = "valid",
        dilation: int = 1,
        bias: bool = True,
    ) -> None:
        self.input_dim = self._size(input_dim, "input_dim")
        self.output_dim = self._size(output_dim, "output_dim")
        self.width = self._size(width, "width")
        self.stride = self._size(stride, "stride")
        self.dilation = self._size(dilation, "dilation")
        reach = self.dilation * (self.width - 1)
        self.before, self.after = _padding_of(padding, reach, self.stride, "Conv1d")
        self.reach = reach
        sizes = (self.input_dim, self.output_dim, self.width)
        super().__init__(model, (*sizes, self.stride, padding, self.dilation, bool(bias)))
        self.W = self._matrix(self.output_dim, self.width * self.input_dim)
        self.b = self._vector(self.output_dim) if bias else None

    def __call__(self, x: Expression) -> Expression:
        """The result for each window.

        Args:
            x: shape ``{input_dim,n}``

        Returns:
            Expression of shape ``{output_dim,m}`` with m = (n + padding - dilation (width - 1) - 1) // stride + 1.

        Raises:
            TypeError: no expression
            DimensionError: another number of rows, or fewer columns than a window
        """
        shape, batch = self._checked(x, self.input_dim)
        x = _padded(x, 1, self.before, self.after, (self.input_dim, *shape[1:]))
        n = (shape[1] if len(shape) > 1 else 1) + self.before + self.after
        if n <= self.reach:
            raise DimensionError(f"Conv1d: argument x: {n} columns, with padding, for windows of {self.reach + 1}")
        if self.width > 1 or self.stride > 1:
            last = (n - self.reach - 1) // self.stride * self.stride + 1  # behind where the last window begins
            steps, rows = [1, self.stride], self.input_dim
            starts = range(0, self.reach + 1, self.dilation)
            x = ops.concatenate([ops.strided_select(x, steps, [0, at], [rows, at + last]) for at in starts])
        return self.W * x if self.b is None else ops.affine_transform([self.b, self.W, x])

    def _take_pytorch(self, weights: Weights) -> None:
        filters = weights.take("weight", (self.output_dim, self.input_dim, self.width))
        weights.put(self.W, filters.transpose(0, 2, 1).reshape(self.output_dim, -1))
        if self.b is not None:
            weights.put(self.b, weights.take("bias", (self.output_dim,)))


class Conv2d(Layer):
    """Filters over an image, as `conv2d` (LeCun et al., "Gradient-based learning applied to document recognition",
    1998).

    Parameters: W (rows, columns, input_channels, output_channels), Glorot; b (output_channels,), zeros.

    Args:
        input_channels: channels of the image
        output_channels: channels of the result
        size: rows and columns of a filter, or one number for both
        model: where the parameters go
        stride: steps along rows and columns, or one number for both
        padding: how many zeros are around the image, along rows and columns or one number for both; "valid" for none;
            "same" as in `conv2d(..., is_valid=False)`
        bias: whether there is b

    Raises:
        TypeError: a number is not an integer, or `model` is no `ParameterCollection`
        ValueError: a number is less than 1, or there is no such padding

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.Conv2d(3, 16, 5, dy.ParameterCollection())
        >>> layer(dy.zeros((28, 28, 3))).dim()
        ((24, 24, 16), 1)
    """

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        size: Pair,
        model: ParameterCollection,
        stride: Pair = 1,
        padding: Pair | str = "valid",
        bias: bool = True,
    ) -> None:
        self.input_channels = self._size(input_channels, "input_channels")
        self.output_channels = self._size(output_channels, "output_channels")
        self.size = tuple(self._size(n, "size") for n in _pair(size, "size"))
        self.stride = tuple(self._size(n, "stride") for n in _pair(stride, "stride"))
        self.same = padding == "same"
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Conv2d: argument padding: expected numbers, 'same' or 'valid', got {padding!r}")
            self.around, kept = (0, 0), padding
        else:
            self.around = kept = _pair(padding, "padding")  # type: ignore[assignment]
            if min(self.around) < 0:
                raise ValueError(f"Conv2d: argument padding: expected numbers from 0 on, got {padding!r}")
        channels = (self.input_channels, self.output_channels)
        super().__init__(model, (*channels, self.size, self.stride, kept, bool(bias)))
        self.W = self.collection.add_parameters((*self.size, *channels), init="glorot", name="W")
        self.b = self._vector(self.output_channels) if bias else None

    def __call__(self, x: Expression) -> Expression:
        """The filtered image.

        Args:
            x: shape ``{h,w,input_channels}``

        Returns:
            Expression of shape ``{h',w',output_channels}``, where h' is (h + 2 padding - rows) // stride + 1, and h /
            stride, rounded up, for "same".

        Raises:
            TypeError: no expression
            DimensionError: another number of channels, or an image smaller than a filter
        """
        if not isinstance(x, Expression):
            raise TypeError(f"Conv2d: argument x: expected an expression, got {x!r:.80}")
        shape, _ = x.dim()
        if (*shape, 1, 1)[2] != self.input_channels or len(shape) > 3:
            raise DimensionError(
                f"Conv2d: argument x: expected {self.input_channels} channels as third axis, got {shape}"
            )
        sizes = list((*shape, 1, 1)[:3])
        for axis, count in enumerate(self.around):
            x = _padded(x, axis, count, count, tuple(sizes))
            sizes[axis] += 2 * count
        if self.b is None:
            return ops.conv2d(x, self.W, self.stride, not self.same)
        return ops.conv2d_bias(x, self.W, self.b, self.stride, not self.same)

    def _take_pytorch(self, weights: Weights) -> None:
        filters = weights.take("weight", (self.output_channels, self.input_channels, *self.size))
        weights.put(self.W, filters.transpose(2, 3, 1, 0))
        if self.b is not None:
            weights.put(self.b, weights.take("bias", (self.output_channels,)))


def _pair(value: Pair, argument: str) -> tuple[int, int]:
    both = (value, value) if not isinstance(value, Sequence) else tuple(value)
    if len(both) != 2 or not all(hasattr(n, "__index__") for n in both):
        raise ValueError(f"Conv2d: argument {argument}: expected a whole number, or two, got {value!r}")
    return both[0], both[1]


def _padding_of(padding: int | str, reach: int, stride: int, layer: str) -> tuple[int, int]:
    """How many zeros come before and after."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        if stride != 1:
            raise ValueError(f"{layer}: argument padding: 'same' needs a stride of 1, not {stride}")
        return reach // 2, reach - reach // 2
    if isinstance(padding, str) or not hasattr(padding, "__index__") or padding < 0:
        raise ValueError(f"{layer}: argument padding: expected a number from 0 on, 'same' or 'valid', got {padding!r}")
    return padding, padding


def _padded(x: Expression, axis: int, before: int, after: int, shape: tuple[int, ...]) -> Expression:
    """x with zeros at both ends of an axis."""

    def zeros(count: int) -> list[Expression]:
        sizes = (*shape, 1)[: max(len(shape), axis + 1)]
        return [ops.zeros((*sizes[:axis], count, *sizes[axis + 1 :]), x.dim()[1])] if count else []

    parts = [*zeros(before), x, *zeros(after)]
    return ops.concatenate(parts, d=axis) if len(parts) > 1 else x
