"""Graphs that do not fit into the memory of a device, or into a limit, drop values and compute them again."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from arrays import all_equal

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.gpu.graphs import device_bytes
from dynet_cy.graph.expressions import set_autobatching, set_default_device

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "execute"))

from limits import limited
from test_recompute import layers, nested
from test_within_limit import gradients

MIB = 1 << 20


@pytest.fixture(autouse=True)
def first_ratio(on_device) -> Iterator[None]:
    with engine.tuned({"schedule.budget.percent": 107}):
        yield


@pytest.fixture
def memory_of_device(monkeypatch: pytest.MonkeyPatch, nothing_held: None) -> Callable[[int], None]:
    """Sets the bytes that the emulated device has."""
    if "DYNET_CY_GPU_EMULATED" not in os.environ:
        pytest.skip("only the emulated device has as much memory as it is told")
    return lambda n: monkeypatch.setenv("EMU_MEMORY", str(n))


def used_bytes(device: str = "GPU:0") -> int:
    """What is used of the memory of the device."""
    from pycuda import driver

    free, total = driver.mem_get_info()
    return total - free


def close(got: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for x, y in zip(got, expected):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(y).max(initial=0))))


def numbers(n: int, width: int, **how: float) -> tuple[list[np.ndarray], dict[str, int]]:
    """The loss and the gradient of n cells of 64 numbers and a minibatch, and the memory of the device they take."""
    dy.reset_random_seed(5)
    set_default_device(1)
    with dy.ComputationGraph(**how) as graph:
        w = dy.ParameterCollection().parameters_from_numpy(np.eye(64) * 1.2)
        h = dy.inputTensor(np.sin(np.arange(64 * width)).reshape(64, width), batched=True)
        for _ in range(n):
            h = dy.tanh(dy.dropout(w * h, 0.1))
        loss = dy.sum_batches(dy.squared_norm(h))
        loss.backward()
        return [loss.npvalue(), w.grad_as_array()], device_bytes(graph, 0)


@pytest.mark.parametrize("autobatching", [0, 1])
@pytest.mark.parametrize("program", [layers, nested])
def test_within_a_limit_of_the_process(program: Callable, autobatching: int) -> None:
    set_autobatching(autobatching)
    try:
        expected = gradients(program, 1)
        most = sum(device_bytes(dy.cg(), 0)[k] for k in ("values", "gradients", "scratch")) / MIB
        with limited(max(0.6 * most, 0.5)):
            close(gradients(program, 1), expected)
    finally:
        set_autobatching(1)


def test_the_memory_of_the_device_is_the_limit(memory_of_device: Callable[[int], None]) -> None:
    """Without any option, a graph that would take more drops values, and so do later ones."""
    expected, taken = numbers(48, 512, autobatching=0)
    memory_of_device(used_bytes() + taken["held"] // 3)
    for _ in range(2):
        engine.stats("execute.rematerialize", reset=True)
        got, less = numbers(48, 512, autobatching=0)
        close(got, expected)
        assert engine.stats("execute.rematerialize")["nodes"]
        assert less["held"] <= taken["held"] // 3


def test_not_even_that_fits(memory_of_device: Callable[[int], None]) -> None:
    """A MemoryError names the largest values, and the process goes on."""
    expected, _ = numbers(20, 256)
    memory_of_device(used_bytes() + 24 * MIB)
    with pytest.raises(MemoryError, match=r"(?s)GPU:0.*largest values of the graph: .* MiB") as caught:
        numbers(4, 40_000)
    assert re.search(r"(tanh|dropout|matmul|input)", str(caught.value))
    del caught  # and the graph with it
    close(numbers(20, 256)[0], expected)


@pytest.fixture
def compiled_at_once() -> Iterator[None]:
    with engine.tuned({"gpu.fusion.most_kernels": 256, "gpu.fusion.least_saved": 0}):
        yield


def gated_cells(n: int, count: int, **how: float) -> tuple[list[np.ndarray], dict[str, int]]:
    """Cells of 64 numbers with gates that the program writes out, n after each other, for so many examples."""
    set_default_device(1)
    with dy.ComputationGraph(autobatching=1, **how) as graph:
        w = dy.ParameterCollection().parameters_from_numpy(np.tile(np.eye(64), (3, 1)))
        ends = []
        for k in range(count):
            c = dy.inputVector(np.sin(np.arange(64) * (k + 1)))
            for _ in range(n):
                gates = w * c
                i, f, u = (dy.pick_range(gates, 64 * j, 64 * j + 64) for j in range(3))
                c = dy.cmult(dy.logistic(i), dy.tanh(u)) + dy.cmult(dy.logistic(f), c)
            ends.append(dy.squared_norm(c))
        loss = dy.esum(ends)
        del c, gates, i, f, u, ends
        loss.backward()
        return [loss.npvalue(), w.grad_as_array()], device_bytes(graph, 0)


@pytest.mark.usefixtures("compiled_at_once")
def test_runs_of_elementwise_batches_are_taken_apart_within_a_limit() -> None:
    expected, taken = gated_cells(30, 48)
    for _ in range(2):  # the second time with the plan of the first one
        engine.stats("execute.rematerialize", reset=True)
        got, less = gated_cells(30, 48, mem=sum(taken.values()) / MIB / 3)
        close(got, expected)
        assert engine.stats("execute.rematerialize")["nodes"]
    all_equal(gated_cells(30, 48)[0], expected)


@pytest.mark.usefixtures("compiled_at_once")
def test_runs_of_elementwise_batches_keep_what_they_read(drops: Callable[[bool], None]) -> None:
    found = []
    for on in (False, True):
        drops(on)
        found.append(gated_cells(6, 5)[0])
    all_equal(*found)


def asked_in_runs(autobatching: int) -> list[np.ndarray]:
    """Values within runs of elementwise batches and of steps of cells, by the numbers of their nodes."""
    dy.reset_random_seed(3)
    with dy.ComputationGraph(autobatching=autobatching) as graph:
        collection = dy.ParameterCollection()
        builder = dy.LSTMBuilder(1, 64, 64, collection)
        ends = []
        for k in range(3):
            x = dy.inputVector(np.sin(np.arange(64) * (k + 1)))
            ys = builder.transduce([x * (1.0 + i) for i in range(4)])
            a, b = dy.logistic(ys[-1] + x), dy.tanh(x - ys[-2])
            ends.append(dy.squared_norm(dy.tanh((a + b) + ys[-3])))
        loss = dy.esum(ends)
        del x, ys, a, b, ends
        loss.backward()
        found = [loss.npvalue(), *(p.grad_as_array() for p in collection.parameters_list())]
        for op in ("add", "subtract", "vanilla_lstm_h", "vanilla_lstm_c"):
            numbers = [k for k, name in enumerate(graph.op_names()) if name == op]
            found += [graph._node(k).npvalue() for k in numbers]
        return found


@pytest.mark.usefixtures("compiled_at_once")
@pytest.mark.parametrize("autobatching", [0, 1])
def test_values_within_runs_and_cells_can_be_asked_for(drops: Callable[[bool], None], autobatching: int) -> None:
    """They are dropped, and computed again one by one."""
    found = []
    for on in (False, True):
        drops(on)
        engine.stats("execute.rematerialize", reset=True)
        found.append(asked_in_runs(autobatching))
        assert (engine.stats("execute.rematerialize")["nodes"] > 0) == on
    assert len(found[0]) == len(found[1]) > 20
    all_equal(*found)


@pytest.mark.usefixtures("compiled_at_once")
def test_runs_of_elementwise_batches_keep_no_sums(drops: Callable[[bool], None]) -> None:
    taken = []
    for on in (False, True):
        drops(on)
        taken.append(gated_cells(30, 48)[1])
    assert taken[1]["values"] < 0.85 * taken[0]["values"]
