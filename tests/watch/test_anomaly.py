"""Anomalies: what is reported, with which line, and what is not an anomaly."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from anomalies import CASES, check, check_gradients_stay

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.graph import origin
from dynet_cy.watch import instruments as watch


@pytest.fixture(autouse=True)
def _off_again():
    yield
    assert not watch.is_checking()
    assert not origin.is_recording()
    dy.renew_cg()


@pytest.mark.parametrize("program", CASES, ids=lambda f: f.__name__)
def test_found(program, on_each_device: str, strategy: int) -> None:
    with dy.detect_anomaly(), pytest.raises(dy.AnomalyError) as caught:
        program("")  # the device of the graph
    check(caught.value, program)
    dy.renew_cg()
    program("")  # nothing is checked after the block
    with dy.detect_anomaly():  # and programs without anomalies run
        dy.renew_cg()
        assert dy.exp(dy.scalarInput(0)).value() == 1


def test_found_in_one_of_a_batch_of_a_cached_plan() -> None:
    """The same structure four times: from the third time on, its plan comes from the cache."""

    def losses(numbers: list[float]) -> dy.Expression:
        dy.renew_cg(autobatching=1)
        return dy.esum([dy.sum_elems(dy.log(dy.inputVector([x, 1.0, 2.0]))) for x in numbers])

    engine.stats("schedule.plan", reset=True)
    with dy.detect_anomaly():
        for _ in range(3):
            losses([1.0, 2.0, 3.0, 4.0]).value()
        before = engine.stats("schedule.plan")["reused"]
        assert before > 0
        with pytest.raises(dy.AnomalyError) as caught:
            losses([1.0, 2.0, 0.0, 4.0]).value()
    assert engine.stats("schedule.plan")["reused"] == before + 1
    text = str(caught.value)
    assert "1 -inf of 3, the first is element [0]" in text
    assert "it ran in one batch with 3 more of log" in text
    assert "input: from 0 to 2, 1 zero" in text


def test_threads() -> None:
    """Blocks of several threads end in any order; an error belongs to the graph of its own thread."""

    def train(bad: int) -> str:
        w = dy.ParameterCollection().add_parameters((3, 3), init=1.0)
        with dy.detect_anomaly():
            for step in range(60):
                dy.renew_cg()
                x = dy.inputVector([0.0 if step == bad else 1.0, 1.0, 1.0])
                try:
                    dy.sum_elems(dy.log(x) + w * x).backward()
                except dy.AnomalyError as e:
                    return f"{step} {e.op}"
        return "none"

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(train, [5, -1, 40, -1]))
    assert found == ["5 log", "none", "40 log", "none"]


def test_numbers_stay_the_same() -> None:
    """Checks do not change a bit of any parameter in training."""

    def trained(checked: bool) -> list:
        dy.reset_random_seed(5)
        collection = dy.ParameterCollection()
        builder = dy.LSTMBuilder(2, 20, 40, collection)
        W = collection.add_parameters((7, 40))
        table = collection.add_lookup_parameters((9, 20))
        trainer = dy.AdamTrainer(collection)
        config.set(check=checked)
        try:
            for step in range(6):
                dy.renew_cg()
                losses = []
                for k in range(5):
                    words = [table[(step + k + i) % 9] for i in range(3 + k)]
                    losses.append(dy.pickneglogsoftmax(W * builder.initial_state().transduce(words)[-1], k))
                loss = dy.esum(losses)
                loss.backward()
                trainer.update()
        finally:
            config.set(check=False)
        return [p.as_array().tobytes() for p in (*collection.parameters_list(), *collection.lookup_parameters_list())]

    assert trained(True) == trained(False)


@pytest.mark.usefixtures("on_each_device")
def test_infinities_that_came_in() -> None:
    """Infinities in masks and in a restricted softmax are no anomalies; what they turn into by mistake is one."""
    w = dy.ParameterCollection().add_parameters((3, 3), init=1.0)
    with dy.detect_anomaly():
        dy.renew_cg()
        scores = w * dy.inputVector([1.0, 2.0, 3.0])
        masked = scores + dy.inputVector([0.0, 0.0, -np.inf])
        dy.pick(dy.softmax(masked), 0).backward()
        dy.pick(dy.log_softmax(scores, [0, 1]), 0).backward()
        with pytest.raises(dy.AnomalyError, match=r"pickneglogsoftmax: .* 1 inf of 1"):
            dy.pickneglogsoftmax(masked, 2).value()
        with pytest.raises(dy.AnomalyError, match=r"sub: .*: 1 NaN of 3"):
            (masked - masked).value()
    dy.renew_cg(check_validity=True)  # this reports every value that is not finite
    with pytest.raises(ValueError, match="add: a value of expression"):
        (w * dy.inputVector([1.0, 2.0, 3.0]) + dy.inputVector([0.0, 0.0, -np.inf])).value()


@pytest.mark.usefixtures("on_each_device")
def test_gradients_that_were_there_before() -> None:
    w = dy.ParameterCollection().add_parameters(2, init=0.0, name="w")
    dy.renew_cg()
    dy.sum_elems(dy.sqrt(w)).backward()
    with dy.detect_anomaly():
        dy.renew_cg()
        with pytest.raises(dy.AnomalyError, match=r"gradient of parameter /w was not finite before: 2 inf of 2"):
            dy.sum_elems(dy.tanh(w)).backward()


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("settings", [{"forward_only": True}, {"immediate_compute": True}, {"check_validity": True}])
def test_kinds_of_graphs(settings) -> None:
    with dy.detect_anomaly():
        dy.renew_cg(**settings)
        x = dy.inputVector([0.0, 1.0])
        with pytest.raises(dy.AnomalyError, match=r"log: a value of expression 1 \{2\} is not finite") as caught:
            dy.log(x).value()
        assert caught.value.origin.function == "test_kinds_of_graphs"
        assert dy.exp(x).value() == pytest.approx([1, np.e])


@pytest.mark.usefixtures("on_each_device")
def test_backward_of_all_expressions() -> None:
    with dy.detect_anomaly():
        dy.renew_cg()
        x = dy.inputVector([0.0, 1.0])
        loss = dy.sum_elems(dy.sqrt(x))
        loss.backward()  # nothing else depends on it
        with pytest.raises(dy.AnomalyError, match="backward of sqrt: the gradient of x is not finite: 1 inf of 2"):
            loss.backward(full=True)


def test_gradients_stay_as_they_were(strategy: int, on_each_device: str) -> None:
    check_gradients_stay(on_each_device)


def test_nodes_from_before_have_no_line() -> None:
    dy.renew_cg()
    y = dy.log(dy.inputVector([0.0]))
    with dy.detect_anomaly(), pytest.raises(dy.AnomalyError, match="made before lines were recorded") as caught:
        y.value()
    assert caught.value.origin is None
    assert caught.value.number == 1


def test_long_lists_show_what_is_not_finite() -> None:
    with dy.detect_anomaly():
        dy.renew_cg()
        xs = [dy.inputVector([float(k), 1.0]) for k in range(40)]
        xs[33] = dy.inputVector([np.nan, 1.0])
        with pytest.raises(dy.AnomalyError) as caught:
            dy.concatenate(xs).value()
    text = str(caught.value)
    assert "xs[33]  {2}  input: 1 NaN of 2, the other 1" in text
    assert "and 28 arguments more" in text


def test_settings() -> None:
    assert not config.get()["check"]
    config.set(check=True)
    config.set(check=True)
    assert config.get()["check"]
    with dy.detect_anomaly():
        pass
    assert watch.is_checking()
    config.set(check=False)
    assert not watch.is_checking()
    params = dy.DynetParams()
    params.set_check(True)
    params.init()
    assert watch.is_checking()
    config.set(check=False)
    with pytest.raises(RuntimeError, match="more often"):
        watch.switch(False)


PROGRAM = """
import sys
import dynet_cy as dy
x = dy.scalarInput(0)
y = dy.log(x)
print(y.value(), sys.argv[1:])
"""


@pytest.mark.parametrize(("option", "variable"), [("--dynet-check", None), (None, "1"), (None, "0"), (None, None)])
def test_option(option: str | None, variable: str | None, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    if variable:
        monkeypatch.setenv("DYNET_CY_CHECK", variable)
    command = [sys.executable, str(program), *([option] if option else []), "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if option or variable == "1":
        assert done.returncode == 1
        assert f"made at {program}:5 in <module>\n        y = dy.log(x)\n" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout == "-inf ['4']\n"
