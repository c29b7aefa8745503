"""Gradients that are sent while backward runs: what is sent, when, and that the sums are always right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.model.parameters import set_gradient_state
from dynet_cy.parallel.collective import Overlap

RANKS = 3


class Request:
    def __init__(self, send: Any, receive: Any) -> None:
        self.send, self.receive = send, receive
        self.was = send.copy()

    def end(self) -> None:
        np.testing.assert_array_equal(self.send, self.was)  # a buffer must not change while it is sent
        self.receive[:] = self.send * RANKS


class Communicator:
    """Simulates two other ranks with the same gradients, which change theirs after sending if this rank does."""

    def __init__(self) -> None:
        self.running = False
        self.requests: list[Request] = []
        self.early: list[int] = []
        self.polls = 0
        self.fails = False

    def start_sum(self, send: Any, receive: Any) -> Request:
        if self.fails:
            raise OSError("the network is gone")
        if self.running:
            self.early.append(len(send))
        self.requests.append(Request(send, receive))
        return self.requests[-1]

    def start_any(self, flag: Any) -> Request:
        return Request(flag.copy(), flag)

    def progress(self, requests: list[Request]) -> None:
        self.polls += 1

    def wait(self, requests: list[Request], what: str) -> None:
        for request in requests:
            request.end()

    def broadcast(self, value: Any) -> Any:
        return value


class Network:
    """Layers whose gradients are complete one after the other, and a table."""

    def __init__(self, pc: dy.ParameterCollection | None = None) -> None:
        self.pc = pc or dy.ParameterCollection()
        self.table = self.pc.add_lookup_parameters((5, 64))
        self.rnn = dy.LSTMBuilder(1, 64, 64, self.pc)
        self.layers = [self.pc.add_parameters((64, 64)) for _ in range(3)]
        self.unused = self.pc.add_parameters((10, 10))
        self.scale = self.pc.add_parameters(1)

    def loss(self, seed: int) -> dy.Expression:
        dy.renew_cg()
        rng = np.random.default_rng(seed)
        h = self.rnn.initial_state().transduce([self.table[int(i)] for i in rng.integers(5, size=6)])[-1]
        for w in self.layers:
            h = dy.tanh(w * h) + w * h
        return dy.sum_elems(h) * self.scale

    def forget(self) -> None:
        for x in [*self.pc.parameters_list(), *self.pc.lookup_parameters_list()]:
            set_gradient_state(x, None)

    def gradients(self) -> dict[str, np.ndarray]:
        return {p.name(): p.grad_as_array() for p in self.pc.parameters_list()}


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def communicator() -> Communicator:
    return Communicator()


@pytest.fixture
def overlap(network: Network, communicator: Communicator) -> Iterator[Overlap]:
    overlap = Overlap(network.pc, communicator, 1)
    yield overlap
    overlap.close()


def backward(network: Network, communicator: Communicator, seed: int = 0) -> None:
    loss = network.loss(seed)
    loss.value()
    communicator.running = True
    loss.backward()
    communicator.running = False


def check_sums(network: Network, overlap: Overlap, before: dict[str, np.ndarray]) -> None:
    overlap.make_sums()
    for name, gradient in network.gradients().items():
        np.testing.assert_allclose(gradient, RANKS * before[name], rtol=1e-5, atol=1e-5)


def test_everything_is_sent_early_and_in_order(network: Network, communicator: Communicator, overlap: Overlap) -> None:
    backward(network, communicator)
    check_sums(network, overlap, network.gradients())
    network.forget()
    # From the second time on, in the observed order: no bucket waits for one that is complete later.
    communicator.requests, communicator.early = [], []
    backward(network, communicator)
    want = network.gradients()
    assert overlap.started_early == overlap.n_buckets == len(network.pc.parameters_list())
    # The unused parameter first, then from the last layer to the first.
    assert communicator.early[:5] == [100, 1, 4096, 4096, 4096]
    last, middle, first = (request.send.reshape(64, 64).T for request in communicator.requests[2:5])
    for layer, sent in zip(network.layers, (first, middle, last)):
        np.testing.assert_array_equal(sent, want[layer.name()])
    check_sums(network, overlap, want)
    assert overlap.started_early == 0


def test_buckets(network: Network, communicator: Communicator) -> None:
    for size, n in ((1, 8), (4 * 64 * 64, 5), (1 << 30, 1)):
        overlap = Overlap(network.pc, communicator, size)
        assert overlap.n_buckets == n
        network.forget()
        backward(network, communicator)
        assert overlap.started_early <= n
        check_sums(network, overlap, network.gradients())
        overlap.close()


def test_changes_after_sending(network: Network, communicator: Communicator, overlap: Overlap) -> None:
    """A second backward pass, and gradients that the program scales."""
    backward(network, communicator, 1)
    backward(network, communicator, 2)
    network.layers[0].scale_gradient(0.5)
    check_sums(network, overlap, network.gradients())
    assert not overlap.early
    communicator.early = []
    network.forget()
    backward(network, communicator, 1)
    backward(network, communicator, 2)
    assert communicator.early == []  # known now: they change after backward
    check_sums(network, overlap, network.gradients())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_was_sent_was_not_finite(
    network: Network, communicator: Communicator, overlap: Overlap, bad: float
) -> None:
    """A bad batch that the program drops before the update has no effect."""
    loss = network.loss(1) * bad
    loss.value()
    communicator.running = True
    loss.backward()
    communicator.running = False
    assert communicator.early
    network.pc.zero_gradients()
    backward(network, communicator, 2)
    want = network.gradients()
    check_sums(network, overlap, want)
    network.forget()
    backward(network, communicator, 2)
    check_sums(network, overlap, want)


def test_frozen_parameters(network: Network, communicator: Communicator, overlap: Overlap) -> None:
    """Their gradients are complete from the beginning, and zero."""
    for p in (network.layers[1], network.table):
        p.set_updated(False)
    for seed in range(3):
        backward(network, communicator, seed)
        assert overlap.started_early == overlap.n_buckets
        check_sums(network, overlap, network.gradients())
        assert not network.layers[1].grad_as_array().any()
        network.forget()


def test_no_backward(network: Network, communicator: Communicator, overlap: Overlap) -> None:
    overlap.make_sums()
    assert all(not gradient.any() for gradient in network.gradients().values())


def test_another_model(network: Network, communicator: Communicator, overlap: Overlap) -> None:
    other = Network()
    backward(other, communicator)
    assert communicator.early == []
    backward(network, communicator)
    check_sums(network, overlap, network.gradients())


def test_progress_is_made_in_backward(network: Network, communicator: Communicator, overlap: Overlap) -> None:
    for _ in range(20):
        backward(network, communicator)
        overlap.make_sums()
        network.forget()
    assert communicator.polls > 0


def test_an_error_in_backward_is_raised_by_the_update(
    network: Network, communicator: Communicator, overlap: Overlap
) -> None:
    communicator.fails = True
    backward(network, communicator)
    with pytest.raises(OSError, match="the network is gone"):
        overlap.make_sums()


def test_after_closing_nothing_is_sent(network: Network, communicator: Communicator) -> None:
    overlap = Overlap(network.pc, communicator, 1)
    overlap.close()
    backward(network, communicator)
    assert communicator.early == []


def test_gradients_are_the_same_while_somebody_listens(network: Network, communicator: Communicator) -> None:
    for _ in range(3):  # until weights are packed, which changes rounding
        network.forget()
        backward(network, communicator)
    want = network.gradients()
    network.forget()
    overlap = Overlap(network.pc, communicator, 1)
    backward(network, communicator)
    for name, gradient in network.gradients().items():
        np.testing.assert_array_equal(gradient, want[name])
    overlap.close()


def test_the_order_of_another_rank() -> None:
    """Rank 0 has more parameters in other collections, so its parameters have other numbers."""
    orders: list[Any] = []

    class Rank(Communicator):
        def broadcast(self, value: Any) -> Any:
            orders.append(value)
            return orders[0]

    lengths = []
    for outside in (3, 0):
        root = dy.ParameterCollection()
        for _ in range(outside):
            root.add_parameters(2)
        network, communicator = Network(root.add_subcollection()), Rank()
        overlap = Overlap(network.pc, communicator, 1)
        for _ in range(2):
            network.forget()
            communicator.requests = []
            backward(network, communicator)
            check_sums(network, overlap, network.gradients())
        lengths.append([len(request.send) for request in communicator.requests])
        overlap.close()
    assert orders[0] == orders[1]
    assert lengths[0] == lengths[1]
