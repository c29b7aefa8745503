"""Values copied from a graph, with argmax, topk and sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.kernels.kernels import HostRandom

__all__ = ["Tensor"]


class Tensor:
    """A value copied from its graph, which stays valid when the graph is renewed: `Expression.tensor_value` returns it.

    The batch, if any, is the last axis. NumPy's functions accept a Tensor like an array. Axes beyond those of the shape
    have one element.

    Args:
        array: the numbers, with the batch as the last axis if there is one.
        axes: how many axes the shape has.

    Example:
        >>> scores = dy.inputVector([1, 5, 3]).tensor_value()
        >>> _ = dy.renew_cg()
        >>> scores.as_numpy(), scores.argmax()
        (array([1., 5., 3.]), <Tensor of int, shape (1,)>)
    """

    def __init__(self, array: npt.NDArray[Any], axes: int) -> None:
        """
        Args:
            array: the values
            axes: how many axes it has besides the batch
        """
        self._array = array
        self._axes = axes

    def as_numpy(self) -> npt.NDArray[Any]:
        """The values as a new array, float64 or int64.

        Example:
            >>> dy.inputVector([1, 5, 3]).tensor_value().as_numpy()
            array([1., 5., 3.])
        """
        return self._array.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._array, dtype) if copy or copy is None else np.asarray(self._array, dtype)

    def __dlpack__(self, **asked: Any) -> Any:
        """The values for other libraries, without a copy: `np.from_dlpack`, `torch.from_dlpack`."""
        return self._array.__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU."""
        return (1, 0)

    def argmax(self, dim: int = 0, num: int = 1) -> Tensor:
        """The positions of the largest numbers along an axis, the largest first.

        Args:
            dim: the axis (default: 0)
            num: how many positions (default: 1)

        Returns:
            Tensor of integers with `num` elements along the axis.

        Raises:
            IndexError: there is no such axis
            ValueError: the axis has fewer than `num` elements

        Example:
            >>> scores = dy.inputVector([1, 5, 3]).tensor_value()
            >>> scores.argmax().as_numpy(), scores.argmax(num=2).as_numpy()
            (array([1]), array([1, 2]))
        """
        return self.topk(dim, num)[1]

    def topk(self, dim: int = 0, num: int = 1) -> tuple[Tensor, Tensor]:
        """The largest numbers along an axis, the largest first, and their positions.

        Args:
            dim: the axis (default: 0)
            num: how many numbers (default: 1)

        Returns:
            Two Tensors with `num` elements along the axis: numbers and positions.

        Raises:
            IndexError: there is no such axis
            ValueError: the axis has fewer than `num` elements

        Example:
            >>> numbers, places = dy.inputVector([1, 5, 3]).tensor_value().topk(num=2)
            >>> numbers.as_numpy(), places.as_numpy()
            (array([5., 3.]), array([1, 2]))
        """
        array, axis = self._along("topk", dim)
        if not 1 <= num <= array.shape[axis]:
            shape, size = self._array.shape, array.shape[axis]
            raise ValueError(f"Tensor.topk: num is {num}, but axis {dim} of shape {shape} has {size} elements")
        places = np.argsort(-array, axis=axis, kind="stable").take(range(num), axis=axis)
        return self._of(np.take_along_axis(array, places, axis), dim), self._of(places, dim)

    def categorical_sample_log_prob(self, dim: int = 0, num: int = 1) -> Tensor:
        """Positions along an axis, sampled with these values as log-probabilities, by the Gumbel-max method (Gumbel,
        "Statistical Theory of Extreme Values", 1954).

        Args:
            dim: the axis (default: 0)
            num: how many draws, each with replacement (default: 1)

        Returns:
            Tensor of integers with `num` elements along the axis.

        Raises:
            IndexError: there is no such axis
            ValueError: `num` is less than 1

        Example:
            >>> scores = dy.log_softmax(dy.inputVector([0, 100])).tensor_value()
            >>> scores.categorical_sample_log_prob(num=3).as_numpy()
            array([1, 1, 1])
        """
        array, axis = self._along("categorical_sample_log_prob", dim)
        if num < 1:
            raise ValueError(f"Tensor.categorical_sample_log_prob: num is {num}, at least 1 is needed")
        draws = []
        for _ in range(num):
            uniform = HostRandom().uniform(array.size).astype(np.float64).clip(1e-30, 1 - 1e-7)
            noise = -np.log(-np.log(uniform)).reshape(array.shape)
            draws.append(np.expand_dims((array + noise).argmax(axis=axis), axis))
        return self._of(np.concatenate(draws, axis=axis), dim)

    def _along(self, method: str, dim: int) -> tuple[npt.NDArray[Any], int]:
        """The values with the axis given by `dim`, and its position."""
        if not 0 <= dim < 7:
            raise IndexError(f"Tensor.{method}: dim is {dim}, axes are counted from 0 to 6")
        if dim < self._axes:
            return self._array, dim
        return np.expand_dims(self._array, self._axes), self._axes

    def _of(self, array: npt.NDArray[Any], dim: int) -> Tensor:
        """A result; an axis added by `_along` is removed again if it still has one element."""
        if dim < self._axes:
            return Tensor(array, self._axes)
        if array.shape[self._axes] == 1:
            return Tensor(array.squeeze(self._axes), self._axes)
        return Tensor(array, self._axes + 1)

    def __str__(self) -> str:
        return f"<Tensor of {'int' if self._array.dtype.kind == 'i' else 'float'}, shape {self._array.shape}>"

    __repr__ = __str__
