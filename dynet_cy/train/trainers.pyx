# cython: embedsignature=False
"""Trainers: rules that change parameters by their gradients.

The rule of each is one row in `include/dynet_cy/optim.def`.  They share the base class
`dynet_cy.train.trainer.Trainer`.
"""

from libc.math cimport sqrt

from dynet_cy.core.threads cimport follows_dynet
from dynet_cy.kernels cimport kernels
from dynet_cy.train.interfaces cimport checked_decay, checked_rate, number, stored_in

from dynet_cy.train.trainer import Trainer


class SimpleSGDTrainer(Trainer):
    """Stochastic gradient descent: p -= learning_rate g.

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.1).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.SimpleSGDTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_sgd

    def __init__(self, m: CollectionOrLayer, learning_rate=0.1) -> None:
        super().__init__(m, learning_rate)


class CyclicalSGDTrainer(Trainer):
    """Stochastic gradient descent with a cyclical learning rate
    (Smith 2017, Cyclical learning rates for training neural networks).

    Args:
        m: the ParameterCollection to train.
        learning_rate_min, learning_rate_max: bounds of the learning rate (defaults: 0.01 and 0.1).
        step_size: updates from one bound to the other (default: 2000).
        gamma: each update multiplies the height of the cycle by this (default: 1).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.CyclicalSGDTrainer(model, learning_rate_min=0.1, learning_rate_max=0.2)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_sgd

    def __init__(
        self, m: CollectionOrLayer, learning_rate_min=0.01, learning_rate_max=0.1, step_size: float = 2000,
        gamma=1.0
    ) -> None:
        super().__init__(m, learning_rate_min)
        if not step_size > 0:
            raise ValueError(f"CyclicalSGDTrainer: step_size must be positive, not {step_size}")
        self._bounds = (
            checked_rate(learning_rate_min, "learning_rate_min"), checked_rate(learning_rate_max, "learning_rate_max"))
        self._step_size = number(step_size, "step_size")
        self._gamma = number(gamma, "gamma")
        self._iteration = 0

    def _count(self):
        super()._count()
        self._iteration += 1
        self._learning_rate = self._rate_after(self._iteration)

    def _uncount(self, n):
        super()._uncount(n)
        self._iteration -= n
        if n:
            self._learning_rate = self._rate_after(self._iteration)

    def _rate(self, own, back):
        return super()._rate(self._rate_after(self._iteration - back) if own is None and back else own, back)

    def _rate_after(self, updates):
        """The learning rate after this many updates."""
        low, high = self._bounds
        k = max(updates - 1, 0)
        cycle = 1 + k // (2 * self._step_size)
        x = abs(k / self._step_size - 2 * cycle + 1)
        return low + (high - low) * max(0.0, 1 - x) * self._gamma ** k


class MomentumSGDTrainer(Trainer):
    """Gradient descent with momentum: v = mom v - learning_rate g; p += v.

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.01).
        mom: momentum (default: 0.9).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.MomentumSGDTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_momentum
    _constants = {"b1": "_mom"}

    def __init__(self, m: CollectionOrLayer, learning_rate=0.01, mom=0.9) -> None:
        super().__init__(m, learning_rate)
        self._mom = number(mom, "mom")


class NesterovSGDTrainer(Trainer):
    """Gradient descent with the momentum of Nesterov (1983), as Bengio, Boulanger-Lewandowski and Pascanu (2013,
    Advances in optimizing recurrent networks) put it: v = mom v - learning_rate g; p += mom v - learning_rate g.

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.01).
        mom: momentum (default: 0.9).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.NesterovSGDTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_nesterov
    _constants = {"b1": "_mom"}

    def __init__(self, m: CollectionOrLayer, learning_rate=0.01, mom=0.9) -> None:
        super().__init__(m, learning_rate)
        self._mom = number(mom, "mom")


class SignumTrainer(Trainer):
    """Signum (Bernstein, Wang, Azizzadenesheli and Anandkumar 2018, signSGD: compressed optimisation for non-convex
    problems): with the mean m of g, p -= learning_rate sign(m).

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.0001).
        mom: decay of the mean of g (default: 0.9); 0: signSGD.

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.SignumTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> w.npvalue().round(3)
        array([0.9, 0.9])
    """

    _rule = kernels.DY_OPTIM_signum
    _constants = {"b1": "_mom"}

    def __init__(self, m: CollectionOrLayer, learning_rate=0.0001, mom=0.9) -> None:
        super().__init__(m, learning_rate)
        self._mom = number(mom, "mom")


