"""Batches of training data: by number or cost of items, of similar length, shuffled, prefetched, resumable.

    data = dy.data.batches(sentences, 32, shuffle=True, seed=1)
    while data.epoch < 10:
        for batch in data:
            ...

Data are lists, anything else with ``__getitem__`` and ``__len__`` (data sets of other libraries), lines of files
(`lines`), generators, or functions that return these.
"""

from __future__ import annotations

import math
import operator
import random
import threading
import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Callable, Generic, Protocol, TypeVar, Union, cast, overload

import numpy as np

from dynet_cy.core.items import check_items
from dynet_cy.files.schema import COUNT, FLAG, TEXT, WHOLE, check, maybe, record
from dynet_cy.functions.arguments import known_arguments
from dynet_cy.parallel.data import UNEVEN, check_same, order_of_epoch, outline
from dynet_cy.parallel.runtime import current
from dynet_cy.parallel.trainer import end_share
from dynet_cy.train.trainer import updates_made

if TYPE_CHECKING:
    from dynet_cy.data.readers import Readers


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Made = TypeVar("Made")


class Indexed(Protocol[T_co]):
    """Data with items by index, such as the data sets of other libraries."""

    def __getitem__(self, number: int, /) -> T_co: ...

    def __len__(self) -> int: ...


Data = Union[Iterable[T], Indexed[T], Callable[[], Iterable[T]]]

# The place after a batch, the batch, whether all ranks have one, and whether this one has.
Loaded = Generator[tuple[int, Any, bool, bool], None, None]

# How many batches' worth of items are shuffled or sorted together if the data come one by one.
_AT_ONCE = 100


