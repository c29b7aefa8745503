"""Limits of memory, for tests that import the fixture `without_limit` and these functions."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import pytest

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.memory import arena

MB = 2**20


@pytest.fixture(autouse=True)
def without_limit() -> Iterator[None]:
    """No limit, and what is assumed of passes at first, before each test of the module and after it."""
    engine.tune("schedule.budget.percent", 107)
    dy.renew_cg()
    yield
    dy.renew_cg()
    config.set(mem=0)
    engine.tune("schedule.budget.percent", 107)


def limit(megabytes: float) -> None:
    """Set a limit of so much more than is used now, for a new graph."""
    gc.collect()  # models of earlier tests that were freed later would make room
    dy.renew_cg()
    arena.give_back()
    config.set(mem=arena.used_bytes() / MB + megabytes)


@contextlib.contextmanager
def limited(megabytes: float) -> Iterator[None]:
    """The same, for a block."""
    limit(megabytes)
    try:
        yield
    finally:
        config.set(mem=0)
