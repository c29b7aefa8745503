"""Initial values of parameters: DyNet's initializers, with its names, arguments and defaults.

An initializer writes into an array with the shape of the parameter, the first index the fastest in memory; for a lookup
table the dimensions of a row are followed by the number of rows. Random numbers are consumed in memory order, so the
values depend only on their source.
"""

from __future__ import annotations

import math
import numbers
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, Union, cast

import numpy as np

from dynet_cy.files.reading import numbered_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]
    FileName = Union[str, bytes, os.PathLike[str]]


_BLOCK = 1 << 18  # numbers drawn at a time, so that a large table needs no second copy


class RandomSource(Protocol):
    """A source of random numbers."""

    def uniform(self, n: int) -> Array:
        """The next n numbers, uniform in [0, 1)."""

    def normal(self, n: int) -> Array:
        """The next n numbers of the standard normal distribution."""


class InitializerShapeError(ValueError, RuntimeError):
    """The initializer cannot fill a parameter of this shape. (DyNet raises RuntimeError here.)"""


def _blocks(out: Array) -> Iterator[Array]:
    """Views of at most _BLOCK numbers that together cover `out` in memory order (first index fastest)."""
    if out.flags.f_contiguous:
        flat = out.reshape(-1, order="F")
        for start in range(0, flat.size, _BLOCK):
            yield flat[start : start + _BLOCK]
        return
    whole = np.empty(out.size, dtype=np.float32)
    yield whole
    out[...] = whole.reshape(out.shape, order="F")


class PyInitializer(ABC):
    """Base class of the initializers. A subclass that defines `fill` can be given as `init=` too.

    Example:
        >>> isinstance(dy.ConstInitializer(1), dy.PyInitializer)
        True
    """

    @abstractmethod
    def fill(self, out: Array, rng: RandomSource, lookup: bool = False) -> None:
        """Write the initial values into `out`.

        Args:
            out: float32 array of the shape of the parameter; for a lookup table (row dimensions..., number of rows).
            rng: the source of random numbers.
            lookup: whether `out` is a lookup table.

        Example:
            >>> class Twos(dy.PyInitializer):
            ...     def fill(self, out, rng, lookup=False):
            ...         out[...] = 2
            >>> model.add_parameters(3, init=Twos()).npvalue()
            array([2., 2., 2.])
        """


class NormalInitializer(PyInitializer):
    r"""Normal distribution: :math:`w \sim \mathcal N(\text{mean}, \text{var})`.

    Args:
        mean: mean of the distribution (default: 0).
        var: *variance* of the distribution (default: 1).

    Example:
        >>> W = model.add_parameters(2, init=dy.NormalInitializer(0, 0.01))
        >>> W.shape()
        (2,)
    """

    def __init__(self, mean: float = 0, var: float = 1) -> None:
        self.mean = float(mean)
        self.var = float(var)
        if not self.var >= 0:
            raise ValueError(f"NormalInitializer: the variance must not be negative: {var}")

    def fill(self, out: Array, rng: RandomSource, lookup: bool = False) -> None:
        std = np.float32(math.sqrt(self.var))
        mean = np.float32(self.mean)
        for block in _blocks(out):
            np.multiply(rng.normal(block.size), std, out=block)
            block += mean


class UniformInitializer(PyInitializer):
    r"""Uniform distribution: :math:`w \sim \mathcal U(-\text{scale}, \text{scale})`.

    Args:
        scale: half the width of the interval.

    Example:
        >>> W = model.add_parameters(2, init=dy.UniformInitializer(0.5))
        >>> bool((abs(W.npvalue()) <= 0.5).all())
        True
    """

    def __init__(self, scale: float) -> None:
        self.scale = float(scale)

    def fill(self, out: Array, rng: RandomSource, lookup: bool = False) -> None:
        _fill_uniform(out, rng, self.scale)


def _fill_uniform(out: Array, rng: RandomSource, bound: float) -> None:
    for block in _blocks(out):
        np.multiply(rng.uniform(block.size), np.float32(2), out=block)
        block -= np.float32(1)
        block *= np.float32(bound)


class ConstInitializer(PyInitializer):
    r"""A constant for all elements: :math:`w = c`.

    Args:
        c: the value.

    Example:
        >>> W = model.add_parameters(2, init=dy.ConstInitializer(3))
        >>> W.npvalue()
        array([3., 3.])
    """

    def __init__(self, c: float) -> None:
        self.c = float(c)

    def fill(self, out: Array, rng: RandomSource, lookup: bool = False) -> None:
        out[...] = self.c


