"""An end to each test: one that hangs ends the tests, with the lines where all threads are."""

from __future__ import annotations

import faulthandler
import os
import time

import pytest
import starting

_STDERR, _LIMITED = pytest.StashKey[int](), pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error of the tests, which pytest replaces while a test runs."""
    config.stash[_STDERR] = os.dup(2)
    config.stash[_LIMITED] = -starting.LONGEST_TEST


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Limit the time of a test, to within a sixtieth.

    Each limit is a thread, and to end the one before takes ten milliseconds on a busy machine: longer than most tests.
    """
    now = time.monotonic()
    if now - item.config.stash[_LIMITED] > starting.LONGEST_TEST / 60:
        item.config.stash[_LIMITED] = now
        faulthandler.dump_traceback_later(starting.LONGEST_TEST, exit=True, file=item.config.stash[_STDERR])


def pytest_unconfigure() -> None:
    """What the process does after the tests has no limit."""
    faulthandler.cancel_dump_traceback_later()
