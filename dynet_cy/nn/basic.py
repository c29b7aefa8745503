"""Layers that work column by column: Linear, Embedding, norms, dropout, activations, gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.functions.arguments import Input, as_input, positive
from dynet_cy.functions.norms import rms_norm
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection, Parameters
from dynet_cy.model.initializers import NormalInitializer, PyInitializer
from dynet_cy.model.weights import Weights
from dynet_cy.nn.construction import put_part
from dynet_cy.nn.layer import Layer, activation, set_uniform, share
from dynet_cy.ops import api as ops

__all__ = ["Activation", "Dropout", "Embedding", "GatedLinear", "Highway", "LayerNorm", "Linear", "RMSNorm"]

Ids = Union[int, Sequence[int], npt.NDArray[np.integer[Any]]]


class Linear(Layer):
    """W x + b for each column.

    Parameters: W (output_dim, input_dim), Glorot; b (output_dim,), zeros.

    Args:
        input_dim: length of the columns of x
        output_dim: length of those of the result
        model: where the parameters go
        bias: whether there is b (default: yes)
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: those above

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.Linear(3, 2, dy.ParameterCollection())
        >>> layer(dy.zeros((3, 5))).dim()
        ((2, 5), 1)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        model: ParameterCollection,
        bias: bool = True,
        *,
        init: str | None = None,
    ) -> None:
        self.input_dim = self._size(input_dim, "input_dim")
        self.output_dim = self._size(output_dim, "output_dim")
        super().__init__(model, (self.input_dim, self.output_dim, bool(bias)))
        self.W = self._matrix(self.output_dim, self.input_dim)
        self.b = self._vector(self.output_dim) if bias else None
        self._set_init(init)

    def _as_pytorch(self) -> None:
        set_uniform(self.input_dim**-0.5, self.W, self.b)

    def __call__(self, x: Input) -> Expression:
        """W x + b.

        Args:
            x: shape ``{input_dim}`` or ``{input_dim,n}``

        Returns:
            Expression of shape ``{output_dim}`` or ``{output_dim,n}``.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        return self._affine(self.W, self._checked(x, self.input_dim), self.b)

    def _take_pytorch(self, weights: Weights) -> None:
        weights.take(self.W, "weight")
        weights.take(self.b, "bias")


class Embedding(Layer):
    """A table of vectors that are looked up by number.

    Parameters: a table of `size` vectors of length `dim`.

    Args:
        size: number of vectors
        dim: length of a vector
        model: where the table goes
        padding: the number of a vector that is always zero and not trained, if there is one
        frozen: whether trainers leave the table unchanged (default: no)
        init: initial values, as for `add_lookup_parameters`. Default: normal numbers of variance 1, as in PyTorch,
            which are not drowned out by positions added to them; the default of `add_lookup_parameters` gets smaller
            as the table grows.

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, or `padding` is not one of the table

    Example:
        >>> import dynet_cy as dy
        >>> words = dy.nn.Embedding(1000, 64, dy.ParameterCollection())
        >>> words([5, 2, 7]).dim()  # a sentence
        ((64, 3), 1)
        >>> words(5).dim()  # a word
        ((64,), 1)
    """

    def __init__(
        self,
        size: int,
        dim: int,
        model: ParameterCollection,
        padding: int | None = None,
        frozen: bool = False,
        init: PyInitializer | float | npt.NDArray[Any] | str | None = None,
    ) -> None:
        self.size = self._size(size, "size")
        self.dim = self._size(dim, "dim")
        if padding is not None and not 0 <= padding < self.size:
            raise ValueError(f"Embedding: argument padding: expected a number from 0 to {size - 1}, got {padding!r}")
        super().__init__(model, (self.size, self.dim, padding, bool(frozen)))
        self.padding = padding
        values = NormalInitializer() if init is None or isinstance(init, str) and init == "pytorch" else init
        self.table = self.collection.add_lookup_parameters((self.size, self.dim), values, "table")
        self.table.set_updated(not frozen)

    def _as_pytorch(self) -> None:
        shape = (self.size, self.dim)
        values = ParameterCollection().add_lookup_parameters(shape, init=NormalInitializer()).as_array()
        self.table.init_from_array(values)

    @classmethod
    def from_numpy(
        cls, array: npt.ArrayLike, model: ParameterCollection, padding: int | None = None, frozen: bool = False
    ) -> Embedding:
        """A table with the values of an array.

        Args:
            array: shape (size, dim): a row for each vector
            model, padding, frozen: see `Embedding`

        Raises:
            ValueError: not a matrix of numbers, or one without rows or columns
        """
        numbers = np.asarray(array, dtype=np.float32)
        if numbers.ndim != 2 or 0 in numbers.shape:
            raise ValueError(f"Embedding.from_numpy: argument array: expected rows of vectors, got {numbers.shape}")
        return cls(numbers.shape[0], numbers.shape[1], model, padding, frozen, init=numbers)

    def __call__(self, ids: Ids) -> Expression:
        """The vectors of some numbers.

        Args:
            ids: a number; a list of n numbers; or, for a minibatch of B lists, an array of shape (n, B), with the
                batch as the last axis

        Returns:
            Expression of shape ``{dim}``, or ``{dim,n}``, with a batch of B.

        Raises:
            TypeError: something other than whole numbers
            ValueError: an empty list, an array of more than two axes, or one of shape (1, n), as tokenizers give for
                one sentence
            IndexError: there is no such vector
        """
        numbers = np.asarray(ids)
        if numbers.dtype.kind not in "iu" and numbers.size:
            raise TypeError(f"Embedding: argument ids: expected whole numbers, got {ids!r:.80}")
        if numbers.ndim > 2 or numbers.size == 0:
            raise ValueError(f"Embedding: argument ids: expected numbers, got an array of shape {numbers.shape}")
        if numbers.ndim == 2 and numbers.shape[0] == 1 < numbers.shape[1]:
            one = f"expected one sentence as a list, or an array (n, B) of B sentences, got shape {numbers.shape}"
            raise ValueError(
                f"Embedding: argument ids: {one}: write ids[0] for one sentence of {numbers.shape[1]}, ids.T if the "
                "sentences are its rows, and layer.table.batch(ids[0]) for a minibatch of single numbers"
            )
        if numbers.ndim == 0:
            x: Expression = self.table[int(numbers)]
        else:
            batch = numbers.shape[1] if numbers.ndim == 2 else 1
            flat = np.ascontiguousarray(numbers.ravel(order="F"))
            x = ops.reshape(self.table.batch(flat), (self.dim, len(numbers)), batch)
        if self.padding is None:
            return x
        kept = numbers != self.padding
        if kept.all():
            return x
        mask = kept.reshape((1, *numbers.shape)).astype(np.float32)
        return ops.cmult(x, ops.inputTensor(mask, batched=numbers.ndim == 2))

    def resize(self, size: int, init: float | npt.ArrayLike | None = None) -> None:
        """Change the number of vectors: keep the first ones, and add others at the end or drop the last ones.

        The table is replaced by another one of the same name. Trainers go on with it: its state (momentum, moments)
        begins with zeros, and it is in no group, as for any parameter that is new. What was made from the former table,
        such as the graph, is of no use any more: begin a new one.

        Args:
            size: the new number of vectors
            init: the values of the new ones: a number, or an array with a row for each. Default: normal numbers with
                the mean and the deviation of the former vectors along each axis, so that new words look like others.

        Raises:
            TypeError: `size` is not an integer
            ValueError: `size` is less than 1, it drops the vector of `padding`, or `init` has another shape

        Example:
            >>> import dynet_cy as dy
            >>> words = dy.nn.Embedding(1000, 64, dy.ParameterCollection())
            >>> words.resize(1002)
            >>> words([999, 1001]).dim()
            ((64, 2), 1)
        """
        count = self._size(size, "size")
        if self.padding is not None and self.padding >= count:
            raise ValueError(f"Embedding.resize: argument size: {count} vectors leave none for padding={self.padding}")
        former = self.table.as_array()
        values = resized_rows(former, count, init, "Embedding.resize")
        if count == self.size:
            return
        table = self.collection.add_lookup_parameters((count, self.dim), values, "table")
        table.set_updated(self.table.is_updated())
        put_part(self, "table", table)
        self.size = count
        self.spec = (count, *self.spec[1:])

    def _take_pytorch(self, weights: Weights) -> None:
        weights.take(self.table, "weight")


class LayerNorm(Layer):
    """Each column normalized to mean 0 and deviation 1, then times g and plus b (Ba, Kiros and Hinton, "Layer
    normalization", 2016).

    Parameters: g (dim,), ones; b (dim,), zeros.

    Args:
        dim: length of a column
        model: where the parameters go
        eps: added to the variance; None, the default: 1e-5, as in PyTorch, and in programs of DyNet none, see
            `dynet_cy.layer_norm`
        bias: whether there is b (default: yes)

    Raises:
        TypeError: `dim` is not an integer, or `model` is not a `ParameterCollection`
        ValueError: `dim` is less than 1, or `eps` is negative
    """

    def __init__(self, dim: int, model: ParameterCollection, eps: float | None = None, bias: bool = True) -> None:
        self.dim = self._size(dim, "dim")
        if eps is not None and not 0 <= eps < np.inf:
            raise ValueError(f"LayerNorm: argument eps: expected a number of at least 0, got {eps!r}")
        self.eps = None if eps is None else float(eps)
        super().__init__(model, (self.dim, self.eps) if bias else (self.dim, self.eps, False))
        self.g = self._vector(self.dim, 1.0, "g")
        self.b = self._vector(self.dim) if bias else None

    def __call__(self, x: Input) -> Expression:
        """The normalized columns.

        Args:
            x: shape ``{dim}`` or ``{dim,n}``

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        x = self._checked(x, self.dim)
        return ops.layer_norm(x, self.g, self._b(), eps=self.eps)

    def after(self, x: Expression, found: Expression, dropout: float = 0.0) -> Expression:
        """The normalized columns of a residual connection, x + dropout(found), as one operation.

        Args:
            x: the input of a layer, shape ``{dim}`` or ``{dim,n}``
            found: the output of the layer, in the shape of x
            dropout: the probability that an element of `found` is set to 0; the others are divided by 1 - dropout

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows, or different shapes
            ValueError: `dropout` is not between 0 and 1

        Example:
            >>> import dynet_cy as dy
            >>> norm = dy.nn.LayerNorm(3, dy.ParameterCollection())
            >>> norm.after(dy.inputVector([1, 0, 3]), dy.inputVector([0, 2, 0])).npvalue().round(3)
            array([-1.225,  0.   ,  1.225])
        """
        x = self._checked(x, self.dim)
        return ops.residual_layer_norm(x, found, self.g, self._b(), dropout, self.eps)

    def _b(self) -> Parameters | Expression:
        return ops.zeros((self.dim,)) if self.b is None else self.b

    def _take_pytorch(self, weights: Weights) -> None:
        weights.take(self.g, "weight")
        weights.take(self.b, "bias")


class RMSNorm(Layer):
    """Each column divided by the root of the mean of its squares, then times g (Zhang and Sennrich, "Root mean square
    layer normalization", NeurIPS 2019).

    Parameters: g (dim,), ones.

    Args:
        dim: length of a column
        model: where the parameter goes
        eps: added to the mean of the squares (default: 1e-5)

    Raises:
        TypeError: `dim` is not an integer, or `model` is not a `ParameterCollection`
        ValueError: `dim` is less than 1, or `eps` is not above 0
    """

    def __init__(self, dim: int, model: ParameterCollection, eps: float = 1e-5) -> None:
        self.dim = self._size(dim, "dim")
        self.eps = positive(eps, "RMSNorm", "argument eps")
        super().__init__(model, (self.dim, self.eps))
        self.g = self._vector(self.dim, 1.0, "g")

    def __call__(self, x: Input) -> Expression:
        """The normalized columns.

        Args:
            x: shape ``{dim}`` or ``{dim,n}``

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        x = self._checked(x, self.dim)
        return rms_norm(x, self.g, eps=self.eps)

    def after(self, x: Expression, found: Expression, dropout: float = 0.0) -> Expression:
        """The normalized columns of a residual connection, x + dropout(found).

        Args:
            x, found, dropout: see `LayerNorm.after`

        Example:
            >>> import dynet_cy as dy
            >>> norm = dy.nn.RMSNorm(2, dy.ParameterCollection())
            >>> norm.after(dy.inputVector([1, 0]), dy.inputVector([0, 1])).npvalue().round(3)
            array([1., 1.])
        """
        return self(x + (ops.dropout(found, dropout) if dropout else found))

    def _take_pytorch(self, weights: Weights) -> None:
        weights.take(self.g, "weight")


class Dropout(Layer):
    """In training mode each element becomes 0 with probability `rate`, and the others are divided by 1 - rate
    (Srivastava et al., "Dropout", JMLR 2014).

    Args:
        rate: from 0 to 1

    Raises:
        ValueError: not between 0 and 1
    """

    def __init__(self, rate: float) -> None:
        self.rate = share(rate, "Dropout", "rate")
        super().__init__(None, (self.rate,))

    def __call__(self, x: Input) -> Expression:
        """x, with elements dropped in training mode.

        Args:
            x: any expression
        """
        x = x if isinstance(x, Expression) else as_input(x, "Dropout")
        return ops.dropout(x, self.rate) if self.now > 0 else x

    @property
    def now(self) -> float:
        """The current rate: 0 in evaluation mode."""
        return self.rate if self.training else 0.0

    def set_dropout(self, f: float) -> None:
        self.rate = share(f, "Dropout.set_dropout", "f")


class Activation(Layer):
    """An elementwise function as a layer; in `Sequential`, its name is enough.

    Args:
        name: elu, gelu, log_sigmoid, rectify or relu, selu, logistic or sigmoid, silu, softplus, softsign or tanh; or
            a name of `transformers`: gelu_new or gelu_pytorch_tanh (``gelu(x, approximate="tanh")``), quick_gelu
            (``silu(x, 1.702)``)

    Raises:
        ValueError: another name
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.function = activation(name, "Activation")
        super().__init__(None, (name,))

    def __call__(self, x: Input) -> Expression:
        """The function of each element of x."""
        return self.function(x if isinstance(x, Expression) else as_input(x, "Activation"))


class Highway(Layer):
    """t * f(W x + b) + (1 - t) * x with t = logistic(W_t x + b_t), for each column: a layer that at first mostly passes
    x through (Srivastava, Greff and Schmidhuber, "Highway networks", 2015).

    Parameters: W (dim, dim) and W_t (dim, dim), Glorot; b (dim,), zeros; b_t (dim,), `gate_bias`.

    Args:
        dim: length of a column
        model: where the parameters go
        activation: the name of f; see `Activation`
        gate_bias: the initial value of b_t: the lower it is, the more of x is passed through

    Raises:
        TypeError: `dim` is not an integer, or `model` is not a `ParameterCollection`
        ValueError: `dim` is less than 1, or there is no such activation
    """

    def __init__(
        self, dim: int, model: ParameterCollection, activation: str = "rectify", gate_bias: float = -2.0
    ) -> None:
        self.dim = self._size(dim, "dim")
        self.activation = Activation(activation)
        super().__init__(model, (self.dim, activation, float(gate_bias)))
        self.W = self._matrix(self.dim, self.dim)
        self.b = self._vector(self.dim)
        self.W_t = self._matrix(self.dim, self.dim, "Wt")
        self.b_t = self._vector(self.dim, float(gate_bias), "bt")

    def __call__(self, x: Input) -> Expression:
        """The mixture of f(W x + b) and x.

        Args:
            x: shape ``{dim}`` or ``{dim,n}``

        Returns:
            Expression of the shape of x.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        x = self._checked(x, self.dim)
        gate = ops.logistic(self._affine(self.W_t, x, self.b_t))
        new = self.activation(self._affine(self.W, x, self.b))
        return x + ops.cmult(gate, new - x)


class GatedLinear(Layer):
    """(W x + b) * f(V x + c) for each column, elementwise: a linear layer with a gate (Dauphin et al., "Language
    modeling with gated convolutional networks", ICML 2017; with "silu" or "gelu" as f, Shazeer, "GLU variants improve
    transformer", 2020).

    Parameters: those of two `Linear`, `value` (W and b) and `gate` (V and c).

    Args:
        input_dim: length of the columns of x
        output_dim: length of those of the result
        model: where the parameters go
        activation: the name of f; see `Activation`
        bias: whether there are b and c (default: yes)
        init: "pytorch" for the initial values of PyTorch; see `Layer.initialize`. Default: those above

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, or there is no such activation

    Example:
        >>> import dynet_cy as dy
        >>> layer = dy.nn.GatedLinear(3, 2, dy.ParameterCollection(), activation="silu")
        >>> layer(dy.zeros((3, 5))).dim()
        ((2, 5), 1)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        model: ParameterCollection,
        activation: str = "logistic",
        bias: bool = True,
        *,
        init: str | None = None,
    ) -> None:
        super().__init__(model, (input_dim, output_dim, activation, bool(bias)))
        self.value = Linear(input_dim, output_dim, self.collection, bias)
        self.gate = Linear(input_dim, output_dim, self.collection, bias)
        self.activation = Activation(activation)
        self._set_init(init)

    def __call__(self, x: Input) -> Expression:
        """(W x + b) * f(V x + c).

        Args:
            x: shape ``{input_dim}`` or ``{input_dim,n}``

        Returns:
            Expression of shape ``{output_dim}`` or ``{output_dim,n}``.

        Raises:
            TypeError: neither an expression nor numbers
            DimensionError: another number of rows
        """
        return ops.cmult(self.value(x), self.activation(self.gate(x)))


def resized_rows(
    former: npt.NDArray[np.float32], count: int, init: float | npt.ArrayLike | None, function: str
) -> npt.NDArray[np.float32]:
    """The first rows of a table, and new ones where there are more; see `Embedding.resize`."""
    rows, dim = former.shape
    more = max(count - rows, 0)
    if init is None:
        new = np.empty((0, dim), np.float32)
        if more:
            drawn = ParameterCollection().add_parameters((more, dim), NormalInitializer()).as_array()
            new = former.mean(0) + former.std(0) * drawn.reshape(more, dim)
    else:
        new = np.asarray(init, dtype=np.float32)
        if new.ndim and new.shape != (more, dim):
            raise ValueError(
                f"{function}: argument init: expected a number, or an array of shape {(more, dim)}, got {new.shape}"
            )
    found = np.empty((count, dim), np.float32)
    found[:rows] = former[:count]
    found[rows:] = new
    return found
