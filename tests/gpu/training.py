"""A network that trains on one or several devices, all trainers, and settings of a trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from arrays import all_close

import dynet_cy as dy
from dynet_cy.graph.expressions import set_autobatching

# Arguments that differ from the defaults.
ARGUMENTS: dict[str, dict[str, float]] = {
    "CyclicalSGD": {"learning_rate_max": 0.2, "step_size": 3},
    "MomentumSGD": {"learning_rate": 0.05},
    "RMSProp": {"learning_rate": 0.01},
    "Adam": {"alpha": 0.01},
    "Amsgrad": {"alpha": 0.01},
    "AdamW": {"alpha": 0.01, "weight_decay": 2},
}
TRAINERS = {
    name[: -len("Trainer")]: partial(getattr(dy, name), **ARGUMENTS.get(name[: -len("Trainer")], {}))
    for name in dy.__all__
    if name.endswith("Trainer") and name not in ("Trainer", "PythonTrainer")
}


Places = tuple[str, str, str]
HERE, ALONE = ("", "", ""), ("CPU", "CPU", "CPU")
# The devices of the table, the first layer and the second layer.
SPREAD = [("CPU", "GPU:0", "GPU:0"), ("GPU:0", "CPU", "GPU:0"), ("CPU", "GPU:0", "GPU:1"), ("GPU:1", "GPU:0", "CPU")]
Example = tuple[list[int], int]
EXAMPLES: list[Example] = [([1, 2, 3], 0), ([4], 1), ([2, 2, 5, 6], 2), ([7, 8], 3), ([3, 1], 1)]


class Network:
    """Rows of a table and two layers, each on its own device."""

    def __init__(self, places: Places = HERE) -> None:
        self.model = dy.ParameterCollection()
        self.places = places
        table, first, second = places
        self.table = self.model.add_lookup_parameters((9, 6), device=table)
        self.W = self.model.add_parameters((40, 6), device=first)
        self.b = self.model.add_parameters(40, device=first)
        self.scale = self.model.add_parameters(40, init=1.0, device=table)
        self.V = self.model.add_parameters((4, 40), device=second)

    def loss(self, example: Example) -> dy.Expression:
        words, label = example
        _, first, second = self.places
        rows = [dy.to_device(self.table[w], first) for w in words]
        hidden = [dy.tanh(self.W * x + self.b) for x in rows]
        summed = dy.cmult(dy.esum(hidden), dy.to_device(self.scale, first))
        return dy.pickneglogsoftmax(self.V * dy.to_device(summed, second), label)

    def batch_loss(self, examples: Sequence[Example] = EXAMPLES) -> dy.Expression:
        return dy.esum([self.loss(x) for x in examples])

    def parameters(self) -> list:
        return [self.W, self.b, self.scale, self.V, self.table]

    def state(self) -> list[np.ndarray]:
        return [p.as_array() for p in self.parameters()]


Change = Callable[[Network, dy.Trainer], None]
Trained = tuple[Network, dy.Trainer, list]


def trained(name: str, places: Places = HERE, strategy: int = 1, change: Change | None = None, n: int = 5) -> Trained:
    """A network and its trainer after some updates, and the losses."""
    dy.reset_random_seed(3)
    set_autobatching(strategy)
    network = Network(places)
    trainer = TRAINERS[name](network.model)
    if change is not None:
        change(network, trainer)
    losses = []
    for k in range(n):
        dy.renew_cg()
        loss = network.batch_loss(EXAMPLES[k % 2 :])
        losses.append(loss.value())
        loss.backward()
        trainer.update()
    return network, trainer, losses


def assert_alike(found: Trained, desired: Trained) -> None:
    np.testing.assert_allclose(found[2], desired[2], rtol=1e-4)
    all_close(found[0].state(), desired[0].state(), rtol=1e-3, atol=2e-5)


# ---- settings of a trainer ---------------------------------------------------------


def clip(network: Network, trainer: dy.Trainer) -> None:
    trainer.set_clip_threshold(0.05)


def never_clip(network: Network, trainer: dy.Trainer) -> None:
    trainer.set_clip_threshold(0)


def decay(network: Network, trainer: dy.Trainer) -> None:
    network.model.set_weight_decay(0.05)


def dense(network: Network, trainer: dy.Trainer) -> None:
    trainer.set_sparse_updates(False)


def dense_decay(network: Network, trainer: dy.Trainer) -> None:
    dense(network, trainer)
    decay(network, trainer)


def frozen(network: Network, trainer: dy.Trainer) -> None:
    for p in (network.W, network.scale, network.table):
        p.set_updated(False)


def average(network: Network, trainer: dy.Trainer) -> None:
    trainer.exponential_moving_average(0.8)


def groups(network: Network, trainer: dy.Trainer) -> None:
    """Groups with both kinds of decay, and with separate and common norms."""
    decay(network, trainer)
    trainer.set_clip_threshold(0.4)
    trainer.group([network.b, network.table], learning_rate=0.02, weight_decay=3)
    trainer.group(network.W, weight_decay=0, clip_threshold=0.05)
    trainer.group(network.V, clip_threshold=0)


def dense_groups(network: Network, trainer: dy.Trainer) -> None:
    dense(network, trainer)
    groups(network, trainer)


def unclipped_groups(network: Network, trainer: dy.Trainer) -> None:
    never_clip(network, trainer)
    trainer.group([network.b, network.table], learning_rate=0.02, weight_decay=3)


def schedule(network: Network, trainer: dy.Trainer) -> None:
    trainer.group(network.V, learning_rate=0.02)
    trainer.schedule = dy.WarmupSchedule(3, then=dy.LinearSchedule(8))


SETTINGS = [clip, never_clip, decay, dense, dense_decay, frozen, average, groups, dense_groups, unclipped_groups]
