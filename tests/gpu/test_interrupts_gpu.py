"""Signals while graphs run on GPUs, and on several devices: what they end can be asked for again."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest

import dynet_cy as dy

SIZE = 64


class Stop(Exception):
    """What the handler raises."""


@pytest.fixture(autouse=True)
def handler():
    """A signal whose handler raises Stop."""

    def stop(number, frame):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    dy.renew_cg()


class Chain:
    """Layers on the devices of `places` in turn."""

    def __init__(self, places):
        rng = np.random.default_rng(1)
        self.places = places
        self.model = dy.ParameterCollection()
        self.weights = [
            self.model.parameters_from_numpy(rng.standard_normal((SIZE, SIZE)) / SIZE**0.5, device=place)
            for place in places
        ]

    def loss(self, layers):
        dy.renew_cg()
        x = dy.inputVector(np.ones(SIZE), device=self.places[0])
        for k in range(layers):
            at = k % len(self.places)
            x = dy.tanh(self.weights[at] * dy.to_device(x, self.places[at]))
        return dy.sum_elems(x)

    def gradients(self):
        return [w.grad_as_array() for w in self.weights]


def stopped(call):
    """Call that with an alarm; whether it came before the end."""
    ended = False
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        call()
        ended = True
        while True:
            time.sleep(0.01)
    except Stop:
        return not ended


PLACES = [("GPU:0",), ("CPU", "GPU:0"), ("GPU:0", "CPU", "GPU:1")]


@pytest.mark.parametrize("places", PLACES)
def test_a_value_that_was_stopped(device, places):
    if not set(places) <= set(dy.available_devices()):
        pytest.skip("there are not so many devices")
    chain, layers = Chain(places), 500
    loss = chain.loss(layers)
    while not stopped(loss.value):
        layers *= 2
        assert layers < 10**5, "the alarm never came inside"
        loss = chain.loss(layers)
    value = loss.value()
    loss.backward()
    found = chain.gradients()
    chain.model.zero_gradients()
    again = chain.loss(layers)
    assert again.value() == pytest.approx(value, rel=1e-5)
    again.backward()
    for a, b in zip(found, chain.gradients()):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("places", PLACES)
def test_a_backward_that_was_stopped(device, places):
    """On one device it is whole or not made; on several a part may have been added, which can be cleared."""
    if not set(places) <= set(dy.available_devices()):
        pytest.skip("there are not so many devices")
    chain = Chain(places)
    loss = chain.loss(300)
    loss.value()
    loss.backward()
    once = chain.gradients()
    for _ in range(6):
        chain.model.zero_gradients()
        stopped(loss.backward)
        found = chain.gradients()
        if len(places) > 1 or not any(g.any() for g in found):
            chain.model.zero_gradients()
            loss.backward()
            found = chain.gradients()
        for a, b in zip(found, once):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
