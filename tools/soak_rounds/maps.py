"""Rounds of batched maps."""

from __future__ import annotations

import contextlib
import os

import numpy as np

import dynet_cy as dy
from soak_rounds.programs import ROWS, Changed, Changing, Engine, Model, N, Numpy, Stop, check, close, program


def map_of(model, seeds, bound):
    """The losses of programs, computed by a map whose calls wait for values; above a bound, another loss is added."""

    def call(seed):
        loss = program(Engine(model), int(seed))
        return loss if loss.value() < bound else loss + program(Engine(model), int(seed) + 1)

    return dy.batched_map(call, seeds)


def maps(rng):
    """Programs that request values while they run, batched together; some of them fail."""
    model, seeds = Model(rng.integers(1 << 30)), rng.integers(1 << 30, size=int(rng.integers(1, 12)))
    values = model.values()
    expected = [program(Numpy(values), int(seed)) for seed in seeds]
    bound = float(np.median(expected)) + 1e-2
    if min(abs(value - bound) for value in expected) < 1e-3:
        return  # rounding would decide
    second = [program(Numpy(values), int(seed) + 1) if value > bound else 0 for seed, value in zip(seeds, expected)]
    dy.renew_cg(autobatching=int(rng.integers(3)))
    losses = map_of(model, seeds, bound)
    close([loss.value() for loss in losses], np.add(expected, second), "values of a map")
    dy.esum(losses).backward()
    found = model.gradients()
    model.clear()
    dy.renew_cg()
    each = [program(Engine(model), int(s)) for s in seeds]
    each += [program(Engine(model), int(s) + 1) for s, value in zip(seeds, second) if value]
    dy.esum(each).backward()
    close(found, model.gradients(), "gradients of a map", 2e-3)

    def fails(number):
        dy.squared_norm(model.stored["table"][number % ROWS]).value()
        if number % 3 == 0:
            raise Stop
        return dy.squared_norm(model.stored["table"][number % ROWS]).value()

    dy.renew_cg()
    results = dy.batched_map(fails, range(9), return_exceptions=True, width=int(rng.integers(1, 10)))
    for k, result in enumerate(results):
        check(isinstance(result, Stop) == (k % 3 == 0), f"item {k} of a map gave {result}")
        if k % 3:
            close(result, (values["table"][k] ** 2).sum(), "item of a map")


READING = ("value", "npvalue", "scalar_value", "vec_value", "forward")


def _calls(model, ops, loss):
    """Calls of an item of a map between two values: each changes the results, or is refused."""
    table, trainer = model.stored["table"], dy.SimpleSGDTrainer(model.collection, 0.0)
    return [
        *(lambda name=name: getattr(loss, name)() for name in READING),
        *(lambda name=name: getattr(loss, name)(recalculate=True) for name in READING),
        lambda: [leaf.value() for leaf, _ in ops.leaves],
        lambda: [leaf.npvalue(recalculate=True) for leaf, _ in ops.leaves[:3]],
        lambda: dy.batched_map(lambda k: (loss * k).value(), range(3)),
        lambda: dy.batched_map(lambda k: [(leaf * k).value(recalculate=True) for leaf, _ in ops.leaves[:2]], range(2)),
        lambda: dy.batched_map(lambda k: ops.leaves[0][1](ops.leaves[0][0], ops.shift, ops.step), range(2)),
        lambda: dy.forward([loss, *(leaf for leaf, _ in ops.leaves)]),
        lambda: loss.gradient(),
        lambda: loss.backward(),
        lambda: dy.renew_cg(),
        lambda: dy.cg_checkpoint(),
        lambda: dy.cg_revert(),
        lambda: trainer.update(),
        lambda: table.row_as_array(1),
        lambda: model.collection.zero_gradients(),
        lambda: dy.values([loss, loss * 2]),
        lambda: model.stored["w"] * dy.inputVector(np.ones(N + 1)),
        lambda: dy.cg().dump(os.devnull),
    ]


def changing_maps(rng):
    """Items of nested maps change their own rows and inputs, and call everything else: values as by plain calls."""
    model = Model(rng.integers(1 << 30))
    values = model.values()
    seeds = [int(s) for s in rng.integers(1 << 30, size=int(rng.integers(2, 8)))]
    width = None if rng.integers(2) else int(rng.integers(1, len(seeds) + 1))

    def item(seed):
        order = np.random.default_rng(seed)
        ops = Changing(model)
        ops.shift, ops.step = 0, 0.0
        loss = program(ops, seed)
        calls = _calls(model, ops, loss)
        for _ in range(int(order.integers(1, 6))):
            if order.integers(2):
                ops.shift, ops.step = int(order.integers(50)), float(order.uniform(-1, 1))
                ops.change(ops.shift, ops.step, order)
            with contextlib.suppress(RuntimeError, ValueError, TypeError, IndexError):
                calls[int(order.integers(len(calls)))]()
            expected = program(Changed(values, ops.shift, ops.step), seed)
            close(loss.value(recalculate=bool(order.integers(2))), expected, "value in an item of a map")
            if order.integers(4) == 0:
                close(dy.batched_map(lambda k: (loss * k).value(), [2, 3]), np.multiply(expected, [2, 3]), "inner map")
        return expected, loss

    dy.renew_cg(autobatching=int(rng.integers(3)))
    for expected, loss in dy.batched_map(item, seeds, width=width):
        close(loss.value(), expected, "value after a map")
