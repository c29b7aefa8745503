"""Signals that stop a pass of the engine: `Stop`, and a handler that raises it."""

from __future__ import annotations

import signal

import pytest

import dynet_cy as dy


class Stop(Exception):
    """The exception that handlers raise in tests."""


@pytest.fixture
def stopping():
    """SIGALRM raises Stop; after the test no timer and no graph is left."""

    def stop(number, frame):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    dy.renew_cg()
