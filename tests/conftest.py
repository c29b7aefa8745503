"""Fixtures for all tests."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import quick
import sampling
import starting
from cannot_run import pytest_leave_out_cases, pytest_pycollect_makeitem  # noqa: F401 - hooks
from devices import device, on_device, on_each_device, on_the_cpu_again  # noqa: F401 - fixtures
from limiting import pytest_configure, pytest_runtest_protocol, pytest_unconfigure  # noqa: F401 - hooks
from own_process import SANITIZED
from quick import pytest_ignore_collect  # noqa: F401 - a hook

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.graph.expressions import reset_random_seed as set_seed
from dynet_cy.graph.expressions import set_autobatching
from dynet_cy.memory import arena

starting.install()

SEED = 20240607
os.environ.setdefault("DYNET_CY_SEED", str(SEED))  # of programs that tests start
# They start no threads of NumPy's OpenBLAS, which take a sixth of an import; this process has them, where it may. Under
# the thread sanitizer they do: with the first thread it starts one of its own (noxfile.py).
if not SANITIZED:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


_AT_ONCE = 200  # tests whose reports garbage collections look at
_begun = itertools.count(1)


def _freeze() -> None:
    """Let garbage collections, as setting the seed makes them, look only at what the next tests make."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    quick.mark(items)
    sampling.leave_out(config, items)


def pytest_collection_finish() -> None:
    """Collected tests are hundreds of thousands of objects."""
    _freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed all generators before each test, and before the fixtures that it is the first to use.

    dynet_cy draws its seed at random, and what a test draws would depend on the tests before it. A hook, since the
    fixtures of a module are made before any fixture of a test.
    """
    if next(_begun) % _AT_ONCE == 0:  # a report is a dozen of objects, and pytest keeps all reports
        _freeze()
    set_seed(SEED)
    np.random.seed(SEED)
    random.seed(SEED)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt in the test, also where the tests were started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def collection() -> dy.ParameterCollection:
    """A new collection of parameters."""
    return dy.ParameterCollection()


@pytest.fixture
def w(collection: dy.ParameterCollection) -> dy.Parameters:
    """A parameter vector, 1 2 3."""
    return collection.parameters_from_numpy(np.array([1.0, 2.0, 3.0]), name="w")


@pytest.fixture
def graph():
    """The current graph, renewed for the test."""
    return dy.renew_cg()


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a seed, as that of dynet_cy has for each test."""
    return np.random.default_rng(SEED)


@pytest.fixture(params=[0, 1, 2], ids=["plain", "agenda", "depth"])
def strategy(request):
    """Each schedule in turn; the default is restored after the test."""
    set_autobatching(request.param)
    dy.renew_cg()
    yield request.param
    set_autobatching(1)
    dy.renew_cg()


NEVER = 1 << 30


@pytest.fixture(autouse=True, scope="session")
def threads_are_near():
    """Makes threads share jobs wherever a virtual machine has placed their CPUs, so that jobs can be counted."""
    engine.tune("kernels.pool.far_from", NEVER)


@pytest.fixture
def usual_threads():
    """Restores the default number of threads and renews the graph after the test."""
    yield
    config.set(threads=0)
    dy.renew_cg()


@pytest.fixture
def nothing_held() -> None:
    """For what compares memory in use: graphs and models of earlier tests hold none that could be freed meanwhile."""
    gc.collect()
    dy.renew_cg()
    arena.give_back()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For what counts bytes: a thread that reads gradients in the background keeps them, if it is awake."""
    config.set(threads=1)
    yield
    config.set(threads=0)


@pytest.fixture
def memory_limit():
    """A function that sets the limit of arenas, which is removed after the test."""
    yield arena.set_limit
    arena.set_limit(0)


@pytest.fixture
def memory_left(memory_limit):
    """A function that sets the limit n bytes above what is in use, after unused memory was freed."""

    def leave(n: int) -> None:
        gc.collect()
        arena.give_back()
        memory_limit(arena.used_bytes() + n)

    return leave


@pytest.fixture
def drops() -> Iterator[Callable[[bool], None]]:
    """Sets whether graphs drop what no backward reads, however little it is; those opened then fill it with NaN."""

    def switch(on: bool) -> None:
        engine.tune("memory.arena.poisoning", on)
        engine.tune("schedule.transient.small_too", on)

    at_first = {
        "memory.arena.poisoning": 0,
        "schedule.transient.small_too": 0,
        "schedule.transient.least_of_plan": 1 << 60,
        "schedule.transient.least_donated": 1,
    }
    with engine.tuned(at_first):
        yield switch


@pytest.fixture
def values_stay() -> Iterator[None]:
    """For what runs backward again although parameters have changed: no backward uses memory of values."""
    with engine.tuned({"schedule.transient.least_donated": 1 << 60}):
        yield


@pytest.fixture
def small_graphs_keep_all() -> Iterator[None]:
    """For what counts values or bytes: small graphs drop nothing, with DYNET_CY_DROP_SMALL=1 too."""
    with engine.tuned({"schedule.transient.small_too": False}):
        yield
