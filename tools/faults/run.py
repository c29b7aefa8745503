#!/usr/bin/env python3
"""Makes every allocation of the engine fail once, and checks that nothing else goes wrong.

    python tools/faults/run.py                       # all programs, every allocation
    python tools/faults/run.py --every 50 tagger     # one program, each fiftieth allocation

Each program is run once for each allocation that the engine makes while it runs: from the C library, from the system,
and of Python objects (see faults.c).  It must end with MemoryError, or with the right numbers if the engine can do
without the memory.  After that, a run without a fault must give the right numbers too.  The exit status is 1 if any of
this fails; if the engine crashes, so does this program.  Needs a C compiler and glibc.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dynet_cy as dy
from dynet_cy.graph.expressions import reset_random_seed as set_seed
from dynet_cy.graph.origin import is_recording
from dynet_cy.parallel import runtime
from dynet_cy.parallel.communicator import LocalCommunicator
from dynet_cy.parallel.shared import SharedCommunicator
from dynet_cy.parallel.shared_memory import Board, anonymous_memory
from dynet_cy.watch.instruments import is_checking

Numbers = list["np.ndarray"]
PROGRAMS: dict[str, Callable[[Path], Numbers]] = {}


def program(function: Callable[[Path], Numbers]) -> Callable[[Path], Numbers]:
    PROGRAMS[function.__name__] = function
    return function


def values_of(collection: dy.ParameterCollection) -> Numbers:
    return [p.as_array() for p in [*collection.parameters_list(), *collection.lookup_parameters_list()]]


@program
def tagger(_: Path) -> Numbers:
    """A bidirectional LSTM with automatic batching, and updates by Adam."""
    model = dy.ParameterCollection()
    trainer = dy.AdamTrainer(model)
    table = model.add_lookup_parameters((10, 4))
    weights = model.add_parameters((3, 10))
    builder = dy.BiRNNBuilder(1, 4, 10, model, dy.VanillaLSTMBuilder)
    for autobatching in (1, 2, 0):
        dy.renew_cg(autobatching=autobatching)
        losses = []
        for sentence in ([1, 2, 3, 4], [5, 6], [7, 8, 9]):
            for k, y in enumerate(builder.transduce([table[w] for w in sentence])):
                losses.append(dy.pickneglogsoftmax(weights * y, k % 3))
        loss = dy.esum(losses)
        loss.backward()
        trainer.update()
    return values_of(model)


@program
def operations(_: Path) -> Numbers:
    """Operations of all families, on minibatches, with gradients of expressions."""
    dy.renew_cg(autobatching=1)
    model = dy.ParameterCollection()
    w = model.add_parameters((4, 4))
    filters = model.add_parameters((2, 2, 1, 2))
    image = dy.inputTensor(np.arange(16.0).reshape(4, 4, 1))
    x = dy.inputTensor(np.linspace(-1, 1, 12).reshape(4, 3), batched=True)
    y = dy.dropout(dy.tanh(w * x), 0.5) + dy.random_normal((4,))
    z = dy.concatenate([y, dy.softmax(x), dy.cmult(x, y)])
    conv = dy.rectify(dy.conv2d(image, filters, [1, 1]))
    loss = dy.sum_batches(dy.squared_norm(z) + dy.pick_batch(y, [0, 1, 2]) + dy.hinge_batch(x, [1, 2, 3]))
    loss = loss + dy.sum_elems(conv) + dy.logsumexp([dy.sum_batches(dy.max_dim(y, 0)), dy.scalarInput(1)])
    loss.backward(full=True)
    return [loss.npvalue(), y.gradient(), z.npvalue(), w.grad_as_array(), filters.grad_as_array()]


@program
def decoder(_: Path) -> Numbers:
    """A forward-only graph, which is compacted, next to an open graph."""
    model = dy.ParameterCollection()
    w = model.add_parameters((6, 6))
    with dy.ComputationGraph() as beside:
        kept = dy.tanh(w * dy.ones(6))
        kept.forward()
    with dy.ComputationGraph() as graph:
        graph.renew(forward_only=True)
        x = dy.inputVector([0.1] * 6)
        for k in range(40):
            x = dy.tanh(w * x) + float(k)
            if k % 5 == 0:
                x.forward()
        value = x.npvalue()
    with beside:
        return [value, (kept + 1).npvalue()]


@program
def checkpoints(_: Path) -> Numbers:
    """Checkpoints, inputs that are set again, long lists of arguments, and arrays of the graph that grow."""
    dy.renew_cg(autobatching=1)
    x = dy.inputVector([1, 2, 3])
    y = dy.square(x)
    found = [y.npvalue()]
    for k in range(3):
        dy.cg_checkpoint()
        found.append(dy.esum([y * float(k + i) for i in range(40)]).npvalue())
        dy.cg_revert()
    x.set([3, 2, 1])
    found.append(y.npvalue(recalculate=True))
    big = [dy.inputTensor(np.full(20_000, float(k))) for k in range(4)]
    found.append(dy.dot_product(dy.esum(big), big[0] + 1.0).npvalue())
    z = x
    for _ in range(1500):
        z = z + 1.0
    found.append(z.npvalue())
    return found


@program
def files(folder: Path) -> Numbers:
    """Parameters and whole models that are saved and loaded."""
    model = dy.ParameterCollection()
    weights = model.add_parameters((3, 3), name="w")
    builder = dy.VanillaLSTMBuilder(1, 3, 3, model)
    model.save(str(folder / "model"))
    other = dy.ParameterCollection()
    other.add_parameters((3, 3), name="w")
    dy.VanillaLSTMBuilder(1, 3, 3, other)
    other.populate(str(folder / "model"))
    dy.save(str(folder / "pair"), [weights, builder])
    third = dy.ParameterCollection()
    dy.load(str(folder / "pair"), third)
    return [*values_of(other), *values_of(third)]


@program
def trainers(_: Path) -> Numbers:
    """Trainers with state, clipping, weight decay, sparse updates, and updates of all rows."""
    found = []
    for make, rows in (
        (dy.SimpleSGDTrainer, 5), (dy.MomentumSGDTrainer, 5), (dy.AdagradTrainer, 5), (dy.AmsgradTrainer, 5),
        (dy.AdamTrainer, 1400),
    ):  # fmt: skip
        model = dy.ParameterCollection()
        model.set_weight_decay(1e-3)
        table, w = model.add_lookup_parameters((rows, 3)), model.add_parameters((3, 3))
        trainer = make(model)
        trainer.set_sparse_updates(rows == 5)
        for k in range(2):
            dy.renew_cg()
            dy.sum_batches(dy.squared_norm(w * dy.lookup_batch(table, [k, 3]))).backward()
            trainer.update()
        found += values_of(model)
    return found


@program
def anomalies(_: Path) -> Numbers:
    """Recorded lines, checks of values and gradients, and the errors that they raise."""
    found = [np.array([is_checking(), is_recording()])]
    model = dy.ParameterCollection()
    w = model.add_parameters((3, 3), name="w")
    table = model.add_lookup_parameters((4, 3), name="table")
    trainer = dy.SimpleSGDTrainer(model)
    with dy.detect_anomaly():
        for k in range(2):
            dy.renew_cg()
            dy.esum([dy.squared_norm(w * dy.tanh(table[k + i])) for i in range(2)]).backward()
            trainer.update()
        for wrong in (dy.log, dy.sqrt):
            dy.renew_cg()
            x = dy.cmult(table[1], dy.inputVector([0.0, 0.0, 0.0]))
            with contextlib.suppress(dy.AnomalyError):
                dy.sum_elems(w * wrong(x)).backward()
            found.append(w.grad_as_array())
        found.append(table.grad_as_array())
    return [*found, *values_of(model)]


@program
def fibers(_: Path) -> Numbers:
    """Calls that wait for values, maps within a map, and exceptions of single calls."""
    model = dy.ParameterCollection()
    w = model.add_parameters((3, 3))
    dy.renew_cg()

    def halved(k: int) -> tuple[dy.Expression, int]:
        x, steps = dy.tanh(w * dy.inputVector([k, 1.0, 2.0])), 0
        while dy.squared_norm(x).value() > 0.1:
            x, steps = x * 0.5, steps + 1
        if k == 4:
            inner = dy.batched_map(lambda y: dy.dropout(x * y, 0.5).value(), [1.0, 2.0], width=1)
            x = x + dy.inputVector(inner[1])
        if k == 2:
            raise ValueError("of one item")
        return x, steps

    found = dy.batched_map(halved, range(6), width=4, return_exceptions=True)
    for result in found:
        if isinstance(result, MemoryError):
            raise result
    results = [result for result in found if isinstance(result, tuple)]
    loss = dy.esum([dy.squared_norm(x) for x, _ in results])
    loss.backward()
    # If there is no memory for a common pass, each item is computed alone, and sums are rounded differently.
    return [np.array([steps for _, steps in results]), np.round(loss.npvalue(), 4), np.round(w.grad_as_array(), 4)]


@program
def threads(_: Path) -> Numbers:
    """Graphs of other threads, whose allocations succeed, next to this thread's, and a product on all threads."""
    model = dy.ParameterCollection()
    w = model.add_parameters((200, 200))
    x = np.linspace(-1, 1, 200 * 200).reshape(200, 200)
    ends = threading.Event()
    wrong: list[str] = []

    def compute() -> None:
        desired = None
        while True:
            dy.renew_cg()
            h = dy.inputTensor(x[:, :3])
            for _ in range(5):
                h = dy.tanh(w * h)
            value = h.npvalue()
            if desired is not None and not np.array_equal(value, desired):
                wrong.append("another thread's graph")
            desired = value
            if ends.is_set():
                return

    others = [threading.Thread(target=compute) for _ in range(2)]
    for thread in others:
        thread.start()
    try:
        dy.renew_cg()
        loss = dy.sum_elems(dy.square(w * dy.inputTensor(x)))
        loss.backward()
        return [loss.npvalue(), w.grad_as_array()]
    finally:
        ends.set()
        for thread in others:
            thread.join()
        assert not wrong, wrong


