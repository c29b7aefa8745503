"""Tables of calls, run in a process of their own: a call that ends the process, or hangs, is a failed call too.

A table is a module with a function `calls`, which yields pairs: the name of a call, and a function that makes it and
checks what comes of it. It must yield the same calls in each process.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from own_process import environment

LONGEST = 20  # seconds for one call
MOST_CRASHES = 30

Call = tuple[str, Callable[[], None]]


def failures(folder: Path, table: str, *options: str | int, one_in: int = 1, **variables: str) -> tuple[int, list[str]]:
    """Run all calls of a table.

    Args:
        folder: where the processes run, and where the number of the current call is kept.
        table: the module.
        options: given to its `calls`.
        one_in: of so many calls, one is made (tests/sampling.py).
        variables: of the environment.

    Returns:
        The number of calls, and what is wrong: a text for each call that fails.
    """
    found, first, current = [], 0, folder / "call"
    for _ in range(MOST_CRASHES):
        current.write_bytes(b"")
        code = f"import sweep; sweep.run({table!r}, {options!r}, {first}, {one_in}, {str(current)!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env=environment(**variables), capture_output=True, text=True
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found += [line["failure"] for line in lines if "failure" in line]
        ended = [line["calls"] for line in lines if "calls" in line]
        if ended:
            return ended[0], found
        number, _, name = current.read_text().partition(" ")
        assert name, f"the table did not start: {done.stderr}"
        trace = done.stderr.partition("Extension modules:")[0].strip()
        found.append(f"{name}: the process ended with status {done.returncode}: {trace}")
        first = int(number) + 1
    return first, [*found, f"{MOST_CRASHES} calls ended the process: the rest was not tried"]


def run(table: str, options: tuple[str | int, ...], first: int, one_in: int, current: str) -> None:
    """Run the calls of a table from number `first` on, and print what fails: the other end of `failures`."""
    faulthandler.enable()
    calls: Iterator[Call] = importlib.import_module(table).calls(*options)
    number = -1
    with open(current, "r+b", buffering=0) as file:
        for number, (name, call) in enumerate(calls):
            if number < first or zlib.crc32(name.encode()) % one_in:
                continue
            os.pwrite(file.fileno(), f"{number} {name}\n".encode(), 0)
            os.ftruncate(file.fileno(), len(f"{number} {name}".encode()))
            signal.alarm(LONGEST)  # ends the process
            try:
                call()
            except BaseException as error:
                print(json.dumps({"failure": f"{name}: {type(error).__name__}: {error}"}), flush=True)
    signal.alarm(0)
    print(json.dumps({"calls": number + 1}))
