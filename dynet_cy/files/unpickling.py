"""A reader of pickles that never runs the functions that they name.

A pickle is a program for a machine with a stack, and one of its instructions calls any function by its name. The
machine of this module knows the instructions that make plain data. Names stay names until it is clear what they are
for, and then a `Maker` decides: what a name stands for as a value, and how an object of a class is made. So this module
does not import, look up or call anything.

Sizes in a file are not trusted either: they are compared with the bytes that are left. There are at most as many
instructions as bytes, and memo entries are kept in a dictionary, so that memory and time are bounded by the size of the
file. Tuples can be nested so that hashing takes forever or overflows C's stack: both are limited.

A subclass of `pickle.Unpickler` with a `find_class` of its own cannot do that. It decides about names only. Nine bytes
that set entry 2**27 of its memo ask for 2 GiB; a set that holds pairs of pairs, 28 deep, in 173 bytes takes seconds to
hash, twice as long with each further level, and no signal is handled meanwhile; states of objects are set by methods of
these objects. `pickle._Unpickler`, which is written in Python, could be limited, by overriding most of its methods, but
these are private and differ between versions. The table of `pickletools` says
what each instruction takes from the stack, and in what form its argument is written. Its `genops` reads integers of any
number of digits, in a time that grows with its square, and texts of Python 2 in the wrong encoding, and does not check
frames; so arguments are read here.

All protocols are read, 0 to 5. Instructions that do not belong in a file of plain data are refused: codes of the
extension registry, out-of-band buffers, and persistent ids unless the maker has a method `persistent`.
"""

from __future__ import annotations

import _compat_pickle
import codecs
import pickletools
import struct
from collections import deque
from collections.abc import Iterable
from enum import Enum
from functools import partial
from operator import methodcaller
from typing import Any, Callable, Optional, Protocol

_LONGEST_INT = 1700  # bytes: Python limits the conversion of much larger ones to text
_DEEPEST = 1000  # tuples in tuples
_FREE_WORK = 1_000_000  # elements that may be hashed, in addition to some for each byte of the file
_WORK_PER_BYTE = 64


class PickleError(ValueError):
    """The bytes are not a pickle, or not one of plain data."""


