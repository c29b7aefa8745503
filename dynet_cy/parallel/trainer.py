"""Trainers whose updates are made together with other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

from dynet_cy.train import Trainer

__all__ = ["join", "wrap"]

T = TypeVar("T", bound=Trainer)


def wrap(trainer: T, reduction: str = "mean") -> T:
    """Let a trainer make its updates together with all other processes.

    All parameters become those of rank 0. In synchronous training `update()` is collective from now on: gradients are
    averaged over all ranks first, and all ranks make the same update. In asynchronous training all ranks change one
    copy of the parameters and of the trainer's state, without waiting for each other. A process that trains alone gets
    its trainer back as it is.

    Args:
        trainer: of a model that has all its parameters. Wrap it again when some are added.
        reduction: "mean" for losses that are means over a batch, "sum" for losses that are sums. The mean is over the
            ranks that had data: see `join`.

    Returns:
        The trainer itself.

    Raises:
        ParallelError: the ranks have different models or trainers; says what differs.
        ValueError: there is no such reduction.
    """
    raise NotImplementedError


@contextlib.contextmanager
def join(trainer: Trainer) -> Iterator[None]:
    """A block in which ranks may make different numbers of updates.

    A rank that reaches the end of the block first keeps taking part in the updates of the others, without gradients and
    without weight in the mean, until all have reached it. `shard` does that by itself.
    """
    raise NotImplementedError
    yield
