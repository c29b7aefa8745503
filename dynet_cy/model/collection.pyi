# Written by tools/derive.py
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeAlias

from dynet_cy.files.textfile import Entry
from dynet_cy.memory.storage import Plane, Storage
from dynet_cy.model.initializers import PyInitializer
from dynet_cy.model.matching import Matched, Renaming
from dynet_cy.model.parameters import LookupParameters, Parameters
from dynet_cy.model.whole import CollectionOrLayer

_Shape: TypeAlias = int | tuple[int, ...] | list[int]
_Floats: TypeAlias = npt.NDArray[np.float32]
_FileName: TypeAlias = str | PathLike[str]
_File: TypeAlias = _FileName | IO[bytes]
_Init: TypeAlias = PyInitializer | float | npt.NDArray[Any] | str | None
_AnyParameters: TypeAlias = Parameters | LookupParameters

def adding(collection: ParameterCollection, count: int, size: int, error: Exception) -> AbstractContextManager[None]:
    """A block that may add only a limited number of parameters and of their values to a collection."""

def rolled_back(collection: ParameterCollection) -> AbstractContextManager[None]:
    """A block whose new parameters and names are removed from the collection if it raises."""

def hold(
    collection: ParameterCollection, parts: dict[str, Parameters | LookupParameters | ParameterCollection]
) -> None:
    """Note the parameters and collections in the attributes of a collection's layer."""

def remove_unheld(collection: ParameterCollection, parts: Iterable[Any]) -> bool:
    """Remove the parameters and collections of these parts from a collection, unless its layer still holds them."""

def name_members(collection: ParameterCollection, wanted: Iterable[tuple[Any, str]]) -> None:
    """Rename parameters and sub-collections whose names were made automatically."""

def is_unnamed(collection: ParameterCollection, x: Any) -> bool:
    """Whether something belongs directly to a collection and has a name that was made automatically."""

def stored(part: Any) -> Any:
    """The collection of a layer or builder; a parameter itself; None for anything else."""

def are_beside(a: Any, b: Any) -> bool:
    """Whether they are two sub-collections, or two parameters, of the same collection."""

def take_place(new: Any, old: Any) -> None:
    """Remove a sub-collection or a parameter, and give its names to another one beside it."""

