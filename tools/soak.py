"""Runs random programs for a long time: results are recomputed in other ways, and memory must stay flat.

    python tools/soak.py --minutes 60

A round is one random program of one kind (`ROUNDS`).  It depends only on the seed and the number of the round, so
`--round N` repeats it.  Values are compared with NumPy in float64, gradients with finite differences of it, and both
with other schedules, other threads, saved and loaded models, fresh processes and jobs of several processes.  With
``--gpu emulated`` some programs run on the emulated driver of tools/gpu as well, with ``--gpu real`` on GPU:0.  The
exit status is 0 if nothing differed and memory was flat after the first fifth of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import hashlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter

import numpy as np

import dynet_cy as dy
from dynet_cy.memory import arena
from dynet_cy.schedule import plan_cache

N, ROWS = 6, 12
MANY_ROWS = 800  # rows of a table that is large enough for deferred updates of rows without a gradient
FILE = os.path.abspath(__file__)
PAGE = os.sysconf("SC_PAGE_SIZE")
# Memory growth allowed after the first fifth of the time: allocators keep freed memory.
MOST_GROWTH = 24 << 20


# ---- programs ------------------------------------------------------------------------------------


class Numpy:
    """The operations of programs in float64, on columns of numbers."""

    def __init__(self, values):
        self.values = values

    def parameter(self, name):
        return self.values[name]

    def row(self, i):
        return self.values["table"][i]

    def input(self, numbers):
        return numbers

    affine = staticmethod(lambda b, w, x: b + w @ x)
    tanh = staticmethod(np.tanh)
    logistic = staticmethod(lambda x: 1 / (1 + np.exp(-x)))
    cmult = staticmethod(lambda x, y: x * y)
    halves = staticmethod(lambda x, y: np.concatenate([x[N // 2 :], y[: N // 2]]))
    mean = staticmethod(lambda xs: sum(xs) / len(xs))
    squared_norm = staticmethod(lambda x: (x * x).sum())
    element = staticmethod(lambda x, i: x[i])
    dot = staticmethod(lambda x, y: (x * y).sum())
    total = staticmethod(sum)

    @staticmethod
    def softmax(x):
        e = np.exp(x - x.max())
        return e / e.sum()

    @staticmethod
    def loss(x, i):
        return np.log(np.exp(x - x.max()).sum()) + x.max() - x[i]

    @staticmethod
    def attend(xs, q):
        memory = np.stack(xs, 1)
        return memory @ Numpy.softmax(memory.T @ q)

    @staticmethod
    def norm(x, gain, bias):
        c = x - x.mean()
        return gain * c / np.sqrt((c * c).mean()) + bias


class Engine:
    """The same operations in dynet_cy, on the device of the model."""

    def __init__(self, model):
        self.model = model

    def parameter(self, name):
        return self.model.stored[name]

    def row(self, i):
        return dy.to_device(self.model.stored["table"][i], self.model.device)

    def input(self, numbers):
        return dy.inputVector(numbers, device=self.model.device)

    affine = staticmethod(lambda b, w, x: dy.affine_transform([b, w, x]))
    tanh = staticmethod(dy.tanh)
    logistic = staticmethod(dy.logistic)
    cmult = staticmethod(dy.cmult)
    halves = staticmethod(lambda x, y: dy.concatenate([dy.pick_range(x, N // 2, N), dy.pick_range(y, 0, N // 2)]))
    mean = staticmethod(lambda xs: dy.average(list(xs)))
    squared_norm = staticmethod(dy.squared_norm)
    element = staticmethod(dy.pick)
    dot = staticmethod(dy.dot_product)
    total = staticmethod(dy.esum)
    softmax = staticmethod(dy.softmax)
    loss = staticmethod(dy.pickneglogsoftmax)

    @staticmethod
    def attend(xs, q):
        memory = dy.concatenate_cols(list(xs))
        return memory * dy.softmax(dy.transpose(memory) * q)

    @staticmethod
    def norm(x, gain, bias):
        return dy.layer_norm(x, gain, bias)


def program(ops, seed, numbers=None):
    """Run the random program of a seed, which returns a scalar.  Inputs are drawn from the seed `numbers`, if given."""
    rng = np.random.default_rng(seed)
    inputs = rng if numbers is None else np.random.default_rng(numbers)
    scalars = []
    for _ in range(int(rng.integers(1, 6))):
        pool = [ops.row(int(rng.integers(ROWS))) for _ in range(int(rng.integers(1, 5)))]
        pool.append(ops.input(inputs.uniform(-1, 1, N)))
        for _ in range(int(rng.integers(1, 12))):
            x, y = (pool[int(rng.integers(len(pool)))] for _ in range(2))
            kind, k = int(rng.integers(11)), int(rng.integers(N))
            w, b = ops.parameter("w" if rng.integers(2) else "u"), ops.parameter("b")
            if kind < 3:
                pool.append(ops.tanh(ops.affine(b, w, x)))
            elif kind == 3:
                pool.append(ops.logistic(ops.affine(b, w, y)))
            elif kind == 4:
                pool.append(ops.cmult(x, y))
            elif kind == 5:
                pool.append(ops.halves(x, y))
            elif kind == 6:
                pool.append(ops.attend(pool, x))
            elif kind == 7:
                pool.append(ops.tanh(ops.norm(x, ops.parameter("gain"), b)))
            elif kind == 8:
                scalars.append(ops.loss(ops.affine(b, w, x), k))
            elif kind == 9:
                scalars.append(ops.element(x, k))
            else:
                scalars.append(ops.dot(x, y))
        scalars.append(ops.squared_norm(ops.mean(pool)))
    return ops.total(scalars)


class Model:
    """The parameters of programs, and a table, which may be on another device."""

    SHAPES = (("w", (N, N)), ("u", (N, N)), ("b", (N,)), ("gain", (N,)))

    def __init__(self, seed, device="CPU", device_of_table=None, rows=ROWS):
        rng = np.random.default_rng(seed)
        self.device = device
        self.collection = dy.ParameterCollection()
        self.stored = {
            name: self.collection.parameters_from_numpy(rng.uniform(-1, 1, shape), name, device)
            for name, shape in self.SHAPES
        }
        table = rng.uniform(-1, 1, (rows, N))
        self.stored["table"] = self.collection.lookup_parameters_from_numpy(table, "table", device_of_table or device)

    def values(self):
        return {name: p.as_array().astype(np.float64) for name, p in self.stored.items()}

    def gradients(self):
        return {name: p.grad_as_array().astype(np.float64) for name, p in self.stored.items()}

    def clear(self):
        self.collection.zero_gradients()

    def loss(self, seed, numbers=None, **graph):
        dy.renew_cg(**graph)
        return program(Engine(self), seed, numbers)


class Changed(Numpy):
    """Programs with other rows, inputs and elements: all indices are moved on by `shift`, inputs by `step`."""

    def __init__(self, values, shift, step):
        super().__init__(values)
        self.shift, self.step = shift, step

    def row(self, i):
        return super().row((i + self.shift) % ROWS)

    def input(self, numbers):
        return numbers + self.step

    def element(self, x, i):
        return x[(i + self.shift) % N]


class Changing(Engine):
    """Programs whose rows, inputs and elements can be changed after they were made, as `Changed` has them."""

    def __init__(self, model):
        super().__init__(model)
        self.leaves = []

    def row(self, i):
        return self.changing(dy.lookup(self.model.stored["table"], i), lambda e, s, _: e.set((i + s) % ROWS))

    def input(self, numbers):
        return self.changing(dy.inputVector(numbers), lambda e, _, step: e.set(numbers + step))

    def element(self, x, i):
        return self.changing(dy.pick(x, i), lambda e, s, _: e.set_index((i + s) % N))

    def changing(self, made, change):
        self.leaves.append((made, change))
        return made

    def change(self, shift, step, order):
        for k in order.permutation(len(self.leaves)):
            made, change = self.leaves[k]
            change(made, shift, step)


def check(ok, what):
    if not ok:
        raise AssertionError(what)


def close(found, expected, what, tolerance=1e-4):
    if isinstance(found, dict):
        for name in expected:
            close(found[name], expected[name], f"{what} of {name}", tolerance)
        return
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    scale = 1 + np.abs(expected).max(initial=0)
    error = np.abs(found - expected).max(initial=0)
    check(error <= tolerance * scale, f"{what}: {found} and {expected} differ by {error}")


def same(found, expected, what):
    """Check that all bits are equal."""
    for name in expected:
        check((found[name] == expected[name]).all(), f"{what} of {name}: {found[name]} and {expected[name]}")


def slope(values, direction, seed):
    """The derivative of a program in a direction of its parameters."""
    step = 1e-5
    ahead, behind = (program(Numpy({k: v + s * step * direction[k] for k, v in values.items()}), seed) for s in (1, -1))
    return (ahead - behind) / (2 * step)


def check_slope(model, seed, direction, expected, what, loss):
    """Run backward and compare the gradients of the model with the derivative; they are zero afterwards."""
    loss.backward()
    found = model.gradients()
    model.clear()
    close(sum((found[k] * direction[k]).sum() for k in found), expected, f"slope {what}", 2e-3)
    return found


# ---- rounds --------------------------------------------------------------------------------------


class Stop(Exception):
    """The exception that the handler of alarms raises."""


def _stop(number, frame):
    raise Stop


@contextlib.contextmanager
def alarm(seconds):
    """Raise Stop after this time, unless the block ends before; no alarm is pending afterwards."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def values_and_gradients(rng):
    """Values and gradients agree with float64, for every schedule."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    before = model.values()
    expected = program(Numpy(before), seed)
    direction = {name: rng.standard_normal(v.shape) for name, v in before.items()}
    expected_slope = slope(before, direction, seed)
    first = None
    for autobatch in (0, 1, 2, 1):  # the second 1 takes the plan from the cache
        loss = model.loss(seed, autobatching=autobatch, check_validity=bool(rng.integers(2)))
        close(loss.value(), expected, f"value with autobatch {autobatch}")
        found = check_slope(model, seed, direction, expected_slope, f"with autobatch {autobatch}", loss)
        first = found if first is None else first
        close(found, first, f"gradient with autobatch {autobatch}", 1e-3)
    loss = model.loss(seed, forward_only=True)
    close(loss.value(), expected, "value of a forward-only graph")
    loss = model.loss(seed, immediate_compute=True)
    close(loss.value(), expected, "value of nodes computed at once")


def cached_plans(rng):
    """One structure several times, with different inputs and parameters: soon it is no longer scheduled."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    trainer = dy.SimpleSGDTrainer(model.collection, 0.01)
    for k in range(5):
        numbers = int(rng.integers(1 << 30))
        if k == 2:
            plan_cache.reset()
        loss = model.loss(seed, numbers, autobatching=1 + k % 2 if k < 2 else 1)
        close(loss.value(), program(Numpy(model.values()), seed, numbers), f"value of repetition {k}")
        loss.backward()
        trainer.update()
    # One more if the two schedules share a slot in the table of structures that were seen once.
    check(plan_cache.counts()[0] <= 2, f"a structure was scheduled {plan_cache.counts()[0]} times more")


