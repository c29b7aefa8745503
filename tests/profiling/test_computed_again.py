"""What reports and profiles say about values that were dropped and computed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from limits import limit, without_limit  # noqa: F401
from own_process import run_python

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.core import engine

CALLS, CELLS, DIM, COUNT = 6, 4, 48, 8
VALUE = 4 * DIM * COUNT


def cells(weights: dy.Parameters, x: dy.Expression, n: int = CELLS) -> dy.Expression:
    for _ in range(n):
        x = dy.tanh(weights * x)
    return x


def computed_again() -> int:
    return engine.stats("execute.rematerialize")["nodes"]


def checkpointed(weights: dy.Parameters) -> None:
    dy.renew_cg()
    x: dy.Expression = dy.inputTensor(np.ones((DIM, COUNT)), batched=True)
    for _ in range(CALLS):
        x = dy.checkpoint(cells, weights, x)
    dy.sum_batches(dy.squared_norm(x)).backward()


def within(megabytes: float, weights: dy.Parameters, n: int = 400) -> None:
    limit(megabytes)
    x: dy.Expression = dy.inputTensor(np.ones((DIM, COUNT)), batched=True)
    dy.sum_batches(dy.squared_norm(cells(weights, x, n))).backward()


@pytest.fixture
def weights(collection: dy.ParameterCollection) -> dy.Parameters:
    return collection.add_parameters((DIM, DIM))


def test_report(weights: dy.Parameters) -> None:
    """What was dropped is not among the values, and what ran again is counted as it ran."""
    checkpointed(weights)  # weights are packed
    engine.stats("execute.rematerialize", reset=True)
    with dy.record_lines():
        checkpointed(weights)
    report = dy.memory_report()
    dropped = {x.op: x for x in report.dropped}
    kept = {x.op: x for x in report.values}
    assert dropped["matmul"].nodes == CALLS * CELLS
    assert dropped["tanh"].nodes + kept["tanh"].nodes == CALLS * CELLS
    assert dropped["tanh"].bytes == dropped["tanh"].nodes * VALUE
    assert "matmul" not in kept
    assert sum(x.again for x in report.dropped) == computed_again() > 0
    assert report.again_seconds > 0
    assert report.missing == 0
    assert "dy.checkpoint" in report.hint
    origin = dropped["matmul"].origin
    assert origin is not None
    assert origin.function == "cells"
    said = str(report)
    assert "dropped after forward" in said
    assert f"{computed_again():,} values computed again" in said
    assert f"{CALLS * CELLS} matmul {{48,8}} " in said
    assert "test_computed_again.py" in said
    page = report._repr_html_()
    assert "dropped values of" in page
    assert "computed again" in page


def test_values_that_no_backward_reads_are_not_among_them(
    collection: dy.ParameterCollection, drops: Callable[[bool], None]
) -> None:
    """Their memory is used again after they have been read, and nobody computes them again."""
    engine.tune("schedule.transient.least_of_plan", 1)
    weights, bias = collection.add_parameters((DIM, DIM)), collection.add_parameters(DIM)

    def layers(x: dy.Expression, n: int) -> dy.Expression:
        for _ in range(n):
            x = dy.tanh(dy.affine_transform([bias, weights, x]))
        return x

    dy.renew_cg()
    before = layers(dy.inputTensor(np.ones((DIM, COUNT)), batched=True), 20)
    first = dy.sum_batches(dy.squared_norm(before))
    first.value()
    after = before
    for _ in range(CALLS):
        after = dy.checkpoint(layers, after, CELLS)
    (first + dy.sum_batches(dy.squared_norm(after))).backward()
    dropped = {x.op: x.nodes for x in dy.memory_report().dropped}
    assert dropped["affine_transform"] == CALLS * CELLS


def test_all_is_kept(weights: dy.Parameters) -> None:
    """Reports are as always."""
    x: dy.Expression = dy.inputTensor(np.ones((DIM, COUNT)), batched=True)
    with profiling.measure() as profile:
        dy.sum_batches(dy.squared_norm(cells(weights, x))).backward()
    report = dy.memory_report()
    assert (report.dropped, report.again_seconds, report.missing, report.hint) == ([], 0, 0, "")
    assert "dropped" not in str(report) + report._repr_html_() + str(profile)
    assert profile.again_hint == ""
    assert not any(row.again for row in profile)


def test_a_new_graph_begins_at_zero(weights: dy.Parameters) -> None:
    checkpointed(weights)
    assert dy.memory_report().again_seconds > 0
    dy.renew_cg()
    report = dy.memory_report()
    assert (report.dropped, report.again_seconds) == ([], 0)


def test_a_lack_of_memory_says_how_much_is_missing(tmp_path: Path) -> None:
    """And so much more is indeed enough.  In a process without the packed weights of other tests, which count."""
    code = """
