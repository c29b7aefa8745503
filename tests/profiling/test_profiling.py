"""Profiles: nodes and calls by op, in both directions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dynet_cy as dy
from dynet_cy import config, profiling


def graph(strategy: int) -> None:
    collection = dy.ParameterCollection()
    w, v = collection.add_parameters((40, 40)), collection.add_parameters(40)
    dy.renew_cg(autobatching=strategy)
    losses = [dy.squared_norm(dy.tanh(w * (v + float(k)))) for k in range(4)]
    both = dy.concatenate_to_batch(losses[:2])
    loss = dy.esum([*losses, dy.sum_batches(both)])
    loss.value()
    loss.backward()


@pytest.mark.parametrize("strategy", [0, 1])
def test_nodes_and_calls(strategy: int) -> None:
    with profiling.measure() as profile:
        graph(strategy)
        graph(strategy)
    rows = {(row.op, row.backward): row for row in profile}
    for backward in (False, True):
        assert rows["tanh", backward].nodes == 8
        assert rows["tanh", backward].calls == (8 if strategy == 0 else 2)
    assert rows["weight gradients", True].calls == 2
    alone = rows["concatenate_to_batch", False]
    assert (alone.nodes, alone.calls) == (2, 2)
    assert alone.alone_because
    assert rows["tanh", False].alone_because == ""
    assert all(row.seconds >= 0 for row in profile)
    assert [row.seconds for row in profile] == sorted((row.seconds for row in profile), reverse=True)
    text = str(profile)
    assert "forward tanh" in text
    assert "backward weight gradients" in text
    assert f"(alone: {alone.alone_because})" in text


def test_nothing_is_measured_otherwise() -> None:
    with profiling.measure() as profile:
        pass
    assert profile == []
    assert "in all" in str(profile)
    graph(1)
    assert profiling.profile() == []
    assert config.get()["profiling"] == 0


def test_level_below_zero() -> None:
    with pytest.raises(ValueError, match="must be at least 0, not -1"):
        config.set(profiling=-1)


@pytest.mark.parametrize("level", [1, 2])
def test_option(tmp_path: Path, level: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import dynet_cy as dy\nprint(dy.esum([dy.tanh(dy.inputVector([float(k)])) for k in range(3)]).value())\n",
        encoding="utf-8",
    )
    command = [sys.executable, str(program), "--dynet-profiling", str(level)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Timing Info:" in done.stderr
    assert "forward tanh" in done.stderr
    assert ("BatchSize:3 tanh {1}" in done.stderr) == (level == 2)


def asked(how: str) -> list[profiling.RequestProfile]:
    """The lines that requested values in a program with eight examples of three steps each."""
    collection = dy.ParameterCollection()
    w = collection.add_parameters((6, 6))

    def item(number: float) -> None:
        h = dy.inputVector([number] * 6)
        for _ in range(6):
            h = dy.tanh(w * h)
            h.npvalue()

    config.set(batch_requests=how == "learned")
    try:
        with dy.ComputationGraph(), profiling.measure() as profile:
            for _ in range(60 if how == "learned" else 2):
                dy.renew_cg()
                states = [dy.inputVector([float(k)] * 6) for k in range(8)]
                if how == "mapped":
                    dy.batched_map(item, range(8))
                elif how == "sentences":
                    list(map(item, range(8)))
                else:
                    for _ in range(3):
                        states = [dy.tanh(w * h) for h in states]
                        if how == "together":
                            dy.forward(states)
                        for h in states:
                            h.npvalue()
    finally:
        config.set(batch_requests=True)
    assert all(row.hint in str(profile) for row in profile.requests)
    assert "asked for by" in str(profile)
    return profile.requests


def test_requests_that_could_have_been_one() -> None:
    (row,) = asked("step")
    assert row.file == __file__
    assert row.function == "asked"
    assert (row.passes, row.values, row.nodes, row.graphs) == (48, 48, 96, 2)
    assert row.waited == 2 * 3 * 7
    assert "42 could have run with the one before: dy.forward" in row.hint
    (row,) = asked("together")
    assert (row.passes, row.values, row.nodes, row.waited, row.hint) == (6, 48, 96, 0, "")


def test_requests_that_a_map_would_join() -> None:
    (row,) = asked("sentences")
    assert row.function == "item"
    assert (row.passes, row.waited) == (96, 0)
    assert "dy.batched_map" in row.hint
    rows = asked("mapped")  # of items that run alone, to see whether they are better together, and of the map
    assert sum(row.values for row in rows) == 96
    assert sum(row.passes for row in rows) < 96
    assert {(row.of_map, row.waited, row.hint) for row in rows} == {(True, 0, "")}


def test_requests_that_are_computed_beside_others() -> None:
    (row,) = asked("learned")
    assert row.values == 60 * 24
    assert row.passes < 300
    assert row.hint == ""


def test_requests_of_several_lines_are_sorted() -> None:
    w = dy.ParameterCollection().add_parameters((300, 300))
    with dy.ComputationGraph(), profiling.measure() as profile:
        dy.scalarInput(1).value()
        (dy.scalarInput(1) + 1).value()
        h = dy.inputVector([1.0] * 300)
        for _ in range(20):
            h = w * h
        h.npvalue()
        loss = dy.sum_elems(h)
        loss.backward()
    assert sorted(row.nodes for row in profile.requests) == [1, 1, 20]
    assert [row.seconds for row in profile.requests] == sorted((r.seconds for r in profile.requests), reverse=True)


def test_the_share_of_python() -> None:
    """It is said before `batched_map` is recommended; without a time there is none."""
    with dy.ComputationGraph(), profiling.measure() as profile:
        for i in range(10):
            dy.tanh(dy.inputVector([i])).value()
            sum(range(20_000))
    assert 0 < profile.outside < profile.elapsed
    share = profile.outside_text()
    assert share.endswith("% of the time is the program's own Python, with the making of nodes, scheduling and updates")
    hint = next(line for line in str(profile).splitlines() if "batched_map" in line)
    assert hint.strip().startswith(f"{share}; one after the other")
    assert f"{share}; one after" in profile._repr_html_().replace("&#x27;", "'")
    assert profiling.Profile().outside_text() == ""
