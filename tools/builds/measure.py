"""Measures one build: a line of JSON for each result and cost, for `compare.py`.

    python tools/builds/measure.py PART

Names end in what the value is: "bits" (a hash, which has to stay), or "bytes", "instructions", "launches", "seconds".
The build is the `dynet_cy` that Python finds; the programs are those of this checkout.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dynet_cy as dy
from dynet_cy import config

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / folder) for folder in ("benchmarks", "tests", "tests/execute", "tests/schedule", "tests/gpu")
]

Found = Iterator[tuple[str, Any]]
TRAINED = ["chain", "mlp", "tagger", "tagger_letters", "tree_lstm", "parser", "language_model", "seq2seq", "mnist_cnn"]
ATTENDED = ["transformer_tagger", "transformer_tagger_buckets"]


def bits(arrays: Iterable[Any]) -> str:
    """A hash of all numbers; every NaN counts as the same."""
    digest = hashlib.sha256()
    for x in arrays:
        x = np.asarray(x, order="F")
        digest.update(repr((x.shape, x.dtype.str)).encode())
        digest.update(np.where(np.isnan(x), np.nan, x).tobytes(order="F") if x.dtype.kind == "f" else x.tobytes("F"))
    return digest.hexdigest()[:16]


def stored(model: Any) -> list[Any]:
    return [*model.parameters_list(), *model.lookup_parameters_list()]


# ---- parts -------------------------------------------------------------------------------------


def updates() -> Found:
    """Parameters after 100 updates, by each rule, with and without groups, on one thread and on two."""
    rules = sorted(name for name in dy.__all__ if name.endswith("Trainer") and name != "Trainer")
    for name, grouped, threads in itertools.product(rules, (False, True), (1, 2)):
        config.set(threads=threads)
        dy.reset_random_seed(3)
        model = dy.ParameterCollection()
        W, b = model.add_parameters((300, 200), name="W"), model.add_parameters(300, name="b")
        table = model.add_lookup_parameters((50, 200), name="table")
        try:
            trainer = getattr(dy, name)(model)
        except TypeError:  # a class to derive from
            continue
        if grouped and hasattr(trainer, "add_group"):
            trainer.add_group([table], learning_rate=0.01)
            b.set_updated(False)
        for step in range(100):
            dy.renew_cg()
            hidden = [dy.tanh(W * table[(7 * step + k) % 50] + b) for k in range(3)]
            dy.esum([dy.squared_norm(h) for h in hidden]).backward()
            trainer.update()
        yield f"{name} groups={grouped} threads={threads} bits", bits(x.as_array() for x in stored(model))
    config.set(threads=1)


def trained(name: str, form: str, tiny: bool, rounds: int, part: float = 1.0) -> tuple[str, int]:
    """The bits of losses and of parameters after some updates, and the bytes of all arenas; within a part of them."""
    import workloads
    from workloads.common import Weights

    from dynet_cy.graph.expressions import arena_bytes
    from dynet_cy.memory import arena

    dy.reset_random_seed(5)
    workload = workloads.load(name, tiny)
    model = dy.ParameterCollection()
    loss = workload.dynet(dy, model)
    Weights().fill(model)
    trainer = (dy.AdamTrainer if workload.adam else dy.SimpleSGDTrainer)(model, workload.learning_rate)
    values = []

    def update() -> None:
        dy.renew_cg()
        expression = loss(form)
        values.append(expression.npvalue())
        if workload.mode != "forward":
            expression.backward()
        if workload.mode == "train":
            trainer.update()

    for k in range(rounds):
        update()
        if k == 1 and part < 1:
            held = sum(arena_bytes().values())
            config.set(mem=(arena.used_bytes() - (1 - part) * held) / 2**20)
            dy.renew_cg()
            arena.give_back()
    held = sum(arena_bytes().values())
    return bits([*values, *(x.as_array() for x in stored(model))]), held


def programs() -> Found:
    """All workloads, small, in each form that needs no other library, autobatched in all ways."""
    import workloads

    for name in workloads.NAMES:
        workload = workloads.load(name, True)
        for form in dict.fromkeys([*workload.dynet_forms, *workload.own_forms]):
            for strategy in (0, 1, 2) if form == "autobatch" else (0,):
                config.set(autobatch=strategy)
                yield f"{name} {form} autobatch={strategy} bits", trained(name, form, True, 4)[0]
    config.set(autobatch=0)


def memory() -> Found:
    """The bytes of the arenas of training programs at their full size, on one thread; and all bits."""
    for name in [*TRAINED, *ATTENDED]:
        config.set(threads=1, autobatch=1)
        found, held = trained(name, "autobatch", False, 3)
        yield f"{name} full bits", found
        yield f"{name} full bytes", held
    config.set(autobatch=0)


def limited() -> Found:
    """Training programs within a half of their memory: each in a process of its own."""
    for name in TRAINED:
        code = (
            f"import measure, json; measure.config.set(threads=1, autobatch=1);"
            f"print(json.dumps(measure.trained({name!r}, 'autobatch', False, 4, 0.5)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, cwd=Path(__file__).parent
        )
        found, held = json.loads(done.stdout) if not done.returncode else (done.stderr.strip()[-80:], 0)
        yield f"{name} half bits", found
        yield f"{name} half bytes", held


def random_programs() -> Found:
    """Random graphs, with and without calls that drop their values, second order, and maps that look at values."""
    import random_graphs
    import test_random_programs
    import test_recompute

    for seed in range(60):
        for call in (dy.checkpoint, test_recompute.plainly):
            _, found, later = test_recompute.random_program(seed, call)
            yield f"calls {seed} {call.__name__} bits", bits([*found, *later])
    for seed in range(20):
        program = test_random_programs.Program(seed, test_random_programs.on("CPU"))
        yield f"graphs {seed} bits", bits(program.run())
    model = random_graphs.Model()
    for seed, strategy in itertools.product(range(30), (0, 1, 2)):
        dy.renew_cg(autobatching=strategy)
        losses = random_graphs.build(model, seed, seed, look=0.2 * (seed % 2))
        dy.esum(losses).backward()
        yield f"sentences {seed} autobatch={strategy} bits", bits([x.npvalue() for x in losses] + model.gradients())
    for seed in range(10):
        dy.renew_cg(autobatching=1)
        loss = dy.esum(random_graphs.build(model, seed, seed))
        firsts = dy.gradients(loss, [model.w, model.u, model.b])
        dy.esum([dy.squared_norm(x) for x in firsts]).backward()
        yield f"second order {seed} bits", bits([x.npvalue() for x in firsts] + model.gradients())
    for seed in range(10):
        dy.renew_cg()

        def looked(k: int, seed: int = seed) -> Any:
            return dy.esum(random_graphs.build(model, seed + k, seed, look=0.5))

        losses = dy.batched_map(looked, list(range(8)))
        dy.esum(losses).backward()
        yield f"map {seed} bits", bits([x.npvalue() for x in losses] + model.gradients())


def device() -> Found:
    """Random programs on an emulated device: what they find, and the list of launches, products and copies."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        code = (
            "import measure, test_random_programs as t\n"
            "for seed in range(8): print(measure.bits(t.Program(seed, t.on('GPU:0')).run()))"
        )
        command = [sys.executable, str(ROOT / "tools/gpu/emulate.py"), sys.executable, "-c", code]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=900, cwd=Path(__file__).parent,
            env={**os.environ, "EMU_TRACE": str(trace)},
        )  # fmt: skip
        if done.returncode:
            yield "device bits", done.stderr.strip()[-80:]
            return
        yield "device bits", bits([np.frombuffer(done.stdout.encode(), np.uint8)])
        # Of addresses, their place in 2 MiB: arenas begin elsewhere in each process.
        text = re.sub(r"0x([0-9a-f]+)", lambda a: hex(int(a[1], 16) % (2 << 20)), trace.read_text(encoding="utf-8"))
        lines = text.splitlines()
        yield "device launches", len(lines)
        yield "device trace bits", hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


