"""Finds workers that hang: they are idle while others wait for them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dynet_cy.parallel.worker import TICK, Worker

__all__ = ["Stalls"]

# After this many seconds without a check, the launcher cannot tell whether workers were idle.
BLIND = 2.0

# A worker that others wait for is computing, not hanging, if it uses more than WORKING of a core; then the others wait
# PATIENCE times longer.
WORKING = 0.05
PATIENCE = 10

# Waits of less than this share of the timeout are not worth a look at all processes.
SHORT = 1 / 20


class Stalls:
    """Watches the workers' waits, one at a time.

    Args:
        workers: all workers, by rank.
        timeout: seconds that others may wait for an idle worker; `PATIENCE` times as long for one that is computing.
            0: no limit.
    """

    def __init__(self, workers: Sequence[Worker], timeout: float) -> None:
        self._workers = workers
        self._timeout = timeout
        # The wait being watched: its purpose, the ranks that have not arrived, the time of the last check, and the CPU
        # seconds that these ranks had used by then.
        self._watched: tuple[tuple[str, list[int]], float, dict[int, float | None]] | None = None
        self._looked = time.monotonic()

    def nobody_waits(self) -> None:
        """Note that no worker is waiting for another one now."""
        self._watched = None
        self._looked = time.monotonic()

    def hanging(self, seconds: float, what: str, late: list[int]) -> list[int]:
        """The ranks that hang.

        Args:
            seconds: how long others have waited.
            what: what they wait in.
            late: the ranks that they wait for.
        """
        if not self._timeout:
            return []
        now = time.monotonic()
        blind, self._looked = now - self._looked > BLIND, now
        wait = what, late
        if blind:
            # This process was stopped, or its output was not read, so that workers could not write either.
            self._watched = wait, now, self._used(late)
            return []
        if self._watched is None or self._watched[0] != wait or now - self._watched[1] > seconds + TICK:
            if seconds > self._timeout * SHORT:
                self._watched = wait, now - seconds, self._used(late)
            return []
        _, since, before = self._watched
        if now - since < self._timeout:
            return []
        used = self._used(late)
        idle = [rank for rank in late if not self._has_worked(before.get(rank), used[rank], now - since)]
        hanging = late if seconds > PATIENCE * self._timeout else idle
        if not hanging:
            self._watched = wait, now, used
        return hanging

    def _used(self, ranks: list[int]) -> dict[int, float | None]:
        return {rank: self._workers[rank].processor_seconds() for rank in ranks}

    @staticmethod
    def _has_worked(before: float | None, after: float | None, seconds: float) -> bool:
        """Whether a worker was computing in the meantime, as far as that is known."""
        return before is None or after is None or after - before > WORKING * seconds
