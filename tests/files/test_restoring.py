"""Permitted contents of a .meta file: classes of programs load, attacks have no effect."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import enum
import functools
import io
import operator
import os
import pickle
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from own_process import environment

import dynet_cy as dy
from dynet_cy.files import restoring
from dynet_cy.files.saving import ForbiddenClassError
from dynet_cy.files.textfile import ModelFileError


class Holder:
    """A model whose spec can be anything."""

    def __init__(self, model: dy.ParameterCollection, spec: Any) -> None:
        self.spec = spec
        self.model = model.add_subcollection("holder")
        self.model.add_parameters((1,), init=1.0)

    def param_collection(self) -> dy.ParameterCollection:
        return self.model

    @classmethod
    def from_spec(cls, spec: Any, model: dy.ParameterCollection) -> Holder:
        return cls(model, spec)


DATA = "#Parameter# /holder/_0 {1} 17 ZERO_GRAD\n+1.00000000e+00 \n"

# ---- classes of programs


class Vocabulary:
    """A class of plain data, whose constructor must not run when a file is read."""

    made: ClassVar[int] = 0

    def __init__(self, words: str) -> None:
        type(self).made += 1
        self.indices = {word: i for i, word in enumerate(words.split())}
        self.__frozen = True

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    class Entry:
        def __init__(self, word: str) -> None:
            self.word = word

        def __eq__(self, other: object) -> bool:
            return type(other) is type(self) and vars(other) == vars(self)

        def __hash__(self) -> int:
            return hash(self.word)


class Span(typing.NamedTuple):
    left: int
    right: int


Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Options:
    size: int = 3
    names: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    size: int


@dataclasses.dataclass
class Slotted:
    __slots__ = ("a", "b")
    a: int
    b: str


class Side(enum.Enum):
    LEFT = "left"
    RIGHT = (1, 2)


class Number(enum.IntEnum):
    ONE = 1


class Flags(enum.Flag):
    A = 1
    B = 2
    C = 4


class Words(dict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("called")


class Ordered(collections.OrderedDict):  # type: ignore[type-arg]
    pass


class Counts(collections.defaultdict):  # type: ignore[type-arg]
    pass


class Things(list):  # type: ignore[type-arg]
    def extend(self, items: Any) -> None:
        raise AssertionError("called")

    append = extend


class Bag(set):  # type: ignore[type-arg]
    pass


class Text(str):
    pass


class Base(typing.Generic[typing.TypeVar("T")]):
    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]


class Derived(Base[int]):
    pass


class Stateful:
    """A class with __getstate__ and __setstate__."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> Any:
        return [self.x, "packed"]

    def __setstate__(self, state: Any) -> None:
        self.x = state[0]


def with_attributes(x: Any, **attributes: Any) -> Any:
    vars(x).update(attributes)
    return x


def shared() -> Any:
    x = [1]
    return [x, x, (x,)]


SPECS = {
    "vocabulary": Vocabulary("a b c"),
    "keys": {Vocabulary.Entry("a"): 1, Frozen(2): Frozen(3), Span(1, 2): {Frozen(4)}},
    "named tuples": [Span(1, 2), Pair("x", None)],
    "dataclasses": (Options(4, ["a"]), Frozen(5), Slotted(1, "b")),
    "enumerations": [Side.LEFT, Side.RIGHT, Number.ONE, Flags.B, Flags.A | Flags.C, {Side.LEFT: 1}],
    "containers": [
        collections.Counter("abca"),
        collections.OrderedDict([("b", 1), ("a", 2)]),
        collections.defaultdict(int, a=1),
        collections.defaultdict(list),
        collections.deque([1, 2], 3),
        frozenset([1, (2, 3)]),
        {1, 2},
        bytearray(b"abc"),
        b"\x00\xff",
        b"",
        1j,
        range(3),
        10**30,
        -(2**40),
    ],
    "derived containers": [Counts(int, x=1), Bag([1, 2]), Text("text"), Ordered(a=1), with_attributes(Bag(), b=1)],
    "generic": Derived(3),
    "stateful": Stateful(4),
    "standard library": [argparse.Namespace(a=1), types.SimpleNamespace(b=[2])],
    "types": [int, str, list, Holder, dy.GRUBuilder],
    "shared": shared(),
}