class Name:
    """A placeholder for a class or function named in a pickle. Such an object cannot be called, and no attributes can
    be set."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __repr__(self) -> str:
        return f"{self.module}.{self.name}"


class Maker(Protocol):
    """Decides what names become. The methods of a maker may raise any exception; the reader lets it propagate."""

    def value(self, name: Name) -> Any:
        """The value to use for a name."""

    def new(self, name: Name, arguments: tuple[Any, ...]) -> Any:
        """An object of a class as `cls.__new__(cls, *arguments)` would make it. Arguments may be names."""

    def call(self, name: Name, arguments: tuple[Any, ...]) -> Any:
        """The result of calling it, or another name. Arguments may be names."""

    def set_state(self, made: Any, state: Any) -> None:
        """Set the state of an object that `new` or `call` has made."""


class _Tuple:
    """A tuple that contains names: the arguments of a function if it is used so, else values."""

    __slots__ = ("items", "values")

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.values: tuple[Any, ...] | None = None


def unpickle(data: bytes, start: int, maker: Maker) -> tuple[Any, int]:
    """Read one pickle.

    Args:
        data: bytes of a file.
        start: where the pickle begins.
        maker: decides what names stand for.

    Returns:
        The object, and where the pickle ends.

    Raises:
        PickleError: not a pickle, an incomplete one, or one of anything but plain data.
    """
    machine = _Machine(data, start, maker)
    return machine.value(machine.run()), machine.at


class _Machine:
    def __init__(self, data: bytes, start: int, maker: Maker) -> None:
        self.data = data
        self.at = start
        self.maker = maker
        self.version = 0
        self.frame_end = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.fresh: dict[int, Any] = {}  # objects that the maker has made, by id: the only ones that may be changed
        self.nested: dict[int, tuple[Any, int, int]] = {}  # nested tuples by id: depth, elements at all levels
        self.largest = 1
        self.work = _FREE_WORK + _WORK_PER_BYTE * len(data)

    def run(self) -> Any:
        while True:
            code = self.read(1)[0]
            if code not in _OPERATIONS:
                raise PickleError(f"instruction {code:#04x} at byte {self.at - 1} has no place in plain data")
            do, argument, count, takes_marked, pushes = _OPERATIONS[code]
            taken = [] if argument is None else [self.argument(argument)]
            marked = [self.since_mark()] if takes_marked else []
            if count:
                taken += self.popped(count)
            found = do(self, *taken, *marked)
            if do is _Machine.stop:
                return found
            if pushes:
                self.stack += [found] * pushes

    # ---- bytes

    def read(self, n: int) -> bytes:
        """The next n bytes."""
        end = self.at + n
        if n < 0 or end > len(self.data):
            raise PickleError(f"{n} bytes are needed at byte {self.at} of {len(self.data)}")
        if self.at < self.frame_end < end:
            raise PickleError(f"a frame ends at byte {self.frame_end}, within something")
        found = self.data[self.at : end]
        self.at = end
        return found

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise PickleError(f"it ends in the line that begins at byte {self.at}")
        return self.read(end + 1 - self.at)[:-1]

    def argument(self, form: pickletools.ArgumentDescriptor) -> Any:
        """What follows an instruction."""
        n, decoded = form.n, _ARGUMENTS[form.name]
        if n >= 0:
            return decoded(self.read(n))
        if n == pickletools.UP_TO_NEWLINE:
            text = self.line()
            if form.name.startswith("decimalnl") and len(text) > _LONGEST_INT:
                raise PickleError(f"an integer of {len(text)} digits")
            return (decoded(text), decoded(self.line())) if form.name.endswith("pair") else decoded(text)
        n = int.from_bytes(self.read(_COUNTS[n]), "little", signed=n == pickletools.TAKEN_FROM_ARGUMENT4)
        if n > _LONGEST_INT and form.name.startswith("long"):
            raise PickleError(f"an integer of {n} bytes")
        return decoded(self.read(n))

    # ---- the stack

    def popped(self, count: int) -> list[Any]:
        if len(self.stack) - count < (self.marks[-1] if self.marks else 0):
            raise PickleError(f"nothing is on the stack at byte {self.at}")
        found = self.stack[-count:]
        del self.stack[-count:]
        return found

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise PickleError(f"there is no mark at byte {self.at}")
        mark = self.marks.pop()
        found = self.stack[mark:]
        del self.stack[mark:]
        return found

    def drop(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.popped(1)

    def keep(self, place: int) -> None:
        self.memo[place] = self.popped(1)[0]
        self.stack.append(self.memo[place])

    def memoize(self, x: Any) -> Any:
        self.memo[len(self.memo)] = x
        return x

    def recall(self, place: int) -> Any:
        if place not in self.memo:
            raise PickleError(f"place {place} of the memo is empty")
        return self.memo[place]

    # ---- values

    def value(self, x: Any) -> Any:
        """The value to store in data; names are replaced by the maker's values."""
        if isinstance(x, Name):
            return self.maker.value(x)
        if isinstance(x, _Tuple):
            if x.values is None:
                x.values = self.counted(tuple(map(self.value, x.items)))
            return x.values
        return x

    def extent(self, x: Any) -> tuple[int, int]:
        """The depth of a tuple or frozenset, and its elements at all levels; 0 and 1 for anything else."""
        if id(x) in self.nested:
            return self.nested[id(x)][1:]
        return (1, 1 + len(x)) if isinstance(x, (tuple, frozenset)) else (0, 1)

    def key(self, x: Any) -> Any:
        """A value that is about to be hashed."""
        x = self.value(x)
        depth, size = self.extent(x)
        # The hash of an object may be that of a tuple that it holds.
        self.work -= self.largest if not depth and id(x) in self.fresh else size
        if self.work < 0:
            raise PickleError("keys that take too long to compare")
        return x

    def counted(self, x: Any) -> Any:
        """A tuple or frozenset, checked to be hashable within the limits; anything else as it is."""
        if not isinstance(x, (tuple, frozenset)):
            return x
        parts = [self.extent(item) for item in x]
        depth, size = 1 + max((part[0] for part in parts), default=0), 1 + sum(part[1] for part in parts)
        if depth > _DEEPEST or size > _FREE_WORK + _WORK_PER_BYTE * len(self.data):
            raise PickleError(f"tuples of {size} elements, {depth} deep")
        self.largest = max(self.largest, size)
        if depth > 1:
            self.nested[id(x)] = x, depth, size
        return x

    def tuple_of(self, items: Iterable[Any]) -> Any:
        items = self.inner(items)
        return _Tuple(items) if any(isinstance(x, Name) for x in items) else self.counted(tuple(items))

    def inner(self, items: Iterable[Any]) -> list[Any]:
        """The content of a tuple: a tuple of names inside it is not one of arguments."""
        return [self.value(x) if isinstance(x, _Tuple) else x for x in items]

    # ---- names, and objects of classes

    def name(self, module: Any, name: Any) -> Name:
        if type(name) is not str or type(module) is not str:
            raise PickleError("a name that is no string")
        if self.version < 3:  # Python 2's names
            if (module, name) in _compat_pickle.NAME_MAPPING:
                return Name(*_compat_pickle.NAME_MAPPING[module, name])
            module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        return Name(module, name)

    def arguments(self, x: Any) -> tuple[Any, ...]:
        if isinstance(x, _Tuple):
            return tuple(x.items)
        if type(x) is not tuple:
            raise PickleError(f"arguments of type {type(x).__name__}")
        return x

    def made(self, make: Callable[[Name, tuple[Any, ...]], Any], name: Any, arguments: Any) -> Any:
        """What a method of the maker makes. Arguments are counted as hashed, since a set may be made of them."""
        if not isinstance(name, Name):
            raise PickleError(f"{type(name).__name__} stands where a class or function must be")
        given = self.arguments(arguments)
        for argument in given:
            if isinstance(argument, (list, tuple, set, frozenset, dict)):
                for item in argument:
                    self.key(item)
        x = make(name, given)
        if not isinstance(x, (Enum, Name)):  # members of enumerations existed before
            self.fresh[id(x)] = x
        return self.counted(x)

    def new(self, name: Any, arguments: Any, *keywords: Any) -> Any:
        if any(type(x) is not dict or x for x in keywords):
            raise PickleError("an object made with keyword arguments")
        return self.made(self.maker.new, name, arguments)

    def old_object(self, items: list[Any]) -> Any:
        if not items:
            raise PickleError("an object without a class")
        return self.new(items[0], tuple(self.inner(items[1:])))

    def persistent(self, x: Any) -> Any:
        load = getattr(self.maker, "persistent", None)
        if load is None:
            raise PickleError(f"instruction 0x51 at byte {self.at - 1} has no place in plain data")
        return load(self.arguments(x))

    def build(self, made: Any, state: Any) -> Any:
        if id(made) not in self.fresh:
            raise PickleError(f"the state of something that is no object: {type(made).__name__}")
        self.maker.set_state(made, self.value(state))
        return made

    # ---- containers

    def owned(self, x: Any, *kinds: type) -> Any:
        """Which of these types a container has or, if it may be changed, is derived from."""
        for kind in kinds:
            if type(x) is kind or (isinstance(x, kind) and id(x) in self.fresh):
                return kind
        raise PickleError(f"elements of something that is no {kinds[0].__name__}: {type(x).__name__}")

    def extend(self, x: Any, items: list[Any]) -> Any:
        self.owned(x, list, deque).extend(x, [self.value(item) for item in items])
        return x

    def add(self, x: Any, items: list[Any]) -> Any:
        self.owned(x, set).update(x, [self.key(item) for item in items])
        return x

    def update(self, x: Any, items: list[Any]) -> Any:
        self.owned(x, dict)
        if len(items) % 2:
            raise PickleError("a key without a value")
        known = (base.__dict__ for base in type(x).__mro__ if base.__module__ in ("builtins", "collections"))
        put = next(names["__setitem__"] for names in known if "__setitem__" in names)  # bypassing overrides
        for key, item in zip(items[::2], items[1::2]):
            put(x, self.key(key), self.value(item))
        return x

    # ---- the file

    def frame(self, size: int) -> None:
        if size > len(self.data) - self.at:
            raise PickleError(f"a frame of {size} bytes where {len(self.data) - self.at} are left")
        if self.at < self.frame_end:
            raise PickleError(f"a frame begins at byte {self.at}, within another")
        self.frame_end = self.at + size

    def protocol(self, version: int) -> None:
        if version > 5:
            raise PickleError(f"protocol {version}")
        self.version = version

    def stop(self, x: Any) -> Any:
        if self.at < self.frame_end:
            raise PickleError(f"it ends at byte {self.at}, within a frame")
        return x


