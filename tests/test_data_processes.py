"""Processes that read items: the same batches in the same order, errors with their tracebacks, all processes end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import dynet_cy as dy


class Slow:
    """Items that take time; number `bad` cannot be read, and number `deadly` ends the process."""

    def __init__(self, n: int, bad: int = -1, deadly: int = -1) -> None:
        self.n, self.bad, self.deadly = n, bad, deadly

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[int, int]:
        if i == self.deadly:
            os._exit(3)
        if i == self.bad:
            raise Strange(i, "cannot be read")
        time.sleep(0.001 * (i % 3))
        return i, os.getpid()


class Strange(Exception):
    """An exception that pickle cannot make again."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"item {number} {text}")


def numbers(items: list[tuple[int, int]]) -> tuple[list[int], set[int]]:
    return [i for i, _ in items], {process for _, process in items}


def ended() -> bool:
    until = time.monotonic() + 600
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.01)
    return not multiprocessing.active_children()


def test_the_same_batches_in_the_same_order() -> None:
    plain = dy.data.batches(Slow(50), 3, shuffle=True, collate=numbers)
    ahead = dy.data.batches(Slow(50), 3, shuffle=True, collate=numbers, processes=2)
    processes: set[int] = set()
    for _ in range(2):
        found = list(ahead)
        assert [batch for batch, _ in found] == [batch for batch, _ in plain]
        processes |= set().union(*(ids for _, ids in found))
    assert os.getpid() not in processes
    assert len(processes) <= 2  # of both epochs
    next(iter(ahead))
    place = ahead.state()
    rest = [batch for batch, _ in ahead]  # continues
    plain.restore(place)
    assert rest == [batch for batch, _ in plain]
    del ahead
    assert ended()


def test_items_that_come_one_by_one() -> None:
    data = dy.data.batches(((i, 0) for i in range(7)), 3, collate=numbers, processes=1, prefetch=1)
    assert [batch for batch, _ in data] == [[0, 1, 2], [3, 4, 5], [6]]
    del data
    assert ended()
    with pytest.raises(ValueError, match="processes= needs data with indices"):
        dy.data.batches(iter([1]), 3, processes=1)


def test_an_error_has_its_traceback() -> None:
    data = dy.data.batches(Slow(20, bad=7), 2, processes=2)
    assert [[i for i, _ in batch] for batch in islice(data, 3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(RuntimeError, match="Strange: item 7 cannot be read") as caught:
        list(data)
    text = "".join(traceback.format_exception(type(caught.value), caught.value, caught.value.__traceback__))
    assert 'raise Strange(i, "cannot be read")' in text
    assert ended()


def test_a_process_that_is_killed() -> None:
    data = dy.data.batches(Slow(20, deadly=7), 2, processes=2)
    with pytest.raises(RuntimeError, match="a process that reads items has ended"):
        list(data)
    assert ended()


def test_what_cannot_be_sent() -> None:
    data = dy.data.batches(Slow(20), 2, collate=lambda items: items, processes=2)
    with pytest.raises(TypeError, match="must be what pickle can hold"):
        list(data)
    with pytest.raises(ValueError, match="processes must be at least 0"):
        dy.data.batches([1], 2, processes=-1)


PROGRAM = """
import os, signal, sys, time
import dynet_cy as dy

class Data:
    def __len__(self): return 1000
    def __getitem__(self, i):
        if i == 5:
            print("reading", os.getpid(), flush=True)
            time.sleep(10_000)
        return i

if __name__ == "__main__":
    for batch in dy.data.batches(Data(), 1, processes=2):
        pass
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted(how: int, tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal; a program that is killed leaves none behind either."""
    (tmp_path / "program.py").write_text(PROGRAM)
    running: Any = subprocess.Popen(
        [sys.executable, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert running.stdout.readline().startswith("reading")
    (os.killpg if how == signal.SIGINT else os.kill)(running.pid, how)
    _, errors = running.communicate(timeout=600)  # ends when the last process has closed its output
    if how == signal.SIGINT:
        assert errors.count("KeyboardInterrupt") == 1, errors
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
