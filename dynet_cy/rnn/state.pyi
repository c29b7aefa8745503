# Written by tools/derive.py
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar, overload

import numpy.typing as npt
from typing_extensions import Self

from dynet_cy.functions.arguments import Input
from dynet_cy.graph.expressions import Expression
from dynet_cy.rnn.builder import DrawnMasks, _RNNBuilder
from dynet_cy.rnn.tree import ChildSumTreeLSTMBuilder, NaryTreeLSTMBuilder, TreeState

_Result = TypeVar("_Result")

class Binding:
    """A builder's parameters in one graph."""

    @property
    def builder(self) -> _RNNBuilder: ...
    @property
    def version(self) -> int: ...
    @property
    def exprs(self) -> list[list[Expression]]: ...
    params: list[Any]
    masks: DrawnMasks
    mask_batch: int
    steps: Steps | None
    @property
    def start(self) -> RNNState: ...
    def __init__(
        self, builder: _RNNBuilder, version: int, exprs: list[list[Expression]], masks: DrawnMasks
    ) -> None: ...
    def again(self) -> Binding:
        """A binding for further states, which may get their own masks."""

class StepKind:
    """A kind of network: how the nodes of a step are made."""

SIMPLE_STEP: StepKind
GRU_STEP: StepKind
GRU_RESET_AFTER_STEP: StepKind
COUPLED_STEP: StepKind
FAST_STEP: StepKind
LSTM_STEP: StepKind

class Steps:
    """The steps of a network whose layers all consist of the same few nodes, which are made without calling Python."""
    def __new__(cls, builder: _RNNBuilder, kind: StepKind, weights: list[tuple[Expression, ...]]) -> Self: ...
    def transduce(self, state: RNNState, xs: list[Expression]) -> list[Expression] | None:
        """The outputs after each of the inputs; None if the steps cannot be made here."""

def in_scope_of(builder: Any, function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function that creates nodes for a builder, in the builder's scope."""

def to_predecessor(state: object) -> object:
    """A state's reference to its predecessor: a weak one in a forward-only graph."""

def predecessor(kept: object) -> Any:
    """The state to which a reference made by `to_predecessor` points."""

class RNNState:
    """A recurrent network after some inputs."""

    @property
    def _binding(self) -> Binding: ...
    @property
    def _prev(self) -> object: ...
    @property
    def _h(self) -> tuple[Expression, ...] | None: ...
    @property
    def _c(self) -> tuple[Expression, ...] | None: ...
    @property
    def _out(self) -> Expression | None: ...
    @property
    def _batch(self) -> int: ...
    def __init__(
        self,
        binding: Binding,
        prev: RNNState | None,
        h: tuple[Expression, ...] | None,
        c: tuple[Expression, ...] | None,
        out: Expression | None,
        batch: int,
    ) -> None: ...
    def add_input(self, x: Input) -> RNNState:
        """The state after one more input."""
    def add_inputs(self, xs: Iterable[Input]) -> list[RNNState]:
        """The states after each of the inputs, added one after the other; `[]` for no inputs."""
    @overload
    def transduce(self, xs: Expression | npt.NDArray[Any]) -> Expression:  # type: ignore[overload-overlap]
        """The outputs after each of the inputs, added one after the other; `[]` for no inputs."""
    @overload
    def transduce(self, xs: Iterable[Input]) -> list[Expression]:
        """The outputs after each of the inputs, added one after the other; `[]` for no inputs."""
    def output(self) -> Expression | Any:
        """The output of the top layer; None before the first input, unless the state was set, with one warning in a process, as most programs do not expect it."""
    def h(self) -> tuple[Expression, ...]:
        """The hidden vectors of the layers, bottom first, each of shape (hidden_dim,); `()` in an empty state."""
    def s(self) -> tuple[Expression, ...]:
        """All vectors of the state: the cells of the layers, for a builder that has cells, then `h()`."""
    def set_h(self, es: Iterable[Expression] | None = None) -> RNNState:
        """A state with other hidden vectors; cells do not change."""
    def set_s(self, es: Iterable[Expression] | None = None) -> RNNState:
        """A state with other vectors, in the order of `s()`."""
    def prev(self) -> RNNState | None:
        """The state from which this one was made; None for the first."""
    def b(self) -> _RNNBuilder:
        """The builder."""
    def __reduce__(self) -> NoReturn: ...

def nary_step(builder: NaryTreeLSTMBuilder, x: Input | None, children: Iterable[TreeState | None]) -> TreeState:
    """The state of a node of a tree, by an `NaryTreeLSTMBuilder`."""

def child_sum_step(
    builder: ChildSumTreeLSTMBuilder, x: Input | None, children: Iterable[TreeState | None]
) -> TreeState:
    """The state of a node of a tree, by a `ChildSumTreeLSTMBuilder`."""
