"""Trainers whose steps are written in Python: the same as the built-in ones in everything but speed."""

from __future__ import annotations

import copy
import math
import pickle
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import all_close
from python_trainers import SGD, Adam, ManyStates

import dynet_cy as dy

Make = Callable[[dy.ParameterCollection], dy.Trainer]
PAIRS: dict[str, tuple[Make, Make]] = {
    "sgd": (lambda m: SGD(m, 0.1), lambda m: dy.SimpleSGDTrainer(m, 0.1)),
    "adam": (lambda m: Adam(m, 0.05), lambda m: dy.AdamTrainer(m, 0.05, eps=1e-3)),
}


class Model:
    """Parameters of all numbers of axes, two tables, and a trainer."""

    def __init__(self, make: Make) -> None:
        rng = np.random.default_rng(1)
        self.m = dy.ParameterCollection()
        self.dense = [self.m.add_parameters(s, init=rng.normal(size=s)) for s in ((3, 4), (5,), (2, 3, 2), (3, 0))]
        self.tables = [self.m.add_lookup_parameters(s, init=rng.normal(size=s)) for s in ((6, 3), (5, 2, 3))]
        self.trainer = make(self.m)

    def gradients(self, seed: int, scale: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        dy.renew_cg()
        terms = []
        for p in self.dense[:3]:
            terms.append(dy.sum_elems(dy.cmult(p, dy.inputTensor(rng.normal(size=p.shape()) * scale))))
        for table in self.tables:
            for row in rng.choice(len(table), 2, replace=False):
                g = rng.normal(size=table.shape()[1:]) * scale
                terms.append(dy.sum_elems(dy.cmult(table[int(row)], dy.inputTensor(g))))
        dy.esum(terms).backward()

    def values(self) -> list[np.ndarray]:
        return [p.as_array() for p in (*self.dense, *self.tables)]

    def train(self, updates: range) -> None:
        for k in updates:
            self.gradients(k)
            self.trainer.update()


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b))


def groups(x: Model) -> None:
    x.trainer.group(x.dense[0], learning_rate=0.01, weight_decay=0.5)
    x.trainer.group([x.dense[1], x.tables[0]], clip_threshold=0.1, weight_decay=0.2)


def frozen(x: Model) -> None:
    x.dense[0].set_updated(False)
    x.tables[1].set_updated(False)


SETTINGS: dict[str, Callable[[Model], None]] = {
    "default": lambda x: None,
    "clipped": lambda x: x.trainer.set_clip_threshold(0.5),
    "not clipped": lambda x: x.trainer.set_clip_threshold(0),
    "all rows": lambda x: x.trainer.set_sparse_updates(False),
    "weight decay": lambda x: x.m.set_weight_decay(0.3),
    "groups": groups,
    "frozen": frozen,
    "schedule": lambda x: setattr(x.trainer, "schedule", dy.WarmupSchedule(3, then=dy.CosineSchedule(7))),
    "average": lambda x: x.trainer.exponential_moving_average(0.5),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rule", PAIRS)
def test_equals_built_in(rule: str, setting: str) -> None:
    models = [Model(make) for make in PAIRS[rule]]
    for x in models:
        SETTINGS[setting](x)
    for k in range(8):
        for x in models:
            x.gradients(k, [1, 0.1, 5][k % 3])
            x.trainer.update()
        own, other = (x.values() for x in models)
        all_close(own, other, rtol=2e-5, atol=2e-6)
        assert models[0].trainer.gradient_norm == models[1].trainer.gradient_norm
        assert models[0].trainer.learning_rate == models[1].trainer.learning_rate
    assert all(not p.grad_as_array().any() for p in (*models[0].dense, *models[0].tables))
    if setting == "average":
        for x in models:
            x.trainer.swap_params_to_moving_average()
        all_close(*(x.values() for x in models), rtol=2e-5, atol=2e-6)


def test_sgd_is_the_same_to_the_last_bit() -> None:
    models = [Model(make) for make in PAIRS["sgd"]]
    for x in models:
        x.train(range(5))
    assert same(models[0].values(), models[1].values())


def test_update_subset() -> None:
    models = [Model(make) for make in PAIRS["adam"]]
    for x in models:
        x.gradients(1)
        x.trainer.update_subset([1], [0])
    all_close(*(x.values() for x in models), rtol=2e-5, atol=2e-6)
    assert same(*([p.grad_as_array() for p in x.dense] for x in models))


def test_what_step_gets() -> None:
    seen: dict[str, Any] = {}

    class Seeing(dy.PythonTrainer):
        state_names = ("s",)

        def step(self, p: Any, settings: Any) -> Any:
            seen[p.name] = (p, settings)
            p.state["s"][...] = p.value
            return np.zeros(p.value.shape)

    x = Model(Seeing)
    group = x.trainer.group(x.dense[1], learning_rate=0.25)
    x.trainer.set_clip_threshold(0)
    x.gradients(1)
    gradients = [p.grad_as_array() for p in (*x.dense, *x.tables)]
    x.trainer.update()
    norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients))
    assert x.trainer.gradient_norm == pytest.approx(norm, rel=1e-5)
    for own, gradient in zip((*x.dense, *x.tables), gradients):
        p, settings = seen[own.name()]
        at = ... if p.rows is None else p.rows
        np.testing.assert_array_equal(p.value, own.as_array()[at])
        np.testing.assert_array_equal(p.gradient, gradient[at])
        assert settings == ((0.25, 1, group) if own is x.dense[1] else (0.1, 1, None))
    rows = seen[x.tables[0].name()][0].rows
    assert (len(rows), list(rows)) == (2, sorted(rows))
    seen.clear()
    x.trainer.update()  # without gradients
    assert set(seen) == {p.name() for p in x.dense}


