"""Measure this machine in about a minute: products, nodes, an update, and a tagger with and without batching.

For comparing machines and installations with each other. Comparisons with other libraries are in benchmarks/ in the
source repository. Other running programs lower the numbers: close them first.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from dynet_cy import config
from dynet_cy.commands.info import facts
from dynet_cy.graph import ComputationGraph, Expression
from dynet_cy.model import ParameterCollection
from dynet_cy.ops.api import (
    affine_transform,
    concatenate,
    esum,
    inputTensor,
    pickneglogsoftmax,
    scalarInput,
    sum_elems,
    tanh,
)
from dynet_cy.rnn import LSTMBuilder
from dynet_cy.train import AdamTrainer, SimpleSGDTrainer

_SHOWN = ("dynet_cy", "Python", "CPU", "kernels", "OpenBLAS")


class Measurement(NamedTuple):
    """One line of the table."""

    what: str
    value: float
    unit: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--seconds``."""
    parser.add_argument("--seconds", type=_positive, default=60.0, help="for the whole table (default: 60)")


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError("seconds must be greater than 0")
    return seconds


def run(args: argparse.Namespace) -> None:
    """Print the machine, then each measurement as it finishes."""
    for name, value in facts():
        if name in _SHOWN:
            print(f"{name}: {value}")
    before = config.get()["threads"]
    try:
        for found in measurements(args.seconds, before):
            print(f"{found.what:<58} {found.value:10,.1f} {found.unit}", flush=True)
    finally:
        config.set(threads=before)


def measurements(seconds: float, threads: int) -> Iterator[Measurement]:
    """All measurements, which share the time.

    Args:
        seconds: the total time
        threads: products are measured with one thread and with this number
    """
    counts = [1] if threads == 1 else [1, threads]
    each = seconds / (2 * len(counts) + 5)
    for count in counts:
        config.set(threads=count)
        with_threads = f", {count} thread{'s' if count > 1 else ''}"
        for size, columns in ((1024, 1024), (512, 16)):
            flops = 2.0 * size * size * columns
            rate = flops / _best(_product(size, columns), each) / 1e9
            yield Measurement(f"product {size}x{size} by {size}x{columns}{with_threads}", rate, "GFLOP/s")
    config.set(threads=1)
    n = 2000
    yield Measurement("making a node from Python", 1e9 * _best(_nodes(n, compute=False), each) / n, "ns")
    yield Measurement(
        "making and running a node, nothing batched", 1e9 * _best(_nodes(n, compute=True), each) / n, "ns"
    )
    count, step, prepare = _adam()
    yield Measurement("update by Adam", count / _best(step, each, prepare) / 1e6, "million numbers/s")
    for autobatch in (0, 1):
        sentences, step = _tagger(autobatch)
        how = "batched automatically" if autobatch else "sentence by sentence"
        yield Measurement(f"training a BiLSTM tagger, hidden 128, {how}", sentences / _best(step, each), "sentences/s")


def _best(step: Callable[[], object], seconds: float, prepare: Callable[[], object] | None = None) -> float:
    """The shortest time of a call after a warm-up: the least disturbed one.

    Args:
        step: the function to measure
        seconds: how long to repeat it
        prepare: called before each step, outside the measured time
    """
    best, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 2 or time.perf_counter() < end:
        if prepare is not None:
            prepare()
        start = time.perf_counter()
        step()
        if calls:
            best = min(best, time.perf_counter() - start)
        calls += 1
    return best


def _product(size: int, columns: int) -> Callable[[], object]:
    model = ParameterCollection()
    W = model.add_parameters((size, size))
    x = np.random.default_rng(1).standard_normal((size, columns), dtype=np.float32)

    def step() -> None:
        with ComputationGraph():
            (W * inputTensor(x)).forward()

    return step


def _nodes(n: int, compute: bool) -> Callable[[], object]:
    def step() -> None:
        with ComputationGraph(autobatching=0):
            x: Expression = scalarInput(0.5)
            for _ in range(n):
                x = tanh(x)
            if compute:
                x.forward()

    return step


def _adam() -> tuple[int, Callable[[], object], Callable[[], object]]:
    model = ParameterCollection()
    W = model.add_parameters((1000, 1000))
    trainer = AdamTrainer(model)

    def prepare() -> None:
        with ComputationGraph():
            sum_elems(W).backward()

    return 1_000_000, trainer.update, prepare


def _tagger(autobatch: int) -> tuple[int, Callable[[], object]]:
    rng = random.Random(1)
    words, tags, hidden = 1000, 20, 128
    sentences = [[(rng.randrange(words), rng.randrange(tags)) for _ in range(rng.randint(5, 30))] for _ in range(16)]
    model = ParameterCollection()
    vectors = model.add_lookup_parameters((words, hidden))
    readers = [LSTMBuilder(1, hidden, hidden, model) for _ in range(2)]
    W, b = model.add_parameters((tags, 2 * hidden)), model.add_parameters(tags)
    trainer = SimpleSGDTrainer(model, 0.1)

    def step() -> None:
        with ComputationGraph(autobatching=autobatch):
            losses = []
            for sentence in sentences:
                inputs = [vectors[word] for word, _ in sentence]
                ahead = readers[0].initial_state().transduce(inputs)
                back = readers[1].initial_state().transduce(inputs[::-1])[::-1]
                for (_, tag), f, g in zip(sentence, ahead, back):
                    losses.append(pickneglogsoftmax(affine_transform([b, W, concatenate([f, g])]), tag))
            esum(losses).backward()
        trainer.update()

    return len(sentences), step
