"""Several threads for one large product: the same bits on any number of threads, and safe in forks and errors."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.kernels import pool

NEVER = 1 << 30  # nanoseconds
COUNTS_FOR = 0.2  # seconds that a measured distance counts for
TRIES_FOR = 20.0  # seconds that a test waits for the other thread to look for work

pytestmark = pytest.mark.usefixtures("usual_threads")

# Rows of the left matrix, its columns, columns of the right one. They cover every way to compute a product, forward or
# backward: few columns, a short inner dimension, packed weights by rows and by columns, and OpenBLAS, all with
# remainders.
SIZES = [
    (1531, 307, 19),
    (1531, 7, 777),
    (811, 203, 67),
    (203, 203, 307),
    (67, 203, 467),
    (517, 389, 631),
    (1024, 256, 600),
]


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-1, 1, shape).astype(np.float32)


def products(m: int, k: int, n: int) -> list[bytes]:
    """Values and gradients of products with a parameter and with another matrix, several times each."""
    rng = np.random.default_rng([m, k, n])
    collection = dy.ParameterCollection()
    w = collection.parameters_from_numpy(numbers(rng, m, k))
    x = collection.parameters_from_numpy(numbers(rng, k, n))
    dy.renew_cg()
    other = dy.inputTensor(numbers(rng, m, k)) * 1.0
    right = x * 1.0
    ys = [w * right, w * (right * 0.5), other * right, w * right]
    loss = dy.sum_elems(dy.cmult(dy.esum(ys), dy.inputTensor(numbers(rng, m, n))))
    loss.backward(full=True)
    found = [*ys, loss, *(y.gradient() for y in (right, other))]
    arrays = [v.npvalue() if isinstance(v, dy.Expression) else v for v in found]
    return [np.asarray(a).tobytes() for a in [*arrays, w.grad_as_array(), x.grad_as_array()]]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_same_bits_on_any_number_of_threads(size: tuple[int, int, int]) -> None:
    config.set(threads=1)
    before = engine.stats("kernels.pool")["jobs"]
    desired = products(*size)
    assert engine.stats("kernels.pool")["jobs"] == before
    for threads in (2, 3, 8):
        config.set(threads=threads)
        before = engine.stats("kernels.pool")["jobs"]
        assert products(*size) == desired
        assert engine.stats("kernels.pool")["jobs"] >= before + 3, "no product was large enough to be divided"


def test_training_ends_with_the_same_bits() -> None:
    def trained(threads: int) -> list[bytes]:
        config.set(threads=threads)
        rng = np.random.default_rng(3)
        collection = dy.ParameterCollection()
        ps = [collection.parameters_from_numpy(numbers(rng, *s) / 20) for s in [(400, 300), (400,), (150, 400)]]
        trainer = dy.AdamTrainer(collection)
        for _ in range(3):
            dy.renew_cg()
            losses = []
            for i in range(80):
                h = dy.tanh(dy.affine_transform([ps[1], ps[0], dy.inputVector(numbers(rng, 300))]))
                losses.append(dy.pickneglogsoftmax(ps[2] * h, i))
            dy.esum(losses).backward()
            trainer.update()
        return [p.as_array().tobytes() for p in ps]

    before = engine.stats("kernels.pool")["jobs"]
    desired = trained(1)
    assert engine.stats("kernels.pool")["jobs"] == before
    assert trained(2) == desired
    assert engine.stats("kernels.pool")["jobs"] > before
    assert trained(5) == desired


def tries() -> Iterator[None]:
    """Many tries, which take no longer than that."""
    end = time.monotonic() + TRIES_FOR
    for _ in range(2000):
        yield
        if time.monotonic() > end:
            return


@pytest.mark.skipif(pool.cpus() < 2, reason="needs two CPUs")
def test_threads_that_are_far_apart_do_only_large_jobs() -> None:
    config.set(threads=2)
    dy.renew_cg()
    small, large = (dy.inputTensor(np.ones((n, n), np.float32)) for n in (200, 400))

    def jobs_of(x: dy.Expression) -> int:
        before = engine.stats("kernels.pool")["jobs"]
        (x * x).forward()
        return engine.stats("kernels.pool")["jobs"] - before

    engine.tune("kernels.pool.far_from", NEVER)
    measured = engine.stats("kernels.pool")["measurements"]
    for _ in tries():  # small jobs are divided only while the other thread looks for work
        assert jobs_of(large) == 1
        if jobs_of(small):
            break
    else:
        if engine.stats("kernels.pool")["measurements"] == measured:
            pytest.skip("the other thread never looked for work")
        pytest.fail("small products are never divided")
    with engine.tuned({"kernels.pool.far_from": 0}):
        for _ in range(10):
            assert jobs_of(large) == 1
            assert jobs_of(small) == 0


@pytest.mark.skipif(pool.cpus() < 2, reason="needs two CPUs")
@pytest.mark.parametrize(("nanoseconds", "far"), [(NEVER, False), (1, True)])
def test_jobs_measure_how_far_apart_threads_are(nanoseconds: int, far: bool) -> None:
    config.set(threads=2)
    dy.renew_cg()
    x = dy.inputTensor(np.ones((400, 400), np.float32))
    with engine.tuned({"kernels.pool.far_from": nanoseconds}):
        for _ in tries():
            began, before = time.monotonic(), engine.stats("kernels.pool")["measurements"]
            (x * x).forward()
            is_far = pool.is_far()
            measured = engine.stats("kernels.pool")["measurements"] > before
            if measured and time.monotonic() - began < COUNTS_FOR:
                assert is_far is far
                return
    pytest.skip("the other thread never looked for work, or jobs took longer than a measurement counts")


SIZE = (811, 203, 67)


def test_many_threads_ask_at_once() -> None:
    config.set(threads=1)
    desired = products(*SIZE)
    config.set(threads=3)
    barrier = threading.Barrier(4)

    def work(i: int) -> bool:
        barrier.wait()
        for k in range(3):
            assert products(*SIZE) == desired
            if i == 0:  # also while other threads compute
                config.set(threads=2 + k)
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(4)))


def test_after_fork() -> None:
    config.set(threads=3)
    desired = products(*SIZE)
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads warns
            child = os.fork()
        if not child:
            status = 1
            try:
                before = engine.stats("kernels.pool")["jobs"]
                same = products(*SIZE) == desired and engine.stats("kernels.pool")["jobs"] > before
                pool.stop()
                status = 0 if same and products(*SIZE) == desired else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert products(*SIZE) == desired


def test_fork_while_a_product_runs() -> None:
    config.set(threads=3)
    desired = products(*SIZE)
    graph = dy.ComputationGraph()
    with graph:
        m = dy.inputTensor(np.full((700, 700), 1 / 700, np.float32))
        y = m
        for _ in range(30):
            y = m * y
    running = threading.Thread(target=y.forward)
    running.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        status = 1
        try:
            before = engine.stats("kernels.pool")["jobs"]
            status = 0 if products(*SIZE) == desired and engine.stats("kernels.pool")["jobs"] > before else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    running.join()


def test_an_error_leaves_the_threads_in_order(memory_limit, memory_left) -> None:

    config.set(threads=2)
    desired = products(*SIZE)
    for _ in range(3):
        dy.renew_cg(check_validity=True)
        x = dy.inputTensor(np.full((300, 300), 3e38, np.float32))
        with pytest.raises(ValueError, match="not finite"):
            (x * x).forward()
    memory_left(1 << 16)
    with pytest.raises(MemoryError):
        dy.inputTensor(np.ones((3000, 3000), np.float32)).forward()
    memory_limit(0)
    before = engine.stats("kernels.pool")["jobs"]
    assert products(*SIZE) == desired
    assert engine.stats("kernels.pool")["jobs"] > before


def test_threads_are_ended_and_made_again() -> None:
    config.set(threads=4)
    desired = products(*SIZE)
    for threads in (2, 1, 3):
        config.set(threads=threads)
        assert products(*SIZE) == desired
        pool.stop()
        pool.stop()
        assert products(*SIZE) == desired


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
@pytest.mark.skipif(pool.cpus() < 2, reason="needs two CPUs")
def test_a_thread_leaves_the_cpu_of_the_owner(tmp_path) -> None:
    """The system may leave both threads on one CPU, where each waits for the other; the pool moves its thread away."""
    done = run_program(ON_ONE_CPU, tmp_path, "2")
    assert (done.returncode, done.stderr) == (0, "")


# Both threads start on one CPU; the thread of the pool must leave that CPU unless the main thread happens to leave it.
ON_ONE_CPU = """
import os
import numpy as np
import dynet_cy as dy
from dynet_cy.kernels import pool
everywhere = os.sched_getaffinity(0)
one = {min(everywhere)}
x = dy.inputTensor(np.ones((400, 400), np.float32))
before = set(os.listdir("/proc/self/task"))
(x * x).forward()
(ours,) = set(os.listdir("/proc/self/task")) - before
os.sched_setaffinity(0, one)
os.sched_setaffinity(int(ours), one)
for _ in range(100):
    os.sched_setaffinity(0, one)
    os.sched_setaffinity(0, everywhere)
    for _ in range(10):
        (x * x).forward()
    allowed = os.sched_getaffinity(int(ours))
    if allowed != one:
        break
