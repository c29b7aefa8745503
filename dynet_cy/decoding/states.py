"""Joins states of many hypotheses or sentences into one state, and selects from it.

The expressions of a joined state are minibatches: batch element i is that of hypothesis i. So a step of all hypotheses
is one step of one state, and a beam continues with the best ones by taking batch elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, Union

import numpy as np
import numpy.typing as npt

from dynet_cy.graph import Expression
from dynet_cy.ops.api import concatenate_to_batch, pick_batch_elems, zeros
from dynet_cy.rnn import RNNState, StackedRNNState

State = TypeVar("State")
Indices = Union[Sequence[int], npt.NDArray[np.integer[Any]]]

# What a state may hold besides expressions: the same for all hypotheses.
_COMMON = (bool, int, float, complex, str, bytes, np.number, np.bool_, type(None))


def select_states(states: State, indices: Expression | Indices) -> State:
    """Select hypotheses from a state of several, in the given order; each may occur several times.

    Every expression of the state becomes `pick_batch_elems` of itself, so that a beam reorders all its states by one
    operation for each vector. Gradients flow back to the chosen elements.

    Args:
        states: a state whose expressions have one batch element for each hypothesis: an `Expression`, the state of a
            builder, keys and values or the state of a Transformer, or a tuple, list, dictionary or dataclass of these,
            at any depth. An expression with one batch element belongs to all hypotheses and stays as it is, but in the
            state of a builder it is repeated. Numbers, strings and None stay too.
        indices: the numbers of the hypotheses, from 0; or an expression of them, one in each batch element or in a
            vector, such as those that a beam has chosen in the graph

    Returns:
        A state of the same kind with ``len(indices)`` hypotheses. `prev()` of a builder's state is None.

    Raises:
        IndexError: there is no such hypothesis; if `indices` is an expression, when the value is computed
        TypeError: indices that are no integers, or a state that holds something else
        ValueError: no indices, or expressions with different numbers of batch elements

    Example:
        >>> rnn = dy.LSTMBuilder(1, 3, 4, model)
        >>> state = rnn.initial_state().add_input(dy.zeros(3, batch_size=5))    # five hypotheses
        >>> dy.select_states(state, [4, 0, 0]).output().dim()
        ((4,), 3)
    """
    if isinstance(indices, Expression):
        found: State = selected(states, lambda x: pick_batch_elems(x, indices))
        return found
    chosen = checked_indices(indices, "select_states")
    size = size_of(states, "select_states")
    if size and (chosen.min() < 0 or chosen.max() >= size):
        wrong = chosen[(chosen < 0) | (chosen >= size)][0]
        raise IndexError(f"select_states: index {wrong} is out of range for a state of {size} hypotheses")
    return Selection().of(states, chosen)


def join_states(states: Iterable[State]) -> State:
    """Join states of one or several hypotheses each into one state; `select_states` is the reverse.

    Every expression of the result is `concatenate_to_batch` of those of the states. An expression with one batch
    element that all states share, such as an encoded sentence, stays as it is.

    Args:
        states: states of the same kind, see `select_states`; those of builders are of the same builder, and one that
            has had no input counts as zeros

    Raises:
        DimensionError: expressions at the same place have different shapes
        TypeError: states of different kinds, or a state that holds something else
        ValueError: no states, states of different builders, or of different structure, numbers or strings

    Example:
        >>> rnn = dy.GRUBuilder(1, 3, 4, model)
        >>> states = [rnn.initial_state().add_input(dy.inputVector([i, 0, 0])) for i in range(3)]
        >>> joined = dy.join_states(states)
        >>> joined.output().dim()
        ((4,), 3)
        >>> joined.add_input(dy.zeros(3, batch_size=3)).output().dim()
        ((4,), 3)
    """
    parts = list(states)
    if not parts:
        raise ValueError("join_states: argument states: expected at least one state")
    sizes = [max(1, size_of(part, "join_states")) for part in parts]
    found: State = _Join(sizes).of(parts, "states")
    return found


def checked_indices(indices: Indices, where: str) -> npt.NDArray[np.integer[Any]]:
    chosen = np.asarray(indices)
    if not chosen.size:
        raise ValueError(f"{where}: argument indices: expected at least one")
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise TypeError(f"{where}: argument indices: expected a list of integers, got {indices!r}")
    return chosen


# ---- the structure of a state ------------------------------------------------------------------


def parts_of(state: Any, where: str, path: str) -> list[tuple[str, Any]]:
    """The parts of a tuple, list, dictionary or dataclass, each with the text that leads to it."""
    if isinstance(state, dict):
        return [(f"{path}[{key!r}]", part) for key, part in state.items()]
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return [(f"{path}.{name}", part) for name, part in zip(state._fields, state)]
    if isinstance(state, (tuple, list)):
        return [(f"{path}[{i}]", part) for i, part in enumerate(state)]
    if hasattr(type(state), "__dataclass_fields__"):
        import dataclasses  # with what it imports, it would add 0.6 ms to `import dynet_cy`

        return [(f"{path}.{field.name}", getattr(state, field.name)) for field in dataclasses.fields(state)]
    raise TypeError(
        f"{where}: {path} is a {type(state).__name__}; a state is made of expressions, states of builders, tuples, "
        "lists, dictionaries, dataclasses, numbers, strings and None"
    )


def with_parts(state: Any, parts: list[Any]) -> Any:
    """A tuple, list, dictionary or dataclass like this one, with other parts."""
    if isinstance(state, dict):
        return dict(zip(state, parts))
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*parts)
    if isinstance(state, (tuple, list)):
        return tuple(parts) if isinstance(state, tuple) else parts
    import dataclasses

    return dataclasses.replace(state, **{field.name: part for field, part in zip(dataclasses.fields(state), parts)})


def vectors_of(state: RNNState) -> list[Expression]:
    """All expressions of a builder's state, which are none if it has had no input."""
    own = [*(state._h or ()), *(state._c or ())]
    return own if state._out is None or any(state._out is x for x in own) else [*own, state._out]