@program
def processes(_: Path) -> Numbers:
    """Two processes that make updates together.  The next line fails, which must not affect the next job."""
    memory = anonymous_memory()
    child = 0
    try:
        Board(memory, 2, create=True)
        child = os.fork()
        if not child:
            try:
                ctypes.CDLL(os.environ["DYNET_CY_FAULTS"]).faults_disarm()
                train_together(memory, 1)
            finally:
                os._exit(0)
        signal.alarm(20)  # in case a rank waits forever
        return train_together(memory, 0)
    finally:
        signal.alarm(0)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(memory)


def train_together(memory: int, rank: int) -> Numbers:
    before = runtime.use(SharedCommunicator(Board(memory, 2, rank)))
    try:
        dy.reset_random_seed(3)
        model = dy.ParameterCollection()
        table, w = model.add_lookup_parameters((6, 3)), model.add_parameters((3, 3))
        trainer = dy.parallel.wrap(dy.AdamTrainer(model))
        for k in dy.parallel.shard(range(6)):
            dy.renew_cg()
            dy.squared_norm(w * table[k]).backward()
            trainer.update(skip_nonfinite=True)
        return values_of(model)
    finally:
        runtime.use(before or LocalCommunicator())


def on_devices(_: Path) -> Numbers:
    """Training with a graph on a GPU and on the CPU, with and without checks for anomalies."""
    found = []
    for check in (False, True):
        with dy.detect_anomaly() if check else contextlib.nullcontext():
            model = dy.ParameterCollection()
            table = model.add_lookup_parameters((6, 4), device="GPU:0")
            w = model.add_parameters((3, 4), device="GPU:0")
            v = model.add_parameters((3, 3), device="CPU")
            trainer = dy.AdamTrainer(model)
            with dy.ComputationGraph():
                for k in range(2):
                    dy.renew_cg()
                    hs = [dy.tanh(w * table[k + i]) for i in range(3)]
                    losses = [dy.squared_norm(v * dy.to_device(dy.dropout(h, 0.5), "CPU")) for h in hs]
                    dy.esum(losses).backward()
                    trainer.update(skip_nonfinite=True)
            found += values_of(model)
    return found


