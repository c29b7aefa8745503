"""Checkpoints of training by one or several processes: a file of `save_safetensors` with the state of each rank.

The file is that of `dynet_cy.files.checkpoint`. Its `extra` has an entry ``parallel``: the number of processes, the
state of the random streams of each, and the position in the data.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Union

import numpy as np

from dynet_cy.files.checkpoint import RANDOM, checked, load_safetensors, save_safetensors, stored_state
from dynet_cy.files.reading import FileName
from dynet_cy.files.schema import ANY, COUNT, FLAG, WHOLE, SchemaError, between, check, every, maybe, one_of, record
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError
from dynet_cy.graph.expressions import random_state, set_random_state
from dynet_cy.model import ParameterCollection
from dynet_cy.model.parameters import gradient_state, set_gradient_state, settled_array
from dynet_cy.model.whole import CollectionOrLayer
from dynet_cy.parallel.communicator import Communicator
from dynet_cy.parallel.runtime import current
from dynet_cy.train import Trainer

# As texts: numpy.random is loaded with its first use.
if TYPE_CHECKING:
    import random

Generator = Union["random.Random", "np.random.Generator", "np.random.RandomState"]


class Place(Protocol):
    """Data with a position that can be saved: the results of `shard` and `data.batches`."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


_KEY = "parallel"


class CheckpointWarning(UserWarning):
    """Training continues from a checkpoint, but not exactly as it would have without the stop."""


def save_checkpoint(
    path: FileName,
    collection: CollectionOrLayer,
    trainer: Trainer | None = None,
    data: Place | None = None,
    generators: Sequence[Generator] = (),
    extra: dict[str, Any] | None = None,
) -> None:
    """Write everything needed to resume training into one file, so that the result is the same as without the stop.

    The contents are: parameters, the trainer's settings and state (moments, moving averages), the random streams of
    every rank (those of this library, of Python's `random` and of `numpy.random`), and the epoch and position in the
    data. An existing file is replaced completely or not at all.

    Collective: all ranks call it between the same updates, and rank 0 writes the file. A single process just calls it.

    Args:
        path: name of the file. The argument of rank 0 is used.
        collection: the model, or a layer of `dy.nn`.
        trainer: its trainer.
        data: the result of `shard` or `data.batches`. In the middle of an epoch, the current item or batch counts as
            done.
        generators: the program's own random generators: `random.Random`, `numpy.random.Generator`, `RandomState`.
        extra: anything that JSON can hold, such as the best score so far. The argument of rank 0 is used.

    Raises:
        TypeError: `extra` has something that JSON cannot hold, or a generator is of another type.
        ValueError: one of several ranks has gradients that no update has used yet, which the file cannot hold; or
            the trainer belongs to another model.
        OSError: the file cannot be written.
    """
    collection = checked("save_checkpoint", collection, trainer)
    communicator = current()
    state = {
        "random": random_state(),
        "generators": [state_of(g) for g in generators_of(generators, "save_checkpoint")],
        "data": None if data is None else data.state(),
        "gradients": [x.name() for x in _stored(collection) if gradient_state(x) is not None],
    }
    everyone = communicator.gather(state, "checkpoint")  # from here on no rank makes an update until all have finished
    with together(communicator):
        for rank, one in enumerate(everyone):
            left = one.pop("gradients")
            if left and communicator.size > 1:
                raise ValueError(
                    f"save_checkpoint: rank {rank} has a gradient of {left[0]} that no update has used; with several "
                    "processes save after update(), before the next backward()"
                )
        # One rank may have finished its share before another; all continue from the furthest position.
        places = [one.pop("data") for one in everyone]
        place = None if data is None else max(places, key=lambda p: (p["epoch"], p["position"]))
        if communicator.rank == 0:
            known = {"id": os.urandom(8).hex(), "size": communicator.size, "ranks": everyone, "data": place}
            save_safetensors(path, collection, trainer, {"extra": extra or {}, _KEY: known})
        else:
            # Saving changes how rank 0 rounds from now on: it multiplies the factors of tables into their rows, and
            # `changed` drops packed weights. Do the same here, so that all ranks stay equal to the last bit.
            for x in _stored(collection):
                settled_array(x)
            collection.storage.changed()


