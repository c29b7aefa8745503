"""Random programs give the same numbers on the CPU, on a GPU, and spread over devices.

Structures repeat, so that CUDA graphs are replayed; in between there are other structures, reverts to checkpoints,
inputs with new values, and values that are read.
"""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy

PLACES = ("CPU", "GPU:0", "GPU:1")
STEPS = 7
OTHER_STRUCTURE = 4  # the step with another structure


class Program:
    """A model with parameters for each of three places, and random expressions of them."""

    def __init__(self, seed: int, where: dict[str, str]) -> None:
        self.rng, self.numbers, self.where = random.Random(seed), np.random.default_rng(seed), where
        self.model = dy.ParameterCollection()
        made = self.model.parameters_from_numpy, self.model.lookup_parameters_from_numpy
        self.W, self.b, self.table = (
            {p: make(self.numbers.standard_normal(shape) / 2, device=where[p]) for p in PLACES}
            for make, shape in ((made[0], (6, 6)), (made[0], 6), (made[1], (8, 6)))
        )
        self.trainer = self.rng.choice([dy.SimpleSGDTrainer, dy.MomentumSGDTrainer])(self.model, 0.02)
        self.trainer.set_clip_threshold(self.rng.choice([0, 0.5, 5]))
        self.trainer.set_sparse_updates(self.rng.random() < 0.7)
        if self.rng.random() < 0.3:
            self.model.set_weight_decay(0.01)
        if self.rng.random() < 0.3:
            self.trainer.exponential_moving_average(0.9)
        self.W["GPU:0"].set_updated(self.rng.random() < 0.7)
        self.strategy = self.rng.choice([0, 1, 2])
        self.forward_only = self.rng.random() < 0.15
        self.structure = self.rng.randrange(1 << 30)
        self.seen: list = []

    def new_expression(self, rng: random.Random, place: str, those: list) -> tuple[str, dy.Expression]:
        a, b = rng.choice(those), rng.choice(those)
        other = rng.choice(PLACES)
        kind = rng.randrange(9)
        if kind == 0:
            return other, dy.to_device(a, self.where[other])
        return place, [
            lambda: dy.tanh(self.W[place] * a + self.b[place]),
            lambda: dy.cmult(dy.tanh(a), b),
            lambda: a + b,
            lambda: self.table[place][rng.randrange(8)],
            lambda: dy.logistic(dy.affine_transform([self.b[place], self.W[place], a])),
            lambda: dy.esum([rng.choice(those) for _ in range(rng.randrange(1, 5))]),
            lambda: dy.sum_batches(dy.lookup_batch(self.table[place], [rng.randrange(8) for _ in range(3)])),
            lambda: dy.softmax(a),
        ][kind - 1]()

    def step(self, graph: dy.ComputationGraph, number: int) -> None:
        rng = random.Random(self.structure + (number == OTHER_STRUCTURE))
        graph.renew(autobatching=self.strategy, forward_only=self.forward_only)
        inputs = [dy.inputVector(self.numbers.standard_normal(6), device=self.where[p]) for p in PLACES]
        pool = {p: [x, self.table[p][rng.randrange(8)]] for p, x in zip(PLACES, inputs)}
        checkpoints: list[dict] = []
        for _ in range(rng.randrange(10, 40)):
            place, what = rng.choice(PLACES), rng.random()
            if what < 0.08:
                self.seen.append(rng.choice(pool[place]).npvalue())
            elif what < 0.12:
                checkpoints.append({p: list(xs) for p, xs in pool.items()})
                graph.checkpoint()
            elif what < 0.16 and checkpoints:
                pool = checkpoints.pop()
                graph.revert()
            else:
                place, x = self.new_expression(rng, place, pool[place])
                pool[place].append(x)
        ends = [dy.sum_elems(dy.tanh(x)) for p in PLACES for x in pool[p][-3:]]
        loss = dy.esum([dy.to_device(x, self.where["CPU"]) for x in ends])
        self.seen.append(loss.value())
        if self.forward_only:
            return
        loss.backward(full=True)
        self.seen += [x.gradient() for x in inputs]
        if number == 2 and not checkpoints:
            inputs[0].set(self.numbers.standard_normal(6))
            self.seen.append(loss.value())
            loss.backward()
        if rng.random() < 0.2:
            self.trainer.update_subset([0, 2], [1])
        else:
            self.trainer.update()

    def run(self) -> list:
        """All values that were read, and the final parameters, their gradients and their moving average."""
        with dy.ComputationGraph() as graph:
            for number in range(STEPS):
                self.step(graph, number)
        stored = [p for of in (self.W, self.b, self.table) for p in of.values()]
        self.seen += [p.as_array() for p in stored] + [p.grad_as_array() for p in stored]
        if self.trainer._average is not None and not self.forward_only:
            self.trainer.swap_params_to_moving_average()
            self.seen += [p.as_array() for p in stored]
        return self.seen


def on(name: str) -> dict[str, str]:
    return dict.fromkeys(PLACES, name)


def assert_close(found: list, desired: list) -> None:
    all_close(found, desired, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("where", ["GPU:0", "spread"])
def test_one_after_the_other(device: str, where: str) -> None:
    names = dy.available_devices()
    places = {p: p if p in names else device for p in PLACES} if where == "spread" else on(device)
    for seed in range(30):
        assert_close(Program(seed, places).run(), Program(seed, on("CPU")).run())


def test_in_threads(device: str) -> None:
    """Each thread has its own model and graph; they share the device."""
    places = {p: "CPU" if p == "CPU" else device for p in PLACES}
    found: dict[int, list] = {}

    def work(first: int) -> None:
        for seed in range(first, 60, 3):
            found[seed] = Program(seed, places).run()

    threads = [threading.Thread(target=work, args=[k]) for k in range(30, 33)]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    for seed in range(30, 60):
        assert_close(found[seed], Program(seed, on("CPU")).run())
