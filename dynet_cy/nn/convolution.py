"""Convolutions and transposed convolutions, along a sentence and over an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Union

from dynet_cy.functions.arguments import Input, as_input
from dynet_cy.functions.convolutions import conv_transpose1d
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.model.weights import Weights
from dynet_cy.nn.layer import Layer, set_uniform
from dynet_cy.ops import api as ops
from dynet_cy.ops.registry import DimensionError

__all__ = ["Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d"]

Pair = Union[int, Sequence[int]]


class Conv1d(Layer):
    """W times each window of neighbouring columns, plus b (Waibel et al., "Phoneme recognition using time-delay neural
    networks", 1989). The windows become columns of a matrix, so that those of all sentences take one product.

    Parameters: W (output_dim, width input_dim / groups), Glorot, whose columns are those for the first column of the
    window, then for the second, and so on; b (output_dim,), zeros.

    Args:
        input_dim: length of the columns of x
        output_dim: length of those of the result
        width: the number of columns of a window
        model: where the parameters go
        stride: the distance, in columns, from one window to the next
        padding: the number of columns of zeros before the first and after the last; "valid" for 0; "same" to give the
            result as many columns as x, for a stride of 1
        dilation: the distance, in columns of x, between neighbouring columns of a window
        bias: whether there is b
        groups: the number of groups into which the rows of x and of the result are divided; a group of the result only
            depends on the same group of x
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: those above

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, there is no such padding, it is "same" with a stride other than 1, or the
            rows cannot be divided into so many groups

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
        groups: int = 1,
        *,
        init: str | None = None,
    ) -> None:
        self.input_dim = self._size(input_dim, "input_dim")
        self.output_dim = self._size(output_dim, "output_dim")
        self.width = self._size(width, "width")
        self.stride = self._size(stride, "stride")
        self.dilation = self._size(dilation, "dilation")
        self.groups = _groups(self, groups, self.input_dim, self.output_dim)
        reach = self.dilation * (self.width - 1)
        self.before, self.after = _padding_of(padding, reach, self.stride, "Conv1d")
        self.reach = reach
        sizes = (self.input_dim, self.output_dim, self.width)
        super().__init__(model, (*sizes, self.stride, padding, self.dilation, bool(bias), self.groups))
        self.W = self._matrix(self.output_dim, self.width * self.input_dim // self.groups)
        self.b = self._vector(self.output_dim) if bias else None
        self._set_init(init)

    def _as_pytorch(self) -> None:
        set_uniform((self.width * self.input_dim // self.groups) ** -0.5, self.W, self.b)

    def __call__(self, x: Input) -> Expression:
        """The result for each window.

        Args:
            x: shape ``{input_dim,n}``

        Returns:
            Expression of shape ``{output_dim,m}`` with m = (n + padding - dilation (width - 1) - 1) // stride + 1.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or fewer columns than a window
        """
        x = self._checked(x, self.input_dim)
        shape, batch = x.dim()
        x = _padded(x, 1, self.before, self.after, (self.input_dim, *shape[1:]))
        n = (shape[1] if len(shape) > 1 else 1) + self.before + self.after
        if n <= self.reach:
            raise DimensionError(f"Conv1d: argument x: {n} columns, with padding, for windows of {self.reach + 1}")
        if self.groups == 1:
            return self._alike(self._affine(self.W, self._windows(x, n, 0, self.input_dim), self.b), shape)
        rows, outputs = self.input_dim // self.groups, self.output_dim // self.groups
        parts = [
            self._affine(
                ops.pick_range(self.W, g * outputs, (g + 1) * outputs),
                self._windows(x, n, g * rows, (g + 1) * rows),
                None,
            )
            for g in range(self.groups)
        ]
        y = ops.concatenate(parts)
        return self._alike(y if self.b is None else y + self.b, shape)

    def _alike(self, y: Expression, shape: tuple[int, ...]) -> Expression:
        """A vector for a vector."""
        return ops.reshape(y, (self.output_dim,), y.dim()[1]) if len(shape) == 1 and y.dim()[0][1:] == (1,) else y

    def _windows(self, x: Expression, n: int, first: int, end: int) -> Expression:
        """Some rows of the windows of a matrix with n columns, a window in each column."""
        if self.width == 1 and self.stride == 1:
            return x if end - first == self.input_dim else ops.pick_range(x, first, end)
        last = (n - self.reach - 1) // self.stride * self.stride + 1  # after the beginning of the last window
        starts = range(0, self.reach + 1, self.dilation)
        parts = [ops.strided_select(x, [1, self.stride], [first, at], [end, at + last]) for at in starts]
        return ops.concatenate(parts)

    def _take_pytorch(self, weights: Weights) -> None:
        filters = weights.pop("weight", (self.output_dim, self.input_dim // self.groups, self.width))
        weights.put(self.W, filters.transpose(0, 2, 1).reshape(self.output_dim, -1))
        weights.take(self.b, "bias")


class _Filters(Layer):
    """The base of layers whose filters have an axis for each of PyTorch's, in another order."""

    _places: ClassVar[tuple[int, ...]] = (2, 3, 1, 0)  # for each axis of W, that of PyTorch's filters

    def _add_filters(self, shape: tuple[int, ...], outputs: int, bias: bool, init: str | None) -> None:
        self.W = self.collection.add_parameters(shape, init="glorot", name="W")
        self.b = self._vector(outputs) if bias else None
        self._set_init(init)

    def _as_pytorch(self) -> None:
        set_uniform(math.prod(self.W.shape[:-1]) ** -0.5, self.W, self.b)

    def _take_pytorch(self, weights: Weights) -> None:
        shape = tuple(self.W.shape[self._places.index(axis)] for axis in range(len(self._places)))
        weights.put(self.W, weights.pop("weight", shape).transpose(self._places))
        weights.take(self.b, "bias")


class Conv2d(_Filters):
    """Filters over an image, like `conv2d` (LeCun et al., "Gradient-based learning applied to document recognition",
    1998).

    Parameters: W (rows, columns, input_channels / groups, output_channels), Glorot; b (output_channels,), zeros.

    Args:
        input_channels: channels of the image
        output_channels: channels of the result
        size: rows and columns of a filter, or one number for both
        model: where the parameters go
        stride: steps along rows and columns, or one number for both
        padding: the number of zeros around the image, along rows and columns or one number for both; "valid" for none;
            "same" as in `conv2d(..., is_valid=False)`
        bias: whether there is b
        dilation: the distance between neighbouring rows and columns of a filter, or one number for both
        groups: the number of groups of channels, each of which is filtered separately
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: those above

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, there is no such padding, or the channels cannot be divided into so many
            groups

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
        dilation: Pair = 1,
        groups: int = 1,
        *,
        init: str | None = None,
    ) -> None:
        self.input_channels = self._size(input_channels, "input_channels")
        self.output_channels = self._size(output_channels, "output_channels")
        self.size = _sizes(self, size, "size")
        self.stride = _sizes(self, stride, "stride")
        self.dilation = _sizes(self, dilation, "dilation")
        self.groups = _groups(self, groups, self.input_channels, self.output_channels)
        self.same = padding == "same"
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f"Conv2d: argument padding: expected numbers, 'same' or 'valid', got {padding!r}")
            self.around, kept = (0, 0), padding
        else:
            self.around = kept = _from_zero(self, padding, "padding")  # type: ignore[assignment]
        channels = (self.input_channels, self.output_channels)
        super().__init__(model, (*channels, self.size, self.stride, kept, bool(bias), self.dilation, self.groups))
        shape = (*self.size, self.input_channels // self.groups, self.output_channels)
        self._add_filters(shape, self.output_channels, bias, init)

    def __call__(self, x: Input) -> Expression:
        """The filtered image.

        Args:
            x: shape ``{h,w,input_channels}``

        Returns:
            Expression of shape ``{h',w',output_channels}``, where h' is (h + 2 padding - dilation (rows - 1) - 1) //
            stride + 1, and h / stride, rounded up, for "same".

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of channels, or an image smaller than a filter
        """
        x = as_input(x, type(self).__name__)
        _image(self, x)
        how = (self.stride, not self.same, self.dilation, self.groups, self.around)
        return ops.conv2d(x, self.W, *how) if self.b is None else ops.conv2d_bias(x, self.W, self.b, *how)


class ConvTranspose2d(_Filters):
    """Each pixel of x adds the filters, times its value, to a larger image, like `conv_transpose2d` (Zeiler et al.,
    "Deconvolutional networks", 2010).

    Parameters: W (rows, columns, output_channels / groups, input_channels), Glorot; b (output_channels,), zeros.

    Args:
        input_channels: channels of the image
        output_channels: channels of the result
        size: rows and columns of a filter, or one number for both
        model: where the parameters go
        stride: the distance, in rows and columns of the result, between the filters of neighbouring pixels, or one
            number for both
        padding: the number of rows and columns cropped from each edge of the result, or one number for both
        output_padding: the number of rows and columns added at the end of the result, or one number for both
        bias: whether there is b
        dilation: the distance between neighbouring rows and columns of a filter, or one number for both
        groups: the number of groups of channels, each of which is processed separately
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: those above

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is too small, or the channels cannot be divided into so many groups

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.ConvTranspose2d(16, 3, 4, dy.ParameterCollection(), stride=2, padding=1)
        >>> layer(dy.zeros((14, 14, 16))).dim()
        ((28, 28, 3), 1)
    """

    def __init__(
        self,
        input_channels: int,
        output_channels: int,
        size: Pair,
        model: ParameterCollection,
        stride: Pair = 1,
        padding: Pair = 0,
        output_padding: Pair = 0,
        bias: bool = True,
        dilation: Pair = 1,
        groups: int = 1,
        *,
        init: str | None = None,
    ) -> None:
        self.input_channels = self._size(input_channels, "input_channels")
        self.output_channels = self._size(output_channels, "output_channels")
        self.size = _sizes(self, size, "size")
        self.stride = _sizes(self, stride, "stride")
        self.padding = _from_zero(self, padding, "padding")
        self.output_padding = _from_zero(self, output_padding, "output_padding")
        self.dilation = _sizes(self, dilation, "dilation")
        self.groups = _groups(self, groups, self.input_channels, self.output_channels)
        sizes = (self.input_channels, self.output_channels, self.size, self.stride, self.padding, self.output_padding)
        super().__init__(model, (*sizes, bool(bias), self.dilation, self.groups))
        shape = (*self.size, self.output_channels // self.groups, self.input_channels)
        self._add_filters(shape, self.output_channels, bias, init)

    def __call__(self, x: Input) -> Expression:
        """The larger image.

        Args:
            x: shape ``{h,w,input_channels}``

        Returns:
            Expression of shape ``{h',w',output_channels}``, where h' is (h - 1) stride - 2 padding +
            dilation (rows - 1) + output_padding + 1.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of channels, or nothing is left without the padding
        """
        x = as_input(x, type(self).__name__)
        _image(self, x)
        y = ops.conv_transpose2d(x, self.W, self.stride, True, self.dilation, self.groups)
        y = _cut(self, y, self.padding, self.output_padding)
        return y if self.b is None else y + ops.reshape(self.b, (1, 1, self.output_channels))


class ConvTranspose1d(_Filters):
    """Each column of x adds columns of filters, times its elements, to a longer matrix: `ConvTranspose2d` along the
    columns, like `conv_transpose1d`.

    Parameters: W (output_dim / groups, width, input_dim), Glorot; b (output_dim,), zeros.

    Args:
        input_dim: length of the columns of x
        output_dim: length of those of the result
        width: the number of columns of a filter
        model: where the parameters go
        stride: the distance, in columns of the result, between the filters of neighbouring columns of x
        padding: the number of columns cropped from both ends of the result
        output_padding: the number of columns added at the end of the result
        bias: whether there is b
        dilation: the distance, in columns of the result, between neighbouring columns of a filter
        groups: the number of groups into which the rows of x and of the result are divided
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: those above

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is too small, or the rows cannot be divided into so many groups

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.ConvTranspose1d(8, 16, 4, dy.ParameterCollection(), stride=2, padding=1)
        >>> layer(dy.zeros((8, 5))).dim()
        ((16, 10), 1)
    """

    _places = (1, 2, 0)

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        width: int,
        model: ParameterCollection,
        stride: int = 1,
        padding: int = 0,
        output_padding: int = 0,
        bias: bool = True,
        dilation: int = 1,
        groups: int = 1,
        *,
        init: str | None = None,
    ) -> None:
        self.input_dim = self._size(input_dim, "input_dim")
        self.output_dim = self._size(output_dim, "output_dim")
        self.width = self._size(width, "width")
        self.stride = self._size(stride, "stride")
        self.padding = _from_zero(self, padding, "padding")[1]
        self.output_padding = _from_zero(self, output_padding, "output_padding")[1]
        self.dilation = self._size(dilation, "dilation")
        self.groups = _groups(self, groups, self.input_dim, self.output_dim)
        sizes = (self.input_dim, self.output_dim, self.width, self.stride, self.padding, self.output_padding)
        super().__init__(model, (*sizes, bool(bias), self.dilation, self.groups))
        shape = (self.output_dim // self.groups, self.width, self.input_dim)
        self._add_filters(shape, self.output_dim, bias, init)

    def __call__(self, x: Input) -> Expression:
        """The longer matrix.

        Args:
            x: shape ``{input_dim,n}``

        Returns:
            Expression of shape ``{output_dim,m}`` with m = (n - 1) stride - 2 padding + dilation (width - 1) +
            output_padding + 1.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or nothing is left without the padding
        """
        x = self._checked(x, self.input_dim)
        y = conv_transpose1d(x, self.W, self.stride, self.dilation, self.groups)
        y = _cut(self, y, (0, self.padding), (0, self.output_padding))
        return y if self.b is None else y + self.b


def _pair(layer: Layer, value: Pair, argument: str) -> tuple[int, int]:
    both = (value, value) if not isinstance(value, Sequence) else tuple(value)
    if len(both) != 2 or not all(hasattr(n, "__index__") for n in both):
        name = type(layer).__name__
        raise ValueError(f"{name}: argument {argument}: expected a whole number, or two, got {value!r}")
    return both[0], both[1]


def _sizes(layer: Layer, value: Pair, argument: str) -> tuple[int, int]:
    """A number for rows and one for columns, each at least 1."""
    first, second = _pair(layer, value, argument)
    return layer._size(first, argument), layer._size(second, argument)


def _from_zero(layer: Layer, value: Pair, argument: str) -> tuple[int, int]:
    both = _pair(layer, value, argument)
    if min(both) < 0:
        name = type(layer).__name__
        raise ValueError(f"{name}: argument {argument}: expected numbers from 0 on, got {value!r}")
    return both


def _groups(layer: Layer, value: int, inputs: int, outputs: int) -> int:
    groups = layer._size(value, "groups")
    if inputs % groups or outputs % groups:
        name = type(layer).__name__
        raise ValueError(
            f"{name}: argument groups: {inputs} inputs and {outputs} outputs are not divisible by {groups}"
        )
    return groups


def _image(layer: Layer, x: Expression) -> list[int]:
    """Rows, columns and channels of an image, after checking the channels."""
    name, wanted = type(layer).__name__, layer.spec[0]
    shape, _ = x.dim()
    sizes = [*shape, 1, 1][:3]
    if len(shape) > 3 or len(sizes) < 3 or sizes[2] != wanted:
        raise DimensionError(f"{name}: argument x: expected {wanted} channels as third axis, got {shape}")
    return sizes


def _cut(layer: Layer, y: Expression, padding: Sequence[int], more: Sequence[int]) -> Expression:
    """A result cropped at all edges, except for the additional rows and columns wanted at the end."""
    sizes = list(y.dim()[0])
    begins, ends = [0] * len(sizes), list(sizes)
    for axis in range(2):
        begins[axis], ends[axis] = padding[axis], sizes[axis] - padding[axis] + more[axis]
        if begins[axis] >= ends[axis]:
            raise DimensionError(
                f"{type(layer).__name__}: nothing is left of {sizes[axis]} {('rows', 'columns')[axis]} without "
                f"{padding[axis]} on both sides"
            )
    for axis in range(2):
        y = _padded(y, axis, 0, max(ends[axis] - sizes[axis], 0), tuple(sizes))
        sizes[axis] = max(ends[axis], sizes[axis])
    return y if begins == [0] * len(sizes) and ends == sizes else ops.strided_select(y, [1] * len(sizes), begins, ends)


def _padding_of(padding: int | str, reach: int, stride: int, layer: str) -> tuple[int, int]:
    """The number of zeros before and after."""
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
