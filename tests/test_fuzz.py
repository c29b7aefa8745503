"""Randomly damaged files of all formats: a `ModelFileError` at once, or exactly what the file says now.

Files that load are compared with independent readers: Python's pickle, a short text reader, the safetensors library.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy
from safetensors import safe_open

import dynet_cy as dy
from dynet_cy.files import saving
from dynet_cy.files.textfile import ModelFileError
from dynet_cy.graph.expressions import random_state

ROOM = 64 << 20  # bytes by which the process may grow while it reads files of at most 8 KiB
SECONDS = 600  # for one file; most take a millisecond

# ---- damage

Change = Callable[[random.Random, bytearray], None]


def flip_bits(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def other_bytes(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice([1, 2, 4])):
        data[rng.randrange(len(data))] = rng.choice([0, 255, 128, 46, 40, 116, 82, rng.randrange(256)])


def cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def lose(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice([1, 1, 2, 4, 16, 200])]


def repeat(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    part = data[at : at + rng.choice([1, 2, 8, 64, 500])]
    data[at:at] = part * rng.choice([1, 1, 3])


def lengths(rng: random.Random, data: bytearray) -> None:
    """Overwrite bytes with numbers that may be read as sizes."""
    size = rng.choice([1, 2, 4, 8])
    value = rng.choice([0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(data)])
    at = rng.randrange(len(data))
    data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")


def digits(rng: random.Random, data: bytearray) -> None:
    """The same for numbers in text files."""
    places = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    if places:
        at = rng.choice(places)
        data[at : at + 1] = rng.choice(
            [b"", b"0", b"9" * 10, b"9" * 25, b"-1", b"1e400", b"nan", b"null", b"[1]", b'"1"']
        )


def instructions(rng: random.Random, data: bytearray) -> None:
    """Of pickles."""
    codes = [
        b"r\x00\x00\x00\x20",
        b"j\xff\xff\xff\x7f",
        b"\x8e" + b"\xff" * 8,
        b"\x94",
        b"2",
        b"2\x86",
        b"0",
        b"(",
        b"t",
    ]
    codes += [
        b"R",
        b"b",
        b"\x81",
        b"o",
        b"]",
        b"}",
        b"\x8f",
        b"e",
        b"u",
        b"\x93",
        b".",
        b"N",
        b"I99\n",
        b"Vx\n",
        b"h\x00",
    ]
    at = rng.randrange(len(data))
    data[at : at + rng.choice([0, 0, 1])] = rng.choice(codes) * rng.choice([1, 1, 1, 30])


def order(rng: random.Random, data: bytearray) -> None:
    """Swap two parts, such as lines of text."""
    separator = rng.choice([b"\n", b".", b","])
    parts = bytes(data).split(separator)
    if len(parts) > 1:
        i, j = rng.randrange(len(parts)), rng.randrange(len(parts))
        parts[i], parts[j] = parts[j], parts[i]
        data[:] = separator.join(parts)


DAMAGE: list[Change] = [flip_bits, other_bytes, cut, lose, repeat, lengths, digits, instructions, order]


def damaged(rng: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2])):
        if found:
            rng.choice(DAMAGE)(rng, found)
    return bytes(found)


def other_value(rng: random.Random) -> Any:
    return rng.choice(
        [None, True, -1, 0, 1.5, 10**30, 1e400, float("nan"), "", "x", [], [[]], {}, {"x": None}, [1, 2], "9" * 500]
    )


def other_types(rng: random.Random, data: Any) -> Any:
    """JSON with one value replaced or removed."""
    if isinstance(data, dict) and data and rng.random() < 0.9:
        key = rng.choice(list(data))
        if rng.random() < 0.1:
            return {k: v for k, v in data.items() if k != key}
        return {**data, key: other_types(rng, data[key])}
    if isinstance(data, list) and data and rng.random() < 0.8:
        i = rng.randrange(len(data))
        return [*data[:i], other_types(rng, data[i]), *data[i + 1 :]]
    return other_value(rng)


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"a file took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def peak() -> int:
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found << 10


def attempt(example: Any, data: bytes) -> BaseException | None:
    """The error that reading the file raises, or None."""
    try:
        with in_time():
            example.read(data)
    except BaseException as error:
        return error
    return None


# ---- models


class Words:
    def __init__(self, words: list[str]) -> None:
        self.indices = {word: i for i, word in enumerate(words)}


class SpecError(ModelFileError):
    """A model class refuses its spec, which is up to the program."""


class Tagger:
    def __init__(self, model: dy.ParameterCollection, words: Words, size: int, cells: Any, extra: Any) -> None:
        self.spec = words, size, cells, extra
        self.model = model.add_subcollection("tagger")
        self.table = self.model.add_lookup_parameters((len(words.indices), size))
        self.cell = cells(1, size, 2, self.model)

    def param_collection(self) -> dy.ParameterCollection:
        return self.model

    @classmethod
    def from_spec(cls, spec: Any, model: dy.ParameterCollection) -> Tagger:
        try:
            return cls(model, *spec)
        except ModelFileError:
            raise
        except Exception as error:
            raise SpecError(str(error), "spec") from error


def filled(pc: dy.ParameterCollection) -> tuple[dy.Parameters, dy.LookupParameters, dy.GRUBuilder]:
    made = pc.add_parameters((2, 3), name="W"), pc.add_lookup_parameters((4, 2), name="E"), dy.GRUBuilder(1, 2, 2, pc)
    dy.renew_cg()
    dy.sum_elems(made[0] * 3).backward()
    return made


def arrays(pc: dy.ParameterCollection) -> list[np.ndarray]:
    return [a for x in [*pc.parameters_list(), *pc.lookup_parameters_list()] for a in (x.as_array(), x.grad_as_array())]


def equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b))


# ---- formats: each has intact bytes, and methods to read damaged ones and to compare


class Text:
    """pc.populate"""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "m"
        pc = dy.ParameterCollection()
        filled(pc)
        pc.save(self.path)
        self.whole = self.path.read_bytes()
        self.target = dy.ParameterCollection()
        filled(self.target)

    def damaged(self, rng: random.Random) -> bytes:
        return damaged(rng, self.whole)

    def read(self, data: bytes) -> None:
        self.path.write_bytes(data)
        self.target.populate(self.path)

    def state(self) -> list[np.ndarray]:
        return arrays(self.target)

    def check(self, data: bytes) -> None:
        lines = [line for line in data.decode().split("\n") if line.strip() != ""]
        values = {"Parameter": [], "LookupParameter": []}  # type: ignore[var-annotated]
        while lines:
            kind, name, *_, flag = lines.pop(0).split()
            values[kind.strip("#")].append((name, np.array(lines.pop(0).split(), np.float64).astype(np.float32)))
            if flag == "FULL_GRAD":
                lines.pop(0)
        own = [*self.target.parameters_list()], [*self.target.lookup_parameters_list()]
        for there, have in zip(values.values(), own):
            named = dict(there)
            if len(named) == len(there) and {y.name() for y in have} == set(named):  # in any order
                there = [(y.name(), named[y.name()]) for y in have]
            for (_, x), y in zip(there, have):
                array = y.as_array()
                array = np.moveaxis(array, 0, -1) if isinstance(y, dy.LookupParameters) else array
                np.testing.assert_array_equal(array.reshape(-1, order="F"), x)


class Pair:
    """dy.load"""

    def __init__(self, folder: Path) -> None:
        self.base = folder / "m"
        pc = dy.ParameterCollection()
        extra = {"a": (1, 2.5, None), "b": [True, b"x", "\u00e4"], "c": {3}, "d": np.arange(3.0), "e": 10**20}
        objects = [*filled(pc), Tagger(pc, Words(["a", "b"]), 3, dy.VanillaLSTMBuilder, extra)]
        dy.save(self.base, [*objects, dy.BiRNNBuilder(1, 2, 4, pc, dy.GRUBuilder)])
        self.meta = self.base.with_suffix(".meta").read_bytes()
        self.data = self.base.with_suffix(".data").read_bytes()
        self.mark = len(saving._MARK) + 65
        self.whole = self.meta
        self.reset()

    def reset(self) -> None:
        self.target = dy.ParameterCollection()
        self.target.add_parameters((2,), init=1.0)

    def damaged(self, rng: random.Random) -> bytes:
        return damaged(rng, self.meta if rng.random() < 0.3 else self.meta[self.mark :])

    def read(self, data: bytes) -> None:
        self.base.with_suffix(".meta").write_bytes(data)
        self.objects = dy.load(self.base, self.target)

    def state(self) -> list[np.ndarray]:
        return arrays(self.target)

    def check(self, data: bytes) -> None:
        self.reset()
        items = []
        with open(self.base.with_suffix(".meta"), "rb") as file:
            while file.tell() < len(data):
                items.append(Reference(file).load())
        assert len(items) == len(self.objects)
        for item, x in zip(items, self.objects):
            if len(item) == 2:
                assert item == (type(x).__name__, x.name())
            else:
                assert item[0] is type(x)
                assert outline(item[1]) == outline(x.spec)


class Reference(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """In Python, because the version in C allocates as large a memo as a file requests."""

    def find_class(self, module: str, name: str) -> Any:
        return getattr(dy, name) if module == "_dynet" else super().find_class(module, name)


def outline(x: Any) -> Any:
    """A description of x that can be compared."""
    if isinstance(x, (list, tuple)):
        return type(x), [outline(y) for y in x]
    if isinstance(x, dict):
        return [(outline(k), outline(v)) for k, v in x.items()]
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.str, x.shape, x.tobytes()
    return outline(vars(x)) if isinstance(x, Words) else repr(x)


class Data(Pair):
    """dy.load with a damaged .data file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.whole = self.data

    def damaged(self, rng: random.Random) -> bytes:
        return damaged(rng, self.data)

    def read(self, data: bytes) -> None:
        self.base.with_suffix(".meta").write_bytes(self.meta[self.mark :])
        self.base.with_suffix(".data").write_bytes(data)
        self.objects = dy.load(self.base, self.target)

    def check(self, data: bytes) -> None:
        self.reset()
        words = [line.split() for line in data.split(b"\n") if not line.startswith(b"#") and line.strip() != b""]
        first = np.array(words[0], np.float64).astype(np.float32)
        np.testing.assert_array_equal(self.objects[0].as_array().reshape(-1, order="F"), first)


