"""Each rank's share of the data."""

from __future__ import annotations

import contextlib
import importlib
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np

from dynet_cy.parallel.exchange import ParallelError
from dynet_cy.parallel.runtime import current
from dynet_cy.parallel.trainer import finish_all

__all__ = ["Shard", "progress", "shard"]

T = TypeVar("T")

UNEVEN = ("join", "pad", "drop", "keep")


def _outline(item: Any, depth: int = 3) -> Any:
    """What surely differs only if items differ: plain data as they are, of other objects their class."""
    if item is None or isinstance(item, (bool, int, float, str, bytes)):
        return item
    if isinstance(item, np.ndarray):
        return item.shape, item.dtype.str, [_outline(x, 0) for x in item.ravel()[:20].tolist()]
    if isinstance(item, (list, tuple)) and depth:
        return len(item), [_outline(x, depth - 1) for x in item[:20]]
    return type(item).__qualname__


class Shard(Generic[T]):
    """This rank's share of some data, in the order of an epoch; made by `shard`.

    Each iteration is one epoch. The order of the whole data depends on seed and epoch alone; rank r of n gets the items
    r, r + n, r + 2n, ... of it.

    Attributes:
        epoch: number of the epoch that the next iteration begins with, or that is running.
    """

    def __init__(self, data: Sequence[T], shuffle: bool, seed: int, uneven: str) -> None:
        self._data = data
        self._shuffle = shuffle
        self._seed = seed
        self._uneven = uneven
        self._position = 0  # items of the whole data that all ranks together have been given
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin with the first item of that epoch."""
        self.epoch = epoch
        self._position = 0

    def order(self) -> Sequence[int]:
        """The whole data's order in this epoch: numbers of items."""
        n = len(self._data)
        if not self._shuffle:
            return range(n)
        numbers = list(range(n))
        random.Random(f"{self._seed} {self.epoch}").shuffle(numbers)
        return numbers

    def __iter__(self) -> Iterator[T]:
        """The items of this rank's share of the epoch; the epoch counts up at the end."""
        exchange = current()
        rank, size = exchange.rank, exchange.size
        if size > 1:
            self._compare(exchange.gather(self._summary(), "shard"))
        order = self.order()
        n = len(order)
        begun = self._position
        for start in range(begun, n, size):
            at = start + rank
            if at >= n:
                if self._uneven != "pad":
                    break
                at = (at - n) % n
            if self._uneven == "drop" and start + size > n:
                break
            # Counted before the item is used: a state saved while it is in use goes on after it.
            self._position = start + size
            yield self._data[order[at]]
        if self._uneven == "join" and size > 1 and max(n - begun, 0) % size:
            finish_all()
        self.set_epoch(self.epoch + 1)

    def __len__(self) -> int:
        """How many items this rank has in a whole epoch."""
        exchange = current()
        n, size = len(self._data), exchange.size
        if self._uneven == "pad":
            return -(-n // size)
        if self._uneven == "drop":
            return n // size
        return len(range(exchange.rank, n, size))

    def _summary(self) -> tuple[Any, ...]:
        """What must be equal on all ranks: length, order, and some of the items."""
        n = len(self._data)
        some = [_outline(self._data[i]) for i in sorted({0, n // 3, n // 2, n - 1} & set(range(n)))]
        check = zlib.crc32(repr(some).encode())
        return n, self.epoch, self._position, self._seed, self._shuffle, check

    @staticmethod
    def _compare(everyone: list[tuple[Any, ...]]) -> None:
        names = ("number of items", "epoch", "position", "seed", "setting of shuffle", "content or order of the items")
        for rank, one in enumerate(everyone):
            for what, ours, theirs in zip(names, everyone[0], one):
                if ours != theirs:
                    raise ParallelError(
                        f"shard: the {what} is not the same on rank 0 and rank {rank} ({ours} and {theirs}); all ranks "
                        "must pass the same data in the same order: shuffle with shard(data, shuffle=True)"
                    )

    def state(self) -> dict[str, Any]:
        """Where the iteration is, as plain data that JSON can hold.

        It does not depend on the number of processes, and is the same on all ranks that have been given equally many
        items: ``epoch``, ``position`` (items of the whole data that all ranks together have been given in this epoch,
        the current one included), ``seed`` and ``length``.
        """
        n = len(self._data)
        return {"epoch": self.epoch, "position": min(self._position, n), "seed": self._seed, "length": n}

    def restore(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on where `state` was called, with any number of processes.

        Raises:
            ValueError: it is the state of data of another length, or of another seed.
        """
        for what, own in (("length", len(self._data)), ("seed", self._seed)):
            if state[what] != own:
                raise ValueError(f"Shard.restore: the data have {what} {own}, the state is of {what} {state[what]}")
        self.epoch = state["epoch"]
        self._position = state["position"]


def shard(data: Iterable[T], shuffle: bool = False, seed: int = 0, uneven: str = "join") -> Shard[T]:
    """This rank's share of the data: of each `size` items in a row one.

    Iterating over it is collective where there are several ranks.

    Args:
        data: what all ranks together go over, the same on all of them, such as a list of batches. What is no sequence
            is made a list.
        shuffle: go over the data in another order in each epoch, which depends on `seed` and the epoch alone.
        seed: see shuffle.
        uneven: what happens when the items do not divide by the number of ranks. "join": some ranks have one item more,
            and the others take part in its update with no weight, see `join`; "pad": those get one of the first items
            again; "drop": the last items are left out; "keep": some ranks have one more, and the program sees to the
            rest.

    Returns:
        Shard, over which one can iterate many times.

    Raises:
        ParallelError: the ranks have different data; found when an iteration begins.
        ValueError: there is no such way of being uneven.
    """
    if uneven not in UNEVEN:
        raise ValueError(f"shard: uneven must be one of {', '.join(UNEVEN)}, not {uneven!r}")
    sequence = cast("Sequence[T]", data) if hasattr(data, "__getitem__") and hasattr(data, "__len__") else list(data)
    return Shard(sequence, bool(shuffle), int(seed), uneven)


def progress(items: Iterable[T], **options: Any) -> Iterable[T]:
    """`tqdm.tqdm(items, **options)` on rank 0, the items themselves on the others, and where tqdm is not installed."""
    if current().rank == 0:
        with contextlib.suppress(ImportError):
            bar: Iterable[T] = importlib.import_module("tqdm").tqdm(items, **options)
            return bar
    return items
