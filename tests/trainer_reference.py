"""The update rules of the trainers in NumPy and float64, the reference for tests; tests/peer compares with DyNet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

State = dict[str, np.ndarray]
Rule = Callable[[State, np.ndarray, int, float], np.ndarray]
"""(state, changed in place; clipped gradient; number of the update, from 1; learning rate) -> step"""

RESCALE_BELOW = 0.25

# name of the trainer: rule, names of its state, name and default of the argument that is the learning rate
RULES: dict[str, tuple[Callable[..., Rule], tuple[str, ...], tuple[str, float]]] = {}
# name of the trainer: arguments that differ from the defaults
OTHERS: dict[str, dict[str, float]] = {}
Make = TypeVar("Make", bound=Callable[..., Rule])


def trainer(name: str, states: tuple[str, ...], rate: tuple[str, float], **others: float) -> Callable[[Make], Make]:
    """Enter a function that makes a rule from the trainer's arguments, without the learning rate, in the tables."""

    def enter(make: Make) -> Make:
        RULES[name] = make, states, rate
        OTHERS[name] = others
        return make

    return enter


@trainer("SimpleSGDTrainer", (), ("learning_rate", 0.1), learning_rate=0.5)
@trainer(
    "CyclicalSGDTrainer",
    (),
    ("learning_rate_min", 0.01),
    learning_rate_min=0.02,
    learning_rate_max=0.3,
    step_size=3,
    gamma=0.9,
)
def sgd() -> Rule:
    return lambda state, g, t, lr: -lr * g


@trainer("MomentumSGDTrainer", ("h",), ("learning_rate", 0.01), learning_rate=0.1, mom=0.5)
def momentum(mom: float = 0.9) -> Rule:
    def rule(state: State, g: np.ndarray, t: int, lr: float) -> np.ndarray:
        state["h"][...] = mom * state["h"] - lr * g
        return state["h"].copy()

    return rule


@trainer("NesterovSGDTrainer", ("h",), ("learning_rate", 0.01), learning_rate=0.1, mom=0.5)
def nesterov(mom: float = 0.9) -> Rule:
    def rule(state: State, g: np.ndarray, t: int, lr: float) -> np.ndarray:
        state["h"][...] = mom * state["h"] - lr * g
        return mom * state["h"] - lr * g

    return rule


def sign(x: np.ndarray) -> np.ndarray:
    """The sign, and 0 of numbers that are too small for float32."""
    return np.where(np.abs(x) > 1e-37, np.sign(x), 0.0)


@trainer("SignumTrainer", ("h",), ("learning_rate", 0.0001), learning_rate=0.01, mom=0.5)
def signum(mom: float = 0.9) -> Rule:
    def rule(state: State, g: np.ndarray, t: int, lr: float) -> np.ndarray:
        state["h"][...] = mom * state["h"] + (1 - mom) * g
        return -lr * sign(state["h"])

    return rule


@trainer("LionTrainer", ("m",), ("alpha", 0.0001), alpha=0.01, beta_1=0.7, beta_2=0.8)
def lion(beta_1: float = 0.9, beta_2: float = 0.99) -> Rule:
    def rule(state: State, g: np.ndarray, t: int, lr: float) -> np.ndarray:
        mixed = beta_1 * state["m"] + (1 - beta_1) * g
        state["m"][...] = beta_2 * state["m"] + (1 - beta_2) * g
        return -lr * sign(mixed)

    return rule


@trainer("AdagradTrainer", ("h",), ("learning_rate", 0.1), learning_rate=0.3, eps=0.2)
def adagrad(eps: float = 1e-20) -> Rule:
    def rule(state: State, g: np.ndarray, t: int, lr: float) -> np.ndarray:
        state["h"] += g * g
        return -lr * g / np.sqrt(state["h"] + eps)

    return rule


@trainer("AdadeltaTrainer", ("h", "d"), ("", 1.0), eps=0.3, rho=0.6)
def adadelta(eps: float = 1e-6, rho: float = 0.95) -> Rule:
    def rule(state: State, g: np.ndarray, t: int, lr: float) -> np.ndarray:
        state["h"][...] = rho * state["h"] + (1 - rho) * g * g
        step = -g * np.sqrt(state["d"] + eps) / np.sqrt(state["h"] + eps)
        state["d"][...] = rho * state["d"] + (1 - rho) * step * step
        return step

    return rule


@trainer("RMSPropTrainer", ("h",), ("learning_rate", 0.001), learning_rate=0.1, eps=0.3, rho=0.5)
def rmsprop(eps: float = 1e-8, rho: float = 0.9) -> Rule:
    def rule(state: State, g: np.ndarray, t: int, lr: float) -> np.ndarray:
        state["h"][...] = rho * state["h"] + (1 - rho) * g * g
        return -lr * g / np.sqrt(state["h"] + eps)

    return rule


@trainer("AdamTrainer", ("m", "v"), ("alpha", 0.001), alpha=0.1, beta_1=0.7, beta_2=0.8, eps=0.3)
def adam(
    beta_1: float = 0.9, beta_2: float = 0.999, eps: float = 1e-8, amsgrad: bool = False, dynet: bool = False
) -> Rule:
    def rule(state: State, g: np.ndarray, t: int, lr: float) -> np.ndarray:
        state["m"][...] = beta_1 * state["m"] + (1 - beta_1) * g
        state["v"][...] = beta_2 * state["v"] + (1 - beta_2) * g * g
        v = state["v"]
        if amsgrad:
            v = state["max"]
            np.maximum(v, state["v"], out=v)
        root = math.sqrt(1 - beta_2**t)
        scaled = eps if dynet else eps * root  # DyNet adds eps before the correction
        return -lr * root / (1 - beta_1**t) * state["m"] / (np.sqrt(v) + scaled)

    return rule


