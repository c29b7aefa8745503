from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.train.trainer import Trainer, _Params

# derived: trainers, by tools/derive.py

class SimpleSGDTrainer(Trainer):
    def __init__(self, m: CollectionOrLayer, learning_rate: float = 0.1) -> None: ...

class CyclicalSGDTrainer(Trainer):
    def __init__(
        self,
        m: CollectionOrLayer,
        learning_rate_min: float = 0.01,
        learning_rate_max: float = 0.1,
        step_size: float = 2000,
        gamma: float = 1.0,
    ) -> None: ...

class MomentumSGDTrainer(Trainer):
    def __init__(self, m: CollectionOrLayer, learning_rate: float = 0.01, mom: float = 0.9) -> None: ...

class NesterovSGDTrainer(Trainer):
    def __init__(self, m: CollectionOrLayer, learning_rate: float = 0.01, mom: float = 0.9) -> None: ...

class SignumTrainer(Trainer):
    def __init__(self, m: CollectionOrLayer, learning_rate: float = 0.0001, mom: float = 0.9) -> None: ...

class LionTrainer(Trainer):
    def __init__(
        self, m: CollectionOrLayer, alpha: float = 0.0001, beta_1: float = 0.9, beta_2: float = 0.99
    ) -> None: ...

class AdagradTrainer(Trainer):
    def __init__(self, m: CollectionOrLayer, learning_rate: float = 0.1, eps: float = 1e-20) -> None: ...

class AdadeltaTrainer(Trainer):
    def __init__(self, m: CollectionOrLayer, eps: float = 1e-6, rho: float = 0.95) -> None: ...

class RMSPropTrainer(Trainer):
    def __init__(
        self, m: CollectionOrLayer, learning_rate: float = 0.001, eps: float = 1e-8, rho: float = 0.9
    ) -> None: ...

class AdamTrainer(Trainer):
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
    def weight_decay(self) -> float: ...
    @weight_decay.setter
    def weight_decay(self, value: float) -> None: ...

class AmsgradTrainer(AdamTrainer): ...

# end of trainers
