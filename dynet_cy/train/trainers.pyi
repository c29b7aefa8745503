# Written by tools/derive.py
from collections.abc import Iterable

from typing_extensions import TypeAlias

from dynet_cy.model.parameters import LookupParameters, Parameters
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.train.trainer import Trainer

_AnyParameters: TypeAlias = Parameters | LookupParameters
_Params: TypeAlias = _AnyParameters | CollectionOrLayer | Iterable[_Params]

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
