"""The base class of layers: parameters, modes, dropout, files, and checks of inputs."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, TypeVar, Union

from dynet_cy.equivalents import advice
from dynet_cy.graph import Expression
from dynet_cy.model import LookupParameters, ParameterCollection, Parameters
from dynet_cy.nn.weights import Array, Weights, read_tensors
from dynet_cy.ops import api
from dynet_cy.ops.registry import DimensionError
from dynet_cy.rnn.birnn import BiRNNBuilder
from dynet_cy.rnn.builder import _RNNBuilder, positive_integer

__all__ = ["ACTIVATIONS", "Layer"]

Self = TypeVar("Self", bound="Layer")
Description = Union[str, tuple[Any, ...]]
Stored = Union[Parameters, LookupParameters]

_FUNCTIONS = (
    *("elu", "gelu", "log_sigmoid", "logistic", "rectify", "relu", "selu", "sigmoid", "silu"),
    *("softplus", "softsign", "tanh"),
)
ACTIVATIONS: dict[str, Callable[[Expression], Expression]] = {name: getattr(api, name) for name in _FUNCTIONS}
"""The functions that layers take by name."""


class Layer:
    """Base class of the library's layers, and of yours.

    A layer owns a sub-collection of a model with its parameters, and may hold further layers, and builders of recurrent
    networks, as attributes, or in lists that are attributes. A layer of your own has a constructor with an argument
    `model`, which passes the model and its other arguments on to this class, and a method `__call__`:

        class Scorer(dy.nn.Layer):
            def __init__(self, dim, classes, model, dropout=0.0):
                super().__init__(model, (dim, classes, dropout))
                self.hidden = dy.nn.Linear(dim, dim, self.collection)
                self.dropout = dy.nn.Dropout(dropout)
                self.out = dy.nn.Linear(dim, classes, self.collection)

            def __call__(self, x):
                return self.out(self.dropout(dy.tanh(self.hidden(x))))

    A new layer is in training mode.

    Args:
        model: where the sub-collection goes; None for a layer without parameters
        spec: the arguments of the constructor without the model, from which `from_spec` recreates the layer: numbers,
            strings, None, tuples of them

    Raises:
        TypeError: `model` is not a `ParameterCollection`
    """

    spec: tuple[Any, ...]
    """The arguments of the constructor without the model, as `from_spec` needs them."""

    training: bool
    """Whether the layer is in training mode; see `train`."""

    collection: ParameterCollection
    """The sub-collection that holds the parameters."""

    def __init__(self, model: ParameterCollection | None = None, spec: tuple[Any, ...] = ()) -> None:
        name = type(self).__name__
        if model is None:
            self.collection = ParameterCollection()
        elif isinstance(model, ParameterCollection):
            self.collection = model.add_subcollection(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower())
        else:
            raise TypeError(f"{name}: argument model: expected a ParameterCollection, got {type(model).__name__}")
        self.spec = spec
        self.training = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = "; its method `forward` has to be called `__call__` here" if hasattr(self, "forward") else ""
        raise NotImplementedError(f"{type(self).__name__} has no __call__{forward}")

    def sublayers(self) -> Iterator[Layer | _RNNBuilder | BiRNNBuilder]:
        """The layers and builders of recurrent networks that are attributes of this one, or in lists that are."""
        for value in vars(self).values():
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, (Layer, _RNNBuilder, BiRNNBuilder)):
                    yield item

    # ---- modes

    def train(self: Self, mode: bool = True) -> Self:
        """Set training mode, for this layer and all in it: dropout is active, `BatchNorm` uses the minibatch.

        Args:
            mode: False for evaluation mode, like `eval()`

        Returns:
            The layer.
        """
        self.training = bool(mode)
        for layer in self.sublayers():
            layer.train(mode)
        return self

    def eval(self: Self) -> Self:
        """Set evaluation mode, for this layer and all in it: nothing is dropped, and `BatchNorm` uses the running
        statistics.

        Returns:
            The layer.
        """
        return self.train(False)

    def set_dropout(self, f: float) -> None:
        """Set the rate of all dropout in the layer, including its builders; in evaluation mode nothing is dropped.

        Args:
            f: the probability that an element is dropped, from 0 to 1

        Raises:
            ValueError: not between 0 and 1
        """
        for layer in self.sublayers():
            layer.set_dropout(f)

    def disable_dropout(self) -> None:
        """Set the rate of all dropout in the layer to 0."""
        self.set_dropout(0.0)

    def set_updated(self, b: bool) -> None:
        """Set whether trainers change the parameters of this layer and of all in it; False freezes them."""
        for parameter in self._trained():
            parameter.set_updated(b)
        for part in self.sublayers():
            if isinstance(part, Layer):
                part.set_updated(b)
            else:
                for stored in part.param_collection().parameters_list():
                    stored.set_updated(b)

    def _trained(self) -> Iterator[Stored]:
        """The parameters of this layer itself that trainers change."""
        for value in vars(self).values():
            if isinstance(value, (Parameters, LookupParameters)):
                yield value

    # ---- files

    def param_collection(self) -> ParameterCollection:
        """The sub-collection that holds the parameters."""
        return self.collection

    @classmethod
    def from_spec(cls: type[Self], spec: Sequence[Any], model: ParameterCollection) -> Self:
        """A layer like the one with this `spec`, with its own parameters in `model`."""
        make: Callable[..., Self] = cls
        names = list(inspect.signature(make).parameters)
        if "model" not in names:
            return make(*spec)
        at = names.index("model")
        return make(*spec[:at], model, *spec[at:])

    def load_pytorch(self, weights: Mapping[str, Array] | str | os.PathLike[str], prefix: str = "") -> None:
        """Set the parameters to those of the same layer of PyTorch; docs/layers.md has the names and shapes.

        Args:
            weights: name of a safetensors file, as `safetensors.torch.save_file(module.state_dict(), path)` writes it;
                or arrays by name
            prefix: the beginning of the names of this layer, such as `encoder.`; other names are ignored

        Raises:
            ModelMismatchError: an array is missing, has another shape, or has no place here; nothing was changed
            ModelFileError: not a whole safetensors file
            OSError: the file cannot be read
            NotImplementedError: PyTorch has no such layer
        """
        if isinstance(weights, Mapping):
            found = Weights(weights, "the arrays", prefix)
        else:
            found = Weights(read_tensors(weights), os.fspath(weights), prefix)
        self._take_pytorch(found)
        found.finish()

    def _take_pytorch(self, weights: Weights) -> None:
        """Take the arrays that PyTorch has for this layer, and assign them to parameters.

        A user's layer works if its attributes have the same names as those of the PyTorch module.
        """
        if any(True for _ in self._trained()):
            raise NotImplementedError(f"{type(self).__name__}.load_pytorch: PyTorch has no such layer")
        for name, value in vars(self).items():
            if isinstance(value, Layer):
                value._take_pytorch(weights.below(name))
            elif isinstance(value, (list, tuple)):
                for i, item in enumerate(value):
                    if isinstance(item, Layer):
                        item._take_pytorch(weights.below(f"{name}.{i}"))

    # ---- for derived classes

    def _matrix(self, rows: int, columns: int, name: str = "W") -> Parameters:
        return self.collection.add_parameters((rows, columns), init="glorot", name=name)

    def _vector(self, length: int, value: float = 0.0, name: str = "b") -> Parameters:
        return self.collection.add_parameters((length,), init=value, name=name)

    def _size(self, value: Any, argument: str) -> int:
        """An integer of at least 1."""
        return positive_integer(value, type(self).__name__, argument)

    def _checked(self, x: Any, rows: int, argument: str = "x") -> tuple[tuple[int, ...], int]:
        """The shape and the batch size of an expression, after checking its number of rows."""
        if not isinstance(x, Expression):
            raise TypeError(f"{type(self).__name__}: argument {argument}: expected an expression, got {x!r:.80}")
        shape, batch = x.dim()
        if not shape or shape[0] != rows:
            raise DimensionError(f"{type(self).__name__}: argument {argument}: expected {rows} rows, got {shape}")
        return shape, batch

    def __repr__(self) -> str:
        mode = "" if self.training else ", evaluation mode"
        return f"<{type(self).__name__} {self._outline()}{mode}>"

    def _outline(self) -> str:
        return repr(self.spec)


def activation(name: Any, layer: str) -> Callable[[Expression], Expression]:
    """The function of a name, checked."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"{layer}: argument activation: expected one of {', '.join(ACTIVATIONS)}, got {name!r:.80}"
            f"{advice('activation', str(name))}"
        )
    return ACTIVATIONS[name]


def share(value: Any, layer: str, argument: str) -> float:
    """A probability, checked."""
    number = float(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{layer}: argument {argument}: expected a probability between 0 and 1, got {value!r}")
    return number