def size_of(state: Any, where: str) -> int:
    """The number of hypotheses of a state; 0 if nothing in it tells."""
    sizes = set(_sizes(state, where, "states"))
    if len(sizes - {1}) > 1:
        raise ValueError(f"{where}: the expressions of a state have {sorted(sizes - {1})} batch elements")
    return max(sizes, default=0)


def _sizes(state: Any, where: str, path: str) -> Iterable[int]:
    if isinstance(state, Expression):
        yield state.dim()[1]
    elif isinstance(state, RNNState):
        yield from (x.dim()[1] for x in vectors_of(state))
    elif isinstance(state, StackedRNNState):
        for own in state._states:
            yield from _sizes(own, where, path)
    elif not isinstance(state, _COMMON):
        for place, part in parts_of(state, where, path):
            yield from _sizes(part, where, place)


def _like(state: RNNState, change: Callable[[Expression], Expression]) -> RNNState:
    """A builder's state with changed vectors."""
    made: dict[int, Expression] = {}  # the output is the topmost of h, unless it is dropped out

    def changed(x: Expression) -> Expression:
        if id(x) not in made:
            made[id(x)] = change(x)
        return made[id(x)]

    h = None if state._h is None else tuple(map(changed, state._h))
    c = None if state._c is None else tuple(map(changed, state._c))
    out = None if state._out is None else changed(state._out)
    batch = state._batch
    if batch:
        batch = (h or c or (out,))[0].dim()[1]  # type: ignore[union-attr]
    return RNNState(state._binding, None, h, c, out, batch)


# ---- selecting ---------------------------------------------------------------------------------


def selected(state: Any, picked: Callable[[Expression], Expression]) -> Any:
    """A state with chosen batch elements of its expressions."""
    if isinstance(state, Expression):
        return state if state.dim()[1] == 1 else picked(state)
    if isinstance(state, RNNState):
        return _like(state, picked) if vectors_of(state) else state
    if isinstance(state, StackedRNNState):
        return StackedRNNState([selected(own, picked) for own in state._states])
    if isinstance(state, _COMMON):
        return state
    return with_parts(state, [selected(part, picked) for _, part in parts_of(state, "select_states", "states")])


