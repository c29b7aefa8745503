"""Each rank's share of the data."""

from __future__ import annotations

import contextlib
import heapq
import importlib
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Generic, Optional, TypeVar, cast, overload

import numpy as np

from dynet_cy.core.items import check_items
from dynet_cy.parallel.communicator import ParallelError
from dynet_cy.parallel.runtime import current
from dynet_cy.parallel.trainer import end_share
from dynet_cy.train.trainer import updates_made

T = TypeVar("T")

UNEVEN = ("join", "pad", "drop", "keep")
Cost = Optional[Callable[[T], float]]


def order_of_epoch(n: int, shuffle: bool, seed: int, epoch: int) -> Sequence[int]:
    """The numbers of n items in the order of an epoch, the same on all ranks."""
    if not shuffle:
        return range(n)
    from random import Random  # it would add 1 ms to `import dynet_cy`

    numbers = list(range(n))
    Random(f"{seed} {epoch}").shuffle(numbers)
    return numbers


def check_same(function: str, names: Sequence[str], everyone: list[tuple[Any, ...]], advice: str = "") -> None:
    """Compare the properties of the data, which have these names, over all ranks.

    Raises:
        ParallelError: a rank differs from rank 0.
    """
    for rank, one in enumerate(everyone):
        for what, ours, theirs in zip(names, everyone[0], one):
            if ours != theirs:
                raise ParallelError(
                    f"{function}: the {what} is not the same on rank 0 and rank {rank} ({ours} and {theirs}); "
                    f"all ranks must pass the same data in the same order{advice}"
                )


def outline(item: Any, depth: int = 3) -> Any:
    """A summary of an item that differs only if items differ: plain data as they are, for other objects their class."""
    if item is None or isinstance(item, (bool, int, float, str, bytes)):
        return item
    if isinstance(item, np.ndarray):
        return item.shape, item.dtype.str, [outline(x, 0) for x in item.ravel()[:20].tolist()]
    if isinstance(item, (list, tuple)) and depth:
        return len(item), [outline(x, depth - 1) for x in item[:20]]
    return type(item).__qualname__


def deal(examples: Sequence[int], ranks: int, cost: Callable[[int], float]) -> list[list[int]]:
    """Divide the examples of a step among the ranks: as many for each as without a cost, with nearly equal total costs.

    Examples are assigned in order of decreasing cost, each to the rank with the least total cost so far that still
    has room: the rule of R. L. Graham (Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 17, 1969). The
    examples of a rank keep their order.
    """
    costs = [cost(example) for example in examples]
    capacity = [len(range(rank, len(examples), ranks)) for rank in range(ranks)]
    least = [(0.0, rank) for rank in range(ranks) if capacity[rank]]
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for i in sorted(range(len(examples)), key=lambda i: -costs[i]):
        total, rank = least[0]
        dealt[rank].append(i)
        if len(dealt[rank]) < capacity[rank]:
            heapq.heapreplace(least, (total + costs[i], rank))
        else:
            heapq.heappop(least)
    return [[examples[i] for i in sorted(numbers)] for numbers in dealt]


