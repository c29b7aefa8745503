"""Timelines: spans of passes, batches and updates, of every thread."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from measured_steps import measured, train

import dynet_cy as dy
from dynet_cy import profiling


def test_spans() -> None:
    profile = measured()
    by_kind: dict[str, list[profiling.Span]] = {}
    for span in profile.timeline:
        by_kind.setdefault(span.kind, []).append(span)
        assert span.begin <= span.end
        assert span.thread == profile.timeline[0].thread
    assert profile.dropped == 0
    for kind in ("making nodes", "forward pass", "backward pass", "update", "scheduling", "weight gradients"):
        assert len(by_kind[kind]) == 2, kind
    assert [span.nodes for span in by_kind["making nodes"]] == [18, 18]  # w, and 4 x (input, matmul, tanh, norm), esum
    tanh = [span for span in by_kind["forward"] if span.op == "tanh"]
    assert len(tanh) == 2
    assert (tanh[0].nodes, tanh[0].bytes, tanh[0].shape, tanh[0].arguments) == (4, 4 * 40 * 4, "{40}", ("{40}",))
    assert tanh[0].origins == (("program.py", 10, "<listcomp>" if sys.version_info < (3, 12) else "step"),)
    assert tanh[0].scope == "encoder"
    assert tanh[0].held >= tanh[0].values + tanh[0].gradients + tanh[0].scratch > 0
    assert len([span for span in by_kind["backward"] if span.op == "tanh"]) == 2
    # Batches lie within their passes, and passes do not overlap.
    inside = [(span, "forward pass") for span in by_kind["forward"] + by_kind["scheduling"]]
    inside += [(span, "backward pass") for span in by_kind["backward"] + by_kind["weight gradients"]]
    for span, kind in inside:
        assert any(outer.begin <= span.begin and span.end <= outer.end for outer in by_kind[kind]), span
    tops = [span for kind in ("making nodes", "forward pass", "backward pass", "update") for span in by_kind[kind]]
    tops.sort(key=lambda span: span.begin)
    assert all(a.end <= b.begin for a, b in zip(tops, tops[1:]))
    assert sum(span.end - span.begin for span in by_kind["forward"]) == pytest.approx(
        sum(row.seconds for row in profile if not row.backward), abs=1e-8
    )


def test_nothing_is_kept_otherwise() -> None:
    with profiling.measure(lines=True) as profile:
        train()
    assert profile.timeline == []
    with pytest.raises(ValueError, match="measure it with measure"):
        profile.save_timeline("never.json")
    assert not Path("never.json").exists()
    dy.renew_cg()


def test_one_at_a_time() -> None:
    with profiling.measure(timeline=True) as outer:
        with (
            pytest.raises(RuntimeError, match="a timeline is being measured already"),
            profiling.measure(timeline=True),
        ):
            pass
        train()
    assert outer.timeline
    assert measured(1).timeline  # and the next one can be measured


def test_threads() -> None:
    def other() -> None:
        with dy.ComputationGraph():
            dy.tanh(dy.inputVector([1.0])).value()

    with profiling.measure(timeline=True) as profile:
        threads = [threading.Thread(target=other) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        train()
    dy.renew_cg()
    assert len({span.thread for span in profile.timeline}) == 3
    for thread in {span.thread for span in profile.timeline}:
        assert "forward pass" in {span.kind for span in profile.timeline if span.thread == thread}