class Batches(Generic[T]):
    """Data in batches; made by `batches`. Each iteration is one epoch, or the rest of one.

    If an iteration is left with ``break``, the next one continues it. There can be only one iteration at a time.

    Attributes:
        epoch: number of the epoch that the next iteration begins with, or that is running; from 0 on

    Example:
        >>> data = dy.data.batches(list("abcde"), 2)
        >>> list(data), data.epoch
        ([['a', 'b'], ['c', 'd'], ['e']], 1)
    """

    def __init__(
        self,
        data: Any,
        size: int | None,
        cost: Callable[[Any], float] | None,
        most: float | None,
        bucket: Callable[[Any], float] | None,
        shuffle: bool,
        seed: int,
        window: int | None,
        shard: str | None,
        collate: Callable[[list[Any]], Any] | None,
        prefetch: int,
        processes: int,
    ) -> None:
        self._data = data
        self._by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
        self._size = size
        self._cost = cost
        self._most = most
        self._bucket = bucket
        self._shuffle = shuffle
        self._seed = seed
        self._window = window
        self._shard = shard
        self._collate = collate
        self._prefetch = prefetch
        self._processes = processes
        self._readers: Readers | None = None
        self._position = 0  # batches of the whole data that all ranks together have received
        self._iteration = 0
        self._begun = False
        self._measures: dict[str, Any] = {}
        self._loader: _Loader[Any] | None = None
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin with the first batch of an epoch.

        Args:
            epoch: its number, from 0 on

        Example:
            >>> data = dy.data.batches([1, 2, 3], 2)
            >>> data.set_epoch(5)
            >>> data.epoch
            5
        """
        self.epoch = operator.index(epoch)
        self._position = 0

    # ---- dividing the items into batches

    def _order(self, epoch: int) -> Sequence[int]:
        """The indices of the items in the order of an epoch: the order that `parallel.shard` uses too."""
        return order_of_epoch(len(self._data), self._shuffle, self._seed, epoch)

    def _stream(self) -> Iterator[Any]:
        """The items of data that come one by one."""
        items: Iterator[Any] = iter(self._data if _can_be_iterated(self._data) else self._data())
        if items is self._data:
            if self._begun:
                raise ValueError(
                    "batches: the data are an iterator, which can be gone through once; pass a list, or a function "
                    "that returns a new iterator, or dy.data.lines(path) for the lines of a file"
                )
            self._begun = True
        return items

    def _windows(self, epoch: int) -> Iterator[Iterable[Any]]:
        """The items to sort or shuffle together: indices, or the items themselves if they come one by one."""
        if self._by_number:
            order = self._order(epoch)
            step = self._window or max(len(order), 1)
            for start in range(0, len(order), step):
                yield order[start : start + step]
        elif not self._shuffle and self._bucket is None:
            yield self._stream()
        else:
            items = self._stream()
            step = self._window or _AT_ONCE * (self._size or _AT_ONCE)
            while window := list(islice(items, step)):
                yield window

    def _plan(self, epoch: int) -> Iterator[list[Any]]:
        """The handles of each batch of an epoch."""
        for number, window in enumerate(self._windows(epoch)):
            rng = random.Random(f"{self._seed} {epoch} {number}")
            if not self._by_number and self._shuffle:
                rng.shuffle(cast("list[Any]", window))
            if self._bucket is not None:
                window = sorted(window, key=lambda handle: self._measure("bucket", self._bucket, handle))
            planned: Iterable[list[Any]] = self._cut(window)
            if self._bucket is not None and self._shuffle:
                planned = list(planned)
                rng.shuffle(planned)
            yield from planned

    def _cut(self, handles: Iterable[Any]) -> Iterator[list[Any]]:
        """Cut consecutive handles into batches, each as large as the settings allow."""
        batch: list[Any] = []
        total = 0.0
        for handle in handles:
            cost = 0.0 if self._cost is None else self._measure("cost", self._cost, handle)
            if batch and self._most is not None and total + cost > self._most:
                yield batch
                batch, total = [], 0.0
            batch.append(handle)
            total += cost
            if len(batch) == self._size:  # do not wait for the next item: it may be a line that has yet to be typed
                yield batch
                batch, total = [], 0.0
        if batch:
            yield batch

    def _measure(self, name: str, function: Any, handle: Any) -> float:
        """The cost or length of an item, computed once if items have indices."""
        known = None
        if self._by_number:
            known = self._measures.get(name)
            if known is None or len(known) != len(self._data):
                known = self._measures[name] = np.full(len(self._data), np.nan)
            if not math.isnan(known[handle]):
                return float(known[handle])
        value = float(function(self._data[handle] if self._by_number else handle))
        if not 0 <= value < math.inf:
            which = f"item {handle}" if self._by_number else "an item"
            raise ValueError(f"batches: the {name} of {which} is {value}, not a finite number of at least 0")
        if known is not None:
            known[handle] = value
        return value

    def _turns(self, rank: int, ranks: int, epoch: int, place: int) -> Iterator[tuple[int, list[Any] | None, bool]]:
        """This rank's batches of an epoch from a position on: for each the position after it, its handles, and whether
        all ranks have one."""
        plan = self._plan(epoch)
        first = list(islice(plan, min(ranks - 1, place)))  # for ranks that would have none at the epoch's end
        deque(islice(plan, place - len(first)), maxlen=0)
        while together := list(islice(plan, ranks)):
            place += len(together)
            whole = len(together) == ranks
            first += together[: max(ranks - 1 - len(first), 0)]
            if not whole and self._shard == "drop":
                return
            if self._shard == "pad":
                together += [first[i % len(first)] for i in range(ranks - len(together))]
            yield place, together[rank] if rank < len(together) else None, whole

    # ---- iterating

    def _load(self, turns: Iterator[tuple[int, list[Any] | None, bool]]) -> Loaded:
        """The batches themselves: the part that runs in the thread, if there is one."""
        for place, handles, whole in turns:
            if handles is None:
                yield place, None, whole, False
                continue
            items = [self._data[i] for i in handles] if self._by_number else handles
            yield place, items if self._collate is None else self._collate(items), whole, True

    def __iter__(self) -> Iterator[T]:
        """The remaining batches of the epoch; the epoch is incremented at the end."""
        self._iteration += 1
        own = self._iteration
        if self._loader is not None:
            self._loader.end()
        communicator = current()
        rank, ranks = (communicator.rank, communicator.size) if self._shard else (0, 1)
        if ranks > 1:
            _compare(communicator.gather(self._summary(), "batches"))
        turns = self._turns(rank, ranks, self.epoch, self._position)
        loaded: Loaded | _Loader[Any]
        if self._processes:
            if self._readers is None or not self._readers.alive:
                data = self._data if self._by_number else None
                from dynet_cy.data.readers import Readers  # loads multiprocessing, which programs without it go without

                self._readers = Readers(data, self._collate, self._processes)
            loaded = self._readers.load(turns, self._prefetch or 2 * self._processes)
        elif self._prefetch:
            loaded = self._loader = _Loader(self._load(turns), self._prefetch)
        else:
            loaded = self._load(turns)
        uneven, begun = False, updates_made()
        try:
            for place, batch, whole, there in loaded:
                uneven = uneven or not whole
                if not there:
                    break
                # Counted before it is used: a state saved while it is in use continues after it.
                self._position = place
                yield batch
                if self._iteration != own:
                    raise RuntimeError("Batches: another iteration has begun; only one can run at a time")
        finally:
            loaded.close()
        if self._shard:
            end_share(uneven and self._shard == "join", begun)
        self.set_epoch(self.epoch + 1)

    def __len__(self) -> int:
        """The number of batches of this process in the whole of this epoch.

        Raises:
            TypeError: the data come one by one, so their number is unknown
        """
        whole, rest, rank = self._shares()
        return whole + {"pad": rest > 0, "drop": False}.get(self._shard or "", rest > rank)

    @property
    def updates(self) -> int:
        """The number of updates in this epoch, one for each batch: the same on all processes.

        `len` is the number of batches that this process has, which may be one less on some. Schedules of the learning
        rate count updates, and must agree on all processes.

        Raises:
            TypeError: the data come one by one, so their number is unknown

        Example:
            >>> data = dy.data.batches(range(100), 32)
            >>> data.updates
            4
            >>> schedule = dy.LinearSchedule(10 * data.updates)  # ten epochs
        """
        whole, rest, _ = self._shares()
        return whole + (rest > 0 and self._shard != "drop")

    def _shares(self) -> tuple[int, int, int]:
        """The number of batches of every process, the number left over, and the rank of this process."""
        if not self._by_number:
            raise TypeError("batches: an iterable has no length: the number of items is unknown")
        count = sum(1 for _ in self._plan(self.epoch))
        communicator = current()
        rank, ranks = (communicator.rank, communicator.size) if self._shard else (0, 1)
        return *divmod(count, ranks), rank

    def _length(self) -> int | None:
        return len(self._data) if self._by_number else None

    def _batching(self) -> str:
        """The settings that decide which items make a batch, in words."""
        bucket = self._bucket is not None
        return f"size={self._size}, most={self._most}, bucket={bucket}, window={self._window}"

    def _summary(self) -> tuple[Any, ...]:
        """The data that must be equal on all ranks: settings, place, and some of the items."""
        n = self._length()
        some = sorted({0, n // 3, n // 2, n - 1} & set(range(n))) if n else []
        seen = zlib.crc32(repr([outline(self._data[i]) for i in some]).encode())
        costs = [] if self._cost is None else [self._measure("cost", self._cost, i) for i in some]
        how = self._batching(), self._shuffle, self._seed, self._shard
        return n, self.epoch, self._position, *how, costs, seen

    def state(self) -> dict[str, Any]:
        """The position of the iteration, as plain data that JSON can hold; `parallel.save_checkpoint` saves it.

        It does not depend on the number of processes.

        Returns:
            ``epoch``; ``position``: how many batches of the whole data all processes together have received in this
            epoch, including the current one; and settings by which `restore` recognizes the data.

        Example:
            >>> data = dy.data.batches([1, 2, 3, 4, 5], 2, shuffle=True)
            >>> seen = next(iter(data))
            >>> state = data.state()
            >>> again = dy.data.batches([1, 2, 3, 4, 5], 2, shuffle=True)
            >>> again.restore(state)
            >>> sorted(seen + [item for batch in again for item in batch])
            [1, 2, 3, 4, 5]
        """
        place = {"epoch": self.epoch, "position": self._position, "seed": self._seed}
        return {**place, "length": self._length(), "shuffle": self._shuffle, "batching": self._batching()}

    def restore(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue where `state` was called, with any number of processes.

        If the data come one by one, items before that position are read again and skipped.

        Args:
            state: a result of `state`, for the same data in the same batches

        Raises:
            ValueError: it is not a state, or its data have a different length, seed, shuffling or batching

        Example:
            >>> data = dy.data.batches([1, 2, 3], 1)
            >>> data.restore({**data.state(), "epoch": 4, "position": 2})
            >>> next(iter(data))
            [3]
        """
        check(state, _PLACE, "the state of batches")
        now = self.state()
        for what in ("length", "seed", "shuffle", "batching"):
            if state[what] != now[what]:
                raise ValueError(f"Batches.restore: the data have {what} {now[what]}, the state is of {state[what]}")
        self._iteration += 1
        self.epoch, self._position = state["epoch"], state["position"]

    def __repr__(self) -> str:
        return f"<Batches of {type(self._data).__name__}: {self._batching()}, epoch {self.epoch}>"