class LionTrainer(Trainer):
    """Lion (Chen et al. 2023, Symbolic discovery of optimization algorithms): with the mean m of g from the update
    before, p -= alpha sign(beta_1 m + (1 - beta_1) g).

    A step is larger than one of `AdamTrainer` at the same rate: the authors take a rate 3 to 10 times smaller, and
    a decoupled weight decay (see `Trainer.group`) as many times larger.

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.0001).
        beta_1: share of the mean in the step (default: 0.9).
        beta_2: decay of the mean of g (default: 0.99).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.LionTrainer(model, alpha=0.1)
        >>> group = trainer.group(w, weight_decay=1.0)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> w.npvalue().round(3)
        array([0.8, 0.8])
    """

    _rule = kernels.DY_OPTIM_lion
    _constants = {"b1": "_beta_1", "b2": "_beta_2"}

    def __init__(self, m: CollectionOrLayer, alpha=0.0001, beta_1=0.9, beta_2=0.99) -> None:
        super().__init__(m, alpha)
        self._beta_1 = number(beta_1, "beta_1")
        self._beta_2 = number(beta_2, "beta_2")


class AdagradTrainer(Trainer):
    """Adagrad (Duchi, Hazan and Singer 2011): v += g²; p -= learning_rate g / sqrt(v + eps).

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.1).
        eps: keeps the divisor from zero (default: 1e-20).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.AdagradTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_adagrad
    _constants = {"eps": "_eps"}

    def __init__(self, m: CollectionOrLayer, learning_rate=0.1, eps=1e-20) -> None:
        super().__init__(m, learning_rate)
        self._eps = number(eps, "eps")


class AdadeltaTrainer(Trainer):
    """Adadelta (Zeiler 2012).  The rule does not use a learning rate.

    Args:
        m: the ParameterCollection to train.
        eps: keeps the divisor from zero (default: 1e-6).
        rho: decay of the mean of squares (default: 0.95).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.AdadeltaTrainer(model, rho=0.9)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_adadelta
    _constants = {"eps": "_eps", "b1": "_rho"}

    def __init__(self, m: CollectionOrLayer, eps=1e-6, rho=0.95) -> None:
        super().__init__(m, 1.0)
        self._eps = number(eps, "eps")
        self._rho = number(rho, "rho")


