"""Checkpoints: everything needed to resume training, in one file of the safetensors format.

The format (https://github.com/huggingface/safetensors) is a JSON header and raw numbers; reading it executes nothing.
The tensors of a file:

- ``/encoder/W``: the value of a parameter or table, under its full name, in the shape that `as_array` has
- ``gradient:/W``, and for a table ``rows:/E`` too: gradients that no update has used yet
- ``trainer:0:/W``, ``trainer:1:/W``...: a trainer's state for each number, such as momentum and moments; there are
  none for a frozen parameter that has never been trained

The metadata has an entry ``dynet_cy``: JSON of the kinds of the parameters, the trainer's settings and counts, the
state of the random streams, and the caller's own data (`extra`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, Union

import numpy as np

from dynet_cy._version import __version__
from dynet_cy.files.reading import FileName, opened
from dynet_cy.files.replacing import replacing
from dynet_cy.files.schema import (
    ANY,
    COUNT,
    FLAG,
    NUMBER,
    SHARE,
    SIZE,
    TEXT,
    WHOLE,
    Schema,
    SchemaError,
    between,
    check,
    every,
    like,
    mapping,
    maybe,
    one_of,
    pair,
    record,
)
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError, known_format
from dynet_cy.graph.expressions import random_state, set_random_state
from dynet_cy.model import LookupParameters, ParameterCollection, Parameters
from dynet_cy.model.given import collection_of
from dynet_cy.model.matching import complaint, matches
from dynet_cy.model.parameters import gradient_state, set_array, set_gradient_state, settled_array
from dynet_cy.model.whole import CollectionOrLayer, Holder
from dynet_cy.train import Trainer

N = TypeVar("N")
Stored = Union[Parameters, LookupParameters]

_KEY = "dynet_cy"
_BLOCK = 1 << 22  # numbers per write
_FORMAT = 1
_BEGINNING = 64  # bytes that tell formats apart
_LARGEST_HEADER = 100_000_000  # of the format; larger ones are not read
# Settings of trainers that files of earlier versions do not have.
_LATER = {"_groups", "_decay_due", "_skipped"}

RANDOM = record(
    {
        "seed": WHOLE,
        "host": COUNT,
        "streams": between(0, (1 << 32) - 1),
        "renewals": every(pair(between(0, (1 << 32) - 1), between(0, (1 << 32) - 1))),
    }
)

# Settings of trainers; others, such as those of derived classes, are compared with what the trainer has.
_UNIT = Schema("a number from 0 to 1", lambda x, place: SIZE.holds(x, place) and x <= 1)
_BELOW_ONE = Schema("a number from 0 to below 1", lambda x, place: SIZE.holds(x, place) and x < 1)
_TALLY = between(-1 << 63, (1 << 63) - 1)
_AVERAGE = {"beta": maybe(_BELOW_ONE), "frequency": between(1, 1 << 62), "updates": COUNT, "values": COUNT}
_GROUP = {"learning_rate": maybe(NUMBER), "weight_decay": maybe(SHARE), "clip_threshold": maybe(SIZE)}
_SETTINGS: dict[str, Schema] = {
    "_average": maybe(record(_AVERAGE, {"since": mapping(COUNT)})),
    "_beta_1": _BELOW_ONE,
    "_beta_2": _BELOW_ONE,
    "_bounds": pair(NUMBER, NUMBER),
    "_clip_threshold": SIZE,
    "_clips": _TALLY,
    "_decay_due": _UNIT,
    "_groups": every(record({**_GROUP, "names": every(TEXT), "decay_due": _UNIT})),
    "_iteration": COUNT,
    "_learning_rate": NUMBER,
    "_schedule": record({"schedule": TEXT, "begun": COUNT, "values": mapping(ANY)}),
    "_skipped": _TALLY,
    "_sparse": FLAG,
    "_step_size": Schema("a number greater than 0", lambda x, place: NUMBER.holds(x, place) and x > 0),
    "_steps": COUNT,
    "_swapped": one_of("", "kept", "lost"),
    "_updates": _TALLY,
    "_weight_decay": SHARE,
}
_TRAINER = record(
    {"class": TEXT, "settings": mapping(ANY), "weight_decay": pair(SHARE, _UNIT)}, {"without_state": every(TEXT)}
)
_STATE = record(
    {"format": one_of(_FORMAT)},
    {
        "version": TEXT,
        "kinds": mapping(one_of("Parameters", "LookupParameters")),
        "random": RANDOM,
        "trainer": _TRAINER,
    },
)


def checked(function: str, given: Any, trainer: Any) -> ParameterCollection:
    """The collection that was given, or that of a layer; that of the trainer if it has more, as its state is whole."""
    collection = collection_of(given, function, "collection")
    if trainer is None:
        return collection
    if not isinstance(trainer, Trainer):
        raise TypeError(f"{function}: trainer must be a Trainer, not {type(trainer).__name__}")
    own, trained = set(collection._below()), set(trainer.collection._below())
    if own.issuperset(trained):
        return collection
    if trained.issuperset(own):
        return trainer.collection
    if own.isdisjoint(trained) and trainer.collection.storage is not collection.storage:
        raise ValueError(
            f"{function}: the trainer was made for another collection than {collection.name()}: save the collection "
            "that was passed to the trainer"
        )
    raise ValueError(
        f"{function}: the trainer was made for {trainer.collection.name()}, which does not contain "
        f"{collection.name()}; pass the collection that has both, or no trainer"
    )


def _names(collection: ParameterCollection) -> dict[Stored, str]:
    """The full names of the parameters of a collection, which files have."""
    return {x: name for name, x in collection._full_names().items()}


def _renamed(settings: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a trainer with other names of parameters."""
    settings = dict(settings)
    average = settings["_average"]
    if average is not None:
        since = {names.get(name, name): n for name, n in average.get("since", {}).items()}
        settings["_average"] = {**average, "since": since}
    if "_groups" in settings:
        settings["_groups"] = tuple(
            {**group, "names": [names.get(name, name) for name in group["names"]]} for group in settings["_groups"]
        )
    return settings