def has_device() -> bool:
    try:
        dy.get_device_info("GPU:0")
    except RuntimeError:
        return False
    return True


if has_device():  # or an emulated one: tools/gpu/emulate.py
    program(on_devices)


# ---- the runs --------------------------------------------------------------------


def preload() -> None:
    """Run this program again with the library that makes allocations fail."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "faults.so"
        source = Path(__file__).parent / "faults.c"
        subprocess.run(
            [*shlex.split(os.environ.get("CC", "cc")), "-O1", "-g", "-shared", "-fPIC", "-o", library, source, "-ldl"],
            check=True,
        )
        environment = {**os.environ, "LD_PRELOAD": str(library), "DYNET_CY_FAULTS": str(library)}
        sys.exit(subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=environment).returncode)


def same(found: Numbers, desired: Numbers) -> bool:
    return len(found) == len(desired) and all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, desired))


def prepare() -> None:
    """Restore the state before any run: free what programs have made, and reset the random numbers."""
    gc.collect()
    set_seed(1)


def run(function: Callable[[Path], Numbers], folder: Path) -> Numbers:
    with dy.ComputationGraph():  # a new one, so that its memory is new
        return function(folder)


def check(name: str, every: int, lib: ctypes.CDLL, folder: Path) -> int:
    """Run one program for each of its allocations; returns how many of the runs went wrong."""
    function = PROGRAMS[name]
    for _ in range(3):  # so that everything that is made only once exists
        prepare()
        desired = run(function, folder)
    prepare()
    lib.faults_arm(0)
    run(function, folder)
    total = lib.faults_disarm()
    errors = absorbed = wrong = 0
    unraisable: list[str] = []

    def note(u) -> None:
        if not (u.exc_type is MemoryError and ("__del__" in repr(u.object) or "__dealloc__" in repr(u.object))):
            unraisable.append(f"{u.exc_type.__name__} in {u.object!r}")

    sys.unraisablehook = note
    for n in range(1, total + 1, every):
        Path(folder, "at").write_text(f"{name} {n}")
        failure = ""
        prepare()
        lib.faults_arm(n)
        try:
            found = run(function, folder)
            asked = lib.faults_disarm()
            absorbed += asked >= n
            if not same(found, desired):
                failure = "other numbers"
        except MemoryError:
            lib.faults_disarm()
            errors += 1
        except BaseException as error:
            lib.faults_disarm()
            # Python itself raises this error if it has no memory for a class with abstract methods.
            if isinstance(error, SystemError) and "returned a result with an exception set" in str(error):
                errors += 1
            else:
                failure = traceback.format_exc()
        if unraisable:
            failure += f" ignored: {unraisable}"
            unraisable.clear()
        prepare()
        try:
            if not same(run(function, folder), desired):
                failure += " other numbers in the run after it"
        except BaseException:
            failure += " in the run after it: " + traceback.format_exc()
        if failure:
            wrong += 1
            print(f"{name}: allocation {n} of {total}: {failure}", flush=True)
    print(f"{name}: {total} allocations, {errors} errors, {absorbed} done without, {wrong} wrong", flush=True)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", choices=[*PROGRAMS, []], default=[], help="all if none is named")
    parser.add_argument("--every", type=int, default=1, help="make only every N-th allocation fail")
    options = parser.parse_args()
    if "DYNET_CY_FAULTS" not in os.environ:
        preload()
    lib = ctypes.CDLL(os.environ["DYNET_CY_FAULTS"])
    lib.faults_disarm.restype = ctypes.c_long
    lib.faults_arm.argtypes = [ctypes.c_long]
    gc.disable()
    with tempfile.TemporaryDirectory() as folder:
        for name in PROGRAMS:  # loads all modules
            prepare()
            run(PROGRAMS[name], Path(folder))
        gc.collect()
        gc.freeze()  # later collections only examine what a run has left
        lib.faults_begin()
        wrong = sum([check(name, options.every, lib, Path(folder)) for name in options.programs or PROGRAMS])
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