assert allowed != one and allowed < everywhere, allowed
"""

IN_A_PROCESS = """
import sys, threading, time
import numpy as np
import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.kernels import pool
x = dy.inputTensor(np.ones((400, 400), np.float32))
assert (x * x).npvalue()[0, 0] == 400 and engine.stats("kernels.pool")["jobs"] == 1
if sys.argv[1:] == ["daemon"]:
    def forever():
        while True:
            dy.renew_cg()
            x = dy.inputTensor(np.ones((400, 400), np.float32))
            for _ in range(5):
                x = x * 0.001 * x
            x.forward()
    for _ in range(2):
        threading.Thread(target=forever, daemon=True).start()
    time.sleep(0.1)
"""


def run_program(program: str, folder: Path, threads: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path, "DYNET_CY_THREADS": threads},
        cwd=folder,  # not the source tree
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("arguments", [[], ["daemon"]], ids=str)
def test_the_process_ends(arguments: list[str], tmp_path) -> None:
    """A process ends even while threads compute on objects that the interpreter frees."""
    done = run_program(IN_A_PROCESS, tmp_path, "3", *arguments)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("threads", [-1, 1025, 1.5, "2", None], ids=repr)
def test_numbers_that_cannot_be(threads: object) -> None:
    before = pool.threads()
    with pytest.raises(ValueError, match="threads must be"):
        pool.set_threads(threads)
    assert pool.threads() == before


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("", None), ("1", 1), ("1,2", 1), (" 1 ", 1), ("9999", None), ("0", None), ("-1", None), ("x", None)],
)
def test_the_default(monkeypatch: pytest.MonkeyPatch, limit: str, expected: int | None) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    config.set(threads=0)
    assert pool.threads() == (expected or min(pool.cpus(), 1024))
    config.set(threads=7)
    assert config.get()["threads"] == 7


def test_the_default_of_processes_that_share_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    try:
        config.set(threads=0)
        pool.share_cpus(3)
        assert pool.threads() == 2
        pool.share_cpus(9)
        assert pool.threads() == 1
        config.set(threads=5)
        pool.share_cpus(2)
        assert pool.threads() == 5, "a number that was set is kept"
        config.set(threads=0)
        assert pool.threads() == 4
    finally:
        pool.share_cpus(1)