class RMSPropTrainer(Trainer):
    """RMSProp (Tieleman and Hinton 2012): v = rho v + (1 - rho) g²;
    p -= learning_rate g / sqrt(v + eps).

    Args:
        m: the ParameterCollection to train.
        learning_rate: step size (default: 0.001).
        eps: keeps the divisor from zero (default: 1e-8).
        rho: decay of the mean of squares (default: 0.9).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.RMSPropTrainer(model, learning_rate=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_rmsprop
    _constants = {"eps": "_eps", "b1": "_rho"}

    def __init__(self, m: CollectionOrLayer, learning_rate=0.001, eps=1e-8, rho=0.9) -> None:
        super().__init__(m, learning_rate)
        self._eps = number(eps, "eps")
        self._rho = number(rho, "rho")


class AdamTrainer(Trainer):
    """Adam (Kingma and Ba 2015): with means m of g and v of g²,
    p -= alpha m' / (sqrt(v') + eps), where m' = m / (1 - beta_1^t) and v' = v / (1 - beta_2^t), as in PyTorch.

    Programs of DyNet add eps before the correction, as DyNet does: p -= alpha sqrt(1 - beta_2^t) / (1 - beta_1^t) m /
    (sqrt(v) + eps).  There eps counts 1 / sqrt(1 - beta_2^t) times as much, 32 times in the first update: a gradient of
    1e-6 moves 23 % less, one of 1e-8 94 % less.

    Rows of lookup tables that were not used keep their means unchanged, unless
    sparse updates are off.

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.001).
        beta_1, beta_2: decay of the means of g and of g² (defaults: 0.9 and 0.999).
        eps: keeps the divisor from zero (default: 1e-8).
        learning_rate: another name of alpha; if both are given, alpha is ignored (default: alpha).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.AdamTrainer(model, alpha=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_adam
    _constants = {"b1": "_beta_1", "b2": "_beta_2", "eps": "_eps"}

    def __init__(
        self, m: CollectionOrLayer, alpha=0.001, beta_1=0.9, beta_2=0.999, eps=1e-8,
        learning_rate: float | None = None
    ) -> None:
        super().__init__(m, alpha if learning_rate is None else learning_rate)
        self._beta_1 = number(beta_1, "beta_1")
        self._beta_2 = number(beta_2, "beta_2")
        self._eps = number(eps, "eps")

    def _corrections(self, steps):
        root = sqrt(1 - self._beta_2 ** steps)
        return root / (1 - self._beta_1 ** steps), 1.0 if follows_dynet() else root


class AdamWTrainer(AdamTrainer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019): before the step of `AdamTrainer`,
    p -= alpha weight_decay p.

    All rows of lookup tables decay in each update, even those that were not used.  Frozen
    parameters (`set_updated`) do not decay.

    Here the decay is multiplied by the learning rate: with the defaults an update takes the share 0.001 * 0.01 off
    a value.  `ParameterCollection.set_weight_decay`, in contrast, takes off the share lambda itself.  If both are
    set, both apply.

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.001).
        beta_1, beta_2: decay of the means of g and of g² (defaults: 0.9 and 0.999).
        eps: keeps the divisor from zero (default: 1e-8).
        learning_rate: another name of alpha; if both are given, alpha is ignored (default: alpha).
        weight_decay: an update takes the share alpha * weight_decay off a value; at least 0. Default: 0.01.
        exclude: parameters that do not decay, such as biases and gains: a parameter or table, a
            ParameterCollection, or a list of these.  Short for ``group(exclude, weight_decay=0)``, see
            `Trainer.group`.

    Raises:
        ValueError: weight_decay is negative or not finite, or a parameter does not belong to m.

    Example:
        >>> bias, table = model.add_parameters(3), model.add_lookup_parameters((10, 3))
        >>> biases = [p for p in model.parameters_list() if len(p.shape()) == 1]
        >>> trainer = dy.AdamWTrainer(model, 1e-3, weight_decay=0.05, exclude=[*biases, table])
    """

    _saved_fields = (*AdamTrainer._saved_fields, "_weight_decay")

    def __init__(
        self, m: CollectionOrLayer, alpha=0.001, beta_1=0.9, beta_2=0.999, eps=1e-8, weight_decay=0.01,
        exclude: _Params = (), learning_rate: float | None = None
    ) -> None:
        super().__init__(m, alpha, beta_1, beta_2, eps, learning_rate)
        self.weight_decay = weight_decay
        excluded = stored_in(exclude, "AdamWTrainer: exclude")
        if excluded:
            self.group(excluded, weight_decay=0.0)

    @property
    def weight_decay(self) -> float:
        """Each update multiplies a value by 1 - learning_rate * weight_decay.

        Raises:
            ValueError: it is set to a number that is negative or not finite.

        Example:
            >>> trainer = dy.AdamWTrainer(model)
            >>> trainer.weight_decay = 0.05
            >>> trainer.weight_decay
            0.05
        """
        return self._weight_decay

    @weight_decay.setter
    def weight_decay(self, value: float):
        self._weight_decay = checked_decay(value)


class AmsgradTrainer(AdamTrainer):
    """Adam with the maximum of all means of g² so far instead of the current one
    (Reddi, Kale and Kumar 2018).

    Args:
        m: the ParameterCollection to train.
        alpha: step size (default: 0.001).
        beta_1, beta_2: decay of the means of g and of g² (defaults: 0.9 and 0.999).
        eps: keeps the divisor from zero (default: 1e-8).
        learning_rate: another name of alpha; if both are given, alpha is ignored (default: alpha).

    Example:
        >>> w = model.add_parameters(2, init=1.0)
        >>> trainer = dy.AmsgradTrainer(model, alpha=0.1)
        >>> dy.squared_norm(w).backward()
        >>> trainer.update()
        >>> bool((w.npvalue() < 1).all())
        True
    """

    _rule = kernels.DY_OPTIM_amsgrad
