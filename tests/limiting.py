"""An end to each test: one that hangs ends the tests, with the lines where all threads are."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest
import starting

_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error of the tests, which pytest replaces while a test runs."""
    config.stash[_STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Limit the time of a test."""
    faulthandler.dump_traceback_later(starting.LONGEST_TEST, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
