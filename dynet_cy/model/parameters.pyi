# Written by tools/derive.py
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import IO, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.files.textfile import Entry
from dynet_cy.graph.expressions import Expression
from dynet_cy.memory.storage import Storage
from dynet_cy.model.collection import ParameterCollection
from dynet_cy.model.matching import ParameterShape

_Int: TypeAlias = int | np.integer[Any]
_Ints: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
_Floats: TypeAlias = npt.NDArray[np.float32]
_FileName: TypeAlias = str | PathLike[str]
_File: TypeAlias = _FileName | IO[bytes]
_AnyParameters: TypeAlias = Parameters | LookupParameters
_Kept = TypeVar("_Kept", bound="_Stored")

class LookupExpression(Expression):
    """The result of `lookup` and `lookup_batch`; its indices can be changed."""
    def set(self, index: _Int | _Ints) -> None:
        """Look up other rows; values that depend on them are then computed again."""

class _Stored(Expression):
    """The base class of parameters and lookup tables: an entry of a storage."""

    @property
    def storage(self) -> Storage: ...
    def name(self) -> str:
        """Full name: the names of the collections that contain it, then its own."""
    def expr(self, update: bool = False) -> Expression:
        """An expression of the current graph with this value."""
    def set_updated(self, b: bool) -> None:
        """Set whether this parameter is trained."""
    def is_updated(self) -> bool:
        """Whether this parameter is trained: see `set_updated`."""
    def zero(self) -> None:
        """Set the value to zero."""
    def scale(self, s: float) -> None:
        """Multiply the value by s."""
    def scale_gradient(self, s: float) -> None:
        """Multiply the gradient by s."""
    def save(self, fname: _File, key: str = "", append: bool = False) -> None:
        """Write this parameter to a text model file."""
    def populate(self, fname: _FileName, key: str = "") -> None:
        """Read the value from a text model file."""
    def write_to_textfile(self, fname: _File, key: str = "", append: bool = False) -> None:
        """DyNet's other name of `save`."""
    def populate_from_textfile(self, fname: _FileName, key: str = "") -> None:
        """DyNet's other name of `populate`."""

class Parameters(_Stored):
    """A parameter: a tensor that is trained."""
    @property
    def shape(self) -> ParameterShape:
        """Shape, a tuple."""
    def as_array(self) -> _Floats:
        """The value as a new float32 array."""
    def grad_as_array(self) -> _Floats:
        """The gradient that has been added up since the last update, as a new float32 array."""
    def set_value(self, arr: npt.ArrayLike) -> None:
        """Set the value from numbers of the same shape."""
    def clip_inplace(self, left: float, right: float) -> None:
        """Bring every element of the value into [left, right]."""

class LookupParameters(_Stored):
    """A lookup table: rows of trained parameters; a graph usually uses only a few of them."""
    @property
    def shape(self) -> ParameterShape:
        """Number of rows, then the shape of a row, as in `as_array`."""
    def expr(self, update: bool = True) -> Expression:
        """An expression of the current graph with the whole table, rows as the last axis."""
    def __len__(self) -> int: ...
    @overload  # type: ignore[override]
    def __getitem__(self, index: _Int, /) -> LookupExpression: ...
    @overload
    def __getitem__(self, index: Expression, /) -> Expression: ...  # pyright: ignore[reportIncompatibleMethodOverride]
    def __iter__(self) -> Iterator[LookupExpression]: ...
    @overload
    def batch(self, i: _Ints, update: bool = True) -> LookupExpression:
        """The rows with the numbers in `i` as a minibatch; see `lookup_batch`."""
    @overload
    def batch(self, i: Expression, update: bool = True) -> Expression:
        """The rows with the numbers in `i` as a minibatch; see `lookup_batch`."""
    def as_array(self) -> _Floats:
        """All rows as a new float32 array, the row number first."""
    def grad_as_array(self) -> _Floats:
        """Gradients of all rows since the last update, as a new float32 array."""
    def row_as_array(self, row: _Int) -> _Floats:
        """One row as a new float32 array."""
    def row_grad_as_array(self, row: _Int) -> _Floats:
        """The gradient of one row since the last update, as a new float32 array."""
    def rows_as_array(self, rows: _Ints) -> _Floats:
        """Some rows as a new float32 array, the row number first."""
    def rows_grad_as_array(self, rows: _Ints) -> _Floats:
        """Gradients of some rows as a new float32 array, the row number first."""
    def init_row(self, i: _Int, row: npt.ArrayLike) -> None:
        """Set one row."""
    def init_from_array(self, arr: npt.ArrayLike) -> None:
        """Set all rows from an array, the row number first."""