@trainer("AmsgradTrainer", ("m", "v", "max"), ("alpha", 0.001), alpha=0.1, beta_1=0.7, beta_2=0.6, eps=0.3)
def amsgrad(**arguments: Any) -> Rule:
    return adam(amsgrad=True, **arguments)


# Rules that are others in DyNet: they take `dynet`.
OTHER_IN_DYNET = ("AdamTrainer", "AmsgradTrainer")


def cyclical_rate(it: int, low: float, high: float, step_size: float, gamma: float) -> float:
    """The learning rate after update number `it` (from 0)."""
    cycle = math.floor(1 + it / (2 * step_size))
    x = abs(it / step_size - 2 * cycle + 1)
    return low + (high - low) * max(0.0, 1 - x) * gamma**it


class ReferenceTrainer:
    """A trainer and the parameters it trains.

    One difference from DyNet is intended: parameters that are not updated have no gradient and do not decay. In DyNet,
    their gradients count for clipping, and they decay until the factor of weight decay is reset to 1, when they jump.

    Args:
        name: class name of the trainer.
        dense: initial values of the parameters.
        lookups: initial values of the lookup tables, rows first.
        weight_decay: the coefficient.
        dynet: whether DyNet's rules hold: eps of Adam, and gradients of parameters that are not updated, which count
            for clipping.
        arguments: arguments of the trainer.
    """

    def __init__(
        self,
        name: str,
        dense: Sequence[np.ndarray] = (),
        lookups: Sequence[np.ndarray] = (),
        weight_decay: float = 0.0,
        dynet: bool = False,
        **arguments: float,
    ) -> None:
        self.dynet = dynet
        make, names, (rate_name, rate) = RULES[name]
        self.learning_rate = float(arguments.pop(rate_name, rate))
        self.cyclical: tuple[float, ...] = ()
        if name == "CyclicalSGDTrainer":
            high, size = arguments.pop("learning_rate_max", 0.1), arguments.pop("step_size", 2000)
            self.cyclical = (self.learning_rate, high, size, arguments.pop("gamma", 1.0))
        self.rule = make(**arguments, dynet=dynet) if name in OTHER_IN_DYNET else make(**arguments)
        self.raw = [np.array(a, dtype=np.float64) for a in [*dense, *lookups]]
        self.dense = len(dense)
        self.state: list[State] = [{n: np.zeros_like(a) for n in names} for a in self.raw]
        self.updated = [True] * len(self.raw)
        self.threshold = 5.0
        self.sparse = True
        self.weight_decay = weight_decay
        self.factor = 1.0  # values are raw * factor
        self.updates = self.steps = self.clips = 0

    @property
    def values(self) -> list[np.ndarray]:
        """Values as a graph sees them."""
        return [a * self.factor for a in self.raw]

    def restart(self, learning_rate: float | None = None) -> None:
        """Forget momentum and moments, but not the number of updates."""
        for state in self.state:
            for array in state.values():
                array[...] = 0
        if learning_rate is not None:
            self.learning_rate = learning_rate

    def clip_factor(self, grads: Sequence[np.ndarray]) -> float:
        """The factor by which gradients are multiplied."""
        if self.threshold <= 0:
            return 1.0
        norm = math.sqrt(sum(float((np.asarray(g, dtype=np.float64) ** 2).sum()) for g in grads))
        if not math.isfinite(norm):
            raise RuntimeError(f"Magnitude of gradient is bad: {norm}")
        if norm <= self.threshold:
            return 1.0
        self.clips += 1
        return self.threshold / norm

    def update(self, grads: Sequence[Any], touched: Sequence[Sequence[int]] = ()) -> None:
        """One update.

        Args:
            grads: the gradient of each parameter, then of each lookup table; None is zero.
            touched: the rows of each lookup table that were looked up; default: those with a gradient.
        """
        full = [np.zeros_like(a) if g is None else np.asarray(g, dtype=np.float64) for a, g in zip(self.raw, grads)]
        scale = self.clip_factor([g for g, updated in zip(full, self.updated) if updated or self.dynet])
        self.steps += 1
        self.updates += 1
        for number, (raw, state, g) in enumerate(zip(self.raw, self.state, full)):
            if not self.updated[number]:
                continue
            rows: Any = ...
            if number >= self.dense and self.sparse:
                table = number - self.dense
                looked_up = touched[table] if touched else np.flatnonzero(g.reshape(len(g), -1).any(axis=1))
                rows = np.array(sorted(set(map(int, looked_up))), dtype=np.intp)
            part = {n: a[rows] for n, a in state.items()}
            raw[rows] += self.rule(part, g[rows] * scale, self.steps, self.learning_rate) / self.factor
            for n, a in part.items():
                state[n][rows] = a
        if self.cyclical:
            self.learning_rate = cyclical_rate(self.steps - 1, *self.cyclical)
        self.factor *= 1 - self.weight_decay
        if self.factor < RESCALE_BELOW:
            for raw in self.raw:
                raw *= self.factor
            self.factor = 1.0

    def status(self) -> str:
        """The line that `status()` writes; resets the counts."""
        text = f"[lr={self.learning_rate:g} clips={self.clips} updates={self.updates}] "
        self.clips = self.updates = 0
        return text