def files(folder: Path, spec: Any, protocol: int) -> Path:
    """Files with a Holder with this spec, as DyNet pickles it."""
    (folder / "m.data").write_text(DATA)
    (folder / "m.meta").write_bytes(pickle.dumps((Holder, spec, "/holder/"), protocol))
    return folder / "m"


def load(base: Path, **how: Any) -> Any:
    (loaded,) = dy.load(base, dy.ParameterCollection(), **how)
    return loaded.spec


def types_in(x: Any) -> Any:
    return type(x), [types_in(y) for y in x] if isinstance(x, (list, tuple, collections.deque)) else None


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("what", SPECS)
def test_what_programs_have_in_specs(tmp_path: Path, what: str, protocol: int) -> None:
    spec = SPECS[what]
    try:
        base = files(tmp_path, spec, protocol)
    except TypeError:
        assert protocol < 2  # slots and others need a later protocol
        return
    made = Vocabulary.made
    found = load(base)
    assert found == spec
    assert types_in(found) == types_in(spec)
    assert Vocabulary.made == made
    if what == "shared":
        assert found[0] is found[1] is found[2][0]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "x",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 3), np.int64),
        np.array(["ab", "c"]),
        np.array([b"ab", b"c"]),
        np.arange(3, dtype=">i4"),
        np.array([True, False]),
        np.float32(2.5),
        np.int64(-3),
        np.array(4.0),
    ],
    ids=lambda x: f"{x.dtype} {x.shape}",
)
def test_numpy(tmp_path: Path, x: Any, protocol: int) -> None:
    found = load(files(tmp_path, x, protocol))
    assert type(found) is type(x)
    assert found.dtype == x.dtype.newbyteorder("=")  # as pickle does
    np.testing.assert_array_equal(found, x)
    found = load(files(tmp_path, {"a": x, "b": [x]}, protocol))
    np.testing.assert_array_equal(found["b"][0], x)


def test_saved_by_us(tmp_path: Path) -> None:
    spec = {key: value for key, value in SPECS.items() if key != "types"}
    dy.save(tmp_path / "m", [Holder(dy.ParameterCollection(), spec)])
    assert load(tmp_path / "m") == spec


def test_python_2(tmp_path: Path) -> None:
    """As written by Python 2: a class without a base, a list of pairs for an OrderedDict, and byte strings."""
    base = files(tmp_path, None, 0)
    module = __name__.encode()
    vocabulary = b"(i" + module + b"\nVocabulary\np1\n(dp2\nS'indices'\np3\n(dp4\nS'a'\nI0\nssb"
    ordered = b"ccollections\nOrderedDict\n((lp5\n(lp6\nS'a'\naI1\naatR"
    holder = b"c" + module + b"\nHolder\n"
    base.with_suffix(".meta").write_bytes(b"(" + holder + b"(" + vocabulary + ordered + b"t" + b"S'/holder/'\nt.")
    found, pairs = load(base)
    assert vars(found) == {"indices": {"a": 0}}
    assert pairs == collections.OrderedDict(a=1)


PROGRAM = """
import sys
import dynet_cy as dy

class Vocabulary:
    def __init__(self, words):
        self.words = words

class Model:
    def __init__(self, model, vocabulary):
        self.spec = (vocabulary,)
        self.pc = model.add_subcollection("model")
        self.table = self.pc.add_lookup_parameters((len(vocabulary.words), 2))

    def param_collection(self):
        return self.pc

    @classmethod
    def from_spec(cls, spec, model):
        return cls(model, *spec)

if __name__ == "__main__":
    pc = dy.ParameterCollection()
    if sys.argv[1] == "save":
        dy.save("m", [Model(pc, Vocabulary(["a", "b"]))])
    print(dy.load("m", pc)[0].spec[0].words)
"""