def load_checkpoint(
    path: FileName,
    collection: CollectionOrLayer,
    trainer: Trainer | None = None,
    data: Place | None = None,
    generators: Sequence[Generator] = (),
) -> dict[str, Any]:
    """Continue where `save_checkpoint` was called. The arguments are the same; the trainer may be wrapped or not.

    With the same number of processes, synchronous training continues with results equal to the last bit. With another
    number, it continues from the same parameters, state and position in the data, but updates are made from other items
    and random numbers differ; a warning says so. Ranks that have no file of that name, such as those on other machines,
    get that of rank 0.

    If there is nothing else to restore, a file of `save_safetensors` works too.

    Returns:
        The `extra` that was saved.

    Raises:
        FileNotFoundError: rank 0 has no such file.
        ModelMismatchError: the file belongs to another model or trainer, or lacks something that has to be restored.
        ModelFileError: the file is truncated or not a checkpoint.
        ValueError: the data have another length, seed or setting of shuffle.
    """
    communicator = current()
    generators = list(generators)
    with together(communicator), everywhere(path, communicator) as own:
        if trainer is not None:
            trainer._settle_rows()  # before some ranks set the state that others still need for their values
        found: dict[str, Any] = stored_state(own).get("extra", {})
        collection = checked("load_checkpoint", collection, trainer)
        known = found.get(_KEY) if isinstance(found, dict) else None
        if known is None and (data is not None or generators):
            raise ModelMismatchError(
                "was written by save_safetensors: it has no place in the data and no states of generators",
                os.fspath(path),
            )
        if known is not None:
            _check_known(known, path)
            ranks = known["ranks"]
            # A rank that did not exist before takes the streams of one that did. Graphs draw different numbers on each
            # rank anyway, and a generator that had the same state on all ranks, because all use it in the same way,
            # keeps that.
            own_streams = ranks[communicator.rank % len(ranks)]
            everything = generators_of(generators, "load_checkpoint")
            count, wanted = len(ranks[0]["generators"]), len(everything)
            if count != wanted:
                raise ModelMismatchError(
                    f"has the states of {count - 2} generators of the program's own, not of {wanted - 2}",
                    os.fspath(path),
                )
            if data is not None and known["data"] is None:
                raise ModelMismatchError("has no place in the data", os.fspath(path))
            states = [*zip(everything, own_streams["generators"])]
            _try_states(states, path)
        before = data.state() if data is not None else None
        if data is not None and known is not None:
            data.restore(known["data"])
        try:
            load_safetensors(own, collection, trainer, random=known is None)
        except Exception:
            if data is not None and before is not None:
                data.restore(before)
            raise
        if communicator.rank:
            for x in _stored(collection):
                set_gradient_state(x, None)  # rank 0 has the gradients of all
    if known is None:
        return found
    set_random_state(own_streams["random"])
    for generator, state in states:
        set_state(generator, state)
    if known["size"] != communicator.size and communicator.rank == 0:
        warnings.warn(
            f"{os.fspath(path)}: saved by {known['size']} and resumed by {communicator.size} processes: training "
            "goes on from the same parameters, but with the data in another order and other random numbers",
            CheckpointWarning,
            stacklevel=2,
        )
    extra: dict[str, Any] = found.get("extra", {})
    return extra


_PLACE = {"epoch": COUNT, "position": COUNT, "seed": WHOLE, "length": maybe(COUNT), "shuffle": FLAG}
_KNOWN = record(
    {
        "size": between(1, 1 << 31),
        "ranks": every(record({"random": RANDOM, "generators": every(ANY, 2)}), 1),
        "data": maybe(record(_PLACE)),
    }
)


def _check_known(known: Any, path: FileName) -> None:
    """Check that the part written by `save_checkpoint` is complete."""
    try:
        check(known, _KNOWN, "its state of processes")
    except SchemaError as error:
        raise ModelFileError(f"not a checkpoint of save_checkpoint: {error}", os.fspath(path)) from error
    if len(known["ranks"]) != known["size"]:
        raise ModelFileError(f"a checkpoint of {known['size']} processes, of {len(known['ranks'])}", os.fspath(path))