def _unquoted(text: bytes) -> str:
    text = text.strip()
    if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in b"'\"":
        raise PickleError("a string without quotation marks")
    return codecs.escape_decode(text[1:-1])[0].decode("ascii")


# The bytes of a number that says how long an argument is, by what `pickletools` calls it.
_COUNTS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_FLAGS = {b"00": False, b"01": True}

# What the bytes of an argument mean, by the form of it.
_ARGUMENTS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("uint1", "uint2", "uint4", "uint8"), partial(int.from_bytes, byteorder="little")),
    **dict.fromkeys(("int4", "long1", "long4"), partial(int.from_bytes, byteorder="little", signed=True)),
    "decimalnl_short": lambda data: _FLAGS[data] if data in _FLAGS else int(data),
    "decimalnl_long": lambda data: int(data.rstrip(b"L")),
    "floatnl": float,
    "float8": lambda data: struct.unpack(">d", data)[0],
    "stringnl": _unquoted,
    "stringnl_noescape_pair": bytes.decode,
    **dict.fromkeys(("string1", "string4"), methodcaller("decode", "ascii")),
    "unicodestringnl": methodcaller("decode", "raw-unicode-escape"),
    **dict.fromkeys(
        ("unicodestring1", "unicodestring4", "unicodestring8"), methodcaller("decode", "utf-8", "surrogatepass")
    ),
    **dict.fromkeys(("bytes1", "bytes4", "bytes8"), bytes),
    "bytearray8": bytearray,
}

