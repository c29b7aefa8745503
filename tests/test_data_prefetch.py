"""Loading ahead: the same batches, errors reach the caller, threads and processes end."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dynet_cy as dy


def loaders() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "dynet_cy.data"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    until = time.monotonic() + 600
    while loaders() and time.monotonic() < until:
        time.sleep(0.01)
    assert not loaders()


class Watched:
    """Counts loaded items; loading item `bad` fails."""

    def __init__(self, n: int, bad: int = -1) -> None:
        self.n, self.bad = n, bad
        self.loaded = 0
        self.more = threading.Condition()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        if i == self.bad:
            raise KeyError(f"no item {i}")
        with self.more:
            self.loaded += 1
            self.more.notify_all()
        return i

    def wait_for(self, n: int) -> bool:
        with self.more:
            return self.more.wait_for(lambda: self.loaded >= n, timeout=600)


def test_the_same_batches() -> None:
    plain, ahead = (dy.data.batches(Watched(50), 3, shuffle=True, prefetch=n) for n in (0, 4))
    for _ in range(3):
        assert list(plain) == list(ahead)


def test_it_loads_ahead_and_no_further() -> None:
    source = Watched(100)
    data = dy.data.batches(source, 1, prefetch=4)
    it = iter(data)
    assert next(it) == [0]
    assert source.wait_for(5)
    time.sleep(0.05)
    assert source.loaded <= 6  # one yielded, four waiting, one being loaded
    assert data.state()["position"] == 1  # loaded items have not been yielded
    del it


@pytest.mark.parametrize("prefetch", [0, 1, 8])
def test_errors_reach_the_caller(prefetch: int) -> None:
    source = Watched(10, bad=5)
    data = dy.data.batches(source, 2, prefetch=prefetch)
    seen = []
    with pytest.raises(KeyError, match="no item 5") as caught:
        seen.extend(data)
    assert seen == [[0, 1], [2, 3]]
    assert any(entry.name == "__getitem__" for entry in caught.traceback)
    source.bad = -1
    assert list(data) == [[4, 5], [6, 7], [8, 9]]  # and it continues after the error


def test_errors_of_collate_and_cost() -> None:
    def bad(items: Any) -> Any:
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        list(dy.data.batches([1, 2], 1, collate=bad, prefetch=2))
    with pytest.raises(ZeroDivisionError, match="here"):
        list(dy.data.batches([1, 2], cost=bad, most=1, prefetch=2))


def test_a_loop_that_is_left() -> None:
    data = dy.data.batches(Watched(100), 1, prefetch=4)
    assert [next(iter(data)) for _ in range(20)] == [[i] for i in range(20)]

    def broken() -> None:
        for _ in data:
            raise RuntimeError("of the loop")

    with pytest.raises(RuntimeError, match="of the loop"):
        broken()


def test_an_iteration_that_is_kept_ends_where_another_begins() -> None:
    source = Watched(100)
    data = dy.data.batches(source, 1, prefetch=2)
    old = iter(data)
    assert next(old) == [0]
    assert next(iter(data)) == [1]
    with pytest.raises(RuntimeError, match="another iteration has begun"):
        next(old)


PROGRAM = """
import sys, time, threading
import dynet_cy as dy

class Data:
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        if i == STUCK:
            print("stuck", flush=True)
            time.sleep(10_000)
        return i

"""


def run(tmp_path: Path, text: str, interrupted: bool = False) -> tuple[int, str, str]:
    program = tmp_path / "p.py"
    program.write_text(PROGRAM + text, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, str(program)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            if interrupted:
                assert process.stdout is not None
                assert "stuck\n" in iter(process.stdout.readline, "")
                time.sleep(0.2)
                process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
    return process.returncode, out, err


def test_a_process_ends_with_a_loader_that_waits(tmp_path: Path) -> None:
    text = "STUCK = -1\nit = iter(dy.data.batches(Data(), 1, prefetch=2))\nprint(next(it))\nkept = [it]\n"
    assert run(tmp_path, text) == (0, "[0]\n", "")


def test_a_process_ends_with_a_loader_that_is_stuck(tmp_path: Path) -> None:
    text = "STUCK = 1\nit = iter(dy.data.batches(Data(), 1, prefetch=2))\nprint(next(it))\nkept = [it]\n"
    code, out, err = run(tmp_path, text)
    assert (code, err) == (0, "")
    assert "[0]" in out


def test_interrupts(tmp_path: Path) -> None:
    """Ctrl-C works while the loop waits for a batch that never comes."""
    text = "STUCK = 3\nfor batch in dy.data.batches(Data(), 1, prefetch=2):\n    pass\n"
    code, _, err = run(tmp_path, text, interrupted=True)
    assert code in (-signal.SIGINT, 130)
    assert err.rstrip().endswith("KeyboardInterrupt")