def _stored(collection: ParameterCollection) -> list[Any]:
    return [*collection.parameters_list(), *collection.lookup_parameters_list()]


def _try_states(states: Sequence[tuple[Any, Any]], path: FileName) -> None:
    """Check, on copies of the generators, that their states can be restored."""
    from copy import deepcopy
    from random import Random

    for i, (generator, state) in enumerate(states):
        copied: Any = {0: Random, 1: np.random.RandomState}.get(i, lambda g=generator: deepcopy(g))()
        try:
            set_state(copied, state)
        except Exception as error:  # of any type, depending on the generator
            message = f"the state of generator {i} cannot be restored: {error or type(error).__name__}"
            raise ModelFileError(message, os.fspath(path)) from error


# ---- files of rank 0 ----


@contextlib.contextmanager
def together(communicator: Communicator) -> Iterator[None]:
    """A block that all ranks leave together; if one raises, all raise."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    failures = communicator.gather(failure and f"{type(failure).__name__}: {failure}", "checkpoint")
    if failure is not None:
        raise failure
    for rank, text in enumerate(failures):
        if text is not None:
            raise RuntimeError(f"rank {rank} has failed: {text}")


@contextlib.contextmanager
def everywhere(path: FileName, communicator: Communicator) -> Iterator[FileName]:
    """The name of a file with the contents of rank 0's file `path`: the file itself, or a copy."""
    if communicator.size == 1:
        yield path
        return
    identities = communicator.gather(_identity(path), "checkpoint")
    if identities[0] is None or all(identity == identities[0] for identity in identities):
        yield path
        return
    content = b""
    if communicator.rank == 0:
        with open(path, "rb") as file:
            content = file.read()
    content = communicator.gather_bytes(content, "checkpoint")[0]
    if identities[communicator.rank] == identities[0]:
        yield path
        return
    import tempfile  # with what it imports, it would add 6 ms to `import dynet_cy`

    with tempfile.NamedTemporaryFile(suffix=".safetensors") as copied:
        copied.write(content)
        copied.flush()
        yield copied.name


def _identity(path: FileName) -> Any:
    """The identity of a checkpoint file; None if there is no such file."""
    from safetensors import SafetensorError, safe_open

    try:
        size = os.stat(path).st_size
        with safe_open(os.fspath(path), "numpy") as file:
            return size, file.metadata()
    except (OSError, SafetensorError):
        return None


# ---- states of the random generators of Python and NumPy, as plain data ----


def generators_of(generators: Sequence[Generator], function: str) -> list[Any]:
    """The global generators of Python and NumPy, then the program's own."""
    import random  # it would add 1 ms to `import dynet_cy`

    for g in generators:
        if not isinstance(g, (random.Random, np.random.Generator, np.random.RandomState)):
            raise TypeError(
                f"{function}: generators must be random.Random, numpy.random.Generator or RandomState, "
                f"not {type(g).__name__}"
            )
    return [random, np.random, *generators]


def state_of(generator: Any) -> Any:
    """The state as plain data."""
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState) or generator is np.random:
        return _plain(generator.get_state(legacy=False))
    version, numbers, gauss = generator.getstate()
    return [version, list(numbers), gauss]


def set_state(generator: Any, state: Any) -> None:
    """Restore what `state_of` returned."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _with_arrays(state)
    elif isinstance(generator, np.random.RandomState) or generator is np.random:
        generator.set_state(_with_arrays(state))
    else:
        version, numbers, gauss = state
        generator.setstate((version, tuple(numbers), gauss))


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"dtype": str(state.dtype), "numbers": state.tolist()}
    return state.item() if isinstance(state, np.generic) else state


# Positions in buffers of numbers drawn in advance, with their largest values, for MT19937 and Philox.
_POSITIONS = {"pos": 624, "buffer_pos": 4}


def _with_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        if state.keys() == {"dtype", "numbers"}:
            check(state["dtype"], one_of("uint32", "uint64"), "a type of numbers")
            check(state["numbers"], every(COUNT), "numbers")
            return np.array(state["numbers"], state["dtype"])
        for key, most in _POSITIONS.items():  # NumPy reads at this position without a check
            check(state.get(key, 0), between(0, most), key)
        return {key: _with_arrays(value) for key, value in state.items()}
    return state
