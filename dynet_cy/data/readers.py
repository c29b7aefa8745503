"""Processes that read items for batches."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, Callable, Optional

Collate = Optional[Callable[[list[Any]], Any]]
Turn = tuple[int, Optional[list[Any]], bool]


class Readers:
    """Processes that each have a copy of the data, and make batches of the items of given numbers.

    They are spawned, so they share nothing with the threads and the graphs of this process. They end with this process,
    however it ends.

    Args:
        data: the data, which have items by number; None: the items themselves are sent
        collate: turns a list of items into a batch, or None
        processes: how many

    Raises:
        TypeError: data or collate cannot be sent to another process.
    """

    def __init__(self, data: Any, collate: Collate, processes: int) -> None:
        try:
            sent = pickle.dumps((data, collate))
        except Exception as error:  # classes raise what they like when they are pickled
            raise TypeError(
                "batches: with processes=, the data and collate are sent to other processes, so they must be what "
                f"pickle can hold, such as functions of modules instead of lambdas ({type(error).__name__}: {error})"
            ) from error
        spawn = multiprocessing.get_context("spawn")
        ends, open_end = spawn.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(processes, mp_context=spawn, initializer=_begin, initargs=(ends, sent))
        self._finalizer = weakref.finalize(self, _end, self._pool, open_end)

    def load(self, turns: Iterator[Turn], ahead: int) -> Generator[tuple[int, Any, bool, bool], None, None]:
        """The batches of these turns in order, of which some are read in advance."""
        waiting: deque[tuple[int, Future[Any] | None, bool]] = deque()
        try:
            for place, handles, whole in turns:
                waiting.append((place, None if handles is None else self._submit(handles), whole))
                if len(waiting) > ahead:
                    yield self._next(waiting)
            while waiting:
                yield self._next(waiting)
        except GeneratorExit:  # the loop was left; the processes wait for the next one
            for _, future, _ in waiting:
                if future is not None:
                    future.cancel()
            raise
        except BaseException:  # the pool cancels by itself: its thread may be setting errors of ended processes
            self.end()
            raise

    def _submit(self, handles: list[Any]) -> Future[Any]:
        # A process that is started here inherits the mask: Ctrl-C is for the program, which then ends its processes.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return self._pool.submit(_read, handles)
        except BrokenProcessPool as error:  # noticed before the batches that wait
            raise _ended() from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @staticmethod
    def _next(waiting: deque[tuple[int, Future[Any] | None, bool]]) -> tuple[int, Any, bool, bool]:
        place, future, whole = waiting[0]
        try:
            batch = None if future is None else future.result()
        except BrokenProcessPool as error:
            raise _ended() from error
        waiting.popleft()
        return place, batch, whole, future is not None

    @property
    def alive(self) -> bool:
        """Whether they have not been ended."""
        return self._finalizer.alive

    def end(self) -> None:
        """End the processes at once."""
        self._finalizer()


def _ended() -> RuntimeError:
    return RuntimeError(
        "batches: a process that reads items has ended. With processes=, each imports the program, so what it does "
        'stands under `if __name__ == "__main__":`. Otherwise it was killed, perhaps for want of memory'
    )


def _end(pool: ProcessPoolExecutor, open_end: Connection) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    open_end.close()
    pool.shutdown()


# ---- in the processes

_sent = b""
_known: tuple[Any, Collate] | None = None


def _begin(ends: Connection, sent: bytes) -> None:
    global _sent
    _sent = sent
    threading.Thread(target=_end_with_the_program, args=(ends,), daemon=True).start()


def _end_with_the_program(ends: Connection) -> None:
    """Wait until the program closes its end of the pipe, or is no more."""
    with contextlib.suppress(EOFError, OSError):
        ends.recv()
    os._exit(0)


def _read(handles: list[Any]) -> Any:
    global _known
    try:
        if _known is None:  # here rather than in the beginning: an error reaches the program, with its traceback
            _known = pickle.loads(_sent)
        data, collate = _known
        items = handles if data is None else [data[i] for i in handles]
        return items if collate is None else collate(items)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise
