"""Random programs without end: results are recomputed in other ways, and memory must stay flat.

    python tools/soak.py --minutes 60

A round is one random program of one kind (`ROUNDS`), made from the seed and its number alone, so `--round N` runs one
again.  Values are compared with NumPy in float64, gradients with differences of it, and both with other schedules,
other threads, saved and loaded models and fresh processes.  The end status is 0 if nothing differed and memory was
flat after the first fifth of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
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

N, ROWS = 6, 12
PAGE = os.sysconf("SC_PAGE_SIZE")
# What memory may grow after the first fifth: allocators keep what was freed.
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
    """The same of dynet_cy."""

    def __init__(self, model):
        self.model = model

    def parameter(self, name):
        return self.model.stored[name]

    def row(self, i):
        return self.model.stored["table"][i]

    def input(self, numbers):
        return dy.inputVector(numbers)

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


def program(ops, seed):
    """One scalar: a random program of that seed."""
    rng = np.random.default_rng(seed)
    scalars = []
    for _ in range(int(rng.integers(1, 6))):
        pool = [ops.row(int(rng.integers(ROWS))) for _ in range(int(rng.integers(1, 5)))]
        pool.append(ops.input(rng.uniform(-1, 1, N)))
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
    """Parameters of programs."""

    SHAPES = (("w", (N, N)), ("u", (N, N)), ("b", (N,)), ("gain", (N,)))

    def __init__(self, seed, collection=None):
        rng = np.random.default_rng(seed)
        self.collection = dy.ParameterCollection() if collection is None else collection
        self.stored = {
            name: self.collection.add_parameters(shape, init=rng.uniform(-1, 1, shape), name=name)
            for name, shape in self.SHAPES
        }
        rows = rng.uniform(-1, 1, (ROWS, N))
        self.stored["table"] = self.collection.lookup_parameters_from_numpy(rows, name="table")

    def values(self):
        return {name: p.as_array().astype(np.float64) for name, p in self.stored.items()}

    def gradients(self):
        return {name: p.grad_as_array().astype(np.float64) for name, p in self.stored.items()}

    def clear(self):
        for p in self.stored.values():
            p.scale_gradient(0)

    def loss(self, seed, **graph):
        dy.renew_cg(**graph)
        return program(Engine(self), seed)


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


# ---- rounds --------------------------------------------------------------------------------------


class Stop(Exception):
    """What the handler of alarms raises."""


def _stop(number, frame):
    raise Stop


@contextlib.contextmanager
def alarm(seconds):
    """Stop comes after that time, or at the end at the latest, and nothing of it is left afterwards."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def values_and_gradients(rng):
    """Against float64, under every schedule."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    before = model.values()
    expected = program(Numpy(before), seed)
    direction = {name: rng.standard_normal(v.shape) for name, v in before.items()}
    step = 1e-5
    ahead, behind = (program(Numpy({k: v + s * step * direction[k] for k, v in before.items()}), seed) for s in (1, -1))
    slope = (ahead - behind) / (2 * step)
    first = None
    for autobatch in (0, 1, 2, 1):  # the second 1 has a schedule that was kept
        loss = model.loss(seed, autobatching=autobatch, check_validity=bool(rng.integers(2)))
        close(loss.value(), expected, f"value with autobatch {autobatch}")
        loss.backward(full=bool(rng.integers(2)))
        found = model.gradients()
        model.clear()
        close(sum((found[k] * direction[k]).sum() for k in found), slope, f"slope with autobatch {autobatch}", 2e-3)
        first = found if first is None else first
        close(found, first, f"gradient with autobatch {autobatch}", 1e-3)
    loss = model.loss(seed, forward_only=True)
    close(loss.value(), expected, "value of a graph that only goes forward")
    loss = model.loss(seed, immediate_compute=True)
    close(loss.value(), expected, "value of nodes computed at once")


TRAINERS = (
    dy.SimpleSGDTrainer, dy.MomentumSGDTrainer, dy.AdagradTrainer, dy.AdadeltaTrainer, dy.RMSPropTrainer,
    dy.AdamTrainer, dy.AmsgradTrainer, dy.CyclicalSGDTrainer,
)  # fmt: skip


def train(model, trainer, seeds, autobatch):
    for seed in seeds:
        model.loss(int(seed), autobatching=autobatch).backward()
        trainer.update()


def training(rng):
    """Two equal models, trained under two schedules; one of them is saved and loaded on the way."""
    start, seeds = rng.integers(1 << 30), rng.integers(1 << 30, size=6)
    make = TRAINERS[rng.integers(len(TRAINERS))]
    one, other = Model(start), Model(start)
    trainers = [make(one.collection), make(other.collection)]
    if rng.integers(2):
        for trainer in trainers:
            trainer.set_sparse_updates(False)
    if rng.integers(2):
        for model in (one, other):
            model.collection.set_weight_decay_lambda(1e-3)
    train(one, trainers[0], seeds, 0)
    train(other, trainers[1], seeds[:3], 1)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "state.safetensors")
        dy.save_safetensors(file, other.collection, trainers[1])
        third = Model(start + 1)
        again = make(third.collection)
        again.set_sparse_updates(True)
        dy.load_safetensors(file, third.collection, again)
    train(third, again, seeds[3:], 2)
    # Steps of Adagrad and others divide by small numbers.
    close(third.values(), one.values(), f"parameters trained by {make.__name__}", 2e-2)


def frozen(rng):
    """A parameter that is not updated keeps its value, and the others move."""
    model = Model(rng.integers(1 << 30))
    trainer = dy.AdamTrainer(model.collection)
    name = sorted(model.stored)[rng.integers(len(model.stored))]
    model.stored[name].set_updated(False)
    before = model.values()
    train(model, trainer, rng.integers(1 << 30, size=3), 1)
    after = model.values()
    close(after[name], before[name], f"frozen {name}", 0)
    check(any((after[k] != before[k]).any() for k in after if k != name), "nothing was trained")


def saving(rng):
    """Models in every format are read as they were written."""
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
    """Checkpoints of a graph, what lies behind them, and errors in using it."""
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
    """Misuse raises, and what follows is right."""
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
    # A gradient that is not a number: the update is refused, and nothing moves.
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


def threads(rng):
    """Graphs of several threads at once, over one model."""
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

    def work(k):
        try:
            with dy.ComputationGraph():
                found[k] = []
                for s in seeds[k]:
                    loss = model.loss(int(s), autobatching=k % 3)
                    found[k].append(loss.value())
                    loss.backward()
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


def builders(rng):
    """Recurrent networks over batches of sentences: together as one by one."""
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
    """Signals in forward, backward and updates: all is as if they had been made whole, or not been begun."""
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


def repeat(seed, start):
    """What a fresh process prints for `fresh`."""
    model = Model(start)
    loss = model.loss(seed)
    value = loss.value()
    loss.backward()
    return f"{value!r} {float(sum(np.abs(g).sum() for g in model.gradients().values()))!r}"


def fresh(rng):
    """A fresh process, with all threads that the machine has, gets the same value, and slopes to rounding."""
    seed, start = (int(x) for x in rng.integers(1 << 30, size=2))
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--repeat", str(seed), str(start)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    check(done.returncode == 0, f"a fresh process: {done.stderr}")
    theirs, ours = done.stdout.split(), repeat(seed, start).split()
    check(theirs[0] == ours[0], f"value {theirs[0]} and {ours[0]}")
    # Weights that were packed here, and are not there, are multiplied in another order.
    check(abs(float(theirs[1]) - float(ours[1])) <= 1e-6 * float(ours[1]), f"slopes {theirs[1]} and {ours[1]}")


# How often, beside what.
ROUNDS = (
    (values_and_gradients, 8), (training, 3), (frozen, 1), (saving, 1), (reverts, 3), (errors, 3), (threads, 2),
    (builders, 3), (interrupts, 1), (fresh, 0.03),
)  # fmt: skip


def run_round(seed, number):
    """Run that round; its kind."""
    rng = np.random.default_rng([seed, number])
    weights = np.array([weight for _, weight in ROUNDS])
    kind = ROUNDS[rng.choice(len(ROUNDS), p=weights / weights.sum())][0]
    kind(rng)
    dy.renew_cg()
    return kind.__name__


# ---- the soak ------------------------------------------------------------------------------------


def memory():
    """Bytes of memory that the process has, after all that can be given back has been."""
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


def soak(minutes, seed, first=0):
    """Run rounds for that long; the number of failures."""
    begun = time.monotonic()
    end = begun + 60 * minutes
    counts, failures, samples = Counter(), 0, []
    number, next_sample, next_line = first, begun, begun
    while (at := time.monotonic()) < end:
        try:
            counts[run_round(seed, number)] += 1
        except Exception:
            failures += 1
            sys.stderr.write(f"\nround {number} failed; run it alone: tools/soak.py --seed {seed} --round {number}\n")
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
    growth = max(late[-3:]) - min(late[:3]) if len(late) > 3 else 0
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
    parser.add_argument("--round", type=int, default=None, help="run that round only")
    parser.add_argument("--repeat", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    if args.repeat is not None:
        print(repeat(*args.repeat))
        return 0
    seed = int.from_bytes(os.urandom(4), "little") if args.seed is None else args.seed
    dy.config.set(random_seed=seed)
    if args.round is not None:
        print(run_round(seed, args.round))
        return 0
    return 1 if soak(args.minutes, seed, args.first) else 0


if __name__ == "__main__":
    sys.exit(main())
