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

class SimpleSGDTrainer(Trainer):
    """Stochastic gradient descent: p -= learning_rate g."""
    def __init__(self, m: CollectionOrLayer, learning_rate: float = 0.1) -> None: ...

class CyclicalSGDTrainer(Trainer):
    """Stochastic gradient descent with a cyclical learning rate (Smith 2017, Cyclical learning rates for training neural networks)."""
    def __init__(
        self,
        m: CollectionOrLayer,
        learning_rate_min: float = 0.01,
        learning_rate_max: float = 0.1,
        step_size: float = 2000,
        gamma: float = 1.0,
    ) -> None: ...

class MomentumSGDTrainer(Trainer):
    """Gradient descent with momentum: v = mom v - learning_rate g; p += v."""
    def __init__(self, m: CollectionOrLayer, learning_rate: float = 0.01, mom: float = 0.9) -> None: ...

class NesterovSGDTrainer(Trainer):
    """Gradient descent with the momentum of Nesterov (1983), as Bengio, Boulanger-Lewandowski and Pascanu (2013, Advances in optimizing recurrent networks) put it: v = mom v - learning_rate g; p += mom v - learning_rate g."""
    def __init__(self, m: CollectionOrLayer, learning_rate: float = 0.01, mom: float = 0.9) -> None: ...

class SignumTrainer(Trainer):
    """Signum (Bernstein, Wang, Azizzadenesheli and Anandkumar 2018, signSGD: compressed optimisation for non-convex problems): with the mean m of g, p -= learning_rate sign(m)."""
    def __init__(self, m: CollectionOrLayer, learning_rate: float = 0.0001, mom: float = 0.9) -> None: ...

class LionTrainer(Trainer):
    """Lion (Chen et al. 2023, Symbolic discovery of optimization algorithms): with the mean m of g from the update before, p -= alpha sign(beta_1 m + (1 - beta_1) g)."""
    def __init__(
        self, m: CollectionOrLayer, alpha: float = 0.0001, beta_1: float = 0.9, beta_2: float = 0.99
    ) -> None: ...

class AdagradTrainer(Trainer):
    """Adagrad (Duchi, Hazan and Singer 2011): v += g²; p -= learning_rate g / sqrt(v + eps)."""
    def __init__(self, m: CollectionOrLayer, learning_rate: float = 0.1, eps: float = 1e-20) -> None: ...

class AdadeltaTrainer(Trainer):
    """Adadelta (Zeiler 2012)."""
    def __init__(self, m: CollectionOrLayer, eps: float = 1e-6, rho: float = 0.95) -> None: ...

class RMSPropTrainer(Trainer):
    """RMSProp (Tieleman and Hinton 2012): v = rho v + (1 - rho) g²; p -= learning_rate g / sqrt(v + eps)."""
    def __init__(
        self, m: CollectionOrLayer, learning_rate: float = 0.001, eps: float = 1e-8, rho: float = 0.9
    ) -> None: ...

class AdamTrainer(Trainer):
    """Adam (Kingma and Ba 2015): with means m of g and v of g², p -= alpha m' / (sqrt(v') + eps), where m' = m / (1 - beta_1^t) and v' = v / (1 - beta_2^t), as in PyTorch."""
    def __init__(
        self,
        m: CollectionOrLayer,
        alpha: float = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        eps: float = 1e-8,
        learning_rate: float | None = None,
    ) -> None: ...

class AdamWTrainer(AdamTrainer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): before the step of `AdamTrainer`, p -= alpha weight_decay p."""
    def __init__(
        self,
        m: CollectionOrLayer,
        alpha: float = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        exclude: _Params = (),
        learning_rate: float | None = None,
    ) -> None: ...
    @property
    def weight_decay(self) -> float:
        """Each update multiplies a value by 1 - learning_rate * weight_decay."""
    @weight_decay.setter
    def weight_decay(self, value: float) -> None: ...

class AmsgradTrainer(AdamTrainer):
    """Adam with the maximum of all means of g² so far instead of the current one (Reddi, Kale and Kumar 2018)."""
