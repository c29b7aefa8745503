"""A server with its graph on the device: the same answers as on the CPU, and one pass for all waiting calls."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.graph.expressions import set_default_device

pytestmark = pytest.mark.usefixtures("on_the_cpu_again")


def answers(device: int) -> tuple[list[int], int]:
    set_default_device(device)
    rng = np.random.default_rng(1)
    model = dy.ParameterCollection()
    w, table = (model.parameters_from_numpy(rng.uniform(-1, 1, (6, 6))) for _ in range(2))

    def walk(start: int, length: int) -> int:
        h, steps = dy.select_cols(table, [start]), 0
        while steps < length or h.npvalue().sum() > 0:
            h, steps = dy.tanh(w * h), steps + 1
            if steps > 20:
                break
        return steps

    with dy.Server(walk) as server:
        with server.paused():
            calls = [server.submit(k % 6, k % 5) for k in range(20)]
        return [call.result(60) for call in calls], server.statistics().passes


def test_the_same_answers_in_as_many_passes() -> None:
    on_device, on_cpu = answers(1), answers(0)
    assert on_device == on_cpu
    assert on_cpu[1] <= 22