class ParameterCollection:
    """Named parameters, lookup tables and sub-collections."""
    def __init__(self) -> None: ...
    def name(self) -> str:
        """Full name, beginning with the "/" of the root; ends with "/"."""
    @property
    def storage(self) -> Storage:
        """The memory of all parameters below the root: see `Storage.move`."""
    def add_subcollection(self, name: str | None = None) -> ParameterCollection:
        """Add a sub-collection; its parameters belong to this collection, too."""
    def add_parameters(
        self,
        dim: _Shape,
        init: _Init = None,
        name: str = "",
        device: str = "",
        scale: float = 1.0,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> Parameters:
        """Add a parameter."""
    def add_lookup_parameters(
        self,
        dim: _Shape,
        init: _Init = None,
        name: str = "",
        device: str = "",
        scale: float = 1.0,
        mean: float = 0.0,
        std: float = 1.0,
    ) -> LookupParameters:
        """Add a lookup table."""
    def parameters_from_numpy(self, array: npt.ArrayLike, name: str = "", device: str = "") -> Parameters:
        """Add a parameter with the shape and values of an array."""
    def lookup_parameters_from_numpy(self, array: npt.ArrayLike, name: str = "", device: str = "") -> LookupParameters:
        """Add a lookup table with the shape and values of an array, the row number first."""
    def remove(self, x: Any) -> None:
        """Remove a parameter, a table, or a layer, builder or sub-collection with all its parameters."""
    def set_weight_decay(self, lam: float) -> None:
        """Make every update of a trainer multiply all values by 1 - lambda, after its step."""
    def get_weight_decay(self) -> float:
        """The lambda of `set_weight_decay`."""
    set_weight_decay_lambda = set_weight_decay
    get_weight_decay_lambda = get_weight_decay
    def _decay_state(self) -> tuple[float, float]: ...
    def _set_decay_state(self, state: Sequence[float]) -> None: ...
    def zero_gradients(self) -> None:
        """Set the gradients of all parameters and tables below to zero."""
    def parameters_list(self) -> list[Parameters]:
        """All Parameters of this collection and its sub-collections, in the order in which they were added."""
    def lookup_parameters_list(self) -> list[LookupParameters]:
        """All LookupParameters of this collection and its sub-collections, in the order in which they were added."""
    def _below(self) -> list[_AnyParameters]: ...
    def _catch_up(self) -> None: ...
    def _clear_deferred(self, states: Plane) -> None: ...
    def parameter_count(self) -> int:
        """Number of trained numbers, those of lookup tables included."""
    def _by_name(self) -> dict[str, _AnyParameters]: ...
    def _full_names(self) -> dict[str, _AnyParameters]: ...
    def _first_names(self) -> dict[str, str]: ...
    def keys(self) -> list[str]:
        """The names of all parameters and tables below, in the order in which they were added: "W", "encoder/W"."""
    def named_parameters(self) -> Iterator[tuple[str, _AnyParameters]]:
        """Pairs of name and parameter (or table) for all below, in the order in which they were added."""
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def __contains__(self, name: object) -> bool: ...
    def __getitem__(self, name: str) -> Any: ...
    def state_dict(self, layer: str = "") -> dict[str, _Floats]:
        """The values of all parameters and tables below by name, as new arrays; for tables, rows are the first axis."""
    def load_state_dict(
        self, state: Mapping[str, npt.ArrayLike], strict: bool = True, prefix: str = "", rename: Renaming = None
    ) -> Matched:
        """Set values from named arrays, such as those of `state_dict`."""
    def copy_from(self, other: CollectionOrLayer, strict: bool = True, rename: Renaming = None) -> Matched:
        """Set values to those of the parameters of the same names in another collection; see `load_state_dict`."""
    def save(self, fname: _File, name: str = "", append: bool = False) -> None:
        """Write all parameters and tables to a text model file, which DyNet can read, too."""
    def populate(self, fname: _FileName, key: str = "") -> None:
        """Read all parameters and tables from a text model file, also one written by DyNet."""
    def populate_by_name(
        self, fname: _FileName, key: str = "", strict: bool = True, rename: Renaming = None
    ) -> Matched:
        """Read parameters and tables by name from a text model file, also one written by DyNet."""
    def write_to_textfile(self, fname: _File, key: str = "", append: bool = False) -> None:
        """DyNet's other name for `save`."""
    def populate_from_textfile(self, fname: _FileName, key: str = "") -> None:
        """DyNet's other name for `populate`."""
    def load_param(self, fname: _FileName, key: str) -> Parameters:
        """Add a parameter read from a text model file."""
    def load_lookup_param(self, fname: _FileName, key: str) -> LookupParameters:
        """Add a lookup table read from a text model file; see `load_param`."""
    def _repr_html_(self) -> str: ...

def named(collection: ParameterCollection, separator: str = "/") -> tuple[dict[str, _AnyParameters], dict[str, str]]:
    """Parameters and tables by their names relative to a collection; and these names by those under which they were made, which older files have."""

def fill_by_name(
    collection: ParameterCollection,
    entries: Iterable[Entry],
    fname: _FileName,
    prefix: str,
    strict: bool = True,
    rename: Renaming = None,
) -> Matched:
    """Fill a collection from entries of a text model file: see `ParameterCollection.populate_by_name`."""

def load_arrays(
    collection: ParameterCollection,
    state: Mapping[str, npt.ArrayLike],
    strict: bool,
    prefix: str,
    rename: Renaming,
    separator: str = "/",
) -> Matched:
    """Set values from named arrays: see `ParameterCollection.load_state_dict`."""