def test_more_states_than_rules_have() -> None:
    x = Model(ManyStates)
    start = x.values()
    x.train(range(4))
    assert same(x.values(), start)
    x.train(range(4, 6))
    assert not same(x.values(), start)


@pytest.mark.parametrize("make", [lambda m: Adam(m, 0.05), ManyStates], ids=["adam", "many"])
def test_resumed_is_uninterrupted(make: Make, tmp_path: Path) -> None:
    def new() -> Model:
        x = Model(make)
        groups(x)
        x.trainer.set_sparse_updates(False)
        x.trainer.schedule = dy.LinearSchedule(10)
        return x

    whole, first, resumed = new(), new(), new()
    whole.train(range(8))
    first.train(range(5))
    first.gradients(5)
    dy.save_safetensors(tmp_path / "point", first.m, first.trainer)
    copied = copy.deepcopy(first.trainer)
    pickled = pickle.loads(pickle.dumps(first.trainer)) if make is ManyStates else copied
    dy.load_safetensors(tmp_path / "point", resumed.m, resumed.trainer)
    resumed.trainer.update()
    resumed.train(range(6, 8))
    assert same(resumed.values(), whole.values())
    assert repr(resumed.trainer._settings()) == repr(whole.trainer._settings())
    for other in (copied, pickled):
        assert other.learning_rate == first.trainer.learning_rate
        assert all(same(a, b) for a, b in zip(other._state_arrays(), first.trainer._state_arrays()))


def test_parallel_checkpoint(tmp_path: Path) -> None:
    whole, resumed = (Model(lambda m: Adam(m, 0.05)) for _ in range(2))
    whole.train(range(4))
    dy.parallel.save_checkpoint(tmp_path / "point", whole.m, dy.parallel.wrap(whole.trainer))
    whole.train(range(4, 6))
    dy.parallel.load_checkpoint(tmp_path / "point", resumed.m, resumed.trainer)
    resumed.train(range(4, 6))
    assert same(resumed.values(), whole.values())


def test_restart() -> None:
    x = Model(lambda m: Adam(m, 0.05))
    x.train(range(2))
    x.trainer.restart()
    assert not any(state.any() for states in x.trainer._state_arrays() for state in states)


class Failing(Adam):
    """Raises for the last table."""

    what: Any = None

    def step(self, p: Any, settings: Any) -> Any:
        change = super().step(p, settings)
        return type(self).what(self, p, change) if p.name == "/_5" and type(self).what else change


def raises(error: BaseException) -> Any:
    def act(trainer: Any, p: Any, change: Any) -> Any:
        raise error

    return act