def anomalies(rng):
    """Checks for anomalies change no results, and find the operation."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    found = []
    autobatch = int(rng.integers(3))
    for looking in (contextlib.nullcontext(), dy.detect_anomaly()):
        with looking:
            loss = model.loss(seed, autobatching=autobatch)
            value = loss.value()
            loss.backward()
        found.append({"value": np.float64(value), **model.gradients()})
        model.clear()
    same(found[1], found[0], "with detect_anomaly: bits")
    with dy.detect_anomaly():
        loss = model.loss(seed, autobatching=autobatch)
        row = model.stored["table"][3]
        backward = bool(rng.integers(2))
        wrong = dy.sqrt(dy.cmult(row, dy.zeros(N))) if backward else dy.log(row - row)
        total = loss + dy.sum_elems(wrong)
        try:
            total.value()
            total.backward()
        except dy.AnomalyError as error:
            check(("sqrt" if backward else "log") in str(error), f"anomaly: {error}")
        else:
            check(False, "an anomaly was not found")
    check(not any(g.any() for g in model.gradients().values()), "a gradient is left of an anomaly")
    close(loss.value(), program(Numpy(model.values()), seed), "value after an anomaly")


def out_of_memory(rng):
    """MemoryError wherever the limit is reached; what fits in a fresh process fits afterwards."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    autobatch = int(rng.integers(3))
    # Free what other rounds have left, so that this one cannot use it.
    dy.renew_cg()
    gc.collect()
    arena.give_back()
    left = int(rng.integers(1 << 20, 6 << 20))
    dy.config.set(mem=(arena.used_bytes() + left) / 2**20)
    try:
        with contextlib.suppress(MemoryError):
            loss = model.loss(seed, autobatching=autobatch)
            x = dy.tanh(
                model.stored["w"] * dy.concatenate_cols([model.stored["table"][1]] * int(rng.integers(100, 3000)))
            )
            for _ in range(int(rng.integers(1, 60))):
                x = dy.tanh(model.stored["u"] * x)
            loss = loss + dy.sum_elems(x)
            if rng.integers(2):
                loss.value()
            loss.backward()
        with contextlib.suppress(MemoryError):
            big = model.collection.add_parameters(int(rng.integers(1, 2 * left)))
            check(big.as_array().shape == big.shape(), "a parameter that was made")
        model.clear()
        loss = model.loss(seed, autobatching=autobatch)
        close(loss.value(), program(Numpy(model.values()), seed), "value after a lack of memory")
        loss.backward()
        check(any(g.any() for g in model.gradients().values()), "no gradient after a lack of memory")
    finally:
        dy.config.set(mem=0)


TRAINERS = (
    dy.SimpleSGDTrainer, dy.MomentumSGDTrainer, dy.AdagradTrainer, dy.AdadeltaTrainer, dy.RMSPropTrainer,
    dy.AdamTrainer, dy.AmsgradTrainer, dy.CyclicalSGDTrainer, dy.AdamWTrainer,
)  # fmt: skip