class GlorotInitializer(PyInitializer):
    r"""Uniform distribution whose width comes from the shape.

    With dimensions :math:`d_0, \dots, d_{k-1}` the values are uniform in :math:`(-b, b)`, where

    .. math::

        b = g \sqrt{\frac{3k}{d_0 + \dots + d_{k-1}}}

    which is :math:`g \sqrt{6 / (m + n)}` for an :math:`m \times n` matrix. Four dimensions are taken as the filters of
    a convolution (height, width, input channels, output channels):

    .. math::

        b = g \sqrt{\frac{6}{d_0 d_1 (d_2 + d_3)}}

    The dimensions of a lookup table are those of a row and then the number of rows. As in DyNet, all of them count
    unless `is_lookup` is set, which leaves out the last one (and does so for any parameter).

    Good gains :math:`g`: 1 for tanh, 0.5 for ReLU, 4 for the sigmoid, :math:`1 / f'(0)` for a smooth :math:`f`.

    X. Glorot, Y. Bengio: Understanding the difficulty of training deep feedforward neural networks, AISTATS 2010.

    Args:
        is_lookup: leave the last dimension out (default: False).
        gain: the gain (default: 1).

    Example:
        >>> W = model.add_parameters((2, 3), init=dy.GlorotInitializer())
        >>> W.shape()
        (2, 3)
    """

    def __init__(self, is_lookup: bool = False, gain: float = 1.0) -> None:
        self.is_lookup = bool(is_lookup)
        self.gain = float(gain)

    def bound(self, dim: tuple[int, ...]) -> float:
        """Half the width of the interval for these dimensions.

        Args:
            dim: the shape; for a lookup table the dimensions of a row, then the number of rows

        Raises:
            InitializerShapeError: `is_lookup` leaves no dimension, or all are 0

        Example:
            >>> dy.GlorotInitializer().bound((2, 4))        # sqrt(6 / (2 + 4))
            1.0
        """
        counted = dim[:-1] if self.is_lookup else dim
        if len(counted) == 4:
            fans = counted[0] * counted[1] * (counted[2] + counted[3]) / 2
        elif counted:
            fans = sum(counted) / len(counted)
        elif self.is_lookup:
            raise InitializerShapeError(f"GlorotInitializer(is_lookup=True): dimensions {dim} have none for rows")
        else:
            fans = 1  # a single number
        if fans == 0:
            raise InitializerShapeError(f"GlorotInitializer: a parameter of dimensions {dim} has no width")
        return self.gain * math.sqrt(3 / fans)

    def fill(self, out: Array, rng: RandomSource, lookup: bool = False) -> None:
        if out.size:
            _fill_uniform(out, rng, self.bound(out.shape))


def _square(out: Array, what: str) -> int:
    if out.ndim != 2 or out.shape[0] != out.shape[1]:
        message = f"Attempt to set a tensor that is not a square matrix to {what} (its dimensions: {out.shape})"
        raise InitializerShapeError(message)
    return int(out.shape[0])


