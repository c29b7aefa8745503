"""Lists and sequences of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dynet_cy.functions.arguments import Input, as_input
from dynet_cy.graph import Expression
from dynet_cy.graph.regions import checkpoint
from dynet_cy.model import ParameterCollection
from dynet_cy.nn.basic import Activation
from dynet_cy.nn.layer import Description, Layer

__all__ = ["LayerList", "Sequential"]


class LayerList(Layer):
    """Layers in a list: `layers[0]`, `len(layers)`, `for layer in layers`.

    Args:
        layers: for each layer, a tuple of its class and its arguments without the model, or the name of an `Activation`
        model: where the parameters go

    Raises:
        TypeError: a description of something else, or `model` is not a `ParameterCollection`

    Example:
        >>> import dynet_cy as dy
        >>> layers = dy.nn.LayerList([(dy.nn.Linear, 8, 8)] * 3, dy.ParameterCollection())
        >>> len(layers)
        3
    """

    def __init__(self, layers: Sequence[Description], model: ParameterCollection) -> None:
        if isinstance(layers, (str, Layer)):
            expected = 'expected a list, such as [(nn.Linear, 8, 16), "tanh"]'
            raise TypeError(f"{type(self).__name__}: argument layers: {expected}, got {layers!r:.80}")
        super().__init__(model)
        self.layers = [self._made(description) for description in layers]
        self.spec = (tuple((type(layer), *layer.spec) for layer in self.layers),)

    def _made(self, description: Description) -> Layer:
        if isinstance(description, str):
            return Activation(description)
        cls: Any = description[0] if isinstance(description, (tuple, list)) and description else None
        if not (isinstance(cls, type) and issubclass(cls, Layer)):
            expected = "a class of layers with its arguments, or the name of an activation"
            raise TypeError(f"{type(self).__name__}: argument layers: expected {expected}, got {description!r:.80}")
        return cls.from_spec(description[1:], self.collection)

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, index: int) -> Layer:
        return self.layers[index]

    def _inside(self) -> list[str]:
        return []

    def _outline(self) -> str:
        return "[" + ", ".join(f"{type(layer).__name__} {layer._outline()}" for layer in self.layers) + "]"

    def _saved_name(self, name: str) -> str:
        return name[len("layers/") :] if name.startswith("layers/") else name


class Sequential(LayerList):
    """Layers that are called in sequence, each on the result of the previous one.

    Args:
        layers: see `LayerList`
        model: where the parameters go
        checkpoint: whether calls drop the values within layers and compute them again in backward, for less memory; see
            `dynet_cy.checkpoint`. The attribute of this name changes it later. Default: False

    Raises:
        TypeError: a description of something else, or `model` is not a `ParameterCollection`

    Example:
        >>> import dynet_cy as dy
        >>> nn = dy.nn
        >>> scorer = nn.Sequential([(nn.Linear, 8, 16), "tanh", (nn.Dropout, 0.3), (nn.Linear, 16, 4)], dy.Model())
        >>> scorer(dy.zeros((8, 5))).dim()
        ((4, 5), 1)
    """

    def __init__(self, layers: Sequence[Description], model: ParameterCollection, checkpoint: bool = False) -> None:
        self.checkpoint = bool(checkpoint)
        super().__init__(layers, model)
        if self.checkpoint:
            self.spec = (*self.spec, True)

    def __call__(self, x: Input) -> Expression:
        """The result of the last layer; x if there are no layers.

        Args:
            x: the input of the first layer
        """
        found = as_input(x, "Sequential")
        for layer in self.layers:
            found = checkpoint(layer, found) if self.checkpoint else layer(found)
        return found
