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
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
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
            kind, k = int(rng.integers(10)), int(rng.integers(N))
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
    (saving, 1), (reverts, 3), (errors, 3), (maps, 2), (threads, 2), (builders, 3), (interrupts, 1), (fresh, 0.03),
    (processes, 0.03),
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


def run_round(seed, number):
    """Run a round; returns its kind."""
    rng = np.random.default_rng([seed, number])
    weights = np.array([weight for _, weight in ROUNDS])
    kind = ROUNDS[rng.choice(len(ROUNDS), p=weights / weights.sum())][0]
    kind(rng)
    dy.renew_cg()
    return kind.__name__


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


def soak(minutes, seed, first=0, options=()):
    """Run rounds for this many minutes; returns the number of failures."""
    begun = time.monotonic()
    end = begun + 60 * minutes
    counts, failures, samples = Counter(), 0, []
    number, next_sample, next_line = first, begun, begun
    while (at := time.monotonic()) < end:
        try:
            counts[run_round(seed, number)] += 1
        except Exception:
            failures += 1
            again = " ".join(["tools/soak.py", f"--seed {seed} --round {number}", *options])
            sys.stderr.write(f"\nround {number} failed; run it alone: {again}\n")
            traceback.print_exc()
            if failures >= 10:
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
    parser.add_argument("--gpu", choices=["emulated", "real"], help="programs on GPU:0 as well")
    parser.add_argument("--repeat", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    if args.repeat is not None:
        print(repeat(*args.repeat))
        return 0
    if args.job is not None:
        job(int(args.job[0]), args.job[1])
        return 0
    if args.gpu:
        add_gpu(args.gpu)
    seed = int.from_bytes(os.urandom(4), "little") if args.seed is None else args.seed
    dy.config.set(random_seed=seed)
    if args.round is not None:
        print(run_round(seed, args.round))
        return 0
    return 1 if soak(args.minutes, seed, args.first, [f"--gpu {args.gpu}"] if args.gpu else []) else 0


if __name__ == "__main__":
    sys.exit(main())
