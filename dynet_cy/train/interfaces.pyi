# Written by tools/derive.py
from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import Self, TypeAlias

from dynet_cy.memory.storage import Plane
from dynet_cy.model.collection import ParameterCollection
from dynet_cy.model.parameters import LookupParameters, Parameters

_AnyParameters: TypeAlias = Parameters | LookupParameters

CONSTANTS: tuple[str, ...]

def check_constants(cls: type) -> list[tuple[int, str]]:
    """Check that a trainer class has a value for each constant that its rule reads, and for no other."""

class Plan:
    """An update of parameters and tables, given with the planes of the rule's state."""
    def __new__(cls, stored: list[Parameters], planes: list[Plane]) -> Self: ...
    def set(self, roles: list[int], group: list[int], settings: list[dict[str, Any]], skips: bool) -> None:
        """Set the role and the number of the group of each entry, and the settings of groups, as dicts: for tests."""

class Backend: ...

class Reducer:
    @property
    def least_decay(self) -> float: ...
    @property
    def alone(self) -> bool: ...
    @property
    def collective(self) -> bool: ...
    @property
    def host_only(self) -> str | None: ...

class TrainerFields:
    _collection: ParameterCollection
    _states: list[Any]
    _groups: Sequence[ParameterGroup]
    _average: dict[str, Any] | None
    _pace: Any
    _norm: float | None
    _reducer: Reducer
    _learning_rate: float
    _clip_threshold: float
    _clip_chosen: bool
    _weight_decay: float
    _decay_due: float
    _sparse: bool
    _steps: int
    _clips: int
    _updates: int
    _skipped: int

class ParameterGroup:
    """Parameters of a trainer that have settings of their own."""
    def __init__(
        self,
        collection: ParameterCollection,
        stored: Iterable[_AnyParameters],
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        clip_threshold: float | None = None,
    ) -> None: ...
    @property
    def names(self) -> tuple[str, ...]:
        """Full names of the parameters and tables, from the trainer's collection: a tuple."""
    @property
    def learning_rate(self) -> float | None:
        """Step size of the next update."""
    @learning_rate.setter
    def learning_rate(self, value: float | None) -> None: ...
    @property
    def weight_decay(self) -> float | None:
        """An update takes the share learning_rate * weight_decay off the values."""
    @weight_decay.setter
    def weight_decay(self, value: float | None) -> None: ...
    @property
    def clip_threshold(self) -> float | None:
        """Norm of the gradients of the group beyond which they are scaled down; 0: never."""
    @clip_threshold.setter
    def clip_threshold(self, value: float | None) -> None: ...
    def _state(self) -> dict[str, Any]: ...