def save_safetensors(
    path: FileName,
    collection: CollectionOrLayer,
    trainer: Trainer | None = None,
    extra: dict[str, Any] | None = None,
) -> None:
    """Write a checkpoint: all parameters of a collection, and the state that training resumes from.

    Any program that reads safetensors finds the values under the full names of the parameters. The file is replaced
    whole or not at all: an interrupted save leaves the old one.

    Args:
        path: name of the file.
        collection: what to save, with all below it: a collection or a layer.
        trainer: its trainer, whose learning rate, clipping, counts, momentum and moments are saved too. If it was made
            for a collection above, all of that one is saved.
        extra: anything that JSON can hold, such as the number of the epoch and the place in the data. Keys must be
            texts; a tuple is read as a list.

    Raises:
        TypeError: `extra` holds what JSON cannot, such as a key that is no text or a number of over 400 digits.
        ValueError: the trainer was made for another model, or another part of it; a parameter's name cannot be
            written as UTF-8; or names and `extra` take over 100 MB.
        OSError: the file cannot be written.

    Example:
        >>> W = model.add_parameters((2, 2))
        >>> trainer = dy.AdamTrainer(model)
        >>> dy.save_safetensors("point.safetensors", model, trainer, extra={"epoch": 3})
        >>> dy.load_safetensors("point.safetensors", model, trainer)
        {'epoch': 3}
    """
    collection = checked("save_safetensors", collection, trainer)
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    kinds = {}
    for name, x in collection._full_names().items():
        kinds[name] = type(x).__name__
        tensors[name] = settled_array(x)
        gradient = gradient_state(x)
        if isinstance(gradient, tuple):
            tensors[f"rows:{name}"], gradient = gradient
        if gradient is not None:
            tensors[f"gradient:{name}"] = gradient
    state: dict[str, Any] = {
        "format": _FORMAT,
        "version": __version__,
        "kinds": kinds,
        "random": random_state(),
        "extra": extra or {},
    }
    if trainer is not None:
        names = _names(collection)
        settings = _renamed(trainer._settings(), {own: names[x] for x, own in _names(trainer.collection).items()})
        state["trainer"] = {"class": type(trainer).__name__, "settings": settings}
        state["trainer"]["weight_decay"] = trainer.collection._decay_state()
        without = state["trainer"]["without_state"] = []
        for x, arrays in zip(trainer.collection._below(), trainer._state_arrays()):
            if arrays is None:
                without.append(names[x])
            for number, array in enumerate(arrays or ()):
                tensors[f"trainer:{number}:{names[x]}"] = array
    try:
        text = _encoded(state)
    except TypeError as error:
        raise TypeError(f"save_safetensors: extra, or an attribute of the trainer, cannot be kept: {error}") from error
    # Packed weights change the rounding. Drop them, so that training continues as it would after loading.
    collection.storage.changed()
    _write(path, tensors, text)


