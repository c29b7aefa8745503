"""Signals while graphs run on GPUs and on several devices: what they stop can be requested again."""

from __future__ import annotations

import signal
import sys
import time
from functools import partial

import numpy as np
import pytest
from alarms import Stop, stopping  # noqa: F401 - a fixture
from arrays import all_close
from own_process import run_python

import dynet_cy as dy
from dynet_cy.core import engine

SIZE = 64


pytestmark = pytest.mark.usefixtures("stopping")


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
    """Run a call with an alarm; return whether the alarm came before its end."""
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


@pytest.fixture
def places(request, device):
    """The devices of a chain."""
    missing = set(request.param) - set(dy.available_devices())
    if missing:
        pytest.skip(f"needs {', '.join(sorted(missing))}; the emulated driver has two GPUs")
    return request.param


@pytest.mark.parametrize("places", PLACES, indirect=True)
def test_a_value_that_was_stopped(device, places):
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
    all_close(found, chain.gradients(), rtol=1e-3, atol=1e-5)


class Signals:
    """Repeated signals while something runs: the handler raises in its call number `last`.

    The engine checks for them at every possible place. Handlers also run in Python code before and after it.
    """

    def __init__(self, last: int, act=lambda: None):
        self.left = last
        self.act = act
        self.inside = False  # the handler, which checks for signals too if it requests values

    def run(self, call) -> bool:
        """Run a call; return whether the handler raised meanwhile."""

        def handle(number, frame):
            if self.inside:
                return
            self.inside = True
            self.act()
            self.inside = False
            self.left -= 1
            if self.left == 0:
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise Stop

        signal.signal(signal.SIGALRM, handle)
        pause = engine.tune("core.threads.pause", 0)
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-4, 3e-4)
            call()
        except Stop:
            return True
        finally:
            self.left = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
            engine.tune("core.threads.pause", pause)
        return False


@pytest.mark.parametrize("places", PLACES, indirect=True)
def test_a_backward_that_was_stopped(device, places):
    """An update is made completely or not at all, wherever signals arrive."""
    chain = Chain(places)
    loss = chain.loss(120)
    loss.value()
    loss.backward()
    once = chain.gradients()
    whole = 0
    for last in range(1, 40):
        chain.model.zero_gradients()
        stopped = Signals(last).run(loss.backward)
        found = chain.gradients()
        if stopped and not any(g.any() for g in found):
            continue
        whole += 1
        all_close(found, once, rtol=1e-3, atol=1e-5)
    assert whole


class Several:
    """Parameters of all kinds on several devices, and their trainer."""

    def __init__(self, places, trainer=dy.AdamTrainer, size=300):
        rng = np.random.default_rng(2)
        self.model = dy.ParameterCollection()
        self.model.set_weight_decay(0.01)
        self.dense = [
            self.model.parameters_from_numpy(rng.standard_normal((size, 40)), device=place) for place in places
        ]
        self.tables = [
            self.model.lookup_parameters_from_numpy(rng.standard_normal((9, 5)), device=place) for place in places
        ]
        self.trainer = trainer(self.model)
        self.trainer.exponential_moving_average(0.5)
        self.trainer.group(self.tables[0], learning_rate=0.05, weight_decay=0.1)

    def backward(self):
        dy.renew_cg()
        parts = [*self.dense, *(table[3] for table in self.tables)]
        dy.esum([dy.to_device(dy.squared_norm(p), "CPU") for p in parts]).backward()

    def values(self):
        return [p.as_array() for p in (*self.dense, *self.tables)]

    def state(self):
        """All data that an update changes."""
        gradients = [p.grad_as_array() for p in (*self.dense, *self.tables)]
        arrays = [x for of in self.trainer._state_arrays() for x in of]
        return [*self.values(), *gradients, *arrays], self.trainer._settings()


def same(a, b):
    return a[1] == b[1] and all(np.array_equal(x, y) for x, y in zip(a[0], b[0]))