def make_trainer(kind, rng, models):
    """A trainer of one kind for each model, all with the same random settings."""
    decay, dense, grouped, average, clip = (bool(rng.integers(2)) for _ in range(5))
    rates = rng.uniform(0.5, 2, 2)
    trainers = []
    for model in models:
        trainer = kind(model.collection)
        model.collection.set_weight_decay_lambda(1e-3 if decay else 0)
        trainer.set_sparse_updates(not dense)
        trainer.set_clip_threshold(1.0 if clip else 5.0)
        if grouped:
            own = model.stored
            trainer.group([own["b"], own["gain"]], weight_decay=0)
            trainer.group(own["table"], learning_rate=trainer.learning_rate * rates[0], clip_threshold=0.5)
        if average:
            trainer.exponential_moving_average(0.9)
        trainers.append(trainer)
    return trainers


def train(model, trainer, seeds, autobatch, frozen=()):
    """A step for each seed, the first half of them with some parameters frozen."""
    for number, seed in enumerate(seeds):
        for name in frozen:
            model.stored[name].set_updated(2 * number >= len(seeds))
        model.loss(int(seed), autobatching=autobatch).backward()
        trainer.update()


def poison(model, trainer, rng):
    """A batch whose gradients are not finite changes nothing."""
    before = model.values()
    skipped = trainer._skipped
    dy.renew_cg()
    (dy.sum_elems(model.stored["b"] * float(rng.choice([np.nan, np.inf]))) + Engine(model).row(1)[0]).backward()
    trainer.update(skip_nonfinite=True)
    check(not np.isfinite(trainer.gradient_norm), f"the norm of a step that was dropped: {trainer.gradient_norm}")
    check(trainer._skipped == skipped + 1, "a step that is not finite was not counted as dropped")
    same(model.values(), before, "values after a step that was dropped")
    check(not any(g.any() for g in model.gradients().values()), "gradients of a step that was dropped")


def training(rng):
    """Three equal models, trained with three schedules; one has steps that are dropped, one is saved and loaded."""
    start, seeds = rng.integers(1 << 30), rng.integers(1 << 30, size=6)
    kind = TRAINERS[rng.integers(len(TRAINERS))]
    settings = int(rng.integers(1 << 30))
    rows = int(rng.choice([ROWS, MANY_ROWS]))
    models = one, other, third = [Model(seed, rows=rows) for seed in (start, start, start + 1)]
    trainers = make_trainer(kind, np.random.default_rng(settings), models)
    train(one, trainers[0], seeds, 0)
    train(other, trainers[1], seeds[:2], 1)
    poison(other, trainers[1], rng)
    train(other, trainers[1], seeds[2:3], 1)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "state.safetensors")
        dy.save_safetensors(file, other.collection, trainers[1])
        dy.load_safetensors(file, third.collection, trainers[2])
    train(other, trainers[1], seeds[3:], 2)
    train(third, trainers[2], seeds[3:], 2)
    same(third.values(), other.values(), f"parameters trained on from a file by {kind.__name__}")
    # Steps of Adagrad and others divide by small numbers.
    close(other.values(), one.values(), f"parameters trained by {kind.__name__}", 2e-2)


def frozen(rng):
    """Frozen parameters keep their values, have no gradient, and do not contribute to the norm."""
    start, seeds = rng.integers(1 << 30), rng.integers(1 << 30, size=4)
    kind = TRAINERS[rng.integers(len(TRAINERS))]
    settings = int(rng.integers(1 << 30))
    models = model, _ = Model(start), Model(start)
    trainers = make_trainer(kind, np.random.default_rng(settings), models)
    names = rng.choice(sorted(model.stored), size=int(rng.integers(1, 4)), replace=False)
    before = model.values()
    for name in names:
        model.stored[name].set_updated(False)
    train(model, trainers[0], seeds[:2], 1)
    after = model.values()
    for name in names:
        same({name: after[name]}, {name: before[name]}, "frozen")
        model.stored[name].set_updated(True)
    # All programs use the table, but perhaps no other parameter that is not frozen.
    check("table" in names or (after["table"] != before["table"]).any(), "nothing was trained")
    train(model, trainers[0], seeds[2:], 1)
    train(models[1], trainers[1], seeds, 0, names)
    close(models[1].values(), model.values(), f"parameters trained by {kind.__name__}, frozen at first", 2e-2)


def saving(rng):
    """Models are loaded as they were saved, in every format."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    expected = model.loss(seed).value()
    with tempfile.TemporaryDirectory() as folder:
        base = os.path.join(folder, "model")
        model.collection.save(base + ".txt")
        other = Model(1)
        other.collection.populate(base + ".txt")
        close(other.loss(seed).value(), expected, "value after populate", 1e-5)
        dy.save(base, list(model.stored.values()))
        third = Model(2)
        third.stored = dict(zip(model.stored, dy.load(base, dy.ParameterCollection())))
        close(third.loss(seed).value(), expected, "value after dy.load", 1e-5)
        with open(base + ".txt", "r+b") as file:
            size = file.seek(0, 2)
            file.truncate(int(rng.integers(size // 2)))
        before = other.values()
        try:
            other.collection.populate(base + ".txt")
        except (ValueError, RuntimeError):
            pass
        else:
            check(False, "a file that was cut off was read")
        close(other.values(), before, "values after a failed populate", 0)


def reverts(rng):
    """Checkpoints of a graph, and errors when expressions after them are used."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    loss = model.loss(seed)
    expected = program(Numpy(model.values()), seed)
    for _ in range(int(rng.integers(1, 5))):
        dy.cg_checkpoint()
        extra = program(Engine(model), int(rng.integers(1 << 30)))
        if rng.integers(2):
            (extra + loss).value()
        if rng.integers(2):
            extra.backward()
        dy.cg_revert()
        try:
            extra.value()
        except RuntimeError:
            pass
        else:
            check(False, "an expression behind a checkpoint was used")
        close(loss.value(), expected, "value after a revert")


def _mistakes(model):
    w, x = model.stored["w"], dy.inputVector(np.ones(N))
    return [
        lambda: w * dy.inputVector(np.ones(N + 1)),
        lambda: dy.pick(x, N),
        lambda: model.stored["table"][ROWS],
        lambda: dy.concatenate([]),
        lambda: dy.reshape(x, (N + 1,)),
        lambda: (w * x).backward(),
        lambda: dy.pickneglogsoftmax(x, -1),
        lambda: dy.inputVector(["a"]),
        lambda: model.collection.add_parameters((-1, 2)),
        lambda: dy.AdamTrainer(None),
        lambda: dy.renew_cg(autobatching=9),
        lambda: dy.affine_transform([x, w]),
        lambda: dy.pick(x, 2**32 + 1),
        lambda: dy.pick_range(x, 0, 2**31),
        lambda: dy.pick(x, 0).set_index(2**32),
        lambda: dy.lookup(model.stored["table"], 1).set(2**32 + 1),
        lambda: dy.inputVector([1, 2]).set([1, 2, 3]),
        lambda: dy.SimpleSGDTrainer(model.collection).update_subset([w], []),
        lambda: dy.SimpleSGDTrainer(model.collection).update_subset([0], ["table"]),
    ]


