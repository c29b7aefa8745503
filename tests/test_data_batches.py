"""Batches: their items and order, kinds of data, and resuming in the middle of an epoch."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from module_examples import run_examples

import dynet_cy as dy
from dynet_cy.train import stopping

WORDS = [("ab" * 40)[: 1 + (7 * i) % 23] for i in range(100)]


def flat(found: list[list[Any]]) -> list[Any]:
    return [x for batch in found for x in batch]


@pytest.mark.parametrize("module", [dy.data.batching, stopping], ids=lambda module: module.__name__)
def test_examples(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = run_examples(module, dy=dy, model=dy.ParameterCollection())
    assert found.failed == 0
    assert found.attempted > 15


class Numbered:
    """Like data sets of other libraries: indices and a length, but no iteration."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.asked: list[int] = []

    def __getitem__(self, i: int) -> Any:
        self.asked.append(i)
        return self.items[i]

    def __len__(self) -> int:
        return len(self.items)


def test_by_number() -> None:
    data = dy.data.batches(range(10), 4)
    assert len(data) == 3
    for epoch in range(3):
        assert data.epoch == epoch
        assert list(data) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(dy.data.batches([], 4)) == []
    assert len(dy.data.batches([], 4)) == 0


def test_by_cost() -> None:
    data = dy.data.batches(WORDS, cost=len, most=50)
    found = list(data)
    assert flat(found) == WORDS
    assert len(found) == len(data)
    for batch, later in zip(found, found[1:]):
        assert sum(map(len, batch)) <= 50 < sum(map(len, batch)) + len(later[0])
    both = list(dy.data.batches(WORDS, 3, cost=len, most=50))
    assert {len(batch) for batch in both} <= {1, 2, 3}
    assert all(sum(map(len, batch)) <= 50 for batch in both)
    assert list(dy.data.batches(["a" * 9, "b"], cost=len, most=3)) == [["a" * 9], ["b"]]


@pytest.mark.parametrize("options", [{}, {"bucket": len}, {"cost": len, "most": 60}, {"window": 30, "bucket": len}])
@pytest.mark.parametrize("kind", ["list", "numbered", "array", "function"])
def test_shuffling(kind: str, options: dict[str, Any]) -> None:
    source: Any = {
        "list": WORDS,
        "numbered": Numbered(WORDS),
        "array": np.array(WORDS),
        "function": lambda: iter(WORDS),
    }[kind]
    size = None if "most" in options else 8

    def epochs(seed: int) -> list[list[list[str]]]:
        data = dy.data.batches(source, size, shuffle=True, seed=seed, **options)
        return [[list(map(str, batch)) for batch in data] for _ in range(3)]

    first = epochs(1)
    assert first == epochs(1)
    assert first != epochs(2)
    assert first[0] != first[1]
    for epoch in first:
        assert sorted(flat(epoch)) == sorted(WORDS)
    later = dy.data.batches(source, size, shuffle=True, seed=1, **options)
    later.set_epoch(2)
    assert [list(map(str, batch)) for batch in later] == first[2]


def test_the_order_is_that_of_shard() -> None:
    shard, data = (
        dy.parallel.shard(range(20), shuffle=True, seed=5),
        dy.data.batches(range(20), 3, shuffle=True, seed=5),
    )
    for _ in range(2):
        assert flat(list(data)) == list(shard)


def test_buckets() -> None:
    data = dy.data.batches(WORDS, 10, bucket=len, shuffle=True)
    found = list(data)
    spread = sum(max(map(len, batch)) - min(map(len, batch)) for batch in found)
    assert spread <= max(map(len, WORDS))  # neighbouring batches share at most the lengths at their edges
    means = [np.mean([len(x) for x in batch]) for batch in found]
    assert means != sorted(means)
    plain = list(dy.data.batches(WORDS, 10, bucket=len))
    assert flat(plain) == sorted(WORDS, key=len)
    windows = list(dy.data.batches(WORDS, 10, bucket=len, window=50))
    assert flat(windows) == sorted(WORDS[:50], key=len) + sorted(WORDS[50:], key=len)


def test_each_item_is_measured_once_and_loaded_when_it_comes() -> None:
    source = Numbered(WORDS)
    data = dy.data.batches(source, cost=len, most=50, bucket=len)
    assert len(data) > 5
    assert len(source.asked) == 200
    for _ in range(2):
        assert len(flat(list(data))) == 100
    assert len(source.asked) == 400
    source.asked.clear()
    next(iter(dy.data.batches(source, 5)))
    assert source.asked == [0, 1, 2, 3, 4]


