"""Rounds with extra processes: fresh ones, jobs, concurrent saving, unusual ends."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import dynet_cy as dy
from soak_rounds.programs import Engine, Model, check, close, program, same
from soak_rounds.sizes import little_memory
from soak_rounds.training import TRAINERS, make_trainer

FILE = str(Path(__file__).resolve().parent.parent / "soak.py")


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
