"""The base class of layers: parameters, modes, dropout, files, and checks of inputs."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Callable, TypeVar, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.functions.arguments import as_input
from dynet_cy.graph import Expression
from dynet_cy.hints.equivalents import advice
from dynet_cy.model import LookupParameters, ParameterCollection, Parameters
from dynet_cy.model.collection import load_arrays, named
from dynet_cy.model.given import collection_of
from dynet_cy.model.matching import Matched, Renaming
from dynet_cy.model.parameters import set_array, settled_array
from dynet_cy.model.weights import Weights, uniform
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.nn.construction import (
    LayerType,
    NotBegun,
    all_parts,
    attributes,
    begin_in,
    note_all_parts,
    note_parts,
    replace_part,
)
from dynet_cy.ops import api as ops
from dynet_cy.ops.registry import DimensionError
from dynet_cy.rnn.birnn import BiRNNBuilder
from dynet_cy.rnn.builder import _RNNBuilder, outline, positive_integer

__all__ = ["Layer"]

Self = TypeVar("Self", bound="Layer")
Description = Union[str, tuple[Any, ...]]
Stored = Union[Parameters, LookupParameters]
_STORED: tuple[type[Parameters], type[LookupParameters]] = (Parameters, LookupParameters)

_FUNCTIONS = (
    *("elu", "gelu", "log_sigmoid", "logistic", "rectify", "relu", "selu", "sigmoid", "silu"),
    *("softplus", "softsign", "tanh"),
)
ACTIVATIONS: dict[str, Callable[[Expression], Expression]] = {
    **{name: getattr(ops, name) for name in _FUNCTIONS},
    # Names that configurations of `transformers` have.
    "gelu_new": partial(ops.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(ops.gelu, approximate="tanh"),
    "quick_gelu": partial(ops.silu, beta=1.702),
}
"""The functions that layers take by name."""


class Layer(metaclass=LayerType):
    """Base class of the library's layers, and of yours.

    A layer owns a sub-collection of a model with its parameters, and may hold further layers, and builders of recurrent
    networks, as attributes, or in lists and dictionaries that are attributes. The names of parameters follow the
    attributes: `hidden.W`, `layers.0.b`. A layer of your own has a constructor with an argument `model`, by whose name
    `dy.load` finds it; it passes the model and its other arguments on to this class. And it has a method `__call__`:

        class Scorer(dy.nn.Layer):
            def __init__(self, dim, classes, model, dropout=0.0):
                super().__init__(model, (dim, classes, dropout))
                self.hidden = dy.nn.Linear(dim, dim, self.collection)
                self.dropout = dy.nn.Dropout(dropout)
                self.out = dy.nn.Linear(dim, classes, self.collection)

            def __call__(self, x):
                return self.out(self.dropout(dy.tanh(self.hidden(x))))

    A new layer is in training mode.

    A constructor that raises an error leaves nothing in the model. A new layer that becomes an attribute in place of
    another one replaces it in the collection too, with a warning. So does a new layer that a cell of a notebook assigns
    to a variable with a layer of the same class and collection, which another cell made, or this one when it ran last.

    A layer is accepted in place of the collection of its parameters: `AdamTrainer(net)`, `save_safetensors(file, net)`.

    Args:
        model: where the sub-collection goes; None for a collection of its own
        spec: the arguments of the constructor without the model, from which `from_spec` recreates the layer: numbers,
            strings, None, tuples of them

    Raises:
        TypeError: `model` is not a `ParameterCollection`
    """

    spec: tuple[Any, ...]
    """The arguments of the constructor without the model, as `from_spec` needs them."""

    training: bool
    """Whether the layer is in training mode; see `train`."""

    collection: ParameterCollection = NotBegun()  # type: ignore[assignment]
    """The sub-collection that holds the parameters."""

    _constructed = False
    # The names of the attributes, in the order in which they were set; None: those of `vars`. Reading `vars` gives an
    # object a dictionary of its own, in which Python 3.11 and 3.12 find attributes more slowly from then on.
    _attributes: dict[str, None] | None = None

    def __new__(cls: type[Self], *args: Any, **kwargs: Any) -> Self:
        layer = super().__new__(cls)
        object.__setattr__(layer, "_attributes", {})
        return layer

    def __init__(self, model: CollectionOrLayer | None = None, spec: tuple[Any, ...] = ()) -> None:
        name = type(self).__name__
        if model is None:
            self.collection = ParameterCollection()
        else:
            given = collection_of(model, name)
            begin_in(given)
            self.collection = given.add_subcollection(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower())
        self.spec = spec
        self.training = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = "; its method `forward` has to be called `__call__` here" if hasattr(self, "forward") else ""
        raise NotImplementedError(f"{type(self).__name__} has no __call__{forward}")

    def __setattr__(self, name: str, value: Any) -> None:
        before = attributes(self).get(name) if self._constructed else None
        meant = self._constructed and self._assigns(name, value)
        super().__setattr__(name, value)
        if self._attributes is not None:
            self._attributes[name] = None
        if self._constructed:
            replace_part(self, name, before, value, meant)

    def _assigns(self, name: str, value: Any) -> bool:
        """Prepare for a new value of an attribute of the finished layer, or refuse it; whether it may take the place of
        another part without a warning."""
        return False

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _attributes=None)
        note_parts(self)

    def sublayers(self) -> Iterator[Layer | _RNNBuilder | BiRNNBuilder]:
        """The layers and RNN builders in attributes, and in lists and dictionaries among these."""
        for part, _ in all_parts(self):
            if isinstance(part, (Layer, _RNNBuilder, BiRNNBuilder)):
                yield part

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
        for part, _ in all_parts(self):
            if isinstance(part, _STORED):
                yield part

    # ---- parameters

    def parameters(self) -> list[Stored]:
        """All parameters and tables of the layer and of all in it, in the order in which they were made.

        Example:
            >>> import dynet_cy as dy
            >>> [p.shape for p in dy.nn.Linear(3, 2, dy.Model()).parameters()]
            [(2, 3), (2,)]
        """
        return list(self._named().values())

    def named_parameters(self) -> Iterator[tuple[str, Stored]]:
        """Pairs of name and parameter or table; names are paths of attributes, with dots.

        Example:
            >>> import dynet_cy as dy
            >>> layers = dy.nn.Sequential([(dy.nn.Linear, 3, 2), "tanh", (dy.nn.Linear, 2, 2)], dy.Model())
            >>> [name for name, p in layers.named_parameters()]
            ['0.W', '0.b', '2.W', '2.b']
        """
        yield from self._named().items()

    def _named(self) -> dict[str, Stored]:
        return named(self._whole_collection(), ".")[0]

    def _whole_collection(self) -> ParameterCollection:
        """The collection, which knows all that the layer holds now."""
        note_all_parts(self)
        return self.collection

    def state_dict(self) -> dict[str, npt.NDArray[np.float32]]:
        """The values of all parameters and tables by name, as new arrays; see `named_parameters`.

        Example:
            >>> import dynet_cy as dy
            >>> layer = dy.nn.Linear(3, 2, dy.Model())
            >>> {name: array.shape for name, array in layer.state_dict().items()}
            {'W': (2, 3), 'b': (2,)}
        """
        return {name: settled_array(x) for name, x in self._named().items()}

    def load_state_dict(
        self, state: Mapping[str, npt.ArrayLike], strict: bool = True, prefix: str = "", rename: Renaming = None
    ) -> Matched:
        """Set values from named arrays, such as those of `state_dict`. Nothing is changed unless all of them fit.

        Args:
            state: a mapping of names to arrays
            strict: whether all names must be on both sides
            prefix: only names that begin with it are used, and it is removed from them
            rename: a mapping of names in `state`, without the prefix, to names here, or a function of a name

        Returns:
            A tuple ``(loaded, missing, unexpected)`` of lists of names.

        Raises:
            ValueError: names are missing or unexpected and `strict` is True, or a shape differs

        Example:
            >>> import dynet_cy as dy
            >>> one, other = dy.nn.Linear(3, 2, dy.Model()), dy.nn.Linear(3, 2, dy.Model())
            >>> other.load_state_dict(one.state_dict())
            Matched(loaded=['W', 'b'], missing=[], unexpected=[])
        """
        return load_arrays(self._whole_collection(), state, strict, prefix, rename, ".")

    def initialize(self: Self, init: str) -> Self:
        """Give all parameters of the layer, and of all in it, new initial values.

        Args:
            init: "pytorch": the distributions that PyTorch's layers of the same kind begin with, such as numbers
                uniform in ±1/sqrt(n) for a `Linear` with n inputs; layers that PyTorch does not have stay as they are.
                The same word as the argument `init` of layers.

        Returns:
            The layer.

        Raises:
            ValueError: another word

        Example:
            >>> import dynet_cy as dy
            >>> net = dy.nn.Sequential([(dy.nn.Linear, 100, 8), "tanh"], dy.Model()).initialize("pytorch")
            >>> bool((abs(net[0].W.as_array()) <= 0.1).all()), bool(net[0].b.as_array().any())
            (True, True)
        """
        if init != "pytorch":
            raise ValueError(f'{type(self).__name__}: argument init: expected "pytorch", got {init!r:.80}')
        self._as_pytorch()
        return self

    def _set_init(self, init: str | None) -> None:
        """The argument `init` of a constructor."""
        if init is not None:
            self.initialize(init)

    def _as_pytorch(self) -> None:
        """Set the initial values of PyTorch."""
        for part in self.sublayers():
            part._as_pytorch()

    def _saved_name(self, name: str) -> str:
        """The name in the collection of a part of the layer, from that of its attribute, such as `layers/0`."""
        return name

    # ---- files

    def param_collection(self) -> ParameterCollection:
        """The sub-collection that holds the parameters."""
        return self.collection

    @classmethod
    def from_spec(cls: type[Self], spec: Sequence[Any], model: ParameterCollection) -> Self:
        """Make a layer from the `spec` of another one, with its own parameters in `model`.

        Raises:
            TypeError: the constructor cannot be called with it
        """
        make: Callable[..., Self] = cls
        return make(*cls._arguments(spec, model))

    @classmethod
    def _arguments(cls, spec: Sequence[Any], model: ParameterCollection) -> tuple[Any, ...]:
        """The arguments of the constructor for a `spec`, checked against its signature."""
        signature = inspect.signature(cls)
        names = list(signature.parameters)
        at = names.index("model") if "model" in names else len(spec)
        arguments = (*spec[:at], *([model] if "model" in names else []), *spec[at:])
        try:
            if len(spec) < at:
                raise TypeError("an argument before model is missing")
            signature.bind(*arguments)
        except TypeError as error:
            if "model" in names:
                others = [name for name in names if name != "model"]
                write = f"write `super().__init__(model, ({', '.join(others)}{',' * (len(others) == 1)}))` in it"
            else:
                write = "pass its arguments on as the spec, and call the one with the collection `model`"
            raise TypeError(
                f"{cls.__name__}: the constructor, which takes {signature}, cannot be called with the spec "
                f"{outline(spec)}: {error}; {write}; for layers that hold others, use `dy.save_safetensors` or give "
                "the class a `from_spec`"
            ) from None
        return arguments

    def _check_spec(self) -> None:
        """Raise if `from_spec`, unless the class has one of its own, cannot call the constructor."""
        if next(cls for cls in type(self).__mro__ if "from_spec" in vars(cls)) is Layer:
            self._arguments(self.spec, self.collection)
            if "model" not in inspect.signature(type(self)).parameters and self.collection.name() != "/":
                raise TypeError(
                    f"{type(self).__name__}: the constructor takes its collection by another name than `model`, by "
                    "which `load` finds it; call that argument `model`"
                )

    def load_pytorch(self, weights: Mapping[str, Any] | str | os.PathLike[str] | Any, prefix: str = "") -> None:
        """Set the parameters to those of the same layer of PyTorch; docs/layers.md has the names and shapes.

        Args:
            weights: the module of PyTorch, its ``state_dict()``, arrays by name, or the name of a safetensors file, as
                `safetensors.torch.save_file(module.state_dict(), path)` writes it
            prefix: the beginning of the names of this layer, such as `encoder.`; other names are ignored

        Raises:
            ModelMismatchError: an array is missing, has another shape, or has no place here; nothing was changed
            ModelFileError: not a whole safetensors file
            OSError: the file cannot be read
            NotImplementedError: PyTorch has no such layer
        """
        found = Weights.of(weights, prefix)
        self._take_pytorch(found)
        found.finish()

    def _take_pytorch(self, weights: Weights) -> None:
        """Take the arrays that PyTorch has for this layer, and assign them to parameters.

        A user's layer works if its attributes have the same names as those of the PyTorch module.
        """
        if any(True for _ in self._trained()):
            raise NotImplementedError(f"{type(self).__name__}.load_pytorch: PyTorch has no such layer")
        for part, name in all_parts(self):
            if isinstance(part, (Layer, _RNNBuilder, BiRNNBuilder)):
                part._take_pytorch(weights.below(self._saved_name(name).replace("/", ".")))

    # ---- for derived classes

    def _matrix(self, rows: int, columns: int, name: str = "W") -> Parameters:
        return self.collection.add_parameters((rows, columns), init="glorot", name=name)

    def _vector(self, length: int, value: float = 0.0, name: str = "b") -> Parameters:
        return self.collection.add_parameters((length,), init=value, name=name)

    def _size(self, value: Any, argument: str) -> int:
        """An integer of at least 1."""
        return positive_integer(value, type(self).__name__, argument)

    def _checked(self, x: Any, rows: int, argument: str = "x") -> Expression:
        """The input, as an expression, after checking its number of rows."""
        found = x if isinstance(x, Expression) else as_input(x, type(self).__name__, argument)
        shape = found.dim()[0]
        if not shape or shape[0] != rows:
            raise DimensionError(f"{type(self).__name__}: argument {argument}: expected {rows} rows, got {shape}")
        return found

    def _affine(self, W: Parameters | Expression, x: Expression, b: Parameters | None) -> Expression:
        """W x + b, with a column for each one of x: a product with one column is a vector."""
        y = W * x if b is None else ops.affine_transform([b, W, x])
        shape, batch = y.dim()
        return ops.reshape(y, (*shape, 1), batch) if len(shape) < len(x.dim()[0]) else y

    def __repr__(self) -> str:
        mode = "" if self.training else ", evaluation mode"
        return "\n  ".join([f"<{type(self).__name__} {self._outline()}{mode}", *self._inside()]) + ">"

    def _outline(self) -> str:
        return outline(self.spec)

    def _inside(self) -> list[str]:
        """A line for each part of a layer that has layers or builders as parts."""
        lines, plain = [], True
        for part, name in all_parts(self):
            if isinstance(part, Layer):
                what = f"{type(part).__name__} {part._outline()}"
            elif isinstance(part, (_RNNBuilder, BiRNNBuilder)):
                what = repr(part)[1:-1]
            else:
                what = f"{type(part).__name__} {part.shape}" if isinstance(part, _STORED) else type(part).__name__
            plain = plain and isinstance(part, _STORED)
            lines.append(f"{name.replace('/', '.')}: {what}")
        return [] if plain else lines

    def _repr_html_(self) -> str:
        """Its parts, and a table of its parameters, for notebooks."""
        from html import escape  # with its entities, it would add 3 ms to `import dynet_cy`

        return f"<pre>{escape(repr(self))}</pre>{self.collection._repr_html_()}"


def set_uniform(bound: float, *parameters: Parameters | None) -> None:
    """Set values that are uniform between -bound and bound."""
    for parameter in parameters:
        if parameter is not None:
            set_array(parameter, uniform(parameter.shape(), bound))


def activation(name: Any, layer: str) -> Callable[[Expression], Expression]:
    """The function of a name, checked."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"{layer}: argument activation: expected one of {', '.join(ACTIVATIONS)}, got {name!r:.80}"
            f"{advice('activation', str(name))}"
        )
    return ACTIVATIONS[name]


def further(values: Sequence[Any], defaults: Sequence[Any]) -> tuple[Any, ...]:
    """Values up to the last one that differs from its default, so that the `spec` of a layer without them stays what it
    was."""
    count = max((i + 1 for i, (value, default) in enumerate(zip(values, defaults)) if value != default), default=0)
    return tuple(values[:count])


def share(value: Any, layer: str, argument: str) -> float:
    """A probability, checked."""
    number = float(value)
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{layer}: argument {argument}: expected a probability between 0 and 1, got {value!r}")
    return number
