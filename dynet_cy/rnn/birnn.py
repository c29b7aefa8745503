"""Networks that read a sequence in both directions: Schuster and Paliwal, "Bidirectional Recurrent Neural Networks",
IEEE Transactions on Signal Processing 45 (1997)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, overload

import numpy.typing as npt

from dynet_cy.functions.arguments import Input, as_input, by_columns, columns, matrix
from dynet_cy.graph import Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.model.given import collection_of
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.ops.api import concatenate
from dynet_cy.rnn.builder import _RNNBuilder, outline, positive_integer, take_place_of_former
from dynet_cy.rnn.pytorch import LikePyTorch
from dynet_cy.rnn.state import RNNState, in_scope_of

__all__ = ["BiRNNBuilder"]

Factory = Callable[[int, int, int, ParameterCollection], _RNNBuilder]
Pairs = Sequence[tuple[_RNNBuilder, _RNNBuilder]]


class BiRNNBuilder(LikePyTorch):
    """Bidirectional network: in each layer, one network reads forwards and one backwards (Schuster and Paliwal, 1997).

    The output of a layer at a position, and the input of the next layer there, is the output of its forward network
    concatenated with that of its backward network.

        builder = BiRNNBuilder(1, 128, 100, model, LSTMBuilder)
        outputs = builder.transduce(inputs)

    Sub-collection: `birnn`, with the parameters of the first layer's forward network, then of its backward network,
    then of the second layer's, and so on.

    Args:
        num_layers: number of layers, at least 1
        input_dim: length of the inputs
        hidden_dim: length of the outputs, even: half of it comes from each direction
        model: where the parameters go
        rnn_builder_factory: what makes a network from (1, input length, hidden_dim / 2, collection): a builder class,
            or a function that calls one with options
        builder_layers: (forward, backward) pairs of builders, one pair a layer, to use instead of new ones; the
            arguments before it, except `model`, are then ignored
        checkpoint: set as the attribute of all networks: every which state is kept for backward; None (the default):
            what they have

    Raises:
        TypeError: a number is not an integer, or `model` is not a `ParameterCollection`
        ValueError: a number is less than 1, or `hidden_dim` is odd

    Example:
        >>> rnn = dy.BiRNNBuilder(1, 3, 8, model, dy.LSTMBuilder)
        >>> states = rnn.transduce([dy.inputVector([1, 2, 3]), dy.inputVector([4, 5, 6])])
        >>> [state.dim() for state in states]
        [((8,), 1), ((8,), 1)]
    """

    def __init__(
        self,
        num_layers: int | None,
        input_dim: int | None,
        hidden_dim: int | None,
        model: CollectionOrLayer,
        rnn_builder_factory: Factory | None,
        builder_layers: Pairs | None = None,
        *,
        checkpoint: bool | int | None = None,
    ) -> None:
        self.spec = (num_layers, input_dim, hidden_dim, rnn_builder_factory, builder_layers)
        model = collection_of(model, "BiRNNBuilder")
        if builder_layers:
            self.model = model.add_subcollection("birnn")
            self.builder_layers = list(builder_layers)
        else:
            layers = positive_integer(num_layers, "BiRNNBuilder", "num_layers")
            size = positive_integer(input_dim, "BiRNNBuilder", "input_dim")
            hidden = positive_integer(hidden_dim, "BiRNNBuilder", "hidden_dim")
            if hidden % 2:
                raise ValueError(f"BiRNNBuilder: argument hidden_dim: expected an even number, got {hidden}")
            make = rnn_builder_factory
            if not callable(make):
                raise TypeError(f"BiRNNBuilder: argument rnn_builder_factory: expected a builder class, got {make!r}")
            self.model = model.add_subcollection("birnn")
            self.builder_layers = []
            for _ in range(layers):
                forward = make(1, size, hidden // 2, self.model)
                backward = make(1, size, hidden // 2, self.model)
                self.builder_layers.append((forward, backward))
                size = hidden
        if checkpoint is not None:
            for builder in self._builders():
                builder.checkpoint = checkpoint
        take_place_of_former(self)

    def _builders(self) -> Iterator[_RNNBuilder]:
        return (builder for pair in self.builder_layers for builder in pair)

    def add_inputs(self, es: Iterable[Input]) -> list[tuple[RNNState, RNNState]]:
        """The states of the top layer at each position: pairs of the state of the forward network, after the inputs up
        to this position, and of the backward network, after the inputs from the end back to it. `[]` for no inputs.

        Args:
            es: the inputs, each of shape (input_dim,): expressions, arrays, or lists of numbers; or a matrix, an
                expression or array of shape ``{input_dim,n}``, with a column for each

        Example:
            >>> rnn = dy.BiRNNBuilder(1, 3, 8, model, dy.LSTMBuilder)
            >>> ((forward, backward),) = rnn.add_inputs([dy.inputVector([1, 2, 3])])
            >>> forward.output().dim()
            ((4,), 1)
        """
        x = matrix(es)
        xs = es if x is None else columns(x, self._rows, "BiRNNBuilder.add_inputs")
        return in_scope_of(self, self._states, _read(xs, "add_inputs"))

    def _states(self, xs: list[Expression]) -> list[tuple[RNNState, RNNState]]:
        xs = self._run_layers(xs, self.builder_layers[:-1])
        forward, backward = self.builder_layers[-1]
        states = forward.initial_state().add_inputs(xs)
        backward_states = backward.initial_state().add_inputs(reversed(xs))
        return list(zip(states, reversed(backward_states)))

    @overload
    def transduce(self, es: Expression | npt.NDArray[Any]) -> Expression: ...  # type: ignore[overload-overlap]

    @overload
    def transduce(self, es: Iterable[Input]) -> list[Expression]: ...

    def transduce(self, es: Any) -> Any:
        """The outputs of the top layer at each position, each of shape (hidden_dim,); `[]` for no inputs.

        Args:
            es: the inputs, each of shape (input_dim,): expressions, arrays, or lists of numbers; or a matrix, an
                expression or array of shape ``{input_dim,n}``, with a column for each

        Returns:
            A list of expressions; for a matrix, an expression of shape ``{hidden_dim,n}``.

        Example:
            >>> rnn = dy.BiRNNBuilder(1, 3, 8, model, dy.LSTMBuilder)
            >>> rnn.transduce([dy.inputVector([1, 2, 3])])[0].dim()
            ((8,), 1)
        """
        x = matrix(es)
        if x is not None:
            outputs = sum(builder.hidden_dim for builder in self.builder_layers[-1])
            return by_columns(self.transduce, x, self._rows, outputs, "BiRNNBuilder.transduce")
        return in_scope_of(self, self._run_layers, _read(es, "transduce"), self.builder_layers)

    @property
    def _rows(self) -> int:
        """The length of the inputs."""
        return self.builder_layers[0][0].input_dim

    def _run_layers(self, xs: list[Expression], layers: Pairs) -> list[Expression]:
        for forward, backward in layers:
            states = forward.initial_state().transduce(xs)
            backward_states = backward.initial_state().transduce(xs[::-1])
            xs = [concatenate([f, b]) for f, b in zip(states, reversed(backward_states))]
        return xs

    def _pytorch_parts(self) -> list[tuple[_RNNBuilder, int, str]]:
        found = []
        for layer, pair in enumerate(self.builder_layers):
            for builder, direction in zip(pair, ("", "_reverse")):
                if builder.layers != 1:
                    raise NotImplementedError(
                        f"BiRNNBuilder: PyTorch has no networks of {builder.layers} layers in each direction of a layer"
                    )
                found.append((builder, 0, f"_l{layer}{direction}"))
        return found

    def set_dropout(self, p: float) -> None:
        """Set the dropout rate of all networks, by their `set_dropout`.

        Args:
            p: the rate, from 0 to less than 1.

        Raises:
            ValueError: not between 0 and 1

        Example:
            >>> rnn = dy.BiRNNBuilder(1, 3, 8, model, dy.LSTMBuilder)
            >>> rnn.set_dropout(0.3)
            >>> rnn.disable_dropout()
        """
        for builder in self._builders():
            builder.set_dropout(p)

    def set_dropout_masks(self, batch_size: int = 1) -> None:
        """Draw new masks for the next inputs, such as the next sentence, in all networks.

        Args:
            batch_size: how many different masks there are, one for each element of a batch. Default: 1

        Raises:
            ValueError: `batch_size` is less than 1

        Example:
            >>> rnn = dy.BiRNNBuilder(1, 3, 8, model, dy.LSTMBuilder)
            >>> rnn.set_dropout(0.3)
            >>> for sentence in [[dy.ones(3)] * 2, [dy.ones(3)] * 4]:
            ...     rnn.set_dropout_masks()
            ...     states = rnn.transduce(sentence)
        """
        for builder in self._builders():
            builder.initial_state()
            builder.set_dropout_masks(batch_size)

    def disable_dropout(self) -> None:
        """Set all dropout rates to 0.

        Example:
            >>> rnn = dy.BiRNNBuilder(1, 3, 8, model, dy.LSTMBuilder)
            >>> rnn.set_dropout(0.3)
            >>> rnn.disable_dropout()
        """
        for builder in self._builders():
            builder.disable_dropout()

    def train(self, mode: bool = True) -> BiRNNBuilder:
        """Set training mode of all networks, or with False evaluation mode, in which nothing is dropped.

        Returns:
            The builder.

        Example:
            >>> rnn = dy.BiRNNBuilder(1, 2, 4, model, dy.LSTMBuilder)
            >>> rnn.set_dropout(0.3)
            >>> rnn = rnn.train(False)      # nothing is dropped now
        """
        for builder in self._builders():
            builder.train(mode)
        return self

    def eval(self) -> BiRNNBuilder:
        """Set evaluation mode of all networks.

        Returns:
            The builder.

        Example:
            >>> rnn = dy.BiRNNBuilder(1, 2, 4, model, dy.LSTMBuilder).eval()
        """
        return self.train(False)

    def param_collection(self) -> ParameterCollection:
        """The sub-collection that holds the parameters.

        Example:
            >>> rnn = dy.BiRNNBuilder(1, 3, 8, model, dy.LSTMBuilder)
            >>> rnn.param_collection().name()
            '/birnn/'
        """
        return self.model

    def whoami(self) -> str:
        """The name of the class.

        Example:
            >>> dy.BiRNNBuilder(1, 3, 8, model, dy.LSTMBuilder).whoami()
            'BiRNNBuilder'
        """
        return "BiRNNBuilder"

    @classmethod
    def from_spec(cls, spec: Sequence[Any], model: ParameterCollection) -> BiRNNBuilder:
        """A builder like the one with this `spec`, with its own parameters in `model`.

        Example:
            >>> rnn = dy.BiRNNBuilder(1, 3, 8, model, dy.LSTMBuilder)
            >>> other = dy.BiRNNBuilder.from_spec(rnn.spec, dy.ParameterCollection())
            >>> other.spec == rnn.spec
            True
        """
        num_layers, input_dim, hidden_dim, rnn_builder_factory, builder_layers = spec
        return cls(num_layers, input_dim, hidden_dim, model, rnn_builder_factory, builder_layers)

    def __repr__(self) -> str:
        return f"<BiRNNBuilder {outline(self.spec if self.spec[-1] else self.spec[:-1])}>"


def _read(xs: Iterable[Input], method: str) -> list[Expression]:
    """The inputs as expressions, each of which both directions read."""
    return [x if isinstance(x, Expression) else as_input(x, f"BiRNNBuilder.{method}") for x in xs]
