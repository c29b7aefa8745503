"""Stacked recurrent networks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dynet_cy.functions.arguments import Input, columns, matrix
from dynet_cy.graph import Expression
from dynet_cy.rnn.state import RNNState, predecessor, to_predecessor

__all__ = ["StackedRNNState"]


class StackedRNNState:
    """States of several networks, each of which reads the output of the previous one.

    Args:
        states: one state a network, bottom first
        prev: what `prev()` will return

    Raises:
        ValueError: no states

    Example:
        >>> below, above = dy.GRUBuilder(1, 3, 4, model), dy.GRUBuilder(1, 4, 5, model)
        >>> state = dy.StackedRNNState([below.initial_state(), above.initial_state()])
        >>> state.add_input(dy.inputVector([1, 2, 3])).output().dim()
        ((5,), 1)
    """

    __slots__ = ("__weakref__", "_prev", "_states")

    def __init__(self, states: Sequence[RNNState], prev: StackedRNNState | None = None) -> None:
        self._states = tuple(states)
        if not self._states:
            raise ValueError("StackedRNNState: argument states: expected at least one state")
        self._prev = to_predecessor(prev)

    def add_input(self, x: Input) -> StackedRNNState:
        """The state after one more input to the bottom network.

        Args:
            x: the input, of the bottom network's input size: an expression, an array, or a list of numbers.

        Example:
            >>> below, above = dy.GRUBuilder(1, 3, 4, model), dy.GRUBuilder(1, 4, 5, model)
            >>> state = dy.StackedRNNState([below.initial_state(), above.initial_state()])
            >>> state.add_input(dy.inputVector([1, 2, 3])).output().dim()
            ((5,), 1)
        """
        states: list[RNNState] = []
        for state in self._states:
            after = state.add_input(x)
            states.append(after)
            output = after.output()
            assert output is not None
            x = output
        return StackedRNNState(states, self)

    def add_inputs(self, xs: Iterable[Input]) -> list[StackedRNNState]:
        """The states after each of the inputs, added one after the other.

        Args:
            xs: the inputs, one for each step, as for `add_input`; or a matrix, an expression or array, with a column
                for each step.

        Example:
            >>> below, above = dy.GRUBuilder(1, 3, 4, model), dy.GRUBuilder(1, 4, 5, model)
            >>> state = dy.StackedRNNState([below.initial_state(), above.initial_state()])
            >>> len(state.add_inputs([dy.inputVector([1, 2, 3]), dy.inputVector([4, 5, 6])]))
            2
        """
        states: list[StackedRNNState] = []
        state = self
        whole = matrix(xs)
        if whole is not None:
            xs = columns(whole, self._states[0]._binding.builder.input_dim, "StackedRNNState.add_inputs")
        for x in xs:
            state = state.add_input(x)
            states.append(state)
        return states

    def output(self) -> Expression | None:
        """The output of the top network.

        Example:
            >>> below, above = dy.GRUBuilder(1, 3, 4, model), dy.GRUBuilder(1, 4, 5, model)
            >>> state = dy.StackedRNNState([below.initial_state(), above.initial_state()])
            >>> state.add_input(dy.inputVector([1, 2, 3])).output().dim()
            ((5,), 1)
        """
        return self._states[-1].output()

    def h(self) -> tuple[Expression, ...]:
        """The hidden vectors of all networks, bottom first; the shape of each is (hidden_dim,) of its network.

        Example:
            >>> below, above = dy.GRUBuilder(1, 3, 4, model), dy.GRUBuilder(1, 4, 5, model)
            >>> state = dy.StackedRNNState([below.initial_state(), above.initial_state()])
            >>> [vector.dim() for vector in state.add_input(dy.inputVector([1, 2, 3])).h()]
            [((4,), 1), ((5,), 1)]
        """
        return tuple(e for state in self._states for e in state.h())

    def s(self) -> tuple[Expression, ...]:
        """`s()` of the bottom network, then of the next, and so on.

        Example:
            >>> below, above = dy.LSTMBuilder(1, 3, 4, model), dy.GRUBuilder(1, 4, 5, model)
            >>> state = dy.StackedRNNState([below.initial_state(), above.initial_state()])
            >>> [vector.dim() for vector in state.add_input(dy.inputVector([1, 2, 3])).s()]
            [((4,), 1), ((4,), 1), ((5,), 1)]
        """
        return tuple(e for state in self._states for e in state.s())

    def prev(self) -> StackedRNNState | None:
        """The state from which this one was made; None for the first. Raises the same error as `RNNState.prev`.

        Example:
            >>> below, above = dy.GRUBuilder(1, 3, 4, model), dy.GRUBuilder(1, 4, 5, model)
            >>> state = dy.StackedRNNState([below.initial_state(), above.initial_state()])
            >>> state.add_input(dy.inputVector([1, 2, 3])).prev() is state
            True
        """
        state: StackedRNNState | None = predecessor(self._prev)
        return state
