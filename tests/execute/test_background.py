"""Weight gradients computed by a second thread during backward: the same bits, whatever else is added to them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.kernels import pool

pytestmark = pytest.mark.usefixtures("usual_threads")

N, STEPS = 96, 30


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    dy.renew_cg()


class Network:
    """A recurrent network over minibatches; its weights get gradients in several ways."""

    def __init__(self, columns: int) -> None:
        rng = np.random.default_rng(columns)
        self.collection = dy.ParameterCollection()

        def parameter(*shape: int) -> dy.Parameters:
            return self.collection.parameters_from_numpy(rng.uniform(-0.1, 0.1, shape).astype(np.float32))

        self.W, self.U, self.b = parameter(N, N), parameter(N, N), parameter(N)
        self.xs = [rng.uniform(-1, 1, (N, columns)).astype(np.float32) for _ in range(STEPS)]

    def loss(self) -> dy.Expression:
        """Products of many columns, multiplied in place, of few columns, which are collected, and `W` itself."""
        dy.renew_cg()
        h, losses = None, []
        for i, x in enumerate(self.xs):
            both = dy.affine_transform([self.b, self.W, dy.inputTensor(x, batched=True)])
            h = dy.tanh(both if h is None else both + self.U * h)
            losses.append(dy.sum_batches(dy.sum_elems(h)))
            if i % 3 == 1:
                losses.append(dy.sum_elems(dy.square(self.W)))
                losses.append(dy.sum_elems(self.U * dy.inputVector(x[:, 0])))
        return dy.esum(losses)

    def gradients(self) -> list[bytes]:
        self.loss().backward()
        found = [p.grad_as_array().tobytes() for p in (self.W, self.U, self.b)]
        self.collection.zero_gradients()
        return found


@pytest.mark.parametrize("columns", [20, 160])
@pytest.mark.parametrize("autobatch", [0, 1])
def test_the_same_bits_with_a_second_thread(columns: int, autobatch: int) -> None:
    config.set(threads=1, autobatch=autobatch)
    try:
        network = Network(columns)
        desired = network.gradients()
        before = engine.stats("kernels.pool")["background_runs"]
        assert network.gradients() == desired
        assert engine.stats("kernels.pool")["background_runs"] == before, "there is only one thread"
        for threads in (2, 3):
            config.set(threads=threads)
            large = dy.inputTensor(np.ones((400, 400), np.float32))
            (large * large).forward()  # starts the threads
            before = engine.stats("kernels.pool")["background_runs"]
            for i in range(2000):
                assert network.gradients() == desired
                if i >= 5 and (engine.stats("kernels.pool")["background_runs"] > before or threads > pool.cpus()):
                    break
            else:
                pytest.fail("no other thread computed anything")
    finally:
        config.set(autobatch=1)


def test_factors_of_joined_batches_are_multiplied_before_their_memory_is_used_again() -> None:
    """Batches of several forward passes are joined: their factors are copied side by side, for one batch at a time."""
    rng = np.random.default_rng(0)
    collection = dy.ParameterCollection()
    size, layers, passes, width = 384, 6, 4, 50
    Ws = [
        collection.parameters_from_numpy(rng.normal(0, 1 / 20, (size, size)).astype(np.float32)) for _ in range(layers)
    ]
    xs = rng.uniform(-1, 1, (passes, width, size)).astype(np.float32)

    def gradients() -> list[bytes]:
        dy.renew_cg()
        losses = []
        for inputs in xs:
            h = [dy.inputVector(x) for x in inputs]
            for W in Ws:
                h = [dy.tanh(W * x) for x in h]
            losses.append(dy.sum_elems(dy.esum(h)))
            losses[-1].value()
        dy.esum(losses).backward()
        found = [W.grad_as_array().tobytes() for W in Ws]
        collection.zero_gradients()
        return found

    config.set(threads=1)
    engine.stats("schedule.joining", reset=True)
    desired = gradients()
    assert tuple(engine.stats("schedule.joining").values()) == (layers, layers * passes)
    config.set(threads=2)
    large = dy.inputTensor(np.ones((400, 400), np.float32))
    (large * large).forward()  # starts the thread
    for _ in range(4):
        assert gradients() == desired


def test_an_interrupted_pass_is_undone_or_finished() -> None:
    """No thread adds to gradients after they were restored."""
    config.set(threads=2)
    network = Network(160)
    desired = network.gradients()
    nothing = [bytes(len(g)) for g in desired]

    def stop(*_: object) -> None:
        raise RuntimeError("stop")

    previous = signal.signal(signal.SIGALRM, stop)
    try:
        for i in range(0, 20, 2):
            loss = network.loss()
            loss.value()
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-4 * (i + 1))
                loss.backward()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except RuntimeError:
                pass
            assert [p.grad_as_array().tobytes() for p in (network.W, network.U, network.b)] in (nothing, desired)
            network.collection.zero_gradients()
            assert network.gradients() == desired
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
