# Written by tools/derive.py
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from types import EllipsisType
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.graph.tensor import Tensor

_Int: TypeAlias = int | np.integer[Any]
_Shape: TypeAlias = int | tuple[int, ...] | list[int]
_Number: TypeAlias = float | np.floating[Any] | np.integer[Any]
_Operand: TypeAlias = Expression | _Number | npt.NDArray[Any]
_Axis: TypeAlias = _Shape | None
_Key: TypeAlias = _Int | slice | EllipsisType | list[int] | list[bool] | npt.NDArray[Any] | Expression | None
_Index: TypeAlias = _Key | tuple[_Key, ...]

def reset_random_seed(seed: int) -> None:
    """Set the seed of all random streams, and restart them."""

def random_state() -> dict[str, Any]:
    """The state of all random streams, as plain data for `set_random_state`."""

def set_random_state(state: dict[str, Any]) -> None:
    """Restore all random streams to their state when `random_state` was called."""

class Requests:
    """The collector of requests for values."""

class ComputationGraph:
    """A separate graph, independent of the implicit graph of each thread."""
    def __init__(self, autobatching: int | None = None, mem: float | None = None) -> None: ...
    def __enter__(self) -> ComputationGraph: ...
    def __exit__(self, kind: object = None, value: object = None, traceback: object = None) -> Literal[False]: ...
    def renew(
        self,
        immediate_compute: bool = False,
        check_validity: bool = False,
        autobatching: int | None = None,
        forward_only: bool = False,
        mem: float | None = None,
    ) -> ComputationGraph:
        """Drop all nodes of this graph; its expressions become stale."""
    def version(self) -> int:
        """A number that grows with each renewal of any graph."""
    def checkpoint(self) -> None:
        """Remember the state of the graph, for `revert`."""
    def revert(self) -> None:
        """Go back to the last checkpoint: nodes made since are dropped, values computed since are forgotten, and their memory is free again."""
    def __len__(self) -> int: ...
    def op_names(self) -> list[str]:
        """Names of the ops of all nodes, in the order in which they were made."""
    def n_batches(self) -> int:
        """Number of calls in which the computed nodes ran."""
    def forward(self, index: int) -> None:
        """Compute the value of a node, given by its number in the order in which nodes are made."""
    def forward_scalar(self, index: int) -> float:
        """The value of a node of one element, as a float; see `forward` and `Expression.scalar_value`."""
    def forward_vec(self, index: int) -> list[float]:
        """The value of a node as a list, column by column; see `forward`."""
    def inc_forward(self, index: int) -> None:
        """Compute a node, as `forward` does; computed values are not computed again."""
    def inc_forward_scalar(self, index: int) -> float:
        """The value of a node of one element, as `forward_scalar`."""
    def inc_forward_vec(self, index: int) -> list[float]:
        """The value of a node as a list, as `forward_vec`."""
    def backward(self, index: int, full: bool = False) -> None:
        """`Expression.backward` of a node, given by its number."""
    def inputMatrixLiteral(
        self, v: npt.ArrayLike, d: Iterable[int] | int, batch_size: int = 1, device: str = ""
    ) -> Expression:
        """`inputTensorTranspose` in this graph: numbers column by column as an input."""
    def inputSparseTensor(
        self,
        idxs: npt.ArrayLike,
        v: npt.ArrayLike,
        dim: Iterable[int] | int,
        batch_size: int = 1,
        defval: float = 0.0,
        device: str = "",
    ) -> Expression:
        """An input in this graph that has the same number almost everywhere."""
    def print_graphviz(self) -> None:
        """Write the graph to standard error, in the language of Graphviz."""
    def dump(
        self,
        filename: str | PathLike[str] = "",
        show_values: bool = True,
        show_gradients: bool = True,
        nan_check_only: bool = False,
    ) -> None:
        """Write values and gradients of all computed nodes."""

def arena_bytes() -> dict[str, int]:
    """Bytes that the arenas of the current graph hold, in use or kept for reuse, by name."""

def renew_cg(
    immediate_compute: bool = False,
    check_validity: bool = False,
    autobatching: int | None = None,
    forward_only: bool = False,
    mem: float | None = None,
) -> ComputationGraph:
    """Renew the current graph, before building for the next example."""

def cg() -> ComputationGraph:
    """The current graph: that of the innermost `with`, else the thread's own."""

def cg_version() -> int:
    """A number that changes when the current graph is renewed."""

def cg_checkpoint() -> None:
    """Remember the state of the current graph, for `cg_revert`."""

def cg_revert() -> None:
    """Go back to the last `cg_checkpoint` of the current graph."""

def set_autobatching(strategy: int) -> None:
    """Set how graphs are scheduled, from their next renewal on; the current graph, if it is empty, at once."""

def set_default_device(device: int) -> None:
    """Set where graphs run, from their next renewal on (the current graph, if it is empty, at once), and where new collections live."""

def autobatching() -> int:
    """The default schedule of graphs: see `set_autobatching`."""

class SharedRequests(Requests):
    """Requests of items that share a graph."""

def keep_values_read() -> None:
    """From now on, graphs keep the values of parameters that they have read."""

def further_gradient(graph: ComputationGraph, index: int) -> npt.NDArray[np.float64]:
    """The gradient of an expression, by its number, from the last backward of its graph."""

def keep_further_gradients(graph: ComputationGraph, target: int) -> tuple[dict[int, tuple[object, int]], object] | None:
    """The gradients of a full backward from that node; None if the pass itself computes all of them."""

class StaleExpressionError(RuntimeError):
    """An expression of a graph that has been renewed, reverted or closed, or that is not the current graph of this thread."""