# The function of an instruction, the form of its argument, how many objects it takes from the stack, not counting those
# above a mark, whether it takes those too, and how often the result goes onto the stack.
_Operation = tuple[Callable[..., Any], Optional[pickletools.ArgumentDescriptor], int, bool, int]

# What instructions do with their arguments and what they take from the stack; the result goes onto the stack.
_INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    "PROTO": _Machine.protocol,
    "FRAME": _Machine.frame,
    "STOP": _Machine.stop,
    "MARK": lambda m: m.marks.append(len(m.stack)),
    "POP": _Machine.drop,
    "POP_MARK": lambda m, items: None,
    "DUP": lambda m, x: x,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.keep),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.recall),
    "MEMOIZE": _Machine.memoize,
    "NONE": lambda m: None,
    "NEWTRUE": lambda m: True,
    "NEWFALSE": lambda m: False,
    "EMPTY_TUPLE": lambda m: (),
    **dict.fromkeys(("TUPLE1", "TUPLE2", "TUPLE3"), lambda m, *items: m.tuple_of(items)),
    "TUPLE": _Machine.tuple_of,
    "EMPTY_LIST": lambda m: [],
    "LIST": lambda m, items: m.extend([], items),
    "APPEND": lambda m, x, item: m.extend(x, [item]),
    "APPENDS": _Machine.extend,
    "EMPTY_DICT": lambda m: {},
    "DICT": lambda m, items: m.update({}, items),
    "SETITEM": lambda m, x, *item: m.update(x, item),
    "SETITEMS": _Machine.update,
    "EMPTY_SET": lambda m: set(),
    "ADDITEMS": _Machine.add,
    "FROZENSET": lambda m, items: m.counted(frozenset([m.key(x) for x in items])),
    "GLOBAL": lambda m, name: m.name(*name),
    "STACK_GLOBAL": _Machine.name,
    "REDUCE": lambda m, name, arguments: m.made(m.maker.call, name, arguments),
    "NEWOBJ": _Machine.new,
    "NEWOBJ_EX": _Machine.new,
    "OBJ": _Machine.old_object,
    "INST": lambda m, name, items: m.old_object([m.name(*name), *items]),
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
}


def _operation(code: pickletools.OpcodeInfo) -> _Operation:
    before = [] if code.name == "POP" else code.stack_before  # which may take a mark
    takes_marked = pickletools.markobject in before
    count = before.index(pickletools.markobject) if takes_marked else len(before)
    pushes = len(code.stack_after) - (pickletools.markobject in code.stack_after)
    return _INSTRUCTIONS.get(code.name, lambda m, x: x), code.arg, count, takes_marked, pushes


# By their codes. Those that are not in the table, and put their argument onto the stack, do nothing else.
_OPERATIONS = {
    ord(op.code): _operation(op)
    for op in pickletools.opcodes
    if op.name in _INSTRUCTIONS
    or (op.arg and op.arg.name in _ARGUMENTS and pickletools.anyobject not in op.stack_after)
}