COST = """
import dynet_cy as dy
m = dy.ParameterCollection()
W, b = m.add_parameters((16, 16)), m.add_parameters(16)
def chain(n, run):
    dy.renew_cg()
    x = dy.inputVector([0.1] * 16)
    for _ in range(n): x = dy.tanh(x)
    run(dy.sum_elems(x))
def batches(n, run):
    dy.renew_cg(autobatching=1)
    xs = [dy.inputVector([0.1] * 16) for _ in range(8)]
    for _ in range(n): xs = [dy.tanh(W * x + b) for x in xs]
    run(dy.esum([dy.sum_elems(x) for x in xs]))
def passes(n, run):
    for _ in range(n):
        dy.renew_cg()
        run(dy.sum_elems(dy.tanh(W * dy.inputVector([0.1] * 16) + b)))
for f in chain, batches, passes:
    for run in dy.Expression.value, dy.Expression.backward:
        f(1000, run)
        for n in (200, 1000): count(lambda: f(n, run))
"""


def cost() -> Found:
    """Instructions of a node of a chain, of eight products and functions in a row, and of a small pass."""
    from instructions import counted

    with tempfile.TemporaryDirectory() as folder:
        found = counted(Path(folder), COST)
    for k, name in enumerate(f"{a} {b}" for a in ("chain", "batches", "passes") for b in ("forward", "backward")):
        yield f"{name} instructions", (found[2 * k + 1] - found[2 * k]) / 800


def size() -> Found:
    """The time of the import, and the bytes of the compiled modules."""
    seconds = []
    for _ in range(7):
        before = os.times()
        subprocess.run([sys.executable, "-c", "import dynet_cy"], check=True, timeout=100, cwd=Path(__file__).parent)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    yield "import seconds", min(seconds)
    yield "modules bytes", sum(p.stat().st_size for p in Path(dy.__file__).parent.rglob("*.so"))


PARTS: dict[str, Callable[[], Found]] = {
    f.__name__: f for f in (updates, programs, memory, limited, random_programs, device, cost, size)
}

if __name__ == "__main__":
    begun = time.monotonic()
    for name, value in PARTS[sys.argv[1]]():
        print(json.dumps([name, value]), flush=True)
