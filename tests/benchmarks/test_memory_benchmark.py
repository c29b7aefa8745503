"""The benchmark of memory: its table, and the search for the largest minibatch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import memory
import workloads

sys.path.pop(0)


def test_largest_minibatch_is_close_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measure(*args: object) -> dict[str, float]:
        asked.append(int(str(args[args.index("--count") + 1])))
        return {"memory": 2e8 + 1.5e6 * asked[-1] + 50 * asked[-1] ** 2}

    monkeypatch.setattr(memory, "measure", measure)
    found = memory.largest("python", "dynet_cy", "autobatch", "tagger")
    assert all(measured for _, measured in found)
    for (count, _), limit in zip(found, memory.LIMITS):
        assert memory.CLOSE * limit <= 2e8 + 1.5e6 * count + 50 * count**2 <= limit
    assert len(asked) == len(set(asked)) <= 2 + len(found) * memory.TRIES


def test_nothing_fits_where_one_item_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "measure", lambda *args: {"memory": 5e9 + int(args[args.index("--count") + 1])})
    assert memory.largest("python", "dynet_cy", "autobatch", "tagger") == [(0, True)] * 3


def test_sizes_beyond_what_is_tried_are_on_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "measure", lambda *args: {"memory": 2e8 + 1e6 * int(args[args.index("--count") + 1])})
    found = memory.largest("python", "dynet_cy", "autobatch", "tagger", check=1e9)
    assert [measured for _, measured in found] == [True, False, False]
    for (count, _), limit in zip(found, memory.LIMITS):
        assert memory.CLOSE * limit <= 2e8 + 1e6 * count <= limit


def test_the_arenas_are_those_of_the_update_with_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    class Child:
        def __init__(self, *args: object, **options: object) -> None:
            self.rounds: list[dict[str, float]] = []

        def round(self) -> None:
            self.rounds.append({"memory": [7.0, 9.0, 9.0][len(self.rounds)], "scratch": float(len(self.rounds))})

        def close(self) -> None:
            pass

    monkeypatch.setattr(memory, "Child", Child)
    assert memory.measure("python", "dynet_cy", "autobatch", "tagger", 3) == {"memory": 9.0, "scratch": 1.0}


def test_a_row_has_the_worse_of_both_forms_beside_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    takes = {("dynet_cy", "autobatch"): 30.0, ("dynet_cy", "minibatch"): 60.0, ("torch", "batched"): 120.0}
    monkeypatch.setattr(
        memory,
        "added",
        lambda python, library, form, name, runs: {**dict.fromkeys(memory.ARENAS, 5), "added": takes[library, form]},
    )
    found = memory.row("language_model", {"dynet_cy": "a", "torch": "b"}, 1)
    assert found == ["language_model", "30", "5", "5", "5", "15", "60", "120", "0.50", "0.65"]


def test_sizes_of_workloads() -> None:
    assert len(workloads.load("tagger", tiny=True, count=7).data) == 7
    with pytest.raises(ValueError, match="LanguageModel has no size depth: count, vocabulary"):
        workloads.load("language_model", depth=3)