def errors(rng):
    """Misuse raises an error, and later results are right."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    loss = model.loss(seed)
    mistakes = _mistakes(model)
    for k in rng.integers(len(mistakes), size=4):
        try:
            mistakes[k]()
        except (ValueError, TypeError, IndexError, RuntimeError):
            pass
        else:
            check(False, f"mistake {k} went unnoticed")
        if rng.integers(2):
            loss.value()
    close(loss.value(), program(Numpy(model.values()), seed), "value after errors")
    # A NaN gradient: the update is refused, and nothing changes.
    trainer = dy.AdamTrainer(model.collection)
    before = model.values()
    dy.renew_cg()
    dy.sum_elems(model.stored["b"] * float("nan")).backward()
    try:
        trainer.update()
    except RuntimeError:
        pass
    else:
        check(False, "an update by NaN was made")
    close(model.values(), before, "values after a refused update", 0)


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


def threads(rng):
    """Graphs of several threads at once, over one model; each thread also trains its own model."""
    model = Model(rng.integers(1 << 30))
    seeds = rng.integers(1 << 30, size=(int(rng.integers(2, 5)), 5))
    expected, found, failures = [], [None] * len(seeds), []
    values = model.values()
    for own in seeds:
        expected.append([program(Numpy(values), int(s)) for s in own])
        for s in own:
            model.loss(int(s)).backward()
    gradients = model.gradients()
    model.clear()
    kind, settings = TRAINERS[rng.integers(len(TRAINERS))], int(rng.integers(1 << 30))
    looks = bool(rng.integers(2))  # whether to detect anomalies, which changes the order of sums in all threads
    owns = [Model(1) for _ in seeds] + [Model(1) for _ in seeds]
    trainers = make_trainer(kind, np.random.default_rng(settings), owns)

    def train_own(k, autobatch):
        for s in seeds[k % len(seeds)]:
            owns[k].loss(int(s), autobatching=autobatch).backward()
            trainers[k].update(skip_nonfinite=True)

    def work(k):
        try:
            with dy.ComputationGraph():
                found[k] = []
                for s in seeds[k]:
                    loss = model.loss(int(s), autobatching=k % 3)
                    if s % 2:
                        (again,) = map_of(model, [s], np.inf)
                        close(again.value(), loss.value(), "value of a map in a thread")
                    dy.cg_checkpoint()
                    program(Engine(model), int(s) + 1).value()
                    dy.cg_revert()
                    found[k].append(loss.value())
                    loss.backward()
                with dy.detect_anomaly() if k % 2 and looks else contextlib.nullcontext():
                    train_own(k, k % 3)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(len(seeds))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    check(not failures, f"in a thread: {failures}")
    close(found, expected, "values of threads")
    close(model.gradients(), gradients, "gradients of threads", 2e-3)
    for k in range(len(seeds)):
        train_own(len(seeds) + k, k % 3)
        what = f"values trained in a thread by {kind.__name__}"
        if looks:
            close(owns[k].values(), owns[len(seeds) + k].values(), what, 2e-2)
        else:
            same(owns[k].values(), owns[len(seeds) + k].values(), what)


def builders(rng):
    """Recurrent networks over batches of sentences: the same results together and one by one."""
    collection = dy.ParameterCollection()
    kind = (dy.LSTMBuilder, dy.GRUBuilder, dy.SimpleRNNBuilder, dy.CoupledLSTMBuilder)[rng.integers(4)]
    builder = kind(int(rng.integers(1, 3)), N, N, collection)
    table = collection.add_lookup_parameters((ROWS, N))
    length, size = int(rng.integers(1, 12)), int(rng.integers(1, 6))
    words = rng.integers(ROWS, size=(length, size))

    def loss(columns):
        state = builder.initial_state()
        for row in words:
            state = state.add_input(dy.lookup_batch(table, [int(row[c]) for c in columns]))
        return dy.sum_batches(dy.squared_norm(state.output()))

    found = []
    for groups in ([range(size)], [[c] for c in range(size)]):
        dy.renew_cg()
        total = dy.esum([loss(columns) for columns in groups])
        value = total.value()
        total.backward()
        found.append((value, {p.name(): p.grad_as_array() for p in collection.parameters_list()}))
        for p in (*collection.parameters_list(), *collection.lookup_parameters_list()):
            p.scale_gradient(0)
    close(found[0][0], found[1][0], f"value of {kind.__name__}")
    close(found[0][1], found[1][1], f"gradient of {kind.__name__}", 1e-3)


class Deep:
    """A chain that is long enough to be interrupted."""

    def __init__(self, rng):
        size = self.size = int(rng.integers(64, 200))
        self.layers = int(rng.integers(200, 4000))
        self.collection = dy.ParameterCollection()
        self.w = self.collection.add_parameters((size, size), init=rng.standard_normal((size, size)) / size**0.5 / 2)
        self.table = self.collection.add_lookup_parameters((3, size), init=rng.standard_normal((3, size)))

    def loss(self, **graph):
        dy.renew_cg(**graph)
        x = self.table[1]
        for _ in range(self.layers):
            x = dy.tanh(self.w * x + self.table[2])
        return dy.squared_norm(x)

    def gradients(self):
        return [p.grad_as_array().copy() for p in (self.w, self.table)]


def interrupts(rng):
    """Signals in forward, backward and updates: each is either done completely or not at all."""
    deep = Deep(rng)
    autobatch = int(rng.integers(3))
    expected = deep.loss(autobatching=autobatch).value()
    loss = deep.loss(autobatching=autobatch)
    try:
        with alarm(rng.uniform(1e-4, 0.06)):
            loss.value()
    except Stop:
        pass
    close(loss.value(), expected, "value after an interrupt", 1e-4)
    trainer = TRAINERS[rng.integers(len(TRAINERS))](deep.collection)
    kept = deep.gradients()
    once = None
    for _ in range(4):
        try:
            with alarm(rng.uniform(1e-4, 0.08)):
                loss.backward()
        except Stop:
            pass
        found = deep.gradients()
        added = [a - b for a, b in zip(found, kept)]
        kept = found
        if not any(a.any() for a in added):
            continue
        once = added if once is None else once
        for a, b in zip(added, once):
            close(a, b, "gradient of a whole pass", 1e-2)
    before = deep.w.as_array()
    try:
        with alarm(rng.uniform(1e-5, 2e-3)):
            trainer.update()
    except Stop:
        pass
    moved = (deep.w.as_array() != before).any()
    check(moved != any(g.any() for g in deep.gradients()) or once is None, "an update was half made")


class Wide:
    """Weights that are large enough for products to pack them and to run on several threads."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.collection = dy.ParameterCollection()
        sizes = [int(n) for n in rng.integers(90, 400, 4)]
        self.size = sizes[0]
        self.weights = [
            self.collection.add_parameters((m, n), init=rng.standard_normal((m, n)) / n**0.5)
            for n, m in zip(sizes, sizes[1:])
        ]

    def loss(self, numbers):
        dy.renew_cg()
        x = dy.inputTensor(numbers, batched=True)
        for w in self.weights:
            x = dy.tanh(w * x)
        return dy.sum_batches(dy.squared_norm(x))


