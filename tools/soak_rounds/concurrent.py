"""Rounds of threads and of signals."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter

import numpy as np

import dynet_cy as dy
from soak_rounds.maps import map_of
from soak_rounds.programs import Engine, Model, Numpy, Stop, alarm, check, close, program, same
from soak_rounds.training import TRAINERS, make_trainer


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