def interrupted(trainer: Any, p: Any, change: Any) -> Any:
    signal.raise_signal(signal.SIGINT)
    return change


def nested(trainer: Any, p: Any, change: Any) -> Any:
    trainer.update()


def with_state(trainer: Any, p: Any, change: Any) -> Any:
    p.state["square"] = 1
    return change


def without_state(trainer: Any, p: Any, change: Any) -> Any:
    del p.state["mean"]
    return change


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        (raises(ZeroDivisionError("by zero")), ZeroDivisionError, "by zero"),
        (raises(RuntimeError("step")), RuntimeError, "step"),
        (interrupted, KeyboardInterrupt, None),
        (nested, RuntimeError, "in the middle of another one"),
        (lambda t, p, change: None, ValueError, r"the step of /_5 must have shape \(2, 2, 3\), and is None"),
        (lambda t, p, change: change[0], ValueError, r"and is an array of float32 and shape \(2, 3\)"),
        (lambda t, p, change: change + 1j, ValueError, "an array of complex64"),
        (with_state, ValueError, "the state 'square' of /_5 must have shape"),
        (without_state, KeyError, "states.*after step"),
    ],
)
def test_errors_change_nothing(what: Any, error: type[BaseException], message: str | None) -> None:
    whole, x = Model(lambda m: Failing(m, 0.05)), Model(lambda m: Failing(m, 0.05))
    for y in (whole, x):
        groups(y)
        y.m.set_weight_decay(1e-7)  # collected over updates
        y.train(range(2))
        y.gradients(3)
    before = x.values(), repr(x.trainer), x.trainer._state_arrays(), [p.grad_as_array() for p in x.dense]
    Failing.what = what
    try:
        with pytest.raises(error, match=message):
            x.trainer.update()
    finally:
        Failing.what = None
    assert same(x.values(), before[0])
    assert repr(x.trainer) == before[1]
    assert all(same(a, b) for a, b in zip(x.trainer._state_arrays(), before[2]))
    assert same([p.grad_as_array() for p in x.dense], before[3])
    whole.trainer.update()
    x.trainer.update()
    assert same(x.values(), whole.values())


def test_gradients_that_are_not_finite() -> None:
    x = Model(lambda m: Adam(m))
    before = x.values()
    x.gradients(1, np.inf)
    with pytest.raises(RuntimeError, match="/_0"):
        x.trainer.update()
    x.trainer.update(skip_nonfinite=True)
    assert (x.trainer.skipped_updates, same(x.values(), before)) == (1, True)
    assert not x.dense[0].grad_as_array().any()
    x.train(range(1))
    assert not same(x.values(), before)


def test_all_arrays_may_be_written_to() -> None:
    """A step that uses its arrays for something else changes the same rows."""

    class Writing(SGD):
        def step(self, p: Any, settings: Any) -> Any:
            change = super().step(p, settings)
            for array in (p.rows, p.value, p.gradient):
                array[:] = 2**31
            return change

    m = dy.ParameterCollection()
    table = m.add_lookup_parameters((4, 3), init=1.0)
    trainer = Writing(m, 0.5)
    dy.renew_cg()
    (dy.sum_elems(table[0]) + dy.sum_elems(table[2])).backward()
    trainer.update()
    np.testing.assert_array_equal(table.as_array()[:, 0], [0.5, 1, 0.5, 1])
    assert not table.grad_as_array().any()


def test_gradients_that_another_thread_adds_are_kept() -> None:
    """A gradient that a pass of another thread adds while steps are computed is left for the next update."""

    class Slow(SGD):
        def step(self, p: Any, settings: Any) -> Any:
            def add() -> None:
                dy.renew_cg()
                dy.sum_elems(dy.concatenate([dy.reshape(w, (4,)), table[1], table[2]])).backward()

            if p.rows is not None:
                thread = threading.Thread(target=add)
                thread.start()
                thread.join()
            return super().step(p, settings)

    m = dy.ParameterCollection()
    w, table = m.add_parameters((2, 2), init=1.0), m.add_lookup_parameters((4, 3), init=1.0)
    trainer = Slow(m, 0.5)
    trainer.set_clip_threshold(0)
    dy.renew_cg()
    (dy.sum_elems(w) + dy.sum_elems(table[0]) + dy.sum_elems(table[1])).backward()
    trainer.update()
    np.testing.assert_array_equal(w.as_array(), np.full((2, 2), 0.5))
    np.testing.assert_array_equal(table.as_array()[:, 0], [0.5, 0.5, 1, 1])
    np.testing.assert_array_equal(w.grad_as_array(), np.ones((2, 2)))
    np.testing.assert_array_equal(table.grad_as_array()[:, 0], [0, 1, 1, 0])


