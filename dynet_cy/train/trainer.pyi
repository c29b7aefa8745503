# Written by tools/derive.py
from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import Buffer, TypeAlias

from dynet_cy.hints.equivalents import KnownArguments
from dynet_cy.model.collection import ParameterCollection
from dynet_cy.model.parameters import LookupParameters, Parameters
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.train.interfaces import Backend, ParameterGroup, TrainerFields
from dynet_cy.train.schedules import Schedule

_AnyParameters: TypeAlias = Parameters | LookupParameters
_Params: TypeAlias = _AnyParameters | CollectionOrLayer | Iterable[_Params]

class MovingAverages:
    """The part of trainers that handles moving averages."""
    def exponential_moving_average(self, beta: float, update_freq: int = 1) -> None:
        """Keep an average of the parameters in which older values count less and less."""
    def cumulative_moving_average(self, update_freq: int = 1) -> None:
        """Keep the mean of the values that the parameters have after each update from now on."""
    def swap_params_to_moving_average(self, save_weights: bool = True, bias_correction: bool = True) -> None:
        """Set the parameters to their moving average, to evaluate or save a model."""
    def swap_params_to_weights(self) -> None:
        """Set the parameters to the values that they had before `swap_params_to_moving_average`."""

class Restorable:
    """The part of trainers that saves and restores their state."""
    def _settings(self) -> dict[str, Any]: ...
    def _n_planes(self, settings: dict[str, Any]) -> int: ...
    def _settle_rows(self) -> None: ...
    def _restore(self, settings: dict[str, Any], arrays: Iterable[list[Any] | None]) -> None: ...
    def _state_arrays(self) -> list[list[Any] | None]: ...

def note_updates_in(memory: Buffer | None) -> None:
    """Let all trainers write their number of updates to shared memory after each update."""

def updates_made() -> int:
    """How many updates the trainers of this process have made."""

UPDATE_EPOCH: str

class Constant:
    """A constant of the rule as an attribute of a trainer."""
    def __init__(self, k: int) -> None: ...
    def __get__(self, trainer: object, owner: object) -> object: ...
    def __set__(self, trainer: object, value: float) -> None: ...

class Trainer(KnownArguments, MovingAverages, Restorable, TrainerFields):
    """Base class of all trainers."""

    _rule: int | None
    _backend: Backend
    def __init__(self, m: CollectionOrLayer, learning_rate: float) -> None: ...
    def __del__(self) -> None: ...
    @property
    def collection(self) -> ParameterCollection:
        """The collection that it trains."""
    @property
    def learning_rate(self) -> float:
        """Step size of the next update."""
    @learning_rate.setter
    def learning_rate(self, value: float) -> None: ...
    @property
    def schedule(self) -> Schedule | None:
        """The schedule that changes the learning rate from update to update: a `Schedule`, or None (the default)."""
    @schedule.setter
    def schedule(self, value: Schedule | None) -> None: ...
    def set_learning_rate(self, value: float) -> None:
        """Set the step size; the same as ``trainer.learning_rate = value``."""
    def set_clip_threshold(self, thr: float) -> None:
        """Set the global norm beyond which gradients are scaled down; 0 or less: never."""
    def get_clip_threshold(self) -> float:
        """The global norm beyond which gradients are scaled down; 0: never."""
    def set_sparse_updates(self, su: bool) -> None:
        """Set whether only the used rows of lookup tables are changed (the default)."""
    def group(
        self,
        params: _Params,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        clip_threshold: float | None = None,
    ) -> ParameterGroup:
        """Give some parameters a learning rate, weight decay or clipping of their own."""
    def group_by_name(self, rules: Mapping[str, Mapping[str, float | None]]) -> list[ParameterGroup]:
        """Make groups by names: each parameter gets the settings of the first pattern that matches its name."""
    @property
    def groups(self) -> tuple[ParameterGroup, ...]:
        """The groups made by `group` and `group_by_name`, in the order in which they were made: a tuple."""
    @property
    def updates(self) -> int:
        """How many updates the trainer has made, including those before the checkpoint that it was restored from."""
    @property
    def gradient_norm(self) -> float | None:
        """The norm of all gradients in the last update, before they were clipped."""
    @property
    def skipped_updates(self) -> int:
        """How many updates `skip_nonfinite` has dropped since the trainer was made, or since the last `status`."""
    def zero_gradients(self) -> None:
        """Set the gradients of all parameters to zero: see `ParameterCollection.zero_gradients`."""
    def update(self, skip_nonfinite: bool = False) -> None:
        """Change all parameters by their gradients, and set the gradients to zero."""
    def update_subset(
        self, updated_params: Iterable[int], updated_lookups: Iterable[int], skip_nonfinite: bool = False
    ) -> None:
        """Like `update`, but for some parameters only; the others keep their gradients and make no step."""
    def _compute_update(self, chosen: set[int] | None, skip_nonfinite: bool) -> None: ...
    def _roll_back(self, n: int) -> None: ...
    def _rate(self, own: float | None, back: int) -> float: ...
    def update_epoch(self, r: object) -> None:
        """Only write to stderr that this does nothing; it exists for old programs."""
    def restart(self, learning_rate: float | None = None) -> None:
        """Set the state of the rule (momentum, moments) to zero."""
    def status(self) -> None:
        """Write to stderr the learning rate, and how many updates were clipped, made and, if any, dropped since the last call: ``[lr=0.1 clips=2 updates=98 skipped=1]``."""
    def whoami(self) -> str:
        """Name of the class."""