@overload
def lookup(p: LookupParameters, index: _Int = 0, update: bool = True) -> LookupExpression:
    """One row of a table."""

@overload
def lookup(p: LookupParameters, index: Expression, update: bool = True) -> Expression:
    """One row of a table."""

@overload
def lookup_batch(p: LookupParameters, indices: _Ints, update: bool = True) -> LookupExpression:
    """Rows of a table as a minibatch."""

@overload
def lookup_batch(p: LookupParameters, indices: Expression, update: bool = True) -> Expression:
    """Rows of a table as a minibatch."""

@overload
def parameter(parameter: _Kept, /) -> _Kept:
    """Return the parameters themselves: a parameter is an expression in whichever graph is current."""

@overload
def parameter(parameters: list[_Kept], /) -> list[_Kept]:
    """Return the parameters themselves: a parameter is an expression in whichever graph is current."""

@overload
def parameter(parameters: tuple[_Kept, ...] = (), /) -> tuple[_Kept, ...]:
    """Return the parameters themselves: a parameter is an expression in whichever graph is current."""

@overload
def parameter(
    first: _AnyParameters, second: _AnyParameters, /, *parameters: _AnyParameters
) -> tuple[_AnyParameters, ...]:
    """Return the parameters themselves: a parameter is an expression in whichever graph is current."""

@overload
def const_parameter(parameter: _AnyParameters, /) -> Expression:
    """The expressions of parameters in the current graph as constants: without gradients."""

@overload
def const_parameter(
    first: _AnyParameters, second: _AnyParameters, /, *parameters: _AnyParameters
) -> tuple[Expression, ...]:
    """The expressions of parameters in the current graph as constants: without gradients."""

def settled_array(x: _AnyParameters) -> _Floats:
    """The value as an array; the factor of a table is multiplied in first, so that the table and its copy stay equal to the last bit in further training."""

def set_array(x: _AnyParameters, array: npt.ArrayLike) -> None:
    """Set the value from an array of its shape, such as that of `settled_array`."""

def deferred_updates(x: _AnyParameters) -> int:
    """The number of deferred updates of a table: see dynet_cy/kernels/lazy_rows.pxd."""

def gradient_state(x: _AnyParameters) -> Any:
    """The gradient summed since the last update."""

def set_gradient_state(x: _AnyParameters, state: Any) -> None:
    """Replace the gradient by what `gradient_state` returned."""

def check_text(function: str, argument: str, given: object) -> None:
    """Refuse what is no name in a file, such as the list of parameters that `dynet_cy.save` takes."""

def check_key(argument: str, key: object) -> None: ...
def entry_of(x: _AnyParameters, name: str) -> Any:
    """The parameter as an entry of a text model file."""

def write_entry(x: _AnyParameters, fname: _File, key: str, append: bool) -> None:
    """Write one parameter to a text model file."""

def read_entry(x: _AnyParameters, fname: _FileName, key: str) -> None:
    """Read one parameter from a text model file."""

def fill_entry(x: _AnyParameters, entry: Entry, fname: _FileName) -> None:
    """Fill a parameter from an entry; `fname` is for messages."""

def fill_entries(collection: ParameterCollection, entries: Iterable[Entry], fname: _FileName) -> None:
    """Fill a collection from entries of a text model file, matched by kind and position."""

def add_entry(collection: ParameterCollection, entry: Entry) -> _AnyParameters:
    """Add an entry of a text model file to a collection."""

def find_entry(fname: _FileName, key: str, lookup: bool) -> Entry: ...