def _encoded(state: dict[str, Any]) -> str:
    """The state as JSON.

    Raises:
        TypeError: JSON cannot hold it, or what is read would be something else.
    """
    import json  # it would add 1 ms to `import dynet_cy`

    try:
        text = json.dumps(state)
        json.loads(text, parse_int=_integer)
        _check_keys(state)
    except (ValueError, RecursionError) as error:
        raise TypeError(str(error)) from error
    return text


def _check_keys(value: Any) -> None:
    for key in value if isinstance(value, dict) else ():
        if not isinstance(key, str):
            raise TypeError(f"the key {key!r:.80} is no text, and JSON would make it one: write str(key)")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _check_keys(part)


def _blocks(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, as `safetensors.numpy.save` would make it, in blocks: no copy of it all."""
    import json

    header: dict[str, Any] = {"__metadata__": metadata}
    begin = 0
    # The format requires large types first; all of these have four bytes.
    for name, array in sorted(tensors.items()):
        end = begin + array.nbytes
        kind = {"float32": "F32", "uint32": "U32"}[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a name cannot be written to a safetensors file: {error}") from error
    if len(text) > _LARGEST_HEADER:
        message = f"names and metadata of {len(text)} bytes, and a safetensors file may have {_LARGEST_HEADER}"
        raise ValueError(f"{message}; keep large data in a file of their own")
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, array in sorted(tensors.items()):
        data = np.asarray(array, order="C").reshape(-1).data
        for at in range(0, len(data), _BLOCK):
            yield data[at : at + _BLOCK].cast("B")


def _integer(digits: str) -> int:
    if len(digits) > 400:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


class _Checkpoint:
    """An open file. All of it is checked before any of it is used."""

    def __init__(self, path: FileName, file: Any) -> None:
        import json

        self.path = os.fspath(path)
        self.file = file
        self.names = set(file.keys())
        self.own: dict[Stored, str] = {}  # the full names of the collection's parameters,
        self.given: dict[str, str] = {}  # and the names in the file for them
        text = (file.metadata() or {}).get(_KEY)
        self.state: dict[str, Any] = {}
        if text is not None:
            try:
                self.state = json.loads(text, parse_int=_integer)
            except (ValueError, RecursionError) as error:
                raise self.damaged(error) from error
            made = self.state.get("format") if isinstance(self.state, dict) else None
            if type(made) is int and made != _FORMAT:
                message = f"a checkpoint of format {made}, made by dynet_cy {self.state.get('version')!r:.40}"
                raise ModelFileError(f"{message}; this is {__version__}, which reads format {_FORMAT}", self.path)
            self.check(self.state, _STATE, "the state")

    def damaged(self, error: Exception) -> ModelFileError:
        return ModelFileError(f"its metadata are not those of a checkpoint: {error}", self.path)

    def check(self, value: Any, schema: Schema, place: str) -> None:
        try:
            check(value, schema, place)
        except SchemaError as error:
            raise self.damaged(error) from error

    def mismatch(self, message: str, parameter: str | None = None) -> ModelMismatchError:
        return ModelMismatchError(message, self.path, parameter=parameter)

    def check_tensor(self, name: str, shape: tuple[int, ...], parameter: str, kind: str = "F32") -> None:
        found = self.file.get_slice(name)
        if found.get_dtype() != kind:
            raise self.mismatch(f"holds numbers of type {found.get_dtype()}, not {kind}", parameter)
        if tuple(found.get_shape()) != shape:
            raise self.mismatch(
                f"has shape {tuple(found.get_shape())} in the file, {shape} in the collection", parameter
            )

    def check_parameters(self, collection: ParameterCollection, strict: bool) -> list[Stored]:
        """Find the names of the parameters in the file, which may be older ones, and compare them.

        Returns:
            The parameters that are in the file: all of them, if `strict` is True.
        """
        own = collection._full_names()
        self.own = _names(collection)
        # All our parameters' names begin with "/", and may have a colon; those of their gradients and states have one.
        there = sorted(name for name in self.names if name.startswith("/") or ":" not in name)
        self.given, report = matches(there, own, "", None, collection._first_names())
        shapes = {name: tuple(self.file.get_slice(name).get_shape()) for name in there}
        words = complaint(report, "", shapes, {name: x.shape() for name, x in own.items()})
        if words and strict:
            raise self.mismatch(f"the file and the collection have different parameters: {words}")
        if words:
            warnings.warn(f"load_safetensors of {self.path}: {words}", stacklevel=3)
        kinds = self.state.get("kinds", {})
        for own_name, name in self.given.items():
            x = own[own_name]
            if kinds.get(name, type(x).__name__) != type(x).__name__:
                raise self.mismatch(f"is {kinds[name]} in the file, {type(x).__name__} in the collection", own_name)
            self.check_tensor(name, x.shape(), own_name)
            gradient, rows = f"gradient:{name}", f"rows:{name}"
            if gradient not in self.names:
                continue
            shape = x.shape()
            if isinstance(x, LookupParameters):
                if rows not in self.names:
                    raise self.mismatch("the file has gradients of rows, but not which", own_name)
                shape = ((*self.file.get_slice(rows).get_shape(), 0)[0], *shape[1:])
                self.check_tensor(rows, shape[:1], own_name, "U32")
                if self.file.get_tensor(rows).max(initial=0) >= len(x):
                    raise self.mismatch("the file has gradients of rows that are not there", own_name)
            self.check_tensor(gradient, shape, own_name)
        return [own[name] for name in own if name in self.given]

    def check_trainer(self, trainer: Trainer) -> None:
        there = self.state.get("trainer")
        if there is None:
            raise self.mismatch("the file has no state of a trainer")
        if there["class"] != type(trainer).__name__:
            raise self.mismatch(f"the file has the state of {there['class']}, not of {type(trainer).__name__}")
        own = _renamed(trainer._settings(), self.in_files(trainer))
        self.check_schedule(trainer, there["settings"].get("_schedule"))
        different = sorted((there["settings"].keys() ^ own.keys()) - (_LATER - there["settings"].keys()))
        if different:
            raise self.mismatch(f"the file and the {there['class']} have other settings: {', '.join(different)}")
        for name, value in there["settings"].items():
            self.check(value, _SETTINGS.get(name, like(own[name])), f"the trainer's setting {name}")
        if there["settings"]["_swapped"] and there["settings"]["_average"] is None:
            raise self.damaged(ValueError("the parameters are set to a moving average that is not there"))
        wanted_groups = [group["names"] for group in own["_groups"]]
        groups = [group["names"] for group in there["settings"].get("_groups", own["_groups"])]
        if groups != wanted_groups:
            raise self.mismatch(f"the trainer has the groups of parameters {wanted_groups}, the file {groups}")
        wanted = {name: x for x, names in self.states_of(trainer) for name in names or ()}
        found = {name for name in self.names if name.startswith("trainer:")}
        if found != wanted.keys():
            different = sorted(found ^ wanted.keys())[:5]
            raise self.mismatch(f"the file has the state of a trainer of other parameters: {', '.join(different)}")
        for name, x in wanted.items():
            self.check_tensor(name, x.shape(), self.own[x])

    def check_schedule(self, trainer: Trainer, state: Any) -> None:
        if state is not None:
            self.check(state, _SETTINGS["_schedule"], "the trainer's schedule")
        found, own = (None if state is None else state["schedule"]), trainer.schedule
        if found != (None if own is None else repr(own)):
            raise self.mismatch(
                f"the file has the schedule {found}, the trainer {own!r}; give it the same one before the file is "
                "read, and another one afterwards"
            )
        if own is not None:
            from copy import deepcopy

            try:
                deepcopy(own)._set_values(state["values"])
            except Exception as error:  # of any kind: programs define their own schedules
                raise self.damaged(error) from error

    def in_file(self, x: Stored) -> str:
        """The name in the file of a parameter."""
        return self.given.get(self.own[x], self.own[x])

    def in_files(self, trainer: Trainer) -> dict[str, str]:
        """The names in the file of the parameters of a trainer, by their full names there."""
        return {name: self.in_file(x) for x, name in _names(trainer.collection).items()}

    def states_of(self, trainer: Trainer) -> Iterator[tuple[Stored, list[str] | None]]:
        """The parameters of a trainer, each with the tensors of its state; None for one without a state."""
        there = self.state["trainer"]
        for x in trainer.collection._below():
            name = self.in_file(x)
            planes = range(trainer._n_planes(there["settings"]))
            without = name in there.get("without_state", ())
            yield x, None if without else [f"trainer:{number}:{name}" for number in planes]

    def fill(self, stored: list[Stored]) -> None:
        for x in stored:
            name = self.in_file(x)
            value = self.file.get_tensor(name)
            set_array(x, value)
            gradient: Any = None
            if f"gradient:{name}" in self.names:
                gradient = self.file.get_tensor(f"gradient:{name}")
                if isinstance(x, LookupParameters):
                    gradient = self.file.get_tensor(f"rows:{name}"), gradient
            set_gradient_state(x, gradient)

    def fill_trainer(self, trainer: Trainer) -> None:
        there = self.state["trainer"]
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in there["settings"].items()}
        settings = _renamed(settings, {name: own for own, name in self.in_files(trainer).items()})
        arrays = (names and [*map(self.file.get_tensor, names)] for _, names in self.states_of(trainer))
        trainer._restore(settings, arrays)
        trainer.collection._set_decay_state(there["weight_decay"])


def stored_state(path: FileName) -> dict[str, Any]:
    """The metadata of a checkpoint, without reading its numbers; empty if it was not written by this library.

    Raises:
        FileNotFoundError: there is no such file.
        ModelFileError: the file is cut off or something else.
    """
    with _opened(path) as checkpoint:
        return checkpoint.state


def save_tensors(path: FileName, arrays: dict[str, np.ndarray[Any, Any]], kinds: dict[str, str]) -> None:
    """Write arrays as a checkpoint of parameters alone, which `load_safetensors` reads.

    Args:
        path: name of the file.
        arrays: by the full names of the parameters, in the shape that `as_array` has.
        kinds: "Parameters" or "LookupParameters" for each of them.
    """
    _write(path, arrays, _encoded({"format": _FORMAT, "version": __version__, "kinds": kinds}))


def _write(path: FileName, tensors: dict[str, np.ndarray[Any, Any]], state: str) -> None:
    with replacing(path) as file:
        for block in _blocks(tensors, {_KEY: state}):  # signal handlers run between blocks
            file.write(block)


def load_safetensors(
    path: FileName,
    collection: CollectionOrLayer,
    trainer: Trainer | None = None,
    random: bool = False,
    strict: bool = True,
) -> dict[str, Any]:
    """Read a checkpoint into a model that has the same parameters, by their names.

    The whole file is checked first; a file that does not fit changes nothing. Files of other programs are accepted if
    their tensors have the full names of the parameters, such as "/encoder/W". So are files with the names that the
    parameters of layers had before they followed attributes. Gradients become those of the file, or zero.

    Args:
        path: name of the file.
        collection: what to fill: a collection or a layer.
        trainer: a trainer of the same class, to be set as it was when the file was written, weight decay included. If
            it was made for a collection above, all of that one is filled.
        random: whether to restore the random streams (dropout, noise, initial values) as well (default: False).
        strict: False: parameters that are missing in the file do not change, what is unexpected in it is left out,
            and a warning names both. Shapes must be equal all the same, and the state of a trainer must fit.

    Returns:
        The `extra` that was saved.

    Raises:
        FileNotFoundError: there is no such file.
        ModelMismatchError: names, shapes or the class of the trainer differ.
        ModelFileError: the file is cut off or something else.
        ValueError: the trainer was made for another model, or another part of it.

    Example:
        >>> W = model.add_parameters((2, 2))
        >>> trainer = dy.AdamTrainer(model)
        >>> dy.save_safetensors("point.safetensors", model, trainer, extra={"epoch": 3})
        >>> dy.load_safetensors("point.safetensors", model, trainer)
        {'epoch': 3}
    """
    collection = checked("load_safetensors", collection, trainer)
    with _opened(path) as checkpoint:
        stored = checkpoint.check_parameters(collection, strict)
        if trainer is not None:
            checkpoint.check_trainer(trainer)
        if random and "random" not in checkpoint.state:
            raise checkpoint.mismatch("the file has no state of random streams")
        checkpoint.fill(stored)
        if trainer is not None:
            checkpoint.fill_trainer(trainer)
    if random:
        set_random_state(checkpoint.state["random"])
    extra: dict[str, Any] = checkpoint.state.get("extra", {})
    return extra


def read_extra(path: FileName) -> dict[str, Any]:
    """Read the `extra` of a checkpoint without a model, for example the sizes to build one.

    Args:
        path: name of the file.

    Returns:
        The `extra` that was passed to `save_safetensors`; ``{}`` if there was none or another program wrote the file.

    Raises:
        FileNotFoundError: there is no such file.
        ModelFileError: the file is cut off or something else.

    Example:
        >>> W = model.add_parameters((3, 2))
        >>> dy.save_safetensors("model.safetensors", model, extra={"rows": 3, "columns": 2})
        >>> sizes = dy.read_extra("model.safetensors")
        >>> same = dy.ParameterCollection()
        >>> V = same.add_parameters((sizes["rows"], sizes["columns"]))
        >>> extra = dy.load_safetensors("model.safetensors", same)
        >>> bool((V.as_array() == W.as_array()).all())
        True
    """
    extra: dict[str, Any] = stored_state(path).get("extra", {})
    return extra


def load_network(path: FileName, make: Callable[[dict[str, Any]], N]) -> N:
    """Build the network of a checkpoint again, and read its parameters.

    Args:
        path: name of the file.
        make: a function of the `extra` that was saved, such as the class of the network, which returns the network. Its
            `ParameterCollection` is its attribute ``pc``, or else ``collection``, as that of the layers of `nn`.

    Returns:
        The network.

    Raises:
        FileNotFoundError: there is no such file.
        ModelFileError: the file is cut off, something else, or that of a network with other parameters.
        ValueError: `extra` lacks what `make` looks up in it, so the file is that of another program.

    Example:
        >>> class Network:
        ...     def __init__(self, sizes):
        ...         self.sizes, self.pc = sizes, dy.ParameterCollection()
        ...         self.W = self.pc.add_parameters((sizes["rows"], 2))
        >>> network = Network({"rows": 3})
        >>> dy.save_safetensors("network.safetensors", network.pc, extra=network.sizes)
        >>> same = dy.load_network("network.safetensors", Network)
        >>> bool((same.W.as_array() == network.W.as_array()).all())
        True
    """
    extra = read_extra(path)
    try:
        network = make(extra)
    except KeyError as error:
        raise ValueError(f"{os.fspath(path)}: the model of another program: it has no {error}") from error
    made: Any = network
    load_safetensors(path, getattr(made, "pc", None) or (made if isinstance(made, Holder) else made.collection))
    return network


@contextmanager
def _opened(path: FileName) -> Iterator[_Checkpoint]:
    with opened(path, "a checkpoint of save_safetensors") as plain:  # says clearly what is wrong with a name
        known = known_format(plain.read(_BEGINNING))
    from safetensors import SafetensorError, safe_open  # they would add 0.6 ms to `import dynet_cy`

    try:
        with safe_open(os.fspath(path), "numpy") as file:
            yield _Checkpoint(path, file)
    except SafetensorError as error:
        message = f"not a safetensors file{known or f', or a part of one: {error}'}"
        raise ModelFileError(message, os.fspath(path)) from error
