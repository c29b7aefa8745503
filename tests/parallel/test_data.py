"""How data are divided among ranks."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.parallel.communicator import LocalCommunicator
from dynet_cy.parallel.runtime import use


class Pretended(LocalCommunicator):
    """One rank of several; the others send what it sends."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def gather_bytes(self, data: bytes, what: str = "gather") -> list[bytes]:
        return [data] * self.size


@pytest.fixture
def as_rank():
    """Makes this process act as one rank of several."""
    before = use(None)
    yield lambda rank, size: use(Pretended(rank, size))
    use(before or LocalCommunicator())


def shares(as_rank, size: int, data, epochs: int = 1, **options) -> list[list]:
    found = []
    for rank in range(size):
        as_rank(rank, size)
        shard = dy.parallel.shard(data, **options)
        items = [list(shard) for _ in range(epochs)]
        assert len(items[-1]) == len(shard)
        found.append(items[-1])
    return found


@pytest.mark.parametrize("n", [0, 1, 5, 12, 13])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("shuffle", [False, True])
def test_ways_of_being_uneven(as_rank, n, size, shuffle) -> None:
    data = list(range(100, 100 + n))
    for uneven in ("join", "keep"):
        own = shares(as_rank, size, data, shuffle=shuffle, uneven=uneven)
        assert sorted(x for share in own for x in share) == data
        assert max(map(len, own)) - min(map(len, own)) <= 1
    padded = shares(as_rank, size, data, shuffle=shuffle, uneven="pad")
    assert {len(share) for share in padded} == {-(-n // size)}
    assert {x for share in padded for x in share} == set(data)
    dropped = shares(as_rank, size, data, shuffle=shuffle, uneven="drop")
    assert {len(share) for share in dropped} == {n // size}
    assert len({x for share in dropped for x in share}) == n // size * size


@pytest.mark.parametrize("n", [0, 1, 5, 24, 25, 30, 47])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("cost", [None, float])
def test_batches(as_rank, n, size, cost) -> None:
    data = list(range(100, 100 + n))
    options = {"batch_size": 4, "cost": cost, "shuffle": True}
    order = shares(as_rank, 1, data, shuffle=True)[0]
    for uneven in ("join", "keep", "pad", "drop"):
        own = shares(as_rank, size, data, uneven=uneven, **options)
        steps = [[x for share in own for x in share[k : k + 1]] for k in range(max(map(len, own)))]
        for k, step in enumerate(steps):
            wanted = order[k * 4 * size : (k + 1) * 4 * size]
            if uneven == "pad":
                wanted = wanted + [order[i % n] for i in range(-len(wanted) % size)]
            # The items of all ranks in an update do not depend on the cost.
            assert sorted(x for batch in step for x in batch) == sorted(wanted)
            lengths = [len(batch) for batch in step]
            assert max(lengths) - min(lengths) <= (uneven != "pad")
            assert uneven != "pad" or len(step) == size
        assert len(steps) == (n // (4 * size) if uneven == "drop" else -(-n // (4 * size)))


def test_costs_are_near(as_rank) -> None:
    rng = np.random.RandomState(1)
    data = [[0] * int(n) for n in rng.geometric(0.06, 64 * 3 * 20)]
    spread = {}
    for cost in (None, len):
        own = shares(as_rank, 3, data, batch_size=64, cost=cost)
        totals = np.array([[sum(map(len, batch)) for batch in share] for share in own])
        spread[cost] = (totals.max(0) / totals.mean(0)).max()
    assert spread[None] > 1.1
    assert spread[len] < 1.005
    # Within a batch, items keep the order of the data.
    as_rank(1, 2)
    assert list(dy.parallel.shard([5, 1, 4, 2, 3, 6], batch_size=3, cost=float)) == [[5, 1, 4]]


def test_order(as_rank) -> None:
    data = list(range(20))
    first, second = shares(as_rank, 2, data)
    assert first == data[::2]
    assert second == data[1::2]
    whole = shares(as_rank, 1, data, shuffle=True)[0]
    assert whole != data
    # Together, the ranks use the same order as a single process.
    first, second = shares(as_rank, 2, data, shuffle=True)
    assert [x for pair in zip(first, second) for x in pair] == whole
    later = shares(as_rank, 1, data, epochs=2, shuffle=True)[0]
    assert sorted(later) == data
    assert later != whole
    assert shares(as_rank, 1, data, shuffle=True, seed=1)[0] != whole
    assert shares(as_rank, 1, data, shuffle=True)[0] == whole


def test_going_on(as_rank) -> None:
    """Resuming in the middle of an epoch with another number of processes."""
    data = [str(i) for i in range(17)]
    as_rank(0, 1)
    whole = [list(dy.parallel.shard(data, shuffle=True))]
    shard = dy.parallel.shard(data, shuffle=True)
    shard.set_epoch(1)
    whole.append(list(shard))
    as_rank(0, 2)
    shard = dy.parallel.shard(data, shuffle=True)
    used = [x for _, x in zip(range(3), shard)]
    assert used == whole[0][:6:2]
    state = json.loads(json.dumps(shard.state()))
    assert state == {"epoch": 0, "position": 6, "seed": 0, "length": 17, "shuffle": True}
    rest = []
    for rank in range(3):
        as_rank(rank, 3)
        shard = dy.parallel.shard(data, shuffle=True)
        shard.restore(state)
        rest.append((list(shard), list(shard)))
    assert sorted(x for own, _ in rest for x in own) == sorted(whole[0][6:])
    assert rest[0][0] == whole[0][6::3]
    assert rest[1][1] == whole[1][1::3]
    with pytest.raises(ValueError, match="length 17"):
        dy.parallel.shard(data[1:]).restore(state)
    with pytest.raises(ValueError, match="seed 3"):
        dy.parallel.shard(data, seed=3).restore(state)


def test_other_arguments(as_rank) -> None:
    as_rank(1, 2)
    assert list(dy.parallel.shard(iter("abcd"))) == ["b", "d"]
    assert [int(x[0]) for x in dy.parallel.shard(np.arange(6).reshape(3, 2), uneven="pad")] == [2, 0]
    assert len(dy.parallel.shard("abc")) == 1
    with pytest.raises(ValueError, match="uneven must be one of"):
        dy.parallel.shard([], uneven="no")
    with pytest.raises(ValueError, match="at least 1, not 0"):
        dy.parallel.shard([], batch_size=0)
    with pytest.raises(ValueError, match="cost= needs batch_size="):
        dy.parallel.shard([], cost=len)
    with pytest.raises(TypeError, match="function of an item, not int"):
        dy.parallel.shard([], batch_size=2, cost=3)
    with pytest.raises(ValueError, match="the cost of item 0 is nan"):
        list(dy.parallel.shard([1, 2], batch_size=2, cost=lambda x: float("nan")))
    with pytest.raises(ValueError, match="have shuffle False, the state is of shuffle True"):
        dy.parallel.shard([1, 2]).restore(dy.parallel.shard([1, 2], shuffle=True).state())


def test_data_without_numbers() -> None:
    assert list(dy.parallel.shard({"a": 1, "b": 2})) == ["a", "b"]
    assert list(dy.parallel.shard(x * x for x in range(3))) == [0, 1, 4]


def test_progress(as_rank, capsys) -> None:
    pytest.importorskip("tqdm")
    as_rank(1, 2)
    assert list(dy.parallel.progress([1, 2])) == [1, 2]
    assert capsys.readouterr().err == ""
    as_rank(0, 2)
    assert list(dy.parallel.progress([1, 2], desc="going")) == [1, 2]
    assert "going" in capsys.readouterr().err


def test_alone() -> None:
    """Without the launcher, everything works as without dy.parallel."""
    m = dy.ParameterCollection()
    m.add_parameters((2, 2))
    trainer = dy.AdamTrainer(m)
    assert dy.parallel.wrap(trainer) is trainer
    with dy.parallel.join(trainer):
        assert list(dy.parallel.shard([1, 2, 3])) == [1, 2, 3]
    assert (dy.parallel.rank(), dy.parallel.size(), dy.parallel.mode()) == (0, 1, "sync")
    assert not dy.parallel.launched()
    assert dy.parallel.gather("x") == ["x"]
    assert dy.parallel.broadcast(5) == 5
    assert dy.parallel.average(2) == 2.0
    np.testing.assert_array_equal(dy.parallel.average([2, 3], weight=7), [2, 3])
    assert np.isnan(dy.parallel.average(2, weight=0))
    dy.parallel.barrier()
    with pytest.raises(TypeError, match="a Trainer is needed, not int"):
        dy.parallel.wrap(3)
    with pytest.raises(ValueError, match="mean, sum"):
        dy.parallel.wrap(trainer, "median")