def test_what_comes_one_by_one_is_not_held() -> None:
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            yield read
            read += 1

    it = iter(dy.data.batches(endless, 4))
    assert [next(it), next(it)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert read == 7  # the eighth is yielded, and the ninth is not read
    it = iter(dy.data.batches(endless, 4, shuffle=True))
    next(it)
    assert read <= 500
    with pytest.raises(TypeError, match="the number of items is unknown"):
        len(dy.data.batches(endless, 4))


def test_an_iterator_is_gone_through_once() -> None:
    data = dy.data.batches((x for x in range(5)), 2)
    assert list(data) == [[0, 1], [2, 3], [4]]
    with pytest.raises(ValueError, match="can be gone through once"):
        list(data)


def test_collate() -> None:
    data = dy.data.batches([np.arange(3) + i for i in range(5)], 2, collate=np.stack)
    assert [batch.shape for batch in data] == [(2, 3), (2, 3), (1, 3)]


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("source", ["list", "generator", "lines"])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "bucket": len, "window": 40}])
def test_going_on_in_the_middle(source: str, options: dict[str, Any], prefetch: int, tmp_path: Path) -> None:
    def make() -> Any:
        if source == "lines":
            (tmp_path / "words").write_text("\n".join(WORDS), encoding="utf-8")
            return dy.data.batches(dy.data.lines(tmp_path / "words"), 7, seed=3, prefetch=prefetch, **options)
        return dy.data.batches(
            WORDS if source == "list" else lambda: iter(WORDS), 7, seed=3, prefetch=prefetch, **options
        )

    for stop in (1, 9, 15, 20):
        data, model = make(), dy.ParameterCollection()
        whole: list[Any] = []
        while data.epoch < 3:
            for batch in data:
                whole.append(batch)
                if len(whole) == stop:
                    dy.parallel.save_checkpoint(tmp_path / "c", model, data=data)
        rest = make()
        dy.parallel.load_checkpoint(tmp_path / "c", dy.ParameterCollection(), data=rest)
        found: list[Any] = []
        while rest.epoch < 3:
            found += rest
        assert found == whole[stop:]


def test_an_epoch_that_was_left_goes_on() -> None:
    data = dy.data.batches(range(6), 2)
    for batch in data:
        if batch == [2, 3]:
            break
    assert list(data) == [[4, 5]]
    assert data.epoch == 1
    first, second = iter(data), iter(data)
    next(first)
    next(second)
    with pytest.raises(RuntimeError, match="another iteration has begun"):
        next(first)


