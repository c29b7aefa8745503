"""Batches divided among processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from parallel.jobs import launch

ALL = sorted([epoch, i] for epoch in range(2) for i in range(45))


def found(folder: Path, what: str, n: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{what}-{rank}.json").read_text(encoding="utf-8")) for rank in range(n)]


def run(folder: Path, what: str, saves: int, shard: str, prefetch: int = 2, n: int = 2) -> list[dict[str, Any]]:
    done = launch(folder, "batching.py", folder, what, saves, shard, prefetch, n=n)
    assert done.code == 0, done.err
    return found(folder, what, n)


@pytest.mark.parametrize(("shard", "n"), [("join", 3), ("pad", 2), ("drop", 3)])
def test_all_is_seen_and_ranks_stay_equal(shard: str, n: int, tmp_path: Path) -> None:
    ranks = run(tmp_path, "whole", -1, shard, n=n)
    seen = [x for rank in ranks for x in rank["seen"]]
    if shard == "join":
        assert sorted(seen) == ALL
    elif shard == "pad":
        assert {tuple(x) for x in seen} == {tuple(x) for x in ALL}
    else:
        assert len({tuple(x) for x in seen}) == len(seen) <= len(ALL)
    assert all((rank["w"], rank["rate"]) == (ranks[0]["w"], ranks[0]["rate"]) for rank in ranks)


@pytest.mark.parametrize(("saves", "prefetch"), [(5, 0), (103, 3)])
def test_going_on_is_exact(saves: int, prefetch: int, tmp_path: Path) -> None:
    whole = run(tmp_path, "whole", saves, "join", prefetch)
    assert run(tmp_path, "rest", saves, "join", prefetch) == whole


def test_another_number_of_processes_sees_the_rest_once(tmp_path: Path) -> None:
    whole = run(tmp_path, "whole", 5, "join")
    rest = run(tmp_path, "rest", 5, "join", n=3)
    assert sorted(x for rank in rest for x in rank["seen"]) == sorted(x for rank in whole for x in rank["seen"])