class SaxeInitializer(PyInitializer):
    r"""A random orthogonal matrix, times `scale`: :math:`W W^\top = \text{scale}^2 I`. For square matrices.

    It is the orthogonal factor of a matrix of normal numbers, with the signs that make all orthogonal matrices
    equally likely.

    A. Saxe, J. McClelland, S. Ganguli: Exact solutions to the nonlinear dynamics of learning in deep linear neural
    networks, ICLR 2014, https://arxiv.org/abs/1312.6120.

    Args:
        scale: the factor (default: 1).

    Example:
        >>> W = model.add_parameters((2, 2), init=dy.SaxeInitializer())
        >>> (W.npvalue() @ W.npvalue().T).round(3) + 0.0
        array([[1., 0.],
               [0., 1.]])
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = float(scale)

    def fill(self, out: Array, rng: RandomSource, lookup: bool = False) -> None:
        n = _square(out, "an orthogonal matrix")
        if n == 0:
            return
        numbers_ = rng.normal(n * n).astype(np.float64).reshape(n, n, order="F")
        q, r = np.linalg.qr(numbers_)
        out[...] = q * (self.scale * np.where(np.diagonal(r) < 0, -1.0, 1.0))


class IdentityInitializer(PyInitializer):
    r"""The identity matrix: :math:`W = I`. For square matrices.

    Example:
        >>> W = model.add_parameters((2, 2), init=dy.IdentityInitializer())
        >>> W.npvalue()
        array([[1., 0.],
               [0., 1.]])
    """

    def fill(self, out: Array, rng: RandomSource, lookup: bool = False) -> None:
        _square(out, "identity")
        out[...] = 0
        np.fill_diagonal(out, 1)


class FromFileInitializer(PyInitializer):
    """Numbers from a text file, separated by blanks or line ends, in memory order (first index fastest).

    For a matrix that is column after column, for a lookup table row after row. Numbers beyond those needed are ignored;
    too few numbers, or anything but numbers among those needed, is an error.

    Args:
        fname: name of the file.

    Example:
        >>> with open("numbers", "w") as file:
        ...     _ = file.write("1 2 3 4")
        >>> W = model.add_parameters((2, 2), init=dy.FromFileInitializer("numbers"))
        >>> W.npvalue()
        array([[1., 3.],
               [2., 4.]])
    """

    def __init__(self, fname: FileName) -> None:
        self.fname = os.fsdecode(fname)

    def fill(self, out: Array, rng: RandomSource, lookup: bool = False) -> None:
        values = np.empty(out.size, dtype=np.float32)
        count = 0
        for number, line in numbered_lines(self.fname, "a file of numbers"):
            if count == out.size:
                break
            words = line.split()[: out.size - count]
            try:
                values[count : count + len(words)] = [float(word) for word in words]
            except ValueError as error:
                raise ValueError(f"{self.fname}, line {number}: {error}") from None
            count += len(words)
        if count < out.size:
            raise ValueError(f"{self.fname} has {count} numbers, but dimensions {out.shape} take {out.size}")
        out[...] = values.reshape(out.shape, order="F")


class NumpyInitializer(PyInitializer):
    """The values of an array of the same shape; for a lookup table its first index is the row.

    Args:
        array: the values.

    Example:
        >>> W = model.add_parameters((2, 2), init=dy.NumpyInitializer(np.array([[1, 2], [3, 4]])))
        >>> W.npvalue()
        array([[1., 2.],
               [3., 4.]])
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = np.array(array, dtype=np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array, rows first for a lookup table.

        Example:
            >>> dy.NumpyInitializer(np.zeros((2, 3))).shape
            (2, 3)
        """
        return self.array.shape

    def fill(self, out: Array, rng: RandomSource, lookup: bool = False) -> None:
        array = np.moveaxis(self.array, 0, -1) if lookup and self.array.ndim else self.array
        if array.shape != out.shape:
            want = (*out.shape[-1:], *out.shape[:-1]) if lookup else out.shape
            message = f"NumpyInitializer: the array has shape {self.array.shape}, the parameter {want}"
            raise InitializerShapeError(message)
        out[...] = array


def _he(dim: tuple[int, ...], lookup: bool) -> PyInitializer:
    row = dim[1:] if lookup else dim
    if not row or row[-1] <= 0:
        raise InitializerShapeError(f"init='he' needs a last dimension{' of a row' if lookup else ''}: {dim}")
    return NormalInitializer(0, 1 / (2 * row[-1]))


def as_initializer(
    init: object = None,
    dim: tuple[int, ...] = (),
    *,
    lookup: bool = False,
    scale: float = 1.0,
    mean: float = 0.0,
    std: float = 1.0,
) -> PyInitializer:
    """The initializer for the argument `init=` of `add_parameters` and `add_lookup_parameters`.

    ====================  =============================================================================
    `init`                initializer
    ====================  =============================================================================
    None, 'glorot'        :class:`GlorotInitializer`
    a number              :class:`ConstInitializer`
    'uniform'             :class:`UniformInitializer` with `scale`
    'normal'              :class:`NormalInitializer` with `mean` and the *standard deviation* `std`
    'identity'            :class:`IdentityInitializer`
    'saxe'                :class:`SaxeInitializer` with `scale`
    'he'                  normal distribution of variance 1 / (2 n), n the last entry of the shape
    an array              :class:`NumpyInitializer`; the parameter gets its shape, whatever `dim` is
    an initializer        itself
    ====================  =============================================================================

    Args:
        init: one of the above.
        dim: the shape; for a lookup table the number of rows comes first.
        lookup: whether the parameter is a lookup table.
        scale: see above.
        mean: see above.
        std: see above.

    Raises:
        ValueError: for anything else.
    """
    if init is None:
        return GlorotInitializer()
    if PyInitializer in type(init).__mro__:  # isinstance() on an ABC fails when memory is short
        return cast(PyInitializer, init)
    if isinstance(init, (float, int, np.floating, np.integer, np.bool_, numbers.Real)):
        return ConstInitializer(float(init))
    if isinstance(init, np.ndarray):
        return NumpyInitializer(init)
    if isinstance(init, str):
        if not std >= 0:
            raise ValueError(f"the standard deviation must not be negative: {std}")
        named: dict[str, Callable[[], PyInitializer]] = {
            "glorot": GlorotInitializer,
            "uniform": lambda: UniformInitializer(scale),
            "normal": lambda: NormalInitializer(mean, std * std),
            "identity": IdentityInitializer,
            "saxe": lambda: SaxeInitializer(scale),
            "he": lambda: _he(dim, lookup),
        }
        if init in named:
            return named[init]()
        raise ValueError(f"Didn't recognize initializer {init!r}: the names are {', '.join(sorted(named))}")
    raise ValueError(f"Didn't recognize initializer of type {type(init).__name__}")
