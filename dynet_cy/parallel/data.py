"""Each rank's share of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

__all__ = ["Shard", "progress", "shard"]

T = TypeVar("T")


class Shard(Generic[T]):
    """This rank's share of some data, in the order of an epoch; made by `shard`.

    Each iteration is one epoch. The order depends on seed and epoch alone, and so does the state: it does not
    depend on the number of processes.

    Attributes:
        epoch: number of the epoch that the next iteration begins with, or that is running; set it to go elsewhere.
    """

    epoch: int

    def __iter__(self) -> Iterator[T]:
        """The items of this rank's share of the epoch; the epoch counts up at the end."""
        raise NotImplementedError

    def __len__(self) -> int:
        """How many items this rank has in a whole epoch."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Where the iteration is, as plain data that JSON can hold: epoch, position (items of the whole data that all
        ranks together have been given in this epoch, this rank's last one included), seed and length."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """Let the next iteration go on where `state` was called, with any number of processes.

        Raises:
            ValueError: it is the state of data of another length, or of another seed.
        """
        raise NotImplementedError


def shard(data: Iterable[T], shuffle: bool = False, seed: int = 0, uneven: str = "join") -> Shard[T]:
    """This rank's share of the data: of each `size` items in a row one.

    Args:
        data: what all ranks together go over, the same on all of them: a sequence, such as a list of batches.
        shuffle: go over the data in another order in each epoch, which depends on `seed` and the epoch alone.
        seed: see shuffle.
        uneven: what happens when the items do not divide by the number of ranks. "join": some ranks have one item more,
            and the others take part in its updates with no weight; "pad": those get one of the first items again;
            "drop": the last items are left out; "keep": some ranks have one more, and the program sees to the rest.

    Returns:
        Shard, over which one can iterate many times.

    Raises:
        ParallelError: the ranks have different data.
    """
    raise NotImplementedError


def progress(items: Iterable[T], **options: Any) -> Iterable[T]:
    """`tqdm.tqdm(items, **options)` on rank 0, the items themselves on the others, and where tqdm is not installed."""
    raise NotImplementedError