def test_classes_of_scripts(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROGRAM)
    (tmp_path / "other.py").write_text(
        "import dynet_cy as dy\nfrom script import Model, Vocabulary\n"
        "print(dy.load('m', dy.ParameterCollection())[0].spec[0].words)\n"
    )
    for arguments in (["script.py", "save"], ["script.py", "load"], ["other.py"]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment(), capture_output=True, text=True
        )
        assert (done.stdout, done.stderr) == ("['a', 'b']\n", "")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An installed package, with classes and a function that loads."""
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "installed_package.py").write_text(
        PROGRAM
        + "\nclass Options(Vocabulary): pass\n\ndef load(base):\n    return dy.load(base, dy.ParameterCollection())\n"
    )
    monkeypatch.syspath_prepend(folder)
    import installed_package  # type: ignore[import-not-found]

    yield installed_package
    del sys.modules["installed_package"]


class Own(Vocabulary):
    pass


def test_installed_packages(tmp_path: Path, installed: Any) -> None:
    """Model classes of installed packages load; data classes only if the package itself loads or they are passed."""
    model = installed.Model(dy.ParameterCollection(), installed.Vocabulary(["a"]))
    dy.save(tmp_path / "m", [model])
    with pytest.raises(ForbiddenClassError, match="Vocabulary, which is not a class of the program's own modules"):
        dy.load(tmp_path / "m", dy.ParameterCollection())
    for (found,) in (
        installed.load(tmp_path / "m"),
        dy.load(tmp_path / "m", dy.ParameterCollection(), classes=[installed.Vocabulary]),
    ):
        assert type(found) is installed.Model
        assert found.spec[0].words == ["a"]
    base = files(tmp_path, installed.Model, 4)
    assert load(base) is installed.Model
    derived = type("Mixed", (installed.Vocabulary,), {"__module__": __name__, "__qualname__": "Own"})
    sys.modules[__name__].Own = derived  # type: ignore[attr-defined]
    try:
        base = files(tmp_path, derived(["a"]), 4)
        with pytest.raises(ForbiddenClassError, match=r"which is derived from installed_package\.Vocabulary"):
            load(base)
    finally:
        sys.modules[__name__].Own = Own  # type: ignore[attr-defined]


def test_modules_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes in modules without files load, such as those of a notebook."""
    module = types.ModuleType("made_here")
    module.Thing = type("Thing", (), {"__module__": "made_here"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_here", module)
    thing = module.Thing()
    thing.x = 3
    assert load(files(tmp_path, thing, 4)).x == 3


def test_who_calls() -> None:
    assert restoring.calling_package(1) == __name__.partition(".")[0]
    assert functools.partial(restoring.calling_package, 2)() != "dynet_cy"
    found = restoring.Restorer({}, [], "numpy")
    assert not any(found.is_own(name) for name in ("numpy", "dynet_cy.rnn", "os", "sys", "collections", "pytest"))
    assert found.is_own("__main__")
    assert found.is_own(__name__)


# ---- attacks

RAN: list[Any] = []


def trap(*arguments: Any, **keywords: Any) -> Any:
    RAN.append(arguments)
    return "trapped"


class Trap:
    """A class in which every special method, property and class method records that it ran."""

    def __new__(cls, *arguments: Any) -> Any:
        trap("new")
        return object.__new__(cls)

    def __init__(self, *arguments: Any) -> None:
        trap("init")

    def __setattr__(self, name: str, value: Any) -> None:
        trap("setattr")

    def __getattr__(self, name: str) -> Any:
        trap("getattr")
        raise AttributeError(name)

    def __getattribute__(self, name: str) -> Any:
        if name != "__class__":
            trap("getattribute", name)
        return object.__getattribute__(self, name)

    def __reduce__(self) -> Any:
        return trap, ("reduce",)

    def __repr__(self) -> str:
        trap("repr")
        return "trap"

    def __call__(self, *arguments: Any) -> Any:
        return trap("call")

    def __len__(self) -> int:
        trap("len")
        return 3

    @property
    def size(self) -> int:
        trap("property")
        return 3

    @size.setter
    def size(self, value: int) -> None:
        trap("setter")

    @classmethod
    def method(cls, *arguments: Any) -> Any:
        return trap("method")


class Deleting(Trap):
    def __del__(self) -> None:
        trap("del")


class Meta(type):
    def __call__(cls, *arguments: Any) -> Any:
        return trap("metaclass")

    def __getattr__(cls, name: str) -> Any:
        if name == "from_spec":
            trap("getattr of class")
        raise AttributeError(name)


class WithMeta(metaclass=Meta):
    pass


class Missing(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return trap("missing")


class Thread_(__import__("threading").Thread):
    pass


class Failing(Exception):
    pass


def text(x: str) -> bytes:
    return b"X" + len(x).to_bytes(4, "little") + x.encode()


def name(module: str, what: str) -> bytes:
    return text(module) + text(what) + pickle.STACK_GLOBAL


HERE = __name__
ATTACKS = [
    # functions that run something
    ("os", "system"),
    ("posix", "system"),
    ("subprocess", "Popen"),
    ("subprocess", "check_output"),
    ("builtins", "eval"),
    ("builtins", "exec"),
    ("builtins", "compile"),
    ("builtins", "getattr"),
    ("builtins", "setattr"),
    ("builtins", "__import__"),
    ("builtins", "open"),
    ("builtins", "print"),
    ("builtins", "map"),
    ("builtins", "type"),
    ("builtins", "object"),
    ("builtins", "property"),
    ("builtins", "super"),
    ("builtins", "BaseException"),
    ("builtins", "memoryview"),
    ("__builtin__", "apply"),
    ("functools", "partial"),
    ("functools", "reduce"),
    ("functools", "singledispatch"),
    ("operator", "attrgetter"),
    ("operator", "methodcaller"),
    ("operator", "itemgetter"),
    ("_operator", "methodcaller"),
    ("itertools", "starmap"),
    ("importlib", "import_module"),
    ("copyreg", "add_extension"),
    ("copyreg", "pickle"),
    ("copyreg", "__newobj_ex__"),
    ("pickle", "loads"),
    ("_pickle", "loads"),
    ("marshal", "loads"),
    ("types", "CodeType"),
    ("types", "FunctionType"),
    ("types", "ModuleType"),
    ("typing", "get_type_hints"),
    ("codecs", "open"),
    ("io", "open"),
    ("io", "FileIO"),
    ("socket", "socket"),
    ("tempfile", "_TemporaryFileCloser"),
    ("threading", "Thread"),
    ("weakref", "finalize"),
    ("pathlib", "Path"),
    ("re", "compile"),
    ("enum", "Enum"),
    ("collections", "namedtuple"),
    ("collections", "ChainMap"),
    ("collections", "UserDict"),
    ("contextlib", "ExitStack"),
    ("ctypes", "CDLL"),
    ("ctypes", "memmove"),
    ("numpy", "load"),
    ("numpy", "fromfile"),
    ("numpy", "memmap"),
    ("numpy", "vectorize"),
    ("numpy", "ndarray"),
    ("numpy", "frompyfunc"),
    ("numpy.testing._private.utils", "runstring"),
    ("numpy._core._internal", "_ctypes"),
    ("safetensors", "safe_open"),
    ("pytest", "main"),
    ("dynet_cy", "save"),
    ("dynet_cy", "ParameterCollection"),
    ("dynet_cy", "Expression"),
    ("dynet_cy.files.saving", "_Pickler"),
    ("dynet_cy.files.restoring", "Restorer"),
    ("dynet_cy.files.unpickling", "Name"),
    ("dynet_cy.rnn.softmax_builders", "ClassFactoredSoftmaxBuilder"),  # reads the file that its spec names
    # objects of the program, reached indirectly
    ("__main__", "os.system"),
    ("__main__", "trap"),
    ("__main__", "__builtins__"),
    ("__main__", "__dict__"),
    (HERE, "trap"),
    (HERE, "os.system"),
    (HERE, "pickle.loads"),
    (HERE, "Trap.method"),
    (HERE, "Trap.__new__"),
    (HERE, "Trap.__subclasses__"),
    (HERE, "Trap.__init__.__globals__"),
    (HERE, "Trap.mro"),
    (HERE, "ATTACKS"),
    (HERE, "Path"),  # an import's name for a class of another module
    (HERE, "ForbiddenClassError"),
    (HERE, "Deleting"),
    (HERE, "Failing"),
    (HERE, "Thread_"),
    (HERE, ""),
    (HERE, "."),
    ("", ""),
    ("nowhere", "Thing"),
    ("this", "s"),  # importing it would print
    ("antigravity", "geohash"),
]

USES = {
    "a value": lambda global_: global_,
    "called": lambda global_: global_ + text("echo") + pickle.TUPLE1 + pickle.REDUCE,
    "called with nothing": lambda global_: global_ + pickle.EMPTY_TUPLE + pickle.REDUCE,
    "called with functions": lambda global_: global_ + global_ + name(HERE, "trap") + pickle.TUPLE2 + pickle.REDUCE,
    "an object": lambda global_: global_ + pickle.EMPTY_TUPLE + pickle.NEWOBJ,
    "an object of something": lambda global_: global_ + text("echo") + pickle.TUPLE1 + pickle.NEWOBJ,
    "an object with keywords": lambda global_: (
        global_ + pickle.EMPTY_TUPLE + pickle.EMPTY_DICT + text("a") + text("b") + pickle.SETITEM + pickle.NEWOBJ_EX
    ),
    "an old object": lambda global_: pickle.MARK + global_ + text("echo") + pickle.OBJ,
    "rebuilt": lambda global_: (
        name("copyreg", "_reconstructor")
        + (global_ + name("builtins", "object") + pickle.NONE + pickle.TUPLE3)
        + pickle.REDUCE
    ),
    "with a state": lambda global_: global_ + pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.EMPTY_DICT + pickle.BUILD,
    "changed itself": lambda global_: (
        global_ + pickle.EMPTY_DICT + text("x") + pickle.NONE + pickle.SETITEM + pickle.BUILD
    ),
    "a factory": lambda global_: name("collections", "defaultdict") + global_ + pickle.TUPLE1 + pickle.REDUCE,
    "elements": lambda global_: global_ + pickle.NONE + pickle.APPEND,
}


def attack(folder: Path, spec: bytes) -> Path:
    (folder / "m.data").write_text(DATA)
    item = pickle.PROTO + b"\x04" + name(HERE, "Holder") + spec + text("/holder/") + pickle.TUPLE3 + pickle.STOP
    (folder / "m.meta").write_bytes(item)
    return folder / "m"


@pytest.mark.parametrize("use", USES)
def test_attacks(tmp_path: Path, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No function is called, however a file refers to it, and nothing is imported."""
    import __main__

    monkeypatch.setattr(__main__, "trap", trap, raising=False)
    monkeypatch.setattr(__main__, "os", os, raising=False)
    del RAN[:]
    modules = set(sys.modules)
    wrong = []
    for module, what in ATTACKS:
        pc = dy.ParameterCollection()
        base = attack(tmp_path, USES[use](name(module, what)))
        try:
            dy.load(base, pc)
            wrong.append((module, what))
        except ModelFileError:
            pass
        assert pc.parameters_list() == []
    assert wrong == []
    assert RAN == []
    assert set(sys.modules) == modules


def test_attributes_of_modules_do_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are looked up without running __getattr__ of modules, which may import or run anything."""

    class Lazy(types.ModuleType):
        def __getattribute__(self, what: str) -> Any:
            trap("module", what)
            return object.__getattribute__(self, what)

    lazy, asking = Lazy("lazy"), types.ModuleType("asking")
    asking.__getattr__ = lambda what: trap("getattr", what)  # type: ignore[method-assign]
    for module in (lazy, asking, None, 3):
        monkeypatch.setitem(sys.modules, "lazy_or_not", module)  # type: ignore[arg-type]
        del RAN[:]
        with pytest.raises(ForbiddenClassError):
            load(attack(tmp_path, name("lazy_or_not", "Thing")))
        assert RAN == []


class TestObjectsOfThePrograms:
    def setup_method(self) -> None:
        del RAN[:]

    def state(self, cls: str, state: bytes) -> bytes:
        return name(HERE, cls) + pickle.EMPTY_TUPLE + pickle.NEWOBJ + state + pickle.BUILD

    def test_nothing_of_a_class_runs(self, tmp_path: Path) -> None:
        state = pickle.EMPTY_DICT + pickle.MARK + text("size") + pickle.NONE + text("x") + pickle.NONE + pickle.SETITEMS
        base = attack(tmp_path, self.state("Trap", state))
        found = load(base)
        assert RAN == []
        assert type(found) is Trap
        assert object.__getattribute__(found, "__dict__") == {"size": None, "x": None}

    def test_nor_of_its_class(self, tmp_path: Path) -> None:
        found = load(attack(tmp_path, self.state("WithMeta", pickle.EMPTY_DICT)))
        assert RAN == []
        assert isinstance(found, WithMeta)

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            (name(HERE, "Trap") + text("x") + pickle.TUPLE1 + pickle.REDUCE, "Trap, which the file wants to be called"),
            (name(HERE, "Trap") + text("x") + pickle.TUPLE1 + pickle.NEWOBJ, "Trap, which the file wants to be called"),
            (name(HERE, "Trap"), "Trap, which is not a builder of dynet_cy nor a model class"),
            (name(HERE, "Deleting") + pickle.EMPTY_TUPLE + pickle.NEWOBJ, "Deleting, which has a method __del__"),
            (name(HERE, "Holder") + pickle.EMPTY_TUPLE + pickle.NEWOBJ, "an object of which has parameters of its own"),
            (name(HERE, "Missing") + pickle.NONE + pickle.TUPLE1 + pickle.REDUCE, "Missing has no member of the value"),
            (name(HERE, "Missing") + pickle.EMPTY_TUPLE + pickle.NEWOBJ, "Missing, which the file wants to be called"),
            (name(HERE, "Number") + b"K\x05" + pickle.TUPLE1 + pickle.NEWOBJ, "Number, which the file wants to be"),
            (name(HERE, "Failing") + pickle.EMPTY_TUPLE + pickle.NEWOBJ, "which is no class of plain data"),
            (name(HERE, "Thread_") + pickle.EMPTY_TUPLE + pickle.NEWOBJ, r"which is derived from threading\.Thread"),
            (name(HERE, "Span") + b"K\x05" + pickle.TUPLE1 + pickle.NEWOBJ, "Span takes 2 fields, not 1"),
        ],
    )
    def test_refused(self, tmp_path: Path, spec: bytes, words: str) -> None:
        with pytest.raises(ModelFileError, match=words):
            load(attack(tmp_path, spec))
        assert RAN == []

    @pytest.mark.parametrize("key", ["__class__", "__dict__", "__reduce__", "__call__", "__setstate__"])
    def test_special_attributes(self, tmp_path: Path, key: str) -> None:
        state = pickle.EMPTY_DICT + text(key) + name(HERE, "Holder") + pickle.SETITEM
        with pytest.raises(ForbiddenClassError, match=f"gives it an attribute '{key}'"):
            load(attack(tmp_path, self.state("Trap", state)))
        slots = pickle.NONE + state + pickle.TUPLE2
        with pytest.raises(ForbiddenClassError, match=f"gives it an attribute '{key}'"):
            load(attack(tmp_path, self.state("Trap", slots)))

    @pytest.mark.parametrize("state", [pickle.NONE + pickle.EMPTY_DICT, b"K\x05", b"]", b"]]\x86", b"}K\x05Ns"])
    def test_states_that_cannot_be(self, tmp_path: Path, state: bytes) -> None:
        with pytest.raises(ModelFileError):
            load(attack(tmp_path, self.state("Trap", state) + (pickle.POP if state.startswith(b"N") else b"")))

    def test_slots_are_set_and_properties_are_not_called(self, tmp_path: Path) -> None:
        slots = pickle.NONE + pickle.EMPTY_DICT + text("size") + pickle.NONE + pickle.SETITEM + pickle.TUPLE2
        found = load(attack(tmp_path, self.state("Trap", slots)))
        assert RAN == []
        assert object.__getattribute__(found, "__dict__") == {"size": None}

    def test_members_of_enumerations_stay_as_they_are(self, tmp_path: Path) -> None:
        before = dict(vars(Side.LEFT))
        member = name(HERE, "Side") + text("left") + pickle.TUPLE1 + pickle.REDUCE
        state = pickle.EMPTY_DICT + text("x") + pickle.NONE + pickle.SETITEM
        with pytest.raises(ModelFileError, match="the state of something that is no object"):
            load(attack(tmp_path, member + state + pickle.BUILD))
        assert vars(Side.LEFT) == before

    def test_foreign_setstate(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Trap, "__setstate__", operator.methodcaller("x"), raising=False)
        with pytest.raises(ForbiddenClassError, match="__setstate__"):
            load(attack(tmp_path, self.state("Trap", pickle.EMPTY_DICT)))

    def test_passed_classes_are_not_called_either(self, tmp_path: Path) -> None:
        spec = name(HERE, "Trap") + text("x") + pickle.TUPLE1 + pickle.REDUCE
        with pytest.raises(ForbiddenClassError, match="wants to be called"):
            load(attack(tmp_path, spec), classes=[Trap])
        assert RAN == []
        found = load(attack(tmp_path, self.state("Deleting", pickle.EMPTY_DICT)), classes=[Deleting])
        assert type(found) is Deleting
        assert load(attack(tmp_path, name(HERE, "trap")), classes=[trap]) is trap

    @pytest.mark.parametrize(
        ("module", "called", "offered"),
        [
            ("builtins", "print", False),
            ("os", "system", False),
            ("subprocess", "Popen", False),
            (HERE, "trap", False),
            ("some_program", "Tagger", True),
        ],
    )
    def test_only_classes_are_offered(self, tmp_path: Path, module: str, called: str, offered: bool) -> None:
        """Functions that a hostile file calls are not suggested as `classes` to pass."""
        spec = name(module, called) + text("x") + pickle.TUPLE1 + pickle.REDUCE
        with pytest.raises(ForbiddenClassError, match="nothing was loaded") as caught:
            load(attack(tmp_path, spec))
        if sys.version_info >= (3, 10) or module != "subprocess":
            assert (f"classes=[{called}]" in str(caught.value)) == offered
        assert RAN == []


def numpy_array(shape: Any, dtype: Any, data: Any, version: int = 1) -> Any:
    class Array:
        def __reduce__(self) -> Any:
            reduced = np.zeros(0).__reduce__()
            return reduced[0], reduced[1], (version, shape, dtype, False, data)

    return Array()


@pytest.mark.parametrize(
    "x",
    [
        numpy_array((10**9, 10**9), np.dtype("f4"), b"1234"),
        numpy_array((-1, -1), np.dtype("f4"), b"1234"),
        numpy_array((1,), np.dtype("f4"), b"12345"),
        numpy_array([1], np.dtype("f4"), b"1234"),
        numpy_array((1,), np.dtype("O"), [print]),
        numpy_array((1,), np.dtype("f4,f4"), b"12345678"),
        numpy_array((1,), 3, b"1234"),
        np.array([None]),
        np.zeros(3, "f4,i4"),
        np.datetime64("2020-01-01"),
        np.ma.array([1]),
    ],
)
def test_numpy_things_that_are_refused(tmp_path: Path, x: Any) -> None:
    with pytest.raises(ModelFileError):
        load(files(tmp_path, x, 4))


# ---- the reader


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pickle.LONG_BINPUT + (2**29).to_bytes(4, "little"), "nothing is on the stack"),
        (b"Nr" + (2**32 - 1).to_bytes(4, "little") + b"j" + (2**32 - 2).to_bytes(4, "little"), "of the memo is empty"),
        (b"\x8e" + (2**62).to_bytes(8, "little"), "bytes are needed at byte"),
        (b"\x96" + (2**40).to_bytes(8, "little"), "bytes are needed at byte"),
        (b"T" + (2**32 - 1).to_bytes(4, "little"), "-1 bytes are needed"),
        (b"\x95" + (2**62).to_bytes(8, "little"), "a frame of"),
        (b"\x95" + (3).to_bytes(8, "little") + b"J\x00\x00\x00\x00", "a frame ends at byte"),
        (b"\x95" + (2).to_bytes(8, "little") + b"I1\n", "a frame ends at byte"),
        (b"\x95" + (20).to_bytes(8, "little") + b"\x95" + bytes(8) + b"N" * 11, "within another"),
        (b"\x95" + (20).to_bytes(8, "little") + b"N" * 5 + b"\x87" * 2 + b"." + b"N" * 12, "within a frame"),
        (b"\x8b" + (2**31 - 1).to_bytes(4, "little"), "an integer of 2147483647 bytes"),
        (b"\x8b" + (2**12).to_bytes(4, "little") + b"1" * 2**12, "an integer of 4096 bytes"),
        (b"L" + b"9" * 5000 + b"\n", "an integer of 5000 digits"),
        (b"I12", "ends in the line"),
        (b"\x80\x09", "protocol 9"),
        (b"Pname\n", "0x50 .* has no place in plain data"),
        (b"NQ", "0x51"),
        (b"\x82\x01", "0x82"),
        (b"\x97", "0x97"),
        (b"]]\x86e", "there is no mark"),
        (b"(]" + b"]a" + b"u", "elements of something that is no dict"),
        (b"}(Nu", "a key without a value"),
        (b"})s", "elements of something that is no dict"),
        (b"}]Ns", "unhashable"),
        (b"\x8f(]\x90", "unhashable"),
        (b"(]\x91", "unhashable"),
        (b"(o", "an object without a class"),
        (name("os", "system") + b"NR", "arguments of type NoneType"),
        (b"N)R", "NoneType stands where a class or function must be"),
        (b"KKN\x93", "a name that is no string"),
        (b"S12\n", "without quotation marks"),
        (b"\x8c\x02\xff\xff", "codec can't decode"),
        (b"Fxx\n", "could not convert"),
        (b"I1e3\n", "invalid literal"),
        (b"]00000.", "nothing is on the stack"),
    ],
)
def test_pickles_that_cannot_be(tmp_path: Path, code: bytes, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        load(attack(tmp_path, code))


@pytest.mark.parametrize(
    "code",
    [
        b")" + b"2\x86" * 60,  # a pair of the same pair of the same pair ...: hashing it takes 2**60 steps
        b"]" + b"2\x86" * 60,
    ],
)
def test_tuples_of_twice_a_tuple(tmp_path: Path, code: bytes) -> None:
    with pytest.raises(ModelFileError, match="tuples of|cannot|is empty"):
        load(attack(tmp_path, b"}" + code + b"Ns"))


def test_keys_that_take_long(tmp_path: Path) -> None:
    """A large tuple that is used as a key again and again is refused."""
    large = b"(" + b"N" * 1000 + b"t" + b"\x94"
    with pytest.raises(ModelFileError, match="keys that take too long"):
        load(attack(tmp_path, large + b"0}" + b"h\x00Ns" * 100_000))
    items = name("builtins", "set") + b"(" + b"h\x00" * 100_000 + b"l\x85R"
    with pytest.raises(ModelFileError, match="keys that take too long"):
        load(attack(tmp_path, large + b"0" + items))


def test_deep_tuples(tmp_path: Path) -> None:
    """Hashing very deep tuples would overflow the C stack."""
    with pytest.raises(ModelFileError, match="1001 deep"):
        load(attack(tmp_path, b"}" + b")" + b"\x85" * 100_000 + b"Ns"))
    load(attack(tmp_path, b"}" + b")" + b"\x85" * 900 + b"Ns"))


@pytest.mark.parametrize("spec", [b"]" + b"]2a" * 3, b"]" * 1 + b"\x94" + b"h\x00a", b"(" * 50_000 + b"t" * 50_000])
def test_deep_lists_and_such_that_hold_themselves(tmp_path: Path, spec: bytes) -> None:
    with contextlib.suppress(ModelFileError):
        load(attack(tmp_path, spec))
    for cls in ("GRUBuilder", "VanillaLSTMBuilder", "BiRNNBuilder"):
        item = name("_dynet", cls) + b"]" + b"]" * 20_000 + b"a" * 20_000 + text("/x/") + b"\x87."
        (tmp_path / "m.meta").write_bytes(b"\x80\x04" + item)
        with pytest.raises(ModelFileError, match=rf"{cls} cannot be made with spec \[\["):
            dy.load(tmp_path / "m", dy.ParameterCollection())


def test_names_in_tuples_are_values_there(tmp_path: Path) -> None:
    inner = name(HERE, "Holder") + name("_dynet", "GRUBuilder") + pickle.TUPLE2 + pickle.MEMOIZE
    found = load(attack(tmp_path, inner + b"h\x00" + b"\x86"))
    assert found == ((Holder, dy.GRUBuilder), (Holder, dy.GRUBuilder))
    assert found[0] is found[1]


def test_large_vocabularies(tmp_path: Path) -> None:
    words = " ".join(f"word{i}" for i in range(20_000))
    spec = Vocabulary(words)
    dy.save(tmp_path / "m", [Holder(dy.ParameterCollection(), spec)])
    assert load(tmp_path / "m") == spec


def test_files_are_read_as_pickle_reads_them(tmp_path: Path) -> None:
    """Objects with all kinds of contents, in all protocols, several in a file."""
    data = [1, -5, 2**31, 2.5, "ä\ud800"[:1], b"x" * 300, None, True, False, (), [], {}, {1: [2]}, (1, (2, (3,)))]
    for protocol in range(6):
        file = io.BytesIO()
        for _ in range(3):
            pickle.dump((Holder, data, "/holder/"), file, protocol)
        dy.save(tmp_path / "m", [Holder(dy.ParameterCollection(), None) for _ in range(3)])
        (tmp_path / "m.meta").write_bytes(file.getvalue())
        assert [x.spec for x in dy.load(tmp_path / "m", dy.ParameterCollection())] == [data] * 3
