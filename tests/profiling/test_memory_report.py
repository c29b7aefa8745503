"""What memory consists of."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import config, profiling
from dynet_cy.memory import arena


@pytest.fixture(autouse=True)
def new_graph() -> None:
    dy.renew_cg()


def rows_of(report: dy.MemoryReport) -> dict[str, int]:
    return {row.kind: row.bytes for row in report.rows}


@pytest.mark.usefixtures("small_graphs_keep_all")
def test_kinds(collection: dy.ParameterCollection) -> None:
    """Every kind is there with its size, and together they are the total."""
    before = rows_of(dy.memory_report())
    w = collection.add_parameters((100, 100))
    trainer = dy.AdamTrainer(collection)
    x = dy.inputTensor(np.ones((100, 8)), batched=True)
    loss = dy.sum_batches(dy.squared_norm(dy.tanh(w * x)))
    loss.backward()
    trainer.update()
    report = dy.memory_report()
    now = rows_of(report)
    assert now["parameters"] - before.get("parameters", 0) >= 4 * 100 * 100
    assert now["gradients of parameters"] - before.get("gradients of parameters", 0) >= 4 * 100 * 100
    assert now["states of trainers"] - before.get("states of trainers", 0) >= 2 * 4 * 100 * 100
    assert now["values"] >= 3 * 4 * 800  # the input, the product and tanh
    assert now["gradients of values"] > 0
    assert now["nodes and plan"] > 0
    assert sum(row.bytes for row in report.rows if row.kind != "plan cache") == report.total


def test_values_by_line() -> None:
    with dy.record_lines():
        x = [dy.inputTensor(np.ones((30, 2))) for _ in range(3)]
        y = [dy.tanh(one) for one in x]
        z = dy.exp(dy.inputTensor(np.ones((5, 4)), batched=True))
    dy.forward([*y, z])
    report = dy.memory_report()
    rows = [(v.op, v.bytes, v.nodes, v.shape) for v in report.values]
    assert rows[:2] == [("input", 720, 3, (30, 2)), ("tanh", 720, 3, (30, 2))]
    assert ("exp", 80, 1, (5, 4)) in rows  # the batch size last
    lines = [v.origin.line for v in report.values if v.origin is not None]
    assert len(set(lines[:2])) == 2
    text = str(report)
    assert "3 tanh {30,2} " in text
    assert "test_memory_report.py:" in text
    assert "in test_values_by_line" in text
    page = report._repr_html_()
    assert "<td>tanh {30,2}</td>" in page


def test_views_and_parameters_take_nothing(collection: dy.ParameterCollection) -> None:
    w = dy.parameter(collection.add_parameters((10,)))
    x = dy.tanh(w)
    dy.forward([dy.exp(x[0:4]), dy.exp(x[4:10])])
    sizes = {v.op: v.bytes for v in dy.memory_report().values}
    assert sizes["tanh"] == 40
    assert "parameter" not in sizes


def test_the_limit_is_named() -> None:
    config.set(mem=512)
    try:
        report = dy.memory_report()
        assert report.limit == 512 << 20
        assert "of 512 MiB allowed" in str(report)
    finally:
        config.set(mem=0)


@pytest.mark.usefixtures("nothing_held")
@pytest.mark.parametrize("recorded", [False, True])
def test_errors_name_the_largest_values(recorded: bool) -> None:
    """A lack of memory says which operations hold most, and which lines they are from."""
    arena.give_back()  # what tests before have left
    config.set(mem=(arena.used_bytes() >> 20) + 24)
    try:
        with dy.record_lines() if recorded else contextlib.nullcontext():
            y = dy.tanh(dy.random_normal((1024, 1024)))
            whole = dy.concatenate([y] * 8)  # 32 MiB, which do not fit whatever is dropped
        y.forward()
        with pytest.raises(MemoryError) as caught:
            whole.forward()
        said = str(caught.value)
        assert "out of memory for the values of the graph" in said
        assert "tanh 4 MiB (1 node {1024,1024}" in said
        assert ("test_memory_report.py:" in said) == recorded
        assert ("dy.record_lines() adds" in said) == (not recorded)
        dy.renew_cg()
        assert dy.tanh(dy.inputVector([0.0])).value() == 0
    finally:
        dy.renew_cg()
        config.set(mem=0)


def test_profiles_have_the_pass_that_held_most() -> None:
    with profiling.measure(lines=True, timeline=True) as profile:
        for rows in (10, 1000, 20):
            dy.renew_cg()
            x = dy.tanh(dy.inputTensor(np.ones((rows, 4))))
            dy.sum_elems(x).value()
    assert profile.memory is not None
    assert profile.memory.values >= 2 * 4000 * 4
    assert profile.memory.by_value[0].shape == (1000, 4)
    assert "tanh {1000,4} " in str(profile)
    assert "memory when the graph held most" in str(profile)


def test_report_and_timeline(tmp_path) -> None:
    with profiling.measure(timeline=True) as profile:
        dy.sum_elems(dy.tanh(dy.inputTensor(np.ones((100, 4))))).value()
    page, timeline = tmp_path / "report.html", tmp_path / "timeline.json"
    profile.save_report(page)
    profile.save_timeline(timeline)
    assert "Memory when the graph held most" in page.read_text(encoding="utf-8")
    assert '"values, MiB"' in timeline.read_text(encoding="utf-8")


def test_nothing_ran() -> None:
    with profiling.measure() as profile:
        pass
    assert profile.memory is None
    assert "held most" not in str(profile)
