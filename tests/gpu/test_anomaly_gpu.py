"""Anomalies on GPUs, and on several devices."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.graph.expressions import set_autobatching, set_default_device

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "watch"))
from anomalies import CASES, check, check_gradients_stay, within_a_builder


# Parameters of a builder are on the device of the graph.
@pytest.mark.parametrize("program", [f for f in CASES if f is not within_a_builder], ids=lambda f: f.__name__)
@pytest.mark.parametrize("place", ["CPU", "GPU:0"])
def test_found_on_several_devices(program, place: str, device: str, on_the_cpu_again) -> None:
    """The default device of the graph is not that of the program: nodes run on the device of their arguments."""
    set_default_device(1 if place == "CPU" else 0)
    dy.renew_cg()
    with dy.detect_anomaly(), pytest.raises(dy.AnomalyError) as caught:
        program(place)
    check(caught.value, program)


@pytest.mark.parametrize("batching", [0, 1])
@pytest.mark.parametrize(("graph", "place"), [("CPU", "GPU:0"), ("GPU:0", "CPU")])
def test_gradients_stay_as_they_were(graph: str, place: str, batching: int, device: str, on_the_cpu_again) -> None:
    set_autobatching(batching)
    set_default_device(1 if graph == "GPU:0" else 0)
    dy.renew_cg()
    check_gradients_stay(place)


def test_a_copy_from_another_device(device: str, on_the_cpu_again) -> None:
    """A parameter on the CPU with an infinity, whose copy is used on the GPU."""
    w = dy.ParameterCollection().parameters_from_numpy(np.array([1.0, np.inf]), name="w", device="CPU")
    set_default_device(0)
    dy.renew_cg()
    with dy.detect_anomaly(), pytest.raises(dy.AnomalyError, match="parameter /w is not finite itself") as caught:
        dy.tanh(dy.to_device(w, "GPU:0")).value()
    assert caught.value.op == "to_device"


def test_training_goes_on_with_the_same_numbers(on_device: str) -> None:
    def trained(checked: bool) -> list:
        dy.reset_random_seed(5)
        collection = dy.ParameterCollection()
        W = collection.add_parameters((40, 40))
        table = collection.add_lookup_parameters((9, 40))
        trainer = dy.SimpleSGDTrainer(collection)
        dy.config.set(check=checked)
        try:
            for step in range(5):
                dy.renew_cg()
                losses = [dy.pickneglogsoftmax(W * dy.tanh(W * table[(step + k) % 9]), k) for k in range(6)]
                dy.esum(losses).backward()
                trainer.update()
        finally:
            dy.config.set(check=False)
        return [W.as_array().tobytes(), table.as_array().tobytes()]

    assert trained(True) == trained(False)


def test_lines_in_profiles(on_device: str) -> None:
    from dynet_cy import profiling

    with profiling.measure(lines=True) as profile:
        dy.renew_cg()
        xs = [dy.inputVector([1.0, 2.0]) for _ in range(4)]
        loss = dy.esum([dy.squared_norm(dy.tanh(x)) for x in xs])
        loss.backward(full=True)
    rows = {(row.op, row.backward): row for row in profile.lines}
    for backward in (False, True):
        assert rows["tanh", backward].nodes == 4
        assert rows["tanh", backward].file == __file__