class Expression:
    """A node of a computation graph: a value that is computed when it is requested."""

    __array_ufunc__: None
    def dim(self) -> tuple[tuple[int, ...], int]:
        """Shape and batch size: ``((d0, d1, ...), batch_size)``."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one batch element, a tuple."""
    @property
    def batch_size(self) -> int:
        """Number of batch elements; 1 if there is no batch."""
    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements: float32, or int32 for indices and what is computed of them."""
    def forward(self, recalculate: bool = False) -> None:
        """Compute the value, and everything it depends on, without returning it."""
    def npvalue(self, recalculate: bool = False) -> npt.NDArray[Any]:
        """The value as a new float64 array, or int32 if it is integers; the batch, if any, is the last axis."""
    def tensor_value(self, recalculate: bool = False) -> Tensor:
        """The value as a Tensor, with argmax, topk and sampling; it stays valid when the graph is renewed."""
    def value(self, recalculate: bool = False) -> Any:
        """The value."""
    def vec_value(self, recalculate: bool = False) -> list[Any]:
        """All elements as a flat list, column-major, the batch last."""
    def scalar_value(self, recalculate: bool = False) -> float:
        """The value as a float, or as an int if it is an integer."""
    def item(self) -> float:
        """The value of an expression of one element as a float: `scalar_value` by NumPy's name."""
    @property
    def T(self) -> Expression:
        """The axes in reverse order: the transpose of a matrix; a vector is unchanged."""
    def reshape(self, *shape: int | tuple[int, ...] | list[int], order: Literal["F", "C"] = "F") -> Expression:
        """Change the shape; the elements keep their order, column by column."""
    def sum(self, axis: _Axis = None, keepdims: bool = False, **numpy: None) -> Expression:
        """Sum of each batch element along some axes."""
    def mean(self, axis: _Axis = None, keepdims: bool = False, **numpy: None) -> Expression:
        """Mean of each batch element along some axes; see `sum`."""
    def max(self, axis: _Axis = None, keepdims: bool = False, **numpy: None) -> Expression:
        """Greatest element of each batch element along some axes; see `sum` and `dynet_cy.max_dim`."""
    def min(self, axis: _Axis = None, keepdims: bool = False, **numpy: None) -> Expression:
        """Least element of each batch element along some axes; see `sum` and `dynet_cy.min_dim`."""
    def backward(self, full: bool = False) -> None:
        """Add the gradient of this scalar to the gradients of all parameters."""
    def gradient(self) -> npt.NDArray[np.float64]:
        """The gradient of the last `backward` with respect to this expression, as an array."""
    def __len__(self) -> int: ...
    def __reduce__(self) -> NoReturn: ...
    def __iter__(self) -> Iterator[Expression]: ...
    def __getitem__(self, index: _Index, /) -> Expression: ...
    def __add__(self, other: _Operand) -> Expression: ...
    def __radd__(self, other: _Operand) -> Expression: ...
    def __sub__(self, other: _Operand) -> Expression: ...
    def __rsub__(self, other: _Operand) -> Expression: ...
    def __mul__(self, other: _Operand) -> Expression: ...
    def __rmul__(self, other: _Operand) -> Expression: ...
    def __truediv__(self, other: _Operand) -> Expression: ...
    def __rtruediv__(self, other: _Operand) -> Expression: ...
    def __pow__(self, other: _Operand, modulus: None = None, /) -> Expression: ...
    def __rpow__(self, other: _Operand, modulus: None = None, /) -> Expression: ...
    def __neg__(self) -> Expression: ...
    def __matmul__(self, other: Expression | npt.NDArray[Any]) -> Expression: ...
    def __rmatmul__(self, other: Expression | npt.NDArray[Any]) -> Expression: ...
    def __lt__(self, other: _Operand, /) -> Expression: ...  # type: ignore[misc]
    def __le__(self, other: _Operand, /) -> Expression: ...  # type: ignore[misc]
    def __gt__(self, other: _Operand, /) -> Expression: ...  # type: ignore[misc]
    def __ge__(self, other: _Operand, /) -> Expression: ...  # type: ignore[misc]
    def __and__(self, other: _Operand) -> Expression: ...
    def __rand__(self, other: _Operand) -> Expression: ...
    def __or__(self, other: _Operand) -> Expression: ...
    def __ror__(self, other: _Operand) -> Expression: ...
    def __invert__(self) -> Expression: ...
    def __floordiv__(self, other: _Operand) -> Expression: ...
    def __rfloordiv__(self, other: _Operand) -> Expression: ...
    def __mod__(self, other: _Operand) -> Expression: ...
    def __rmod__(self, other: _Operand) -> Expression: ...
    def __abs__(self) -> Expression: ...
    def __bool__(self) -> bool: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __float__(self) -> float: ...
    def __int__(self) -> int: ...
    def __format__(self, spec: str) -> str: ...
    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]: ...
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array_function__(
        self, function: Any, types: Iterable[type], args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> Any: ...

class ForwardExpression(Expression):
    """A node of a forward-only graph, which the graph keeps for as long as this object lives."""
    def set(self, values: object) -> NoReturn:
        """Inputs of such a graph cannot be changed."""
    def set_index(self, index: object) -> NoReturn:
        """Indices of such a graph cannot be changed."""

def set_consideration(function: Callable[..., None] | None) -> None:
    """Have a function called with the name and the operands of each use that programs may mean otherwise, or None."""

def forward(exps: Iterable[Expression], recalculate: bool = False) -> None:
    """Compute expressions of one graph together."""

def npvalues(exps: Iterable[Expression], recalculate: bool = False) -> list[npt.NDArray[Any]]:
    """The values of expressions of one graph, computed together, as arrays: see `npvalue`."""

def values(exps: Iterable[Expression], recalculate: bool = False) -> list[Any]:
    """The values of expressions of one graph, computed together: see `value`."""