def repeat(seed, start):
    """The output of a fresh process for `fresh`: a hash of a program's value and gradients, and of a few updates."""
    model = Model(start)
    loss = model.loss(seed)
    value = loss.value()
    loss.backward()
    bits = hashlib.sha256(repr(value).encode())
    for p in model.stored.values():
        bits.update(p.grad_as_array().tobytes())
    rng = np.random.default_rng(seed)
    wide = Wide(start)
    trainer = dy.AdamTrainer(wide.collection)
    for _ in range(3):
        numbers = rng.standard_normal((wide.size, int(rng.integers(1, 100))))
        for _ in range(int(rng.integers(1, 4))):  # weights are packed at the second product
            loss = wide.loss(numbers)
            bits.update(repr(loss.value()).encode())
        loss.backward()
        trainer.update()
    for w in wide.weights:
        bits.update(w.as_array().tobytes())
    return bits.hexdigest()


def run_program(*arguments, before=()):
    """Run this file in a new process, after the arguments `before`; returns its standard output."""
    command = [sys.executable, *before, FILE, *map(str, arguments)]
    done = subprocess.run(  # in another folder: with -m, Python searches the current folder first
        command, cwd=tempfile.gettempdir(), capture_output=True, text=True, timeout=600, check=False
    )
    check(done.returncode == 0 and "Exception ignored" not in done.stderr, f"a fresh process: {done.stderr}")
    return done.stdout


def fresh(rng):
    """A fresh process, with all threads of the machine, gets the same bits."""
    seed, start = (int(x) for x in rng.integers(1 << 30, size=2))
    theirs, ours = run_program("--repeat", seed, start).strip(), repeat(seed, start)
    check(theirs == ours, f"bits of a fresh process: {theirs} and {ours}")


STEPS = 5


def job(seed, folder):
    """The job of a rank of `processes`: train, save a checkpoint on the way, and train again from the checkpoint."""
    rank, size = dy.parallel.rank(), dy.parallel.size()
    rng = np.random.default_rng(seed)
    kind, seeds = TRAINERS[rng.integers(len(TRAINERS))], rng.integers(1 << 30, size=(STEPS, 2))
    model = Model(seed)
    (trainer,) = make_trainer(kind, rng, [model])
    trainer = dy.parallel.wrap(trainer, "sum")
    file = os.path.join(folder, "job.safetensors")

    def steps(numbers):
        for number in numbers:
            dy.renew_cg()
            # With 2 ranks, each has every second program; a single rank has all of them.
            dy.esum([program(Engine(model), int(s)) for s in seeds[number][rank::size]]).backward()
            trainer.update()
            if number == 1:
                dy.renew_cg()
                dy.sum_elems(model.stored["b"] * (np.nan if rank == 0 else 1.0)).backward()
                trainer.update(skip_nonfinite=True)
                check(trainer._skipped == 1, "a step that is not finite on one rank was not dropped on all")

    steps(range(2))
    dy.parallel.save_checkpoint(file, model.collection, trainer)
    steps(range(2, STEPS))
    once = model.values()
    dy.parallel.load_checkpoint(file, model.collection, trainer)
    steps(range(2, STEPS))
    same(model.values(), once, f"rank {rank}: values after resuming from a file")
    np.savez(os.path.join(folder, f"{rank}.npz"), **once)


def processes(rng):
    """Two processes train like one, and continue from their checkpoint with the same bits."""
    seed = int(rng.integers(1 << 30))
    with tempfile.TemporaryDirectory() as folder:
        run_program("--job", seed, folder, before=("-m", "dynet_cy.launch", "-n", "2"))
        found = []
        for rank in range(2):
            with np.load(os.path.join(folder, f"{rank}.npz")) as file:
                found.append(dict(file))
        same(found[1], found[0], "values of rank 1 and of rank 0")
        job(seed, folder)
        with np.load(os.path.join(folder, "0.npz")) as file:
            close(found[0], dict(file), "values of two processes and of one", 2e-2)