@pytest.mark.parametrize("clip", [0, 0.1])
@pytest.mark.parametrize("places", PLACES, indirect=True)
def test_an_update_that_was_stopped(device, places, clip):
    """An update is made completely or not at all, wherever signals arrive."""
    quiet, twin = Several(places), Several(places)
    for x in (quiet, twin):
        x.trainer.set_clip_threshold(clip)
    whole = 0
    for last in range(1, 25):
        for x in (quiet, twin):
            x.backward()
        before = twin.state()
        Signals(last).run(partial(twin.trainer.update, skip_nonfinite=bool(last % 2)))
        quiet.trainer.update()
        if same(twin.state(), before):
            twin.trainer.update()
        else:
            whole += 1
        assert same(twin.state(), quiet.state())
    assert whole


@pytest.mark.parametrize("clip", [0, 0.1])
@pytest.mark.parametrize("places", PLACES, indirect=True)
def test_python_code_in_an_update(device, places, clip):
    """Handlers run at calls of Python functions: whichever it is, the update is made completely or not at all."""
    quiet, twin = Several(places), Several(places)
    for x in (quiet, twin):
        x.trainer.set_clip_threshold(clip)
    n, stopped = 0, True
    while stopped:
        n += 1
        left = n

        def profile(frame, event, arg):
            nonlocal left
            if event == "call":
                left -= 1
                if left == 0:
                    raise Stop

        for x in (quiet, twin):
            x.backward()
        before = twin.state()
        stopped = False
        sys.setprofile(profile)
        try:
            twin.trainer.update()
        except Stop:
            stopped = True
        finally:
            sys.setprofile(None)
        quiet.trainer.update()
        if same(twin.state(), before):
            twin.trainer.update()
        assert same(twin.state(), quiet.state())
        assert n < 1000


@pytest.mark.parametrize("places", PLACES[1:], indirect=True)
def test_handlers_see_whole_updates(device, places):
    """A handler that reads parameters during an update sees all of them before it or all after it."""
    twin, seen = Several(places, size=20_000), []
    for _ in range(3):
        twin.backward()
        before = twin.values()
        seen.clear()
        Signals(10**6, lambda: seen.append(twin.values())).run(twin.trainer.update)
        after = twin.values()
        for found in seen:
            assert any(all(np.array_equal(x, y) for x, y in zip(found, whole)) for whole in (before, after))
    assert seen


FIRST_USE = """
import sys
import numpy as np
import dynet_cy as dy
from test_interrupts_gpu import Chain, Several, Stop, same
from dynet_cy.gpu import compiler

places = {places!r}
cubin, calls, raised = compiler.cubin, 0, 0

def stopping(*args):
    global calls, raised
    calls += 1
    if calls % 2:
        raised += 1
        raise Stop
    return cubin(*args)

def until_done(call, state):
    before = state()
    while True:
        try:
            return call()
        except Stop:
            after = state()
            assert same(after, before), "done in part"

twin = Several(places)
twin.trainer.set_clip_threshold({clip})
dy.renew_cg()
loss = dy.esum([dy.to_device(dy.squared_norm(p), "CPU") for p in twin.dense])
compiler.cubin = stopping
until_done(loss.value, lambda: ([], None))
until_done(loss.backward, twin.state)
until_done(twin.trainer.update, twin.state)
compiler.cubin = cubin
assert raised > 2, raised

quiet = Several(places)
quiet.trainer.set_clip_threshold({clip})
dy.renew_cg()
dy.esum([dy.to_device(dy.squared_norm(p), "CPU") for p in quiet.dense]).backward()
quiet.trainer.update()
assert same(twin.state(), quiet.state())
print("fine")
"""


@pytest.mark.parametrize("clip", [0, 0.1])
@pytest.mark.parametrize("places", PLACES, indirect=True)
def test_first_use(device, places, clip, tmp_path):
    """Python code loads kernels on first use; if it raises, nothing is left half done."""
    done = run_python(tmp_path, FIRST_USE.format(places=places, clip=clip))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fine\n"
    assert "Exception ignored" not in done.stderr