class Shard(Generic[T]):
    """The share of this rank in some data, in the order of an epoch; made by `shard`.

    Each iteration is one epoch. The order of the whole data depends only on seed and epoch; rank r of n gets the items
    r, r + n, r + 2n, ... of it, one by one or in lists of `batch_size`. With a cost, the items of one step are
    divided among the ranks by cost instead.

    Attributes:
        epoch: number of the current epoch, or of the one that the next iteration begins with.
    """

    def __init__(
        self,
        data: Sequence[Any],
        shuffle: bool,
        seed: int,
        uneven: str,
        batch_size: int | None = None,
        cost: Cost[Any] = None,
    ) -> None:
        self._data = data
        self._shuffle = shuffle
        self._seed = seed
        self._uneven = uneven
        self._batch_size = batch_size
        self._cost = cost
        self._position = 0  # items of the whole data that all ranks together have been given
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin with the first item of this epoch."""
        self.epoch = epoch
        self._position = 0

    def order(self) -> Sequence[int]:
        """The order of the whole data in this epoch: numbers of items."""
        return order_of_epoch(len(self._data), self._shuffle, self._seed, self.epoch)

    def __iter__(self) -> Iterator[T]:
        """The items of this rank's share of the epoch; at the end, `epoch` is increased by 1."""
        communicator = current()
        rank, size = communicator.rank, communicator.size
        if size > 1:
            self._compare(communicator.gather(self._summary(), "shard"))
        order = self.order()
        n = len(order)
        updates = updates_made()
        begun, step = self._position, self._step(size)
        for start in range(begun, n, step):
            together = list(order[start : start + step])
            if len(together) < step and self._uneven == "drop":
                break
            if self._uneven == "pad":
                together += [order[i % n] for i in range(-len(together) % size)]
            own = self._share(together, rank, size)
            if not own:
                break
            # Counted before the items are used, so that a state saved while they are in use continues after them.
            self._position = start + step
            items = [self._data[i] for i in own]
            yield cast("T", items if self._batch_size else items[0])
        end_share(self._uneven == "join" and 0 < max(n - begun, 0) % step < size, updates)
        self.set_epoch(self.epoch + 1)

    def __len__(self) -> int:
        """The number of items, or batches of items, for this rank in a whole epoch."""
        communicator = current()
        whole, rest = divmod(len(self._data), self._step(communicator.size))
        return whole + {"pad": rest > 0, "drop": False}.get(self._uneven, rest > communicator.rank)

    def _step(self, size: int) -> int:
        """The number of items for all ranks together in one step."""
        return size * (self._batch_size or 1)

    def _share(self, together: list[int], rank: int, size: int) -> list[int]:
        """The numbers of this rank's items, given those of all ranks."""
        if self._cost is None or size == 1:
            return together[rank::size]
        return deal(together, size, self._cost_of)[rank]

    def _cost_of(self, i: int) -> float:
        assert self._cost is not None
        cost = float(self._cost(self._data[i]))
        if not math.isfinite(cost):
            raise ValueError(f"shard: the cost of item {i} is {cost}; it must be a finite number")
        return cost

    def _summary(self) -> tuple[Any, ...]:
        """The data that must be equal on all ranks: length, order, and some of the items."""
        from zlib import crc32

        n = len(self._data)
        some = sorted({0, n // 3, n // 2, n - 1} & set(range(n)))
        check = crc32(repr([outline(self._data[i]) for i in some]).encode())
        costs = None if self._cost is None else [self._cost_of(i) for i in some]
        how = self._uneven, self._batch_size, costs
        return n, self.epoch, self._position, self._seed, self._shuffle, *how, check

    @staticmethod
    def _compare(everyone: list[tuple[Any, ...]]) -> None:
        names = ["number of items", "epoch", "position", "seed", "setting of shuffle", "setting of uneven"]
        names += ["batch size", "cost of some items", "content or order of the items"]
        check_same("shard", names, everyone, ": shuffle with shard(data, shuffle=True)")

    def state(self) -> dict[str, Any]:
        """The position of the iteration, as plain data that JSON can hold.

        It does not depend on the number of processes, and is the same on all ranks that have been given equally many
        items: ``epoch``, ``position`` (items of the whole data that all ranks together have been given in this epoch,
        the current one included), ``seed``, ``length`` and ``shuffle``.
        """
        n = len(self._data)
        place = {"epoch": self.epoch, "position": min(self._position, n)}
        return {**place, "seed": self._seed, "length": n, "shuffle": self._shuffle}

    def restore(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue where `state` was called, with any number of processes.

        Raises:
            ValueError: the state belongs to data of another length, seed, or setting of shuffle.
        """
        for what, own in (("length", len(self._data)), ("seed", self._seed), ("shuffle", self._shuffle)):
            if state.get(what, own) != own:
                raise ValueError(f"Shard.restore: the data have {what} {own}, the state is of {what} {state[what]}")
        self.epoch = state["epoch"]
        self._position = state["position"]


@overload
def shard(
    data: Iterable[T],
    shuffle: bool = ...,
    seed: int = ...,
    uneven: str = ...,
    *,
    batch_size: None = ...,
    cost: None = ...,
) -> Shard[T]: ...


@overload
def shard(
    data: Iterable[T],
    shuffle: bool = ...,
    seed: int = ...,
    uneven: str = ...,
    *,
    batch_size: int,
    cost: Cost[T] = ...,
) -> Shard[list[T]]: ...


def shard(
    data: Iterable[T],
    shuffle: bool = False,
    seed: int = 0,
    uneven: str = "join",
    *,
    batch_size: int | None = None,
    cost: Cost[T] = None,
) -> Shard[T] | Shard[list[T]]:
    """This rank's share of the data: one item out of each `size` consecutive ones.

    With several ranks, iterating over it is collective.

    Args:
        data: the whole data, the same on all ranks, such as a list of sentences or of batches. Anything that is not
            a sequence is converted to a list.
        shuffle: go over the data in a different order in each epoch, which depends only on `seed` and the epoch.
        seed: see shuffle.
        uneven: what to do if the number of items is not a multiple of the number of ranks. "join": some ranks have one
            item more, and the others take part in its update with no weight, see `join`; "pad": the others get one of
            the first items again; "drop": the last items are left out (with `batch_size`, those that do not make a
            whole batch for every rank); "keep": some ranks have one item more, and the program has to handle that.
        batch_size: None for single items, or how many items a rank gets at a time, in a list. At the end of an
            epoch the lists may be shorter, and those of some ranks one item shorter than others.
        cost: a function that estimates how long training with an item takes, such as `len` for sentences; needs
            `batch_size`. The `size * batch_size` items of one step are divided among the ranks so that their lists
            take about the same time, and no rank waits long for the others. The items of an update do not change. Every
            rank computes the costs of all these items, and must get the same finite numbers.

    Returns:
        Shard, over which one can iterate many times.

    Raises:
        ParallelError: the ranks have different data, settings or costs; found when an iteration begins.
        TypeError: `cost` is not a function, or the data are a table or a series of pandas, with items by label.
        ValueError: `uneven` is unknown, `batch_size` is less than 1, or `cost` is given without `batch_size`.
    """
    if uneven not in UNEVEN:
        raise ValueError(f"shard: uneven must be one of {', '.join(UNEVEN)}, not {uneven!r}")
    if batch_size is not None:
        batch_size = operator.index(batch_size)
        if batch_size < 1:
            raise ValueError(f"shard: batch_size must be at least 1, not {batch_size}")
    if cost is not None and not callable(cost):
        raise TypeError(f"shard: cost must be a function of an item, not {type(cost).__name__}")
    if cost is not None and batch_size is None:
        raise ValueError("shard: cost= needs batch_size=: without batches, items are not divided by cost")
    check_items("shard", data)
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping)
    sequence = cast("Sequence[T]", data) if by_number else list(data)
    return Shard(sequence, bool(shuffle), int(seed), uneven, batch_size, cost)


def progress(items: Iterable[T], **options: Any) -> Iterable[T]:
    """`tqdm.tqdm(items, **options)` on rank 0; just `items` on the other ranks, and if tqdm is not installed."""
    if current().rank == 0:
        with contextlib.suppress(ImportError):
            bar: Iterable[T] = importlib.import_module("tqdm").tqdm(items, **options)
            return bar
    return items