_PLACE = record(
    {"epoch": COUNT, "position": COUNT, "seed": WHOLE, "length": maybe(COUNT), "shuffle": FLAG, "batching": TEXT}
)


def _compare(everyone: list[tuple[Any, ...]]) -> None:
    names = ["number of items", "epoch", "position", "way of batching", "setting of shuffle", "seed"]
    names += ["setting of shard", "cost of some items", "content or order of the items"]
    check_same("batches", names, everyone)


class _Loader(Iterator[T]):
    """The items of an iterator, prefetched by a thread.

    The thread is a daemon, so that a process can end even if it is stuck.
    """

    def __init__(self, items: Iterator[T], most: int) -> None:
        self._ready: deque[tuple[str, Any]] = deque()
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._fill, args=(items, most), name="dynet_cy.data", daemon=True)
        self._thread.start()

    def _fill(self, items: Iterator[T], most: int) -> None:
        try:
            for item in items:
                if not self._put("item", item, most):
                    return
            self._put("end", None, most)
        except BaseException as error:  # raised again in the caller
            self._error = error
            self._put("end", None, most)

    def _put(self, kind: str, value: Any, most: int) -> bool:
        with self._changed:
            while len(self._ready) >= most and not self._closed:
                self._changed.wait()
            self._ready.append((kind, value))
            self._changed.notify_all()
            return not self._closed

    def __next__(self) -> T:
        with self._changed:
            while not self._ready and not self._closed:
                self._changed.wait()
            kind, value = self._ready.popleft() if not self._closed else ("end", None)
            self._changed.notify_all()
        if kind == "end":
            self.close()
            error, self._error = self._error, None
            raise StopIteration if error is None else error
        return cast("T", value)

    def close(self) -> None:
        """Ask the thread to end after its current item."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()

    def end(self) -> None:
        """`close`, and wait until the thread has ended: two threads must not use the data at once."""
        self.close()
        self._thread.join()


@overload
def batches(
    data: Data[T],
    size: int | None = ...,
    *,
    cost: Callable[[T], float] | None = ...,
    most: float | None = ...,
    bucket: Callable[[T], float] | None = ...,
    shuffle: bool = ...,
    seed: int = ...,
    window: int | None = ...,
    shard: str | None = ...,
    collate: None = ...,
    prefetch: int = ...,
    processes: int = ...,
) -> Batches[list[T]]: ...


@overload
def batches(
    data: Data[T],
    size: int | None = ...,
    *,
    cost: Callable[[T], float] | None = ...,
    most: float | None = ...,
    bucket: Callable[[T], float] | None = ...,
    shuffle: bool = ...,
    seed: int = ...,
    window: int | None = ...,
    shard: str | None = ...,
    collate: Callable[[list[T]], Made],
    prefetch: int = ...,
    processes: int = ...,
) -> Batches[Made]: ...


@known_arguments
def batches(
    data: Any,
    size: int | None = None,
    *,
    cost: Callable[[Any], float] | None = None,
    most: float | None = None,
    bucket: Callable[[Any], float] | None = None,
    shuffle: bool = False,
    seed: int = 0,
    window: int | None = None,
    shard: str | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    prefetch: int = 0,
    processes: int = 0,
) -> Batches[Any]:
    """Divide data into batches, with a new division in each epoch.

    Args:
        data: a list; anything else with ``__getitem__`` and ``__len__``, with indices from 0 on; an iterable, such as a
            generator or an open file; or a function that returns a new iterable for each epoch. Items that come one by
            one are not held in memory.
        size: how many items a batch has at most; the last batch may have fewer
        cost: a function that returns the cost of an item, such as its number of words; needs `most`. It is called once
            for each item
        most: the greatest total cost of a batch; an item that costs more forms a batch alone
        bucket: a function that returns the length of an item, such as `len`, to form batches of similar length. Items
            are sorted by it and cut into batches; with `shuffle` the batches are shuffled.
        shuffle: whether each epoch has another order, which depends only on `seed` and the number of the epoch
        seed: see shuffle
        window: how many items are sorted by length together; all by default. If data come one by one, how many are
            shuffled and sorted together: by default 100 times `size`, or 10,000.
        shard: None: every process gets all batches. Otherwise they are dealt out to the processes: rank r of n gets
            the batches r, r + n, r + 2n..., and iterating is collective. "join", "pad", "drop" or "keep" says what
            happens if their number is not a multiple of the number of processes; see `parallel.shard`.
        collate: a function that turns the list of items into the batch
        prefetch: how many batches a thread prepares in advance. The thread reads items and calls `collate`, which must
            not make expressions. Its errors are raised where the batch would have been returned.
        processes: how many processes read items and call `collate`, for items that take long to read: decoding, images.
            They are spawned at the first iteration and kept for later ones, each with a copy of the data, which must be
            what pickle can hold, as `collate` and the batches. The batches and their order are the same. `prefetch`
            batches, or two for each process, are read in advance. Errors are raised here, with their traceback there.
            Of data that come one by one, items are read here, and `collate` is called there. The program's own work
            stands under ``if __name__ == "__main__":``, since each process imports it.

    Returns:
        Batches: an object to iterate over, once for each epoch.

    Raises:
        ParallelError: processes have different data or settings; found when an iteration begins
        TypeError: the data are text, a dictionary, a table of pandas, or have no items; or a setting has the wrong type
        ValueError: the data are a tuple of arrays of equal lengths, such as `(X, y)`; neither `size` nor `most` is
            given, only one of `cost` and `most` is, or a number is out of range

    Example:
        >>> words = ["a", "bb", "cc", "dddd", "e", "fff"]
        >>> list(dy.data.batches(words, 4))
        [['a', 'bb', 'cc', 'dddd'], ['e', 'fff']]
        >>> list(dy.data.batches(words, cost=len, most=5))
        [['a', 'bb', 'cc'], ['dddd', 'e'], ['fff']]
        >>> list(dy.data.batches(words, 2, bucket=len))
        [['a', 'e'], ['bb', 'cc'], ['fff', 'dddd']]
        >>> list(dy.data.batches((n * n for n in range(5)), 2, collate=sum, prefetch=2))
        [1, 13, 16]
    """
    if isinstance(data, (str, bytes, Mapping)):
        lines_of = "; dy.data.lines(path) has the lines of a file" if isinstance(data, (str, bytes)) else ""
        raise TypeError(f"batches: data must be a sequence or an iterable, not {type(data).__name__}{lines_of}")
    check_items("batches", data)
    if _is_columns(data):
        raise ValueError(
            f"batches: data is a tuple of {len(data)} arrays, each of which would be one item; for tuples with a row "
            "of each array, write list(zip(*data))"
        )
    if not (_can_be_iterated(data) or callable(data)):
        raise TypeError(f"batches: data must be a sequence or an iterable, not {type(data).__name__}")
    for name, function in (("cost", cost), ("bucket", bucket), ("collate", collate)):
        if function is not None and not callable(function):
            raise TypeError(f"batches: {name} must be a function, not {type(function).__name__}")
    if size is None and most is None:
        raise ValueError("batches: give size, or cost and most")
    if (cost is None) != (most is None):
        raise ValueError("batches: cost and most go together")
    if most is not None:
        most = float(most)
        if not most > 0:
            raise ValueError(f"batches: most must be greater than 0, not {most}")
    if shard is not None and shard not in UNEVEN:
        raise ValueError(f"batches: shard must be None or one of {', '.join(UNEVEN)}, not {shard!r}")
    if processes and collate is None and not hasattr(data, "__getitem__"):
        raise ValueError("batches: processes= needs data with indices, or collate=")
    size, window = _whole(size, "size", 1), _whole(window, "window", 1)
    return Batches(
        data,
        size,
        cost,
        most,
        bucket,
        bool(shuffle),
        operator.index(seed),
        window,
        shard,
        collate,
        _whole(prefetch, "prefetch", 0) or 0,
        _whole(processes, "processes", 0) or 0,
    )


def _is_columns(data: Any) -> bool:
    """Whether the data are a tuple of arrays with the same number of rows, more than there are arrays."""
    if not isinstance(data, tuple) or len(data) < 2 or not all(getattr(x, "shape", ()) for x in data):
        return False
    rows = {int(x.shape[0]) for x in data}
    return len(rows) == 1 and rows.pop() > len(data)


def _can_be_iterated(data: Any) -> bool:
    return hasattr(data, "__iter__") or hasattr(data, "__getitem__")


def _whole(value: Any, name: str, least: int) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"batches: {name} must be a whole number, not {value!r:.100}") from None
    if number < least:
        raise ValueError(f"batches: {name} must be at least {least}, not {number}")
    return number


@known_arguments
def hold_out(items: Sequence[T], every: int = 10) -> tuple[list[T], list[T]]:
    """Divide data into training items and, every tenth, items for evaluation.

    Args:
        items: all of them
        every: 10 for every tenth item, the first one included

    Raises:
        TypeError: they are a table or a series of pandas, whose items are found by label
        ValueError: there is only one item or none, so that none is left to train with; or `every` is less than 2

    Example:
        >>> dy.data.hold_out([0, 1, 2, 3, 4, 5], every=3)
        ([1, 2, 4, 5], [0, 3])
    """
    check_items("hold_out", items, "items")
    if every < 2:
        raise ValueError(f"hold_out: every must be at least 2, not {every}")
    if len(items) < 2:
        raise ValueError(f"hold_out: at least 2 items are needed, not {len(items)}")
    kept = [items[i] for i in range(len(items)) if i % every]
    return kept, [items[i] for i in range(0, len(items), every)]


@known_arguments
def map_batches(function: Callable[[list[T]], Iterable[Made]], items: Sequence[T], size: int = 64) -> list[Made]:
    """Apply a function that takes a list to all items, batch by batch, and return the results in order.

    Args:
        function: takes a list of at most `size` items, and returns a result for each
        items: all of them
        size: how many items a batch has

    Returns:
        The results, in the order of the items.

    Raises:
        TypeError, ValueError: those of `batches`
        ValueError: the function has returned more or fewer results than it was given items

    Example:
        >>> dy.data.map_batches(lambda words: [word.upper() for word in words], ["a", "dog", "barks"], 2)
        ['A', 'DOG', 'BARKS']
    """
    found: list[Made] = []
    for batch in batches(items, size):
        results = list(function(batch))
        if len(results) != len(batch):
            raise ValueError(f"map_batches: the function has returned {len(results)} results for {len(batch)} items")
        found += results
    return found