def changes(rng):
    """Rows, inputs and elements that are changed in graphs already computed, and values that are computed again."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    dy.renew_cg(autobatching=int(rng.integers(3)))
    ops = Changing(model)
    loss = program(ops, seed)
    for _ in range(int(rng.integers(2, 6))):
        shift, step = int(rng.integers(50)), float(rng.uniform(-1, 1))
        if rng.integers(2):
            loss.value()
        ops.change(shift, step, rng)
        expected = program(Changed(model.values(), shift, step), seed)
        again = bool(rng.integers(2))
        close(loss.value(recalculate=again), expected, "value after set")
        if rng.integers(2):
            loss.backward()
            found = model.gradients()
            model.clear()
            with dy.ComputationGraph():
                other = Changing(model)
                plain = program(other, seed)
                other.change(shift, step, rng)
                plain.backward()
            close(found, model.gradients(), "gradient after set", 2e-3)
            model.clear()


READING = ("value", "npvalue", "scalar_value", "vec_value", "forward")


def _calls(model, ops, loss):
    """What an item of a map may call between two values: it changes what is computed, or is refused."""
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


def sharing(rng):
    """Threads that read the values of one graph while another one adds to it: each gets its value or an error."""
    model = Model(rng.integers(1 << 30))
    values = model.values()
    seeds = [int(s) for s in rng.integers(1 << 30, size=int(rng.integers(2, 6)))]
    expected = [program(Numpy(values), seed) for seed in seeds]
    graph = dy.renew_cg(autobatching=int(rng.integers(3)))
    losses = [program(Engine(model), seed) for seed in seeds]
    if rng.integers(2):
        losses[0].value()
    failures, refused = [], Counter()

    def read(k):
        order = np.random.default_rng(seeds[k % len(seeds)])
        for _ in range(20):
            i = int(order.integers(len(seeds)))
            try:
                found = losses[i].value(recalculate=bool(order.integers(4) == 0))
                close(found, expected[i], "value read by a thread")
            except RuntimeError as error:
                refused[type(error).__name__] += 1
            except BaseException as error:
                failures.append(error)

    readers = [threading.Thread(target=read, args=(k,)) for k in range(int(rng.integers(1, 4)))]
    for reader in readers:
        reader.start()
    more = []
    for seed in seeds:
        with contextlib.suppress(RuntimeError):
            more.append((seed, program(Engine(model), seed + 1)))
    for reader in readers:
        reader.join()
    check(not failures, f"in a thread that reads: {failures}")
    check(dy.cg() is graph, "the graph is another one")
    for i, loss in enumerate(losses):
        close(loss.value(), expected[i], "value after threads have read it")
    for seed, loss in more:
        close(loss.value(), program(Numpy(values), seed + 1), "value that was added beside readers")


# Functions of tensors any of whose sizes may be 0: arguments as letters, the function, its float64 reference.
OF_ANY_SIZE = [
    ("mn,nk", lambda a, b: a * b, np.matmul),
    ("mn,nk", lambda a, b: dy.matmul(a, b), np.matmul),
    ("mk,mn,nk", lambda b, a, x: dy.affine_transform([b, a, x]), lambda b, a, x: b + a @ x),
    ("mn,nk", lambda a, x: dy.affine_transform([a * x]), np.matmul),
    ("m,m,m", lambda x, g, b: dy.layer_norm(x, g, b), None),
    ("mn", lambda a: dy.transpose(a), np.transpose),
    ("mn,mn", lambda a, b: dy.cmult(a, b), np.multiply),
    ("mn,mn", lambda a, b: a + b, np.add),
    ("mn", lambda a: dy.tanh(a), np.tanh),
    ("mn", lambda a: dy.sum_elems(a), np.sum),
    ("mn", lambda a: dy.squared_norm(a), lambda a: (a * a).sum()),
    ("mn", lambda a: dy.sum_dim(a, [0]), lambda a: a.sum(0)),
    ("mn", lambda a: dy.sum_dim(a, [1]), lambda a: a.sum(1)),
    ("mn", lambda a: dy.mean_dim(a, [1], False), None),
    ("m", lambda a: dy.softmax(a), None),
    ("m", lambda a: dy.log_softmax(a), None),
    ("m", lambda a: dy.logsumexp_dim(a), None),
    ("mn", lambda a: dy.max_dim(a, 0), None),
    ("m,k", lambda a, b: dy.concatenate([a, b]), lambda a, b: np.concatenate([a, b])),
    ("mn,mk", lambda a, b: dy.concatenate([a, b], 1), lambda a, b: np.concatenate([a, b], 1)),
    ("m,m", lambda a, b: dy.dot_product(a, b), np.dot),
    ("mn", lambda a: dy.reshape(a, (a.dim()[0][0] * a.dim()[0][1],)), lambda a: a.reshape(-1, order="F")),
    ("m", lambda a: dy.pick_range(a, 0, a.dim()[0][0] // 2), lambda a: a[: len(a) // 2]),
    ("mn,nk,m", lambda a, x, b: dy.colwise_add(a * x, b), lambda a, x, b: a @ x + b[:, None]),
    ("m,n", lambda a, b: dy.logistic(a) * dy.transpose(b), lambda a, b: np.outer(1 / (1 + np.exp(-a)), b)),
]  # fmt: skip


def sizes(rng):
    """Functions of tensors some of whose sizes are 0, forward and backward: the value, or an error."""
    model = dy.ParameterCollection()
    dy.renew_cg(autobatching=int(rng.integers(3)))
    losses = []
    for k in rng.integers(len(OF_ANY_SIZE), size=int(rng.integers(1, 5))):
        letters, function, reference = OF_ANY_SIZE[k]
        of = {letter: int(rng.choice([0, 0, 1, 3])) for letter in "mnk"}
        numbers = [rng.uniform(-1, 1, [of[letter] for letter in one]) for one in letters.split(",")]
        try:
            made = [model.parameters_from_numpy(x) if rng.integers(2) else dy.inputTensor(x) for x in numbers]
            y = function(*(x if isinstance(x, dy.Expression) else dy.parameter(x) for x in made))
            if reference is not None:
                expected = np.asarray(reference(*numbers))
                value = np.asarray(y.npvalue())
                check(value.size == expected.size, f"{letters} of {of}: shape {value.shape}, not {expected.shape}")
                close(value.reshape(-1), expected.reshape(-1), f"value of {letters} of {of}")
            losses.append(dy.sum_elems(y))
        except (ValueError, TypeError, IndexError, RuntimeError):
            continue
    if losses:
        with contextlib.suppress(ValueError, RuntimeError):
            dy.esum(losses).backward()
        gradients = [p.grad_as_array() for p in model.parameters_list()]
        check(all(np.isfinite(g).all() for g in gradients), "a gradient of empty tensors is not finite")


def _log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


# Functions of a vector, and their float64 references.  Their results do not change, or change by the same number, when
# a number is added to all elements.
OF_ANY_OFFSET = [
    (dy.softmax, lambda x: np.exp(_log_softmax(x))),
    (dy.log_softmax, _log_softmax),
    (lambda x: dy.pickneglogsoftmax(x, 2), lambda x: -_log_softmax(x)[2]),
    (lambda x: dy.pickneglogsoftmax_batch(x, [1]), lambda x: -_log_softmax(x)[1]),
    (lambda x: dy.cross_entropy(x, 1), lambda x: -_log_softmax(x)[1]),
    (lambda x: dy.logistic(x - x[0]), lambda x: 1 / (1 + np.exp(x[0] - x))),
    (lambda x: dy.logsumexp_dim(x), lambda x: x[0] - _log_softmax(x)[0]),
    (lambda x: dy.logsumexp([x[0], x[1], x[2]]), lambda x: x[0] - _log_softmax(x[:3])[0]),
    (lambda x: dy.logcumsumexp(x), np.logaddexp.accumulate),
]


def offsets(rng):
    """Functions with an exp or a log at offsets up to 1e7: values and gradients are rounded once."""
    offset = float(rng.choice([-1, 1]) * 10 ** rng.uniform(0, 7))
    x = np.float32(offset + rng.uniform(-4, 4, N)).astype(np.float64)  # exactly what the engine gets
    weights = rng.uniform(-1, 1, N)
    function, reference = OF_ANY_OFFSET[int(rng.integers(len(OF_ANY_OFFSET)))]
    p = dy.ParameterCollection().parameters_from_numpy(x)
    dy.renew_cg(autobatching=int(rng.integers(3)))
    y = function(dy.parameter(p))
    expected = np.asarray(reference(x))
    error = np.abs(np.asarray(y.npvalue()).reshape(expected.shape) - expected).max()
    most = np.spacing(np.float32(np.abs(expected).max())) + 2e-6
    check(error <= most, f"value at offset {offset}: {y.npvalue()}, not {expected}")
    weighted = dy.dot_product(y, dy.inputVector(weights)) if expected.ndim else y * weights[0]
    weighted.backward()
    # The gradient is a function of differences: take it near 0, where the reference is exact.
    near = x - x[0]
    slopes = []
    for step in np.eye(N) * 1e-5:
        ahead, behind = (np.atleast_1d(reference(near + s * step)) for s in (1, -1))
        slopes.append(((ahead - behind) * weights[: ahead.size]).sum() / 2e-5)
    close(p.grad_as_array(), slopes, f"gradient at offset {offset}", 1e-5)


@contextlib.contextmanager
def little_memory(more=2 << 30):
    """A block in which the process may grow by so many bytes: beyond, NumPy and the engine raise MemoryError."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * PAGE
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = [limit for limit in (now + more, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _functions():
    """The public functions that make expressions, by name: a new one is called without a further word."""
    of = ("dynet_cy.ops", "dynet_cy.functions")
    found = {name: getattr(dy, name) for name in sorted(dir(dy)) if not name.startswith("_")}
    return {n: f for n, f in found.items() if callable(f) and str(getattr(f, "__module__", "")).startswith(of)}


def calls(rng):
    """Public functions with arguments of all kinds: each gives an expression or an error; later values are right."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    loss = model.loss(seed, autobatching=int(rng.integers(3)))
    vector, matrix = (dy.inputTensor(rng.uniform(-1, 1, shape)) for shape in (N, (N, N)))
    arguments = [
        vector, matrix, dy.inputTensor(rng.uniform(0, 1, (N, 2)), batched=True), dy.scalarInput(0.5), loss,
        dy.inputTensor(np.zeros((0, N))), dy.inputTensor(np.zeros((N, 0))), dy.inputTensor(np.zeros(0)),
        [vector, vector], [matrix, vector], [vector, matrix, vector], [], [0, 1], [0], (N,), (2, 3), [1.0, 2.0],
        model.stored["w"], model.stored["table"], 0, 1, 2, -1, N, 2**31, 2**32 + 1, -(2**63), 2**64, 0.5, -1.0, 1e30,
        float("nan"), True, None, "x", b"x", np.ones(N), np.zeros((0, 3)), np.float32(1), np.int64(3), {}, object(),
    ]  # fmt: skip
    functions = _functions()
    names = sorted(functions)
    dy.config.set(mem=arena.used_bytes() / 2**20 + 64)
    made = []
    with contextlib.ExitStack() as stack:
        stack.callback(model.clear)
        stack.callback(dy.config.set, mem=0)
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(little_memory())  # such as that of arange(2**31)
        warnings.simplefilter("ignore", RuntimeWarning)  # of expressions that are compared with numbers
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy before 2.2: the truth value of an empty array
        for _ in range(30):
            name = names[int(rng.integers(len(names)))]
            given = [arguments[int(i)] for i in rng.integers(len(arguments), size=int(rng.integers(1, 5)))]
            with contextlib.suppress(ValueError, TypeError, IndexError, RuntimeError, OverflowError, MemoryError):
                y = functions[name](*given)
                if isinstance(y, dy.Expression):
                    value = y.npvalue()
                    shape, batch = y.dim()
                    check(value.size == int(np.prod(shape)) * batch, f"{name}: {y.dim()} has {value.size} numbers")
                    made.append(dy.sum_batches(dy.sum_elems(y)))
        with contextlib.suppress(ValueError, RuntimeError, MemoryError):
            dy.esum([loss, *made]).backward()
    loss = model.loss(seed)
    close(loss.value(), program(Numpy(model.values()), seed), "value after calls of all kinds")


def huge(rng):
    """About 2**31 elements along an axis, without computing them: the shape, or an error."""
    dy.renew_cg()
    part = dy.ParameterCollection().add_parameters(1 << 20, init=0)
    count = int(rng.integers(2036, 2060))
    try:
        x = dy.concatenate([dy.parameter(part)] * count)
    except (ValueError, OverflowError, MemoryError):
        return
    n = count << 20
    check(x.dim()[0] == (n,), f"{x.dim()} of {n} elements")
    start = int(rng.integers(n))
    end = int(rng.integers(start, n)) + 1
    tries = [
        (lambda: dy.pick_range(x, start, end), (end - start,)),
        (lambda: dy.pick(x, start), (1,)),
        (lambda: dy.reshape(x, (count, 1 << 20)), (count, 1 << 20)),
        (lambda: dy.pick_range(dy.reshape(x, (1, n)), start, end, 1), (1, end - start)),
        (lambda: dy.strided_select(x, [1], [start], [end]), (end - start,)),
        (lambda: dy.strided_select(x, [1 << 31], [0], [n]), (-(-n // (1 << 31)),)),
        (lambda: dy.pickneglogsoftmax(x, start), (1,)),
    ]
    for make, shape in tries:
        with contextlib.suppress(ValueError, IndexError, OverflowError):
            y = make()
            check(y.dim()[0] in (shape, ()), f"shape {y.dim()}, not {shape}, of {n} elements from {start} to {end}")
            for wrong in (n, n + (1 << 31), n + (1 << 32), -n - 1):
                try:
                    dy.pick(x, wrong)
                except (ValueError, IndexError, OverflowError):
                    continue
                check(False, f"pick of {wrong} of {n} elements")


def saves(number, folder, times):
    """One of the processes of `beside` that save at the same time: all parameters have the number of the save."""
    model = Model(1)
    for k in range(times):
        for p in model.stored.values():
            value = p.as_array()
            value[...] = number * times + k
            p.set_value(value) if isinstance(p, dy.Parameters) else p.init_from_array(value)
        dy.save(os.path.join(folder, "pair"), list(model.stored.values()))
        model.collection.save(os.path.join(folder, "text"))
        dy.save_safetensors(os.path.join(folder, "checkpoint"), model.collection)


def read_saved(folder):
    """Read the files of `saves` that are there; each must be that of one save."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        found.append([p.as_array() for p in dy.load(os.path.join(folder, "pair"), dy.ParameterCollection())])
    for name in ("text", "checkpoint"):
        model, file = Model(1), os.path.join(folder, name)
        with contextlib.suppress(FileNotFoundError):
            if name == "text":
                model.collection.populate(file)
            else:
                dy.load_safetensors(file, model.collection)
            found.append(list(model.values().values()))
    for arrays in found:
        numbers = {float(x) for array in arrays for x in np.unique(array)}
        check(len(numbers) == 1, f"a file is a mixture of saves: {numbers}")
    return found


def beside(rng):
    """Two processes save the same files while this one reads them."""
    times = str(rng.integers(5, 30))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        commands = [[sys.executable, FILE, "--saves", str(number), folder, times] for number in range(2)]
        started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
        writers = [stack.enter_context(writer) for writer in started]
        while any(writer.poll() is None for writer in writers):
            read_saved(folder)
        for writer in writers:
            check(writer.returncode == 0, f"a process that saves beside another: {writer.stderr.read()}")
        check(len(read_saved(folder)) == 3, "a file is missing")
        left = sorted(os.listdir(folder))
        check(left == ["checkpoint", "pair.data", "pair.meta", "text"], f"files after saves: {left}")


def daemon(count):
    """A daemon thread is in a map when the process ends: Python then unwinds the thread."""

    def item(number):
        x = dy.scalarInput(number)
        while True:
            x.value()
            time.sleep(1e-3)
            x = x + 1

    def work():
        with dy.ComputationGraph():
            dy.batched_map(item, range(count))

    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.1)


def recursion(limit):
    """Maps in items of maps without end: RecursionError, and maps go on."""
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    sys.setrecursionlimit(limit)

    def deeper(number):
        dy.scalarInput(number).value()
        return dy.batched_map(deeper, [number + 1])

    try:
        with little_memory(4 << 30):
            dy.batched_map(deeper, [0])
    except RecursionError:
        close(dy.batched_map(lambda k: dy.scalarInput(k).value(), [1, 2]), [1, 2], "a map after a recursion")
    else:
        check(False, "an endless recursion ended")


ENDINGS = {"daemon": daemon, "recursion": recursion}


def endings(rng):
    """Processes that end inside a map, or recurse through maps without end."""
    how = sorted(ENDINGS)[int(rng.integers(len(ENDINGS)))]
    run_program("--ending", how, int(rng.integers(1, 6) if how == "daemon" else rng.integers(200, 600)))


def gpu(rng):
    """Programs on a GPU, perhaps with their table on the CPU: values, gradients and training as on the CPU."""
    places = ("GPU:0", "GPU:0" if rng.integers(2) else "CPU")
    start, seeds = rng.integers(1 << 30), rng.integers(1 << 30, size=4)
    model, here = Model(start, *places), Model(start)
    before = model.values()
    direction = {name: rng.standard_normal(v.shape) for name, v in before.items()}
    seed = int(seeds[0])
    for autobatch in rng.permutation(3):
        loss = model.loss(seed, autobatching=int(autobatch))
        close(loss.value(), program(Numpy(before), seed), f"value on {places}")
        check_slope(model, seed, direction, slope(before, direction, seed), f"on {places}", loss)
    kind = TRAINERS[rng.integers(len(TRAINERS))]
    trainers = make_trainer(kind, rng, [model, here])
    train(here, trainers[1], seeds, 0)
    train(model, trainers[0], seeds[:2], 1)
    poison(model, trainers[0], rng)
    train(model, trainers[0], seeds[2:], 1)
    close(model.values(), here.values(), f"parameters trained on {places} by {kind.__name__}", 2e-2)


# The kinds of rounds, with their relative frequencies.
ROUNDS = [
    (values_and_gradients, 8), (cached_plans, 2), (anomalies, 2), (out_of_memory, 2), (training, 4), (frozen, 2),
    (saving, 1), (reverts, 3), (errors, 3), (maps, 2), (threads, 2), (builders, 3), (interrupts, 1), (changes, 4),
    (changing_maps, 4), (sharing, 2), (sizes, 4), (offsets, 4), (calls, 4), (huge, 0.5), (fresh, 0.03),
    (processes, 0.03), (beside, 0.03), (endings, 0.03),
]  # fmt: skip


def add_gpu(kind):
    """Add rounds that run on a GPU."""
    if kind == "emulated":
        sys.path.insert(0, os.path.join(os.path.dirname(FILE), "gpu"))
        from emulate import environment

        os.environ.update(environment())
        os.environ.setdefault("EMU_STRICT", "1")
    if "GPU:0" not in dy.available_devices():
        raise SystemExit(f"there is no GPU:0; devices: {', '.join(dy.available_devices())}")
    ROUNDS.append((gpu, 1))


def drawn(seed, number):
    """The kind of a round, and its random generator."""
    rng = np.random.default_rng([seed, number])
    weights = np.array([weight for _, weight in ROUNDS])
    return ROUNDS[rng.choice(len(ROUNDS), p=weights / weights.sum())][0], rng


def run_round(seed, number):
    """Run a round; returns its kind."""
    kind, rng = drawn(seed, number)
    kind(rng)
    dy.renew_cg()
    return kind.__name__


def run_apart(seed, number):
    """Run a round in a process of its own, whose end by a signal is a failure as any other; returns its kind."""
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run_round(seed, number)
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    check(code >= 0, f"the process was ended by signal {-code}")
    check(code == 0, "see above")
    return drawn(seed, number)[0].__name__


# ---- the soak ------------------------------------------------------------------------------------


def memory():
    """Bytes of memory that the process holds after freeing all that it can."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def show(fraction, counts, used, begun):
    """The progress bar, on one line of a terminal."""
    if sys.stderr.isatty() or fraction >= 1:
        bar = ("#" * int(30 * fraction)).ljust(30, ".")
        end = "\n" if fraction >= 1 else ""
        sys.stderr.write(f"\r[{bar}] {100 * fraction:5.1f} %  {sum(counts.values()):,} rounds  {used >> 20} MiB{end}")
    else:
        minutes = (time.monotonic() - begun) / 60
        sys.stderr.write(
            f"{minutes:6.1f} min  {100 * fraction:5.1f} %  {sum(counts.values()):,} rounds  {used >> 20} MiB\n"
        )
    sys.stderr.flush()


def soak(minutes, seed, first=0, options=(), apart=False):
    """Run rounds for this many minutes; returns the number of failures."""
    begun = time.monotonic()
    end = begun + 60 * minutes
    counts, failed, failures, samples = Counter(), Counter(), 0, []
    number, next_sample, next_line = first, begun, begun
    while (at := time.monotonic()) < end:
        try:
            counts[(run_apart if apart else run_round)(seed, number)] += 1
        except Exception:
            failures += 1
            failed[drawn(seed, number)[0].__name__] += 1
            again = " ".join(["tools/soak.py", f"--seed {seed} --round {number}", *options])
            sys.stderr.write(f"\nround {number} failed; run it alone: {again}\n")
            traceback.print_exc()
            if failures >= 10 and not apart:
                break
        number += 1
        if at >= next_sample:
            samples.append((at - begun, memory()))
            next_sample = at + minutes * 60 / 200
        if at >= next_line:
            show((at - begun) / (60 * minutes), counts, samples[-1][1], begun)
            next_line = at + (0.5 if sys.stderr.isatty() else 60)
    samples.append((time.monotonic() - begun, memory()))
    show(1, counts, samples[-1][1], begun)
    late = [used for passed, used in samples if passed > 12 * minutes]
    # Some rounds need more memory, so compare minima over many samples: leaked memory is in all of them.
    part = len(late) // 4
    growth = min(late[-part:]) - min(late[:part]) if part else 0
    print(", ".join(f"{name} {n}" for name, n in counts.most_common()))
    if failed:
        print("failed:", ", ".join(f"{name} {n} of {n + counts[name]}" for name, n in failed.most_common()))
    print(
        f"seed {seed}: {sum(counts.values()):,} rounds, {failures} failures; memory {late[0] >> 20} MiB after a fifth "
        f"of the time, {late[-1] >> 20} at the end, {max(u for _, u in samples) >> 20} at most"
    )
    if growth > MOST_GROWTH:
        print(f"memory has grown by {growth:,} bytes")
        failures += 1
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="drawn if it is not given")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--round", type=int, default=None, help="run only this round")
    parser.add_argument(
        "--apart", action="store_true", help="each round in a process of its own, to go on after crashes"
    )
    parser.add_argument("--gpu", choices=["emulated", "real"], help="programs on GPU:0 as well")
    parser.add_argument("--repeat", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--saves", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--ending", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    if args.repeat is not None:
        print(repeat(*args.repeat))
        return 0
    if args.job is not None:
        job(int(args.job[0]), args.job[1])
        return 0
    if args.saves is not None:
        saves(int(args.saves[0]), args.saves[1], int(args.saves[2]))
        return 0
    if args.ending is not None:
        ENDINGS[args.ending[0]](int(args.ending[1]))
        return 0
    if args.gpu:
        add_gpu(args.gpu)
    seed = int.from_bytes(os.urandom(4), "little") if args.seed is None else args.seed
    dy.config.set(random_seed=seed)
    if args.round is not None:
        print(run_round(seed, args.round))
        return 0
    return 1 if soak(args.minutes, seed, args.first, [f"--gpu {args.gpu}"] if args.gpu else [], args.apart) else 0


if __name__ == "__main__":
    sys.exit(main())
