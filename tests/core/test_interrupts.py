"""Signals during a pass or an update: handlers run, what they raise ends it, and nothing is left half done."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from alarms import Stop, stopping  # noqa: F401 - a fixture

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.core import engine
from dynet_cy.memory import storage
from dynet_cy.model.parameters import deferred_updates

SIZE = 256
LEAST, DOUBLINGS = 1000, 6  # layers


pytestmark = pytest.mark.usefixtures("stopping")


def alarm(seconds=0.02):
    signal.setitimer(signal.ITIMER_REAL, seconds)


def with_alarm(call, seconds=0.02):
    """Run a call and wait for the alarm, which comes during the call or after it."""
    try:
        alarm(seconds)
        call()
        while True:
            time.sleep(0.01)
    except Stop:
        pass


class Chain:
    """A model, and losses over any number of layers."""

    def __init__(self):
        rng = np.random.RandomState(1)
        self.model = dy.ParameterCollection()
        self.w = self.model.add_parameters((SIZE, SIZE), init=rng.randn(SIZE, SIZE) / SIZE**0.5)
        self.bias = self.model.add_parameters(SIZE, init=0)
        self.table = self.model.add_lookup_parameters((7, SIZE), init=rng.randn(7, SIZE))
        self.all = [self.w, self.bias, self.table]

    def loss(self, layers, **graph):
        dy.renew_cg(**graph)
        x = dy.lookup_batch(self.table, [1, 3] * 8)
        for _ in range(layers):
            x = dy.tanh(dy.affine_transform([self.bias, self.w, x]))
        return dy.sum_batches(dy.sum_elems(x))

    def gradients(self):
        return [p.grad_as_array().copy() for p in self.all]

    def values(self):
        return [p.as_array().copy() for p in self.all]

    def clear(self):
        for p in self.all:
            p.scale_gradient(0)


def same(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected))


def assert_close(found, expected):
    """Equal up to rounding: a packed matrix may be multiplied in another order."""
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3 * np.abs(b).max() + 1e-6)


def layers_run(profile, backward):
    return sum(row.nodes for row in profile if row.op == "tanh" and row.backward == backward)


def stopped_inside(prepare, backward):
    """Run what `prepare(layers)` returns with an alarm, doubling the layers until the alarm comes during the run."""
    for k in range(DOUBLINGS):
        layers = LEAST << k
        run = prepare(layers)
        with profiling.measure() as profile:
            with_alarm(run)
        if 0 < layers_run(profile, backward) < layers:
            return layers, layers_run(profile, backward)
    return pytest.fail("the alarm never came inside")


@pytest.mark.parametrize("autobatch", [0, 1, 2])
@pytest.mark.parametrize("forward_only", [False, True])
def test_forward_stops_and_goes_on(autobatch, forward_only):
    chain, found = Chain(), []

    def prepare(layers):
        found[:] = [chain.loss(layers, autobatching=autobatch, forward_only=forward_only)]
        return found[0].value

    layers, done = stopped_inside(prepare, False)
    with profiling.measure() as profile:
        value = found[0].value()
    assert layers_run(profile, False) == layers - done, "values that were computed before are not computed again"
    assert value == pytest.approx(chain.loss(layers, autobatching=autobatch).value(), rel=1e-5)


@pytest.mark.usefixtures("values_stay")  # those that backward has used would be values of before the update
@pytest.mark.parametrize("autobatch", [0, 1])
def test_backward_is_taken_back(autobatch):
    found = []

    def prepare(layers):
        chain = Chain()
        found[:] = [chain, chain.loss(layers, autobatching=autobatch)]
        found[1].value()
        return found[1].backward

    stopped_inside(prepare, True)
    chain, loss = found
    assert not any(g.any() for g in chain.gradients())
    with pytest.raises(RuntimeError, match="run backward"):
        loss.gradient()
    # Trainers too see no gradient.
    before = chain.values()
    dy.MomentumSGDTrainer(chain.model).update()
    assert same(chain.values(), before)
    loss.backward()
    first = chain.gradients()
    chain.clear()
    loss.backward()
    assert_close(chain.gradients(), first)
    assert all(g.any() for g in first)


def test_gradients_of_earlier_passes_stay():
    chain = Chain()

    def prepare(layers):
        chain.clear()
        dy.renew_cg()
        dy.sum_elems(chain.w * chain.table[5] + chain.bias).backward()
        chain.before = chain.gradients()
        chain.here = chain.loss(layers)
        chain.here.value()
        return chain.here.backward

    stopped_inside(prepare, True)
    assert same(chain.gradients(), chain.before)
    assert chain.before[2][5].any()
    assert not chain.before[2][1].any()
    chain.here.backward()
    assert not same(chain.gradients(), chain.before)


def test_short_passes_over_old_gradients_are_finished():
    """Such passes keep no copies and cannot be undone, so they run to the end: gradients are those of whole passes."""
    chain = Chain()
    loss = chain.loss(2)
    loss.backward()
    once = chain.gradients()
    for _ in range(20):
        chain.clear()
        with_alarm(lambda: [loss.backward() for _ in range(10**6)])
        passes = [(g * o).sum() / (o * o).sum() for g, o in zip(chain.gradients(), once)]
        np.testing.assert_allclose(passes, round(passes[0]), rtol=1e-3)


def test_what_other_threads_add_stays():
    """If another thread adds to the same gradients, the pass is finished, and nothing of either is lost."""
    chain, stop, rounds = Chain(), threading.Event(), []

    def add_ones():
        with dy.ComputationGraph():
            x = dy.sum_elems(chain.w * dy.inputVector(np.ones(SIZE)))
            while not stop.is_set():
                x.backward()
                rounds.append(1)

    loss = chain.loss(8 * LEAST)
    loss.value()
    thread = threading.Thread(target=add_ones)
    thread.start()
    with profiling.measure() as profile:
        with_alarm(loss.backward)
    stop.set()
    thread.join()
    found = chain.gradients()
    found[0] -= len(rounds)
    assert layers_run(profile, True) == 8 * LEAST or not any(g.any() for g in found)
    if layers_run(profile, True) == 8 * LEAST:
        chain.clear()
        loss.backward()
        assert_close(found, chain.gradients())


def test_handlers_that_return_run_once_and_change_nothing():
    chain, calls = Chain(), []
    signal.signal(signal.SIGALRM, lambda number, frame: calls.append(number))
    loss = chain.loss(LEAST)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    value = loss.value()
    loss.backward()
    gradients = chain.gradients()
    while not calls:
        time.sleep(0.01)
    chain.clear()
    again = chain.loss(LEAST)
    assert calls == [signal.SIGALRM]
    assert again.value() == pytest.approx(value, rel=1e-5)
    again.backward()
    assert_close(chain.gradients(), gradients)


def test_handlers_see_that_the_graph_runs():
    """Handlers may use other graphs; using this one is an error, which the pass raises."""
    chain, found, error = Chain(), [], []

    def handle(number, frame):
        with dy.ComputationGraph():
            found.append(dy.inputVector([1, 2]).value())
        try:
            loss.value()
        except RuntimeError as e:
            error.append(e)
            raise

    signal.signal(signal.SIGALRM, handle)
    for k in range(DOUBLINGS):
        loss = chain.loss(LEAST << k)
        found.clear()
        alarm()
        with contextlib.suppress(RuntimeError):
            loss.value()
            while not found:
                time.sleep(0.01)
            continue
        with pytest.raises(RuntimeError, match="handler of a signal"):
            raise error[0]
        assert found == [[1, 2]]
        assert np.isfinite(loss.value())
        return
    pytest.fail("the alarm never came inside")


def test_handlers_compute_with_denormal_numbers():
    """The engine treats denormal numbers as 0 while it runs; a handler must not be affected."""
    chain, found = Chain(), []
    tiny = np.float32([1e-30])

    def handle(number, frame):
        found.append((tiny * np.float32(1e-10))[0] > 0)
        raise Stop

    signal.signal(signal.SIGALRM, handle)

    def prepare(layers):
        return chain.loss(layers).value

    stopped_inside(prepare, False)
    assert found[-1]


def test_only_the_main_thread_is_stopped():
    chain, values = Chain(), []

    def work():
        with dy.ComputationGraph():
            x = dy.lookup_batch(chain.table, [1, 3] * 8)
            for _ in range(2 * LEAST):
                x = dy.tanh(dy.affine_transform([chain.bias, chain.w, x]))
            values.append(dy.sum_batches(dy.sum_elems(x)).value())

    thread = threading.Thread(target=work)
    thread.start()
    with_alarm(lambda: [chain.loss(2 * LEAST).value() for _ in range(100)])
    thread.join()
    assert values == [pytest.approx(chain.loss(2 * LEAST).value(), rel=1e-5)]


@pytest.mark.parametrize("autobatch", [1, 2])
def test_scheduling_stops(autobatch):
    """Nodes of a stopped schedule have not run, and can be requested again."""
    dy.renew_cg(autobatching=autobatch)
    x = dy.inputVector([0.5, -0.5])
    kinds = [dy.tanh, dy.logistic, dy.exp, dy.square, dy.sin, dy.cos]
    for layers in (20_000, 40_000, 80_000, 160_000):
        total = []
        for k in range(layers):
            # Different shapes make many batches to choose from.
            y = dy.concatenate([x] * (1 + k % 300))
            total += [f(y) for f in kinds]
        loss = dy.esum([dy.sum_elems(y) for y in total])
        with profiling.measure() as profile:
            with_alarm(loss.value)
        if not any(row.nodes for row in profile):
            break
    else:
        pytest.fail("the alarm never came during scheduling")
    value = loss.value()
    dy.renew_cg(autobatching=0)
    x = dy.inputVector([0.5, -0.5])
    each = [dy.sum_elems(f(x)).value() for f in kinds]
    assert value == pytest.approx(sum(each) * sum(1 + k % 300 for k in range(layers)), rel=1e-3)


class Twin:
    """Parameters and a trainer; twins take the same steps, bit for bit."""

    def __init__(self, trainer):
        self.model = dy.ParameterCollection()
        rng = np.random.RandomState(2)
        self.all = [self.model.add_parameters((400, 300), init=rng.randn(400, 300)) for _ in range(8)]
        self.trainer = trainer(self.model)

    def backward(self):
        dy.renew_cg()
        dy.esum([dy.squared_norm(p) for p in self.all]).backward()

    def values(self):
        return [p.as_array().copy() for p in self.all]


@pytest.mark.parametrize("trainer", [dy.SimpleSGDTrainer, dy.AdamTrainer])
@pytest.mark.parametrize("average", [False, True])
def test_updates_are_whole_or_not_made(trainer, average):
    """One of two equal models is updated while signals come: its values are always those after a whole step."""
    quiet, twin = Twin(trainer), Twin(trainer)
    if average:
        quiet.trainer.exponential_moving_average(0.5)
        twin.trainer.exponential_moving_average(0.5)
    whole = 0
    for k in range(20):
        before = twin.values()
        twin.backward()
        with_alarm(twin.trainer.update, 2e-4 * (k + 1))
        if same(twin.values(), before):
            assert all(p.grad_as_array().any() for p in twin.all)
            twin.trainer.update()
        else:
            whole += 1
        assert not any(p.grad_as_array().any() for p in twin.all)
        quiet.backward()
        quiet.trainer.update()
        assert same(twin.values(), quiet.values())
    assert whole
    if average:
        quiet.trainer.swap_params_to_moving_average()
        twin.trainer.swap_params_to_moving_average()
        assert same(twin.values(), quiet.values())


class Large:
    """Parameters whose update takes long enough to be stopped, of every kind that updates treat separately."""

    def __init__(self, millions, average=False):
        rng = np.random.RandomState(4)
        self.model = dy.ParameterCollection()
        self.model.set_weight_decay(0.01)
        self.small = self.model.add_parameters(9, init=rng.randn(9))
        self.large = self.model.parameters_from_numpy(
            np.resize(rng.randn(1000).astype(np.float32), (1000 * millions, 1000))
        )
        self.table = self.model.add_lookup_parameters((50, 30), init=rng.randn(50, 30))
        self.read = self.model.add_lookup_parameters((40, 30), init=rng.randn(40, 30))
        self.frozen = self.model.add_parameters(7, init=rng.randn(7))
        self.frozen.set_updated(False)
        self.all = [self.small, self.large, self.table, self.read, self.frozen]
        self.trainer = dy.AdamTrainer(self.model)
        self.trainer.group(self.small, learning_rate=0.5, weight_decay=0)
        if average:
            self.trainer.exponential_moving_average(0.5)

    def backward(self):
        dy.renew_cg()
        # The second table is read as a whole, so its factor is not kept.
        parts = [self.small, self.large, self.table[3], self.table[7], self.read.expr() * dy.inputVector(np.ones(40))]
        self.loss = dy.esum([dy.squared_norm(p) for p in parts])
        self.loss.backward()

    def stopped_in_update(self, update, seconds):
        """Run an update with a signal after `seconds`; True if it was stopped midway."""
        self.backward()
        try:
            alarm(seconds)
            update(self)
            while True:
                time.sleep(0.01)
        except Stop:
            return storage.waiting() > 0

    def state(self):
        arrays = [a for own in self.trainer._state_arrays() if own for a in own]
        return [*(p.as_array() for p in self.all), *(p.grad_as_array() for p in self.all), *arrays]


def whole_update(model):
    model.trainer.update()


def stopped_model(average=False, update=whole_update):
    """A model whose second update was stopped midway, and an equal one whose updates were not."""
    # Computing the norm of the gradients cannot be stopped; its share of the time depends on the machine.
    before = engine.tune("core.threads.pause", 1)
    try:
        for seconds, millions in itertools.product((0.004, 0.008, 0.016, 0.032, 0.064), (8, 16, 32, 64)):
            model = Large(millions, average)
            model.backward()
            model.trainer.update()
            if model.stopped_in_update(update, seconds):
                break
        else:
            pytest.fail("the alarm never came inside an update")
    finally:
        engine.tune("core.threads.pause", before)
    with dy.ComputationGraph():
        quiet = Large(millions, average)
        for step in (whole_update, update):
            quiet.backward()
            step(quiet)
    return model, quiet


def save(model, tmp_path):
    dy.save_safetensors(tmp_path / "m", model.model, model.trainer)


def look_from_a_thread(model, _):
    thread = threading.Thread(target=model.small.as_array)
    thread.start()
    thread.join()


LOOKS = {
    "value": lambda model, _: model.small.as_array(),
    "gradient": lambda model, _: model.large.grad_as_array(),
    "row": lambda model, _: model.table[3].value(),
    "expression": lambda model, _: model.small.value(),
    "old-graph": lambda model, _: model.loss.value(recalculate=True),
    "state": lambda model, _: model.trainer._state_arrays(),
    "save": lambda model, _: model.model.save("/dev/null"),
    "checkpoint": save,
    "zero": lambda model, _: model.model.zero_gradients(),
    "thread": look_from_a_thread,
}
QUICK = ("value", "old-graph", "thread")


@pytest.mark.filterwarnings("ignore:.*the graph .* an update:RuntimeWarning")
@pytest.mark.parametrize("how", [pytest.param(how, marks=[] if how in QUICK else pytest.mark.slow) for how in LOOKS])
def test_an_update_that_was_stopped_is_finished_by_who_looks(how, tmp_path):
    model, quiet = stopped_model()
    LOOKS[how](model, tmp_path)
    if how == "checkpoint":  # saving settles the factors of tables
        save(quiet, tmp_path)
    assert storage.waiting() == 0
    assert same(model.state(), quiet.state())
    assert model.trainer._settings() == quiet.trainer._settings()
    for own in (model, quiet):
        own.backward()
        own.trainer.update()
    assert same(model.state(), quiet.state())


def test_a_moving_average_is_finished_too():
    model, quiet = stopped_model(average=True)
    for own in (model, quiet):
        own.trainer.swap_params_to_moving_average()
    assert same(model.state(), quiet.state())


def test_an_update_of_a_part_that_was_stopped():
    """Parameters that keep their gradient decay."""
    model, quiet = stopped_model(update=lambda model: model.trainer.update_subset([0, 1], [1]))
    assert same(model.state(), quiet.state())


def test_an_update_that_is_stopped_again_and_again():
    model, quiet = stopped_model()
    before = engine.tune("core.threads.pause", 1)
    while storage.waiting():
        with contextlib.suppress(Stop):
            alarm(0.004)
            model.small.as_array()
            signal.setitimer(signal.ITIMER_REAL, 0)
    engine.tune("core.threads.pause", before)
    assert same(model.state(), quiet.state())


def test_a_handler_in_an_update_sees_the_whole_of_it():
    """For example, a handler that saves the model and returns."""
    for seconds in (0.02, 0.04, 0.08, 0.16, 0.32, 1):  # on a busy machine the alarm may come before the update
        seen = []
        model = Large(8)
        model.backward()
        before = [x.copy() for x in model.state()]
        signal.signal(signal.SIGALRM, lambda *_, m=model, found=seen: found.append([x.copy() for x in m.state()]))
        alarm(seconds)
        model.trainer.update()
        while not seen:
            time.sleep(0.01)
        if not same(seen[0], before):
            break
    assert storage.waiting() == 0
    quiet = Large(8)
    quiet.backward()
    quiet.trainer.update()
    assert same(seen[0], quiet.state())
    assert same(model.state(), quiet.state())


class Lazy:
    """A large table whose rows are late when all of them are updated."""

    def __init__(self):
        self.model = dy.ParameterCollection()
        start = np.resize(np.random.RandomState(4).randn(1000).astype(np.float32), (150_000, 40))
        self.table = self.model.lookup_parameters_from_numpy(start)
        self.trainer = dy.AdamTrainer(self.model)
        self.trainer.set_sparse_updates(False)
        for rows in (range(0, 150_000, 5), [3], [4, 8]):
            self.backward(rows)
            self.trainer.update()
        assert deferred_updates(self.table) == 3
        self.backward(range(0, 150_000, 2))

    def backward(self, rows):
        dy.renew_cg()
        dy.sum_batches(dy.squared_norm(dy.lookup_batch(self.table, list(rows)))).backward()


def test_rows_with_deferred_updates_when_an_update_is_stopped():
    before = engine.tune("core.threads.pause", 1)
    stopped, quiet = 0, Lazy()
    quiet.trainer.update()
    try:
        for seconds in (0.004, 0.008, 0.016, 0.032, 0.064):
            model = Lazy()
            try:
                alarm(seconds)
                model.trainer.update()
                while True:
                    time.sleep(0.01)
            except Stop:
                stopped += storage.waiting() > 0
            found = model.table.as_array(), model.trainer._state_arrays()[0]
            assert deferred_updates(model.table) == storage.waiting() == 0
            assert same(found[:1], [quiet.table.as_array()])
            assert same(found[1], quiet.trainer._state_arrays()[0])
    finally:
        engine.tune("core.threads.pause", before)
    assert stopped


def run_program(text, folder):
    """Run a program in another folder: the source tree may have no compiled modules."""
    command = [sys.executable, "-c", textwrap.dedent(text)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=folder)


def test_control_c(tmp_path):
    """Ctrl-C stops forward and backward with KeyboardInterrupt, and the program can go on."""
    done = run_program(
        """
        import os, signal, threading, time
        import numpy as np
        import dynet_cy as dy
        model = dy.ParameterCollection()
        w = model.add_parameters((256, 256), init=dy.NormalInitializer(0, 0.02))
        def build(layers):
            dy.renew_cg()
            x = dy.inputVector(np.ones(256))
            for _ in range(layers):
                x = dy.tanh(w * x)
            return dy.sum_elems(x)  # the weights are large enough that it does not vanish
        def interrupted(call):
            try:
                threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
                call()
                while True:
                    time.sleep(0.01)
            except KeyboardInterrupt:
                return True
        loss = build(10000)
        assert interrupted(loss.value)
        value = loss.value()
        assert interrupted(loss.backward)
        loss.backward()
        print(np.isfinite(value), bool(w.grad_as_array().any()))
        """,
        tmp_path,
    )
    assert done.stdout == "True True\n", done.stderr
    assert done.returncode == 0


def test_a_child_of_a_thread_runs_handlers(tmp_path):
    """In the child, the thread that called fork is the main thread, so handlers run there."""
    done = run_program(
        """
        import os, signal, threading
        import numpy as np
        import dynet_cy as dy
        dy.inputVector([1]).value()

        def child():
            model = dy.ParameterCollection()
            w = model.add_parameters((256, 256))
            signal.signal(signal.SIGALRM, lambda *_: os._exit(7))
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            for layers in (1000, 10000, 100000):
                dy.renew_cg()
                x = dy.inputVector(np.ones(256))
                for _ in range(layers):
                    x = dy.tanh(w * x)
                x.value()
            os._exit(1)

        def work():
            pid = os.fork()
            if pid == 0:
                child()
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        codes = []
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print(codes)
        """,
        tmp_path,
    )
    assert done.stdout == "[7]\n", done.stderr