def test_states_that_do_not_fit() -> None:
    data = dy.data.batches(range(10), 4, shuffle=True, seed=2)
    state = json.loads(json.dumps(data.state()))
    for what, wrong in (("length", 9), ("seed", 3), ("shuffle", False), ("batching", "size=5")):
        with pytest.raises(ValueError, match=f"the data have {what} "):
            data.restore({**state, what: wrong})
    for wrong in ({}, {**state, "position": -1}, {**state, "epoch": "1"}, None):
        with pytest.raises(ValueError, match="the state of batches"):
            data.restore(wrong)  # type: ignore[arg-type]
    data.restore({**state, "position": 1 << 62})
    assert list(data) == []


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (("text.txt", 3), {}, TypeError, r"not str; dy.data.lines\(path\)"),
        (({"a": 1}, 3), {}, TypeError, "not dict"),
        ((5, 3), {}, TypeError, "data must be a sequence or an iterable, not int"),
        (([1],), {}, ValueError, "give size, or cost and most"),
        (([1], 0), {}, ValueError, "size must be at least 1, not 0"),
        (([1], 2.5), {}, TypeError, "size must be a whole number, not 2.5"),
        (([1], 2), {"cost": len}, ValueError, "cost and most go together"),
        (([1],), {"cost": len, "most": 0}, ValueError, "most must be greater than 0"),
        (([1], 2), {"bucket": 3}, TypeError, "bucket must be a function, not int"),
        (([1], 2), {"shard": "all"}, ValueError, "shard must be None or one of join, pad, drop, keep, not 'all'"),
        (([1], 2), {"prefetch": -1}, ValueError, "prefetch must be at least 0"),
        (([1], 2), {"window": 0}, ValueError, "window must be at least 1"),
    ],
)
def test_bad_settings(arguments: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        dy.data.batches(*arguments, **options)


def test_bad_costs() -> None:
    for value in (float("nan"), -1.0, float("inf")):
        with pytest.raises(ValueError, match="the cost of item 1 is"):
            list(dy.data.batches([1.0, value], cost=lambda x: x, most=3))
        with pytest.raises(ValueError, match="the bucket of an item is"):
            list(dy.data.batches(iter([1.0, value]), 3, bucket=lambda x: x))


# ---- lines


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("packed", [False, True])
def test_lines(end: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynet_cy.data.files._BLOCK", 5)
    want = ["één", "", "two words", "x" * 20, "last"]
    path = tmp_path / ("t.gz" if packed else "t")
    content = ("\r\n".join(want[:2]) + "\n" + "\n".join(want[2:]) + end).encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    found = dy.data.lines(path)
    assert list(found) == want
    assert (len(found), found[-1], found[np.int64(1)], found[1:3]) == (5, "last", "", want[1:3])
    for number in (5, -6):
        with pytest.raises(IndexError, match="has 5 lines"):
            found[number]
    assert sorted(flat(list(dy.data.batches(found, 2, shuffle=True, prefetch=2)))) == sorted(want)


def test_lines_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with pytest.raises(FileNotFoundError):
        dy.data.lines(path)
    path.write_bytes(b"")
    assert list(dy.data.lines(path)) == []
    path.write_bytes(b"good\n\xff\xff\n")
    with pytest.raises(ValueError, match=r"t, line 2: 'utf-8' codec"):
        list(dy.data.lines(path))
    path.write_bytes(b"one\ntwo\n")
    found = dy.data.lines(path)
    path.write_bytes(b"on")
    with pytest.raises(ValueError, match="has become shorter"):
        found[1]


def test_copies_of_lines_have_files_of_their_own(tmp_path: Path) -> None:
    import copy

    (tmp_path / "t").write_text("one\ntwo\n", encoding="utf-8")
    found = dy.data.lines(tmp_path / "t")
    copied = copy.deepcopy(found)
    del found
    assert list(copied) == ["one", "two"]


def test_an_open_file() -> None:
    with Path(__file__).open(encoding="utf-8") as file:
        found = flat(list(dy.data.batches(file, 10)))
    assert "".join(found) == Path(__file__).read_text(encoding="utf-8")


def test_data_sets_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="data sets of PyTorch")
    from torch.utils.data import IterableDataset, TensorDataset

    data = dy.data.batches(TensorDataset(torch.arange(5), torch.arange(5) * 2), 2, shuffle=True)
    assert sorted((int(a), int(b)) for batch in data for a, b in batch) == [(i, 2 * i) for i in range(5)]

    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    data = dy.data.batches(Stream(), 2)
    assert list(data) == list(data) == [[0, 1], [2, 3], [4]]


def test_random_numbers_of_the_program_are_left_alone() -> None:
    random.seed(3)
    before = random.getstate()
    list(dy.data.batches(WORDS, 3, shuffle=True, bucket=len))
    assert random.getstate() == before


@pytest.mark.parametrize(("shard", "updates"), [("join", 66), ("pad", 66), ("keep", 66), ("drop", 65)])
def test_updates_are_as_many_on_all_processes(shard: str, updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """131 batches on two processes: `len` is the number on each, `updates` the common number for schedules."""
    for rank in range(2):
        monkeypatch.setattr("dynet_cy.data.batching.current", lambda rank=rank: SimpleNamespace(rank=rank, size=2))
        data = dy.data.batches(range(131), 1, shard=shard)
        assert data.updates == updates
        assert len(data) == (updates if shard in ("pad", "drop") else [66, 65][rank])


def test_updates_of_a_stream_are_not_known() -> None:
    with pytest.raises(TypeError, match="the number of items is unknown"):
        _ = dy.data.batches(iter(range(3)), 1).updates


def test_hold_out() -> None:
    assert dy.data.hold_out(range(21)) == ([i for i in range(21) if i % 10], [0, 10, 20])
    with pytest.raises(ValueError, match="hold_out: at least 2 items are needed, not 0"):
        dy.data.hold_out([])
    with pytest.raises(ValueError, match="hold_out: every must be at least 2, not 1"):
        dy.data.hold_out([1, 2, 3], every=1)


def test_map_batches_keeps_the_order() -> None:
    sizes: list[int] = []

    def double(batch: list[int]) -> list[int]:
        sizes.append(len(batch))
        return [2 * x for x in batch]

    assert dy.data.map_batches(double, list(range(10)), 4) == list(range(0, 20, 2))
    assert sizes == [4, 4, 2]
    assert dy.data.map_batches(double, []) == []
