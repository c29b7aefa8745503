"""Trainers that update together with other processes."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, TypeVar

from dynet_cy.kernels.kernels import precision
from dynet_cy.parallel.collective import CollectiveReducer, allreduce
from dynet_cy.parallel.communicator import ParallelError, steps_in_python
from dynet_cy.parallel.runtime import current
from dynet_cy.train import Trainer
from dynet_cy.train.trainer import updates_made

T = TypeVar("T", bound=Trainer)

REDUCTIONS = ("mean", "sum")

# Trainers that have been wrapped, for shards that end at different times.
_wrapped: weakref.WeakSet[Trainer] = weakref.WeakSet()


def wrap(trainer: T, reduction: str = "mean") -> T:
    """Make a trainer update together with all other processes.

    All parameters are copied from rank 0. In synchronous training `update()` is collective from now on: it averages the
    gradients over all ranks, and then all ranks make the same update. In asynchronous training all ranks change one
    copy of the parameters and of the trainer's state, without waiting for each other. In a process that trains alone,
    the trainer is not changed.

    Args:
        trainer: the trainer of a model that already has all its parameters. Wrap it again if you add some.
        reduction: "mean" for losses that are means over a batch, "sum" for losses that are sums. The mean is over the
            ranks that had data: see `join`. Asynchronous training ignores it.

    Returns:
        The trainer itself.

    Raises:
        ParallelError: the ranks have different models or trainers; the message says what differs.
        RuntimeError: training is asynchronous, and the parameters live on a GPU, or there is a moving average, or the
            trainer is a `PythonTrainer`.
        TypeError: the argument is not a trainer.
        ValueError: the reduction is unknown.
    """
    if not isinstance(trainer, Trainer):
        raise TypeError(f"wrap: a Trainer is needed, not {type(trainer).__name__}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"wrap: reduction must be one of {', '.join(REDUCTIONS)}, not {reduction!r}")
    communicator = current()
    if communicator.size == 1:
        return trainer
    _compare(communicator.gather({"mode": communicator.mode, **_description(trainer, reduction)}, "wrap"))
    communicator.wrapped += 1
    if communicator.mode == "async" and trainer._settings()["_average"] is not None:
        raise RuntimeError("wrap: moving averages are not for asynchronous training")
    if communicator.mode == "async" and steps_in_python(trainer):
        raise RuntimeError(
            f"wrap: {type(trainer).__name__} computes its steps in Python, which is not for asynchronous training"
        )
    trainer._reducer = reducer = communicator.reducer(trainer, reduction) or allreduce(communicator, trainer, reduction)
    if isinstance(reducer, CollectiveReducer):
        reducer.set_number(communicator.wrapped)
    _wrapped.add(trainer)
    return trainer


def _description(trainer: Trainer, reduction: str) -> dict[str, Any]:
    """The description of the model and trainer that must be equal on all ranks."""
    words = {"trainer": type(trainer).__name__, "reduction": reduction, "precision": precision()}
    places = _places(trainer)
    words["device of the parameters"] = " and ".join(places.values())
    words.update((f"{type(trainer).__name__}'s {k.lstrip('_')}", repr(v)) for k, v in trainer._settings().items())
    words["weight decay"] = repr(trainer.collection._decay_state())
    for x in trainer.collection._below():
        updated = "" if x.is_updated() else ", not updated"
        place = f", on {places[x.storage.device]}" if len(places) > 1 else ""
        words[f"parameter {x.name()}"] = f"{type(x).__name__} of shape {x.shape()}{place}{updated}"
    return words


def _places(trainer: Trainer) -> dict[int, str]:
    """The devices that parameters live on, in words that are the same for ranks that have different GPUs."""
    collection = trainer.collection
    devices = sorted({x.storage.device for x in collection._below()} or {collection.storage.device})
    gpus = [device for device in devices if device]
    names = {device: f"its GPU {k}" if len(gpus) > 1 else "a GPU" for k, device in enumerate(gpus)}
    return {device: names.get(device, "the CPU") for device in devices}


def _compare(everyone: list[dict[str, Any]]) -> None:
    first = everyone[0]
    for rank, words in enumerate(everyone):
        if list(words.items()) == list(first.items()):
            continue
        different = [
            f"{what} is {first.get(what, 'missing')} on rank 0 and {words.get(what, 'missing')} on rank {rank}"
            for what in [*first, *(w for w in words if w not in first)]
            if first.get(what) != words.get(what)
        ]
        if not different:
            ours, theirs = next((a, b) for a, b in zip(first, words) if a != b)
            different = [f"{ours} comes on rank 0 where {theirs} comes on rank {rank}"]
        more = f"; and {len(different) - 5} more differences" if len(different) > 5 else ""
        raise ParallelError(f"wrap: the ranks have different models: {'; '.join(different[:5])}{more}")


def finish(trainer: Trainer) -> None:
    """Take part in the updates of other ranks until no rank makes any more; the end of `join`.

    Does nothing for a trainer that trains alone or asynchronously.
    """
    reducer = trainer._reducer
    if isinstance(reducer, CollectiveReducer):
        while reducer.shadow(trainer):
            pass


def end_share(uneven: bool, begun: int) -> None:
    """End a share of the data; `begun` is the number of updates made before it.

    If other ranks may have more data, take part in their updates. Warn if updates were made that are not collective:
    then each process trains a model of its own, which is hardly wanted when the data are divided among them.

    Raises:
        ParallelError: there are several trainers.
    """
    trainers = _collective() if uneven else []
    if len(trainers) > 1:
        # A trainer that the program has dropped may be in a cycle of references, so that Python has not freed it yet.
        trainers.clear()
        gc.collect()
        trainers = _collective()
    if len(trainers) > 1:
        raise ParallelError(
            "shard: the shares of the ranks have different lengths, and there are several wrapped trainers; say which "
            'one goes on with shard(..., uneven="keep") inside "with dy.parallel.join(trainer)"'
        )
    for trainer in trainers:
        finish(trainer)
    communicator = current()
    if communicator.size > 1 and communicator.mode == "sync" and not communicator.wrapped and updates_made() > begun:
        warnings.warn(
            f"each of the {communicator.size} processes trains a model of its own on its share of the data: trainers "
            "make their updates together after dy.parallel.wrap(trainer)",
            RuntimeWarning,
            stacklevel=3,
        )


def _collective() -> list[Trainer]:
    """The wrapped trainers whose updates are collective."""
    return [t for t in _wrapped if isinstance(t._reducer, CollectiveReducer)]


@contextlib.contextmanager
def join(trainer: Trainer) -> Iterator[None]:
    """A block in which ranks may make different numbers of updates.

    A rank that reaches the end of the block first keeps taking part in the updates of the others, without gradients and
    without weight in the mean, until all have reached it. `shard` does this by itself. Inside the block, no other
    collective calls are allowed: no `gather`, `barrier` or `average`.

    Args:
        trainer: the trainer. If it trains alone or asynchronously, the block does nothing.
    """
    yield
    finish(trainer)
