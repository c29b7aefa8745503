"""States of recurrent networks: what `initial_state()` of a builder returns and `add_input()` goes on from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dynet_cy.graph import Expression
from dynet_cy.ops.api import zeros

if TYPE_CHECKING:
    from dynet_cy.rnn.builder import _Binding, _RNNBuilder

__all__ = ["RNNState", "StackedRNNState"]


class RNNState:
    """A recurrent network after some inputs.

    States never change: `add_input`, `set_h` and `set_s` return new ones, so that any state can be gone on from any
    number of times. A state is valid as long as the graph in which its builder's `initial_state` made it.

    States are made by builders, not by calling this class.
    """

    __slots__ = ("_batch", "_binding", "_c", "_h", "_out", "_prev")

    def __init__(
        self,
        binding: _Binding,
        prev: RNNState | None,
        h: tuple[Expression, ...] | None,
        c: tuple[Expression, ...] | None,
        out: Expression | None,
        batch: int,
    ) -> None:
        # h and c hold one vector a layer; None stands for zeros.
        # batch: the batch size of all of them; 0 when they differ, are no vectors, or nobody needs to know.
        self._binding = binding
        self._prev = prev
        self._h = h
        self._c = c
        self._out = out
        self._batch = batch

    def add_input(self, x: Expression) -> RNNState:
        """The state after one more input.

        Args:
            x: the input, of shape (input_dim,), possibly batched

        Raises:
            StaleExpressionError: the graph was renewed since the state was made
            ValueError: the shape of `x` does not fit
        """
        return self._binding.builder._step(self, x)

    def add_inputs(self, xs: Iterable[Expression]) -> list[RNNState]:
        """The states after each of the inputs, added one after the other; `[]` for no inputs.

        Use `transduce` when the outputs are all that is needed: it is quicker.
        """
        step = self._binding.builder._step
        states: list[RNNState] = []
        state = self
        for x in xs:
            state = step(state, x)
            states.append(state)
        return states

    def transduce(self, xs: Iterable[Expression]) -> list[Expression]:
        """The outputs after each of the inputs, added one after the other; `[]` for no inputs.

        The same as `[state.output() for state in self.add_inputs(xs)]` (with other dropout masks where a builder draws
        one at every step), with fewer objects, and built layer by layer.
        """
        inputs = list(xs)
        return self._binding.builder._transduce(self, inputs) if inputs else []

    def output(self) -> Expression | None:
        """The output of the top layer; None before the first input when the state was not set either.

        This is `h()[-1]`, but for a `GRUBuilder` with dropout, which drops out its output and not its state.
        """
        if self._out is not None:
            return self._out
        h = self.h()
        return h[-1] if h else None

    def h(self) -> tuple[Expression, ...]:
        """The hidden vectors of the layers, bottom first, each of shape (hidden_dim,); `()` in an empty state."""
        if self._h is None:
            return () if self._c is None else self._zeros()
        return self._h

    def s(self) -> tuple[Expression, ...]:
        """All vectors of the state: the cells of the layers, for a builder that has cells, then `h()`."""
        if self._c is None:
            if self._h is None:
                return ()
            return (*self._zeros(), *self._h) if self._binding.builder._has_cells else self._h
        return (*self._c, *self.h())

    def set_h(self, es: Iterable[Expression] | None = None) -> RNNState:
        """A state with other hidden vectors; cells stay as they are.

        Args:
            es: one vector of shape (hidden_dim,) a layer, bottom first

        Raises:
            TypeError: not expressions
            ValueError: another number of vectors, or other shapes
        """
        return self._binding.builder._set_h(self, es)

    def set_s(self, es: Iterable[Expression] | None = None) -> RNNState:
        """A state with other vectors, in the order of `s()`.

        Args:
            es: one vector of shape (hidden_dim,) a layer, bottom first. A builder with cells takes the cells of all
                layers (hidden vectors then stay as they are), or the cells and then the hidden vectors of all layers.

        Raises:
            TypeError: not expressions
            ValueError: another number of vectors, or other shapes
        """
        return self._binding.builder._set_s(self, es, "set_s", "es")

    def prev(self) -> RNNState | None:
        """The state that this one was made from; None for the first."""
        return self._prev

    def b(self) -> _RNNBuilder:
        """The builder."""
        return self._binding.builder

    def _zeros(self) -> tuple[Expression, ...]:
        builder = self._binding.builder
        return tuple(zeros((builder.hidden_dim,)) for _ in range(builder.layers))

    def __repr__(self) -> str:
        return f"<RNNState of {self._binding.builder!r}>"


class StackedRNNState:
    """States of several networks, each fed with the output of the one before.

    Args:
        states: one state a network, bottom first
        prev: what `prev()` will return

    Raises:
        ValueError: no states
    """

    __slots__ = ("_prev", "_states")

    def __init__(self, states: Sequence[RNNState], prev: StackedRNNState | None = None) -> None:
        self._states = tuple(states)
        if not self._states:
            raise ValueError("StackedRNNState: argument states: expected at least one state")
        self._prev = prev

    def add_input(self, x: Expression) -> StackedRNNState:
        """The state after one more input to the bottom network."""
        states: list[RNNState] = []
        for state in self._states:
            after = state.add_input(x)
            states.append(after)
            output = after.output()
            assert output is not None
            x = output
        return StackedRNNState(states, self)

    def add_inputs(self, xs: Iterable[Expression]) -> list[StackedRNNState]:
        """The states after each of the inputs, added one after the other."""
        states: list[StackedRNNState] = []
        state = self
        for x in xs:
            state = state.add_input(x)
            states.append(state)
        return states

    def output(self) -> Expression | None:
        """The output of the top network."""
        return self._states[-1].output()

    def h(self) -> tuple[Expression, ...]:
        """The hidden vectors of all networks, bottom first."""
        return tuple(e for state in self._states for e in state.h())

    def s(self) -> tuple[Expression, ...]:
        """`s()` of the bottom network, then of the next, and so on."""
        return tuple(e for state in self._states for e in state.s())

    def prev(self) -> StackedRNNState | None:
        """The state that this one was made from; None for the first."""
        return self._prev