class Selection:
    """Selects states again and again, for a search.

    An expression that a step has passed on unchanged, such as the memory of a decoder, was selected before. It is
    selected from the original then, and not at all if the same elements come out: a beam reorders the hypotheses of
    each sentence, which all have the same memory.
    """

    def __init__(self) -> None:
        # What was selected last: the result by its id, with the original and the indices.
        self._last: dict[int, tuple[Expression, Expression, npt.NDArray[np.integer[Any]]]] = {}
        self._now: dict[int, tuple[Expression, Expression, npt.NDArray[np.integer[Any]]]] = {}

    def of(self, states: State, indices: npt.NDArray[np.integer[Any]]) -> State:
        """The chosen hypotheses of a state."""
        self._indices = indices
        self._now = {}
        found: State = selected(states, self._picked)
        self._last = self._now
        return found

    def _picked(self, x: Expression) -> Expression:
        found, original, indices = self._last.get(id(x), (x, x, np.arange(x.dim()[1])))
        chosen = indices[self._indices] if len(indices) > 1 else np.zeros_like(self._indices)
        if not np.array_equal(chosen, indices):
            found = original if _is_all(chosen, original) else pick_batch_elems(original, chosen)
        self._now[id(found)] = found, original, chosen
        return found


def _is_all(chosen: npt.NDArray[np.integer[Any]], x: Expression) -> bool:
    return np.array_equal(chosen, np.arange(x.dim()[1]))


# ---- joining -----------------------------------------------------------------------------------


class _Join:
    """Joins states of the given numbers of hypotheses."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes

    def of(self, states: list[Any], path: str) -> Any:
        first = states[0]
        other = next((state for state in states if type(state) is not type(first)), None)
        if isinstance(first, Expression) and all(isinstance(state, Expression) for state in states):
            return self._joined(states)  # inputs and picked elements are expressions of classes of their own
        if other is not None:
            kinds = f"a {type(first).__name__} in one state, and a {type(other).__name__} in another"
            raise TypeError(f"join_states: {path} is {kinds}")
        if isinstance(first, RNNState):
            return self._of_builder(states, path)
        if isinstance(first, StackedRNNState):
            self._same([len(state._states) for state in states], "the number of networks", path)
            return StackedRNNState([self.of(list(own), path) for own in zip(*(state._states for state in states))])
        if isinstance(first, _COMMON):
            return self._same(states, "a number or string", path)
        parts = [parts_of(state, "join_states", path) for state in states]
        self._same([[place for place, _ in own] for own in parts], "the structure", path)
        return with_parts(first, [self.of([part for _, part in own], own[0][0]) for own in zip(*parts)])

    def _same(self, values: list[Any], what: str, path: str) -> Any:
        other = next((value for value in values if value != values[0]), values[0])
        if other != values[0]:
            raise ValueError(f"join_states: {what} differs at {path}: {values[0]!r} and {other!r}")
        return values[0]

    def _joined(self, xs: list[Expression], common: bool = True) -> Expression:
        """The expressions of all states; `common`: one batch element that all share stays."""
        if common and xs[0].dim()[1] == 1 and all(x is xs[0] for x in xs):
            return xs[0]
        whole = [
            x if x.dim()[1] == size else pick_batch_elems(x, np.zeros(size, int)) for x, size in zip(xs, self._sizes)
        ]
        return whole[0] if len(whole) == 1 else concatenate_to_batch(whole)

    def _of_builder(self, states: list[RNNState], path: str) -> RNNState:
        first, builder = states[0], states[0].b()
        other = next((state for state in states if state.b() is not builder), None)
        if other is not None:
            raise ValueError(f"join_states: {path} has states of two builders, {builder!r} and {other.b()!r}")
        h = self._layers([state._h for state in states], builder)
        c = self._layers([state._c for state in states], builder)
        out = None if h is None else h[-1]
        if any(state._h is not None and state._out is not state._h[-1] for state in states):  # it is dropped out
            out = self._vectors([state.output() for state in states], builder)
        if h is None and c is None:
            return first
        return RNNState(first._binding, None, h, c, out, builder._batch_of((h or ()) + (c or ())))

    def _layers(self, states: list[tuple[Expression, ...] | None], builder: Any) -> tuple[Expression, ...] | None:
        """The vectors of all layers; None if no state has any."""
        if all(own is None for own in states):
            return None
        layers = range(builder.layers)
        return tuple(self._vectors([None if own is None else own[i] for own in states], builder) for i in layers)

    def _vectors(self, xs: list[Expression | None], builder: Any) -> Expression:
        sizes = self._sizes
        made = [zeros((builder.hidden_dim,), n) if x is None else x for x, n in zip(xs, sizes)]
        return self._joined(made, common=False)