import numpy as np
from limits import limit
import dynet_cy as dy

def within(megabytes):
    limit(megabytes)
    x = dy.inputTensor(np.ones((48, 8)), batched=True)
    for _ in range(400):
        x = dy.tanh(weights * x)
    dy.sum_batches(dy.squared_norm(x)).backward()
    return dy.memory_report()

weights = dy.ParameterCollection().add_parameters((48, 48))
report = within(0.6)
assert report.dropped and report.missing > 0
assert "more than the limit of" in report.hint and report.hint in str(report)
again = within(0.6 + report.missing / 2**20)
assert (again.dropped, again.missing) == ([], 0)
"""
    done = run_python(tmp_path, code)
    assert done.returncode == 0, done.stderr


def test_profile(weights: dy.Parameters, tmp_path: Path) -> None:
    """Forward, forward again and backward are apart; text, page and timeline have all three."""
    checkpointed(weights)
    engine.stats("execute.rematerialize", reset=True)
    with profiling.measure(timeline=True) as profile:
        checkpointed(weights)
    rows = {(row.way, row.op): row for row in profile}
    assert rows["forward", "matmul"].nodes == CALLS * CELLS
    assert sum(row.nodes for row in profile if row.again) == computed_again()
    assert rows["again", "matmul"].nodes > 0
    assert not rows["again", "matmul"].backward
    assert any(line.way == "again" and line.function == "cells" for line in profile.lines)
    assert profile.memory is not None
    assert profile.memory.dropped
    said = str(profile)
    assert "again matmul" in said
    assert "values that were dropped" in said
    assert f"{computed_again():,} values were computed again in backward" in profile.again_hint
    assert "test_computed_again.py" in profile.again_hint
    assert "dy.checkpoint" in profile.again_hint
    assert profile.again_hint in said
    assert sum(span.nodes for span in profile.timeline if span.kind == "again") == computed_again()
    page, timeline = tmp_path / "report.html", tmp_path / "timeline.json"
    profile.save_report(page)
    profile.save_timeline(timeline)
    text = page.read_text(encoding="utf-8")
    assert "Values that were dropped" in text
    assert "again matmul" in text
    assert "computed again in backward" in text
    events = json.loads(timeline.read_text(encoding="utf-8"))["traceEvents"]
    assert any(event["name"] == "matmul (again)" and event["cat"] == "again" for event in events)


def test_profile_within_a_limit(weights: dy.Parameters) -> None:
    with profiling.measure() as profile:
        within(0.5, weights)
    assert "memory was short" in profile.again_hint
    assert "checkpoint" not in profile.again_hint


def test_values_that_are_asked_for_count_too(weights: dy.Parameters) -> None:
    """A dropped value that the program reads runs its stretch again."""
    made = []

    def remembered(x: dy.Expression) -> dy.Expression:
        made.append(dy.tanh(weights * x))
        return dy.tanh(weights * made[-1])

    x: dy.Expression = dy.inputTensor(np.ones((DIM, COUNT)), batched=True)
    for _ in range(3):
        x = dy.checkpoint(remembered, x)
    dy.squared_norm(x).forward()
    assert sum(x.again for x in dy.memory_report().dropped) == 0
    made[0].npvalue()
    report = dy.memory_report()
    assert sum(x.again for x in report.dropped) > 0
    assert report.again_seconds > 0
