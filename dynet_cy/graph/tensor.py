"""Values that stay on the device where they were computed, until they are asked for as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.kernels.draws import HostRandom

__all__ = ["Tensor"]


class Tensor:
    """A value apart from its graph, which stays valid when the graph is renewed: `Expression.tensor_value` returns it.

    The batch, if any, is the last axis. NumPy's functions take a Tensor as they take an array.
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array

    def as_numpy(self) -> npt.NDArray[Any]:
        """The values as a new array, float64 or int64."""
        return self._array.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._array, dtype) if copy or copy is None else np.asarray(self._array, dtype)

    def argmax(self, dim: int = 0, num: int = 1) -> Tensor:
        """The places of the largest numbers along an axis, the largest first.

        Args:
            dim: the axis
            num: how many places

        Returns:
            Tensor of integers with `num` elements along the axis.

        Raises:
            IndexError: there is no such axis
            ValueError: the axis has fewer than `num` elements
        """
        return self.topk(dim, num)[1]

    def topk(self, dim: int = 0, num: int = 1) -> tuple[Tensor, Tensor]:
        """The largest numbers along an axis, the largest first, and their places.

        Args:
            dim: the axis
            num: how many numbers

        Returns:
            Two Tensors with `num` elements along the axis: numbers and places.

        Raises:
            IndexError: there is no such axis
            ValueError: the axis has fewer than `num` elements
        """
        self._check("topk", dim)
        if not 1 <= num <= self._array.shape[dim]:
            raise ValueError(
                f"Tensor.topk: num is {num}, axis {dim} of shape {self._array.shape} allows no such number"
            )
        places = np.argsort(-self._array, axis=dim, kind="stable").take(range(num), axis=dim)
        return Tensor(np.take_along_axis(self._array, places, dim)), Tensor(places)

    def categorical_sample_log_prob(self, dim: int = 0, num: int = 1) -> Tensor:
        """Places along an axis, drawn with the probabilities whose logarithms stand there (drawn as the argmax of the
        logarithms with Gumbel noise: Gumbel, "Statistical Theory of Extreme Values", 1954).

        Args:
            dim: the axis
            num: how many draws, each with replacement

        Returns:
            Tensor of integers with `num` elements along the axis.

        Raises:
            IndexError: there is no such axis
            ValueError: `num` is less than 1
        """
        self._check("categorical_sample_log_prob", dim)
        if num < 1:
            raise ValueError(f"Tensor.categorical_sample_log_prob: num is {num}, at least 1 is needed")
        draws = []
        for _ in range(num):
            uniform = HostRandom().uniform(self._array.size).astype(np.float64).clip(1e-30, 1 - 1e-7)
            noise = -np.log(-np.log(uniform)).reshape(self._array.shape)
            draws.append(np.expand_dims((self._array + noise).argmax(axis=dim), dim))
        return Tensor(np.concatenate(draws, axis=dim))

    def _check(self, method: str, dim: int) -> None:
        if not 0 <= dim < self._array.ndim:
            raise IndexError(f"Tensor.{method}: shape {self._array.shape} has no axis {dim}")

    def __str__(self) -> str:
        return f"<Tensor of {'int' if self._array.dtype.kind == 'i' else 'float'}, shape {self._array.shape}>"

    __repr__ = __str__