def test_interrupted_at_any_time() -> None:
    """When a signal handler raises, all parameters have an update or none has it."""

    class Interrupted(Exception):
        pass

    class Counting(dy.PythonTrainer):
        state_names = ("count",)

        def step(self, p: Any, settings: Any) -> Any:
            p.state["count"] += 1
            return np.ones(p.value.shape, np.float32)

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted

    m = dy.ParameterCollection()
    own = [m.add_parameters((300, 300), init=0.0) for _ in range(6)]
    trainer = Counting(m)
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for k in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.00025 * k)
                for _ in range(1000):
                    trainer.update()
            except Interrupted:
                interrupted += 1
            assert len({float(x) for p in own for x in (p.as_array().min(), p.as_array().max())}) == 1
            assert own[0].as_array()[0, 0] == trainer._steps
            assert {float(s.min()) for states in trainer._state_arrays() for s in states} == {trainer._steps}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 60
    made = trainer._steps
    trainer.update()
    assert (own[0].as_array() == made + 1).all()


def test_wrong_classes() -> None:
    m = dy.ParameterCollection()
    with pytest.raises(TypeError, match="derive a class from it, with a method step"):
        dy.PythonTrainer(m)
    for names in ("mean", ["mean"], ("mean", "mean"), (1,)):
        with pytest.raises(TypeError, match="must be a tuple of different strings"):
            type("Wrong", (SGD,), {"state_names": names})


def muon() -> type[dy.PythonTrainer]:
    """The class in docs/training.md."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    (block,) = [b for b in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "class Muon" in b]
    names: dict[str, Any] = {}
    exec(block, names)
    found: type[dy.PythonTrainer] = names["Muon"]
    return found


def test_muon_trains() -> None:
    """A network with one hidden layer fits random labels, with steps that are orthogonal for matrices."""
    rng = np.random.default_rng(1)
    inputs, labels = rng.normal(size=(16, 64)), rng.integers(4, size=64)
    dy.reset_random_seed(1)
    m = dy.ParameterCollection()
    W, b, V = m.add_parameters((32, 16)), m.add_parameters(32, init=0.0), m.add_parameters((4, 32))
    trainer = muon()(m, learning_rate=0.05)
    losses = []
    for _ in range(60):
        dy.renew_cg()
        h = dy.tanh(dy.affine_transform([b, W, dy.inputTensor(inputs, batched=True)]))
        loss = dy.mean_batches(dy.pickneglogsoftmax_batch(V * h, labels.tolist()))
        losses.append(loss.value())
        loss.backward()
        before = W.as_array()
        trainer.update()
    assert losses[0] > 1
    assert losses[-1] < 0.05
    sizes = np.linalg.svd(W.as_array() - before, compute_uv=False) / (0.05 * 2**0.5)
    assert sizes.min() > 0.5
    assert sizes.max() < 1.3


def test_interrupted_at_any_line() -> None:
    """An update that an exception of a signal handler ends at any line of Python does not block the next one."""

    class Counting(dy.PythonTrainer):
        def step(self, p: Any, settings: Any) -> Any:
            return np.ones(p.value.shape, np.float32)

    m = dy.ParameterCollection()
    w = m.add_parameters(2, init=0.0)
    trainer = Counting(m)
    left, ended = 0, 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return trace

    while left <= 0:
        ended += 1
        left = ended
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            trainer.update()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        steps = trainer.updates
        trainer.update()
        assert trainer.updates == steps + 1
        assert (w.as_array() == trainer.updates).all()
    assert ended > 50
