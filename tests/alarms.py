"""Signals that end what the engine computes: `Stop`, and a handler that raises it."""

from __future__ import annotations

import signal

import pytest

import dynet_cy as dy


class Stop(Exception):
    """What the handlers of tests raise."""


@pytest.fixture
def stopping():
    """SIGALRM raises Stop; no timer is left, and no graph, after the test."""

    def stop(number, frame):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    dy.renew_cg()
