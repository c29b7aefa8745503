"""The profile: nodes and calls by operation, in both directions."""

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