class Checkpoint:
    """load_safetensors"""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "m"
        self.pc, self.trainer = self.made()
        dy.save_safetensors(self.path, self.pc, self.trainer, {"epoch": [1, {"a": None}]})
        self.whole = self.path.read_bytes()
        self.pc, self.trainer = self.made()

    def made(self) -> tuple[dy.ParameterCollection, dy.Trainer]:
        pc = dy.ParameterCollection()
        table = filled(pc)[1]
        trainer = dy.AdamTrainer(pc)
        trainer.exponential_moving_average(0.9)
        trainer.update()
        dy.renew_cg()
        dy.sum_elems(table[1]).backward()
        return pc, trainer

    def damaged(self, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return damaged(rng, self.whole)
        size = int.from_bytes(self.whole[:8], "little")
        header = json.loads(self.whole[8 : 8 + size])
        state = header["__metadata__"]["dynet_cy"]
        if rng.random() < 0.7:
            header["__metadata__"]["dynet_cy"] = json.dumps(other_types(rng, json.loads(state)))
        elif rng.random() < 0.5:
            header["__metadata__"]["dynet_cy"] = damaged(rng, state.encode()).decode("latin-1")
        else:
            header = other_types(rng, header)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + self.whole[8 + size :]

    def read(self, data: bytes) -> None:
        self.path.write_bytes(data)
        dy.load_safetensors(self.path, self.pc, self.trainer, random=True)

    def state(self) -> Any:
        states = [a for several in self.trainer._state_arrays() for a in several or ()]
        words = repr((self.trainer._settings(), self.pc._decay_state(), random_state())).encode()
        return [*arrays(self.pc), *states, np.frombuffer(words, np.uint8)]

    def check(self, data: bytes) -> None:
        tensors = safetensors_numpy.load(data)
        for x in [*self.pc.parameters_list(), *self.pc.lookup_parameters_list()]:
            np.testing.assert_array_equal(x.as_array(), tensors[x.name()])
        with safe_open(self.path, "numpy") as file:
            there = json.loads(file.metadata()["dynet_cy"])["trainer"]["settings"]
        own = json.loads(json.dumps(self.trainer._settings()))
        if there["_average"] is not None:
            there["_average"].setdefault("since", {})  # which files of earlier versions do not have
        for name, value in there.items():
            assert own[name] == value or own[name] != own[name], name
        with contextlib.suppress(RuntimeError):  # the file may claim an average of more parameters
            self.trainer.update(skip_nonfinite=True)
        self.pc, self.trainer = self.made()


class Resumed(Checkpoint):
    """dy.parallel.load_checkpoint"""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.data = dy.parallel.shard(range(5))
        dy.parallel.save_checkpoint(self.path, self.pc, self.trainer, self.data, extra={"best": 3})
        self.whole = self.path.read_bytes()

    def read(self, data: bytes) -> None:
        self.path.write_bytes(data)
        dy.parallel.load_checkpoint(self.path, self.pc, self.trainer, self.data)

    def state(self) -> Any:
        kind, numbers, *others = np.random.get_state()
        words = repr((random.getstate(), kind, others, self.data.state())).encode()
        return [*super().state(), numbers, np.frombuffer(words, np.uint8)]

    def check(self, data: bytes) -> None:
        super().check(data)
        self.data = dy.parallel.shard(range(5))


FORMATS = [Text, Pair, Data, Checkpoint, Resumed]


@pytest.mark.filterwarnings("ignore:.*saved by .* and resumed by")
@pytest.mark.parametrize("count", [pytest.param(120, id="some"), pytest.param(500, id="many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
def test_damaged_files(tmp_path: Path, kind: Any, count: int) -> None:
    streams = random.getstate(), np.random.get_state(legacy=False)
    example = kind(tmp_path)
    rng = random.Random(f"{kind.__name__} {count}")
    for _ in range(3):
        assert attempt(example, example.whole) is None
        example.check(example.whole)
    before, limit = example.state(), peak() + ROOM
    counts = {"loaded": 0, "refused": 0}
    try:
        for number in range(count):
            data = example.damaged(rng)
            error = attempt(example, data)
            if error is None:
                counts["loaded"] += 1
                try:
                    example.check(data)
                except Exception as wrong:
                    raise AssertionError(f"file {number} has loaded: {data!r}") from wrong
                before = example.state()
            else:
                counts["refused"] += 1
                # A file may be valid, but for other data.
                of_other_data = str(error).startswith("Shard.restore: the data have")
                assert isinstance(error, ModelFileError) or of_other_data, (number, error)
                assert len(str(error)) < 2000, number
                assert equal(example.state(), before), (number, error)
            if number % 50 == 0:  # the peak stays; reading it takes longer than most files
                assert peak() < limit, number
        assert peak() < limit, count
    finally:
        random.setstate(streams[0])
        np.random.set_state(streams[1])
    print(kind.__name__, counts, f"grew by {(peak() - limit + ROOM) >> 10} KiB")
    assert counts["refused"] > counts["loaded"]
