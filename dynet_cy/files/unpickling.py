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
these are private and differ between versions. `pickletools.genops` reads the arguments
of instructions, but integers of any number of digits, in a time that grows with its square, and texts of Python 2 in
the wrong encoding; it does not check frames. With all that added it takes no less code than the table at the end.

All protocols are read, 0 to 5. Instructions that do not belong in a file of plain data are refused: codes of the
extension registry, out-of-band buffers, and persistent ids unless the maker has a method `persistent`.
"""

from __future__ import annotations

import _compat_pickle
import codecs
import struct
from collections import deque
from enum import Enum
from typing import Any, Callable, Protocol

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
        The object, and where the pickle ends. If it is a tuple, those of its elements that are names are still names.

    Raises:
        PickleError: not a pickle, an incomplete one, or one of anything but plain data.
    """
    machine = _Machine(data, start, maker)
    found = machine.run()
    if isinstance(found, _Tuple):
        found = tuple(x if isinstance(x, Name) else machine.value(x) for x in found.items)
    return found, machine.at


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
            if code == _STOP:
                if self.at < self.frame_end:
                    raise PickleError(f"it ends at byte {self.at}, within a frame")
                return self.pop()
            do = _INSTRUCTIONS.get(code)
            if do is None:
                raise PickleError(f"instruction {code:#04x} at byte {self.at - 1} has no place in plain data")
            do(self)

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

    def number(self, n: int) -> int:
        return int.from_bytes(self.read(n), "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise PickleError(f"it ends in the line that begins at byte {self.at}")
        return self.read(end + 1 - self.at)[:-1]

    def text_line(self) -> str:
        return self.line().decode()

    def integer(self, text: bytes) -> int:
        if len(text) > _LONGEST_INT:
            raise PickleError(f"an integer of {len(text)} digits")
        return int(text)

    def long(self, n: int) -> int:
        if n > _LONGEST_INT:
            raise PickleError(f"an integer of {n} bytes")
        return int.from_bytes(self.read(n), "little", signed=True)

    def string(self, n: int) -> str:
        return self.read(n).decode("utf-8", "surrogatepass")

    # ---- the stack

    def push(self, x: Any) -> None:
        self.stack.append(x)

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise PickleError(f"nothing is on the stack at byte {self.at}")
        return self.stack.pop()

    def top(self) -> Any:
        x = self.pop()
        self.push(x)
        return x

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise PickleError(f"there is no mark at byte {self.at}")
        mark = self.marks.pop()
        found = self.stack[mark:]
        del self.stack[mark:]
        return found

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

    def key(self, x: Any) -> Any:
        """A value that is about to be hashed."""
        x = self.value(x)
        if isinstance(x, (tuple, frozenset)):
            record = self.nested.get(id(x))
            self.work -= len(x) if record is None else record[2]
        elif id(x) in self.fresh:
            self.work -= self.largest  # its hash may be that of a tuple that it holds
        else:
            self.work -= 1
        if self.work < 0:
            raise PickleError("keys that take too long to compare")
        return x

    def counted(self, x: Any) -> Any:
        """A tuple or frozenset, checked to be hashable within the limits."""
        depth, size = 1, 1 + len(x)
        for item in x:
            if isinstance(item, (tuple, frozenset)):
                record = self.nested.get(id(item))
                depth = max(depth, 2 if record is None else record[1] + 1)
                size += len(item) if record is None else record[2]
        if depth > _DEEPEST or size > _FREE_WORK + _WORK_PER_BYTE * len(self.data):
            raise PickleError(f"tuples of {size} elements, {depth} deep")
        self.largest = max(self.largest, size)
        if depth > 1:
            self.nested[id(x)] = x, depth, size
        return x

    def made_tuple(self, items: list[Any]) -> None:
        items = self.inner(items)
        self.push(_Tuple(items) if any(isinstance(x, Name) for x in items) else self.counted(tuple(items)))

    def inner(self, items: list[Any]) -> list[Any]:
        """The content of a tuple: a tuple of names inside it is not one of arguments."""
        return [self.value(x) if isinstance(x, _Tuple) else x for x in items]

    def made_object(self, x: Any) -> None:
        if isinstance(x, (tuple, frozenset)):
            self.counted(x)
        self.push(x)

    def arguments(self, x: Any) -> tuple[Any, ...]:
        if isinstance(x, _Tuple):
            return tuple(x.items)
        if type(x) is not tuple:
            raise PickleError(f"arguments of type {type(x).__name__}")
        return x

    def named(self, x: Any) -> Name:
        if not isinstance(x, Name):
            raise PickleError(f"{type(x).__name__} stands where a class or function must be")
        return x

    def charged(self, x: Any) -> tuple[Any, ...]:
        """Arguments, counted as hashed, since a set may be made of them."""
        found = self.arguments(x)
        for argument in found:
            if isinstance(argument, (list, tuple, set, frozenset, dict)):
                for item in argument:
                    self.key(item)
        return found

    def new(self, name: Any, arguments: Any) -> None:
        x = self.maker.new(self.named(name), self.charged(arguments))
        self.fresh[id(x)] = x
        self.made_object(x)

    def reduce(self) -> None:
        arguments, name = self.pop(), self.pop()
        x = self.maker.call(self.named(name), self.charged(arguments))
        if not isinstance(x, (Enum, Name)):  # members of enumerations existed before
            self.fresh[id(x)] = x
        self.made_object(x)

    def new_with_keywords(self) -> None:
        keywords, arguments, name = self.pop(), self.pop(), self.pop()
        if keywords != {}:
            raise PickleError("an object made with keyword arguments")
        self.new(name, arguments)

    def old_object(self) -> None:
        items = self.since_mark()
        if not items:
            raise PickleError("an object without a class")
        self.new(items[0], tuple(self.inner(items[1:])))

    def old_instance(self) -> None:
        arguments = self.inner(self.since_mark())
        self.new(self.name(self.text_line(), self.text_line()), tuple(arguments))

    def persistent(self) -> None:
        load = getattr(self.maker, "persistent", None)
        if load is None:
            raise PickleError(f"instruction 0x51 at byte {self.at - 1} has no place in plain data")
        self.push(load(self.arguments(self.pop())))

    def build(self) -> None:
        state = self.value(self.pop())
        made = self.top()
        if id(made) not in self.fresh:
            raise PickleError(f"the state of something that is no object: {type(made).__name__}")
        self.maker.set_state(made, state)

    def global_line(self) -> None:
        self.push(self.name(self.text_line(), self.text_line()))

    def global_of_stack(self) -> None:
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise PickleError("a name that is no string")
        self.push(self.name(module, name))

    def name(self, module: str, name: str) -> Name:
        if self.version < 3:  # Python 2's names
            if (module, name) in _compat_pickle.NAME_MAPPING:
                return Name(*_compat_pickle.NAME_MAPPING[module, name])
            module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        return Name(module, name)

    # ---- containers

    def owned(self, *kinds: type) -> Any:
        """The container on the top of the stack, and which of these types it has or is derived from."""
        x = self.top()
        for kind in kinds:
            if type(x) is kind or (isinstance(x, kind) and id(x) in self.fresh):
                return x, kind
        raise PickleError(f"elements of something that is no {kinds[0].__name__}: {type(x).__name__}")

    def extend(self, items: list[Any]) -> None:
        x, kind = self.owned(list, deque)
        kind.extend(x, [self.value(item) for item in items])

    def add(self) -> None:
        items = self.since_mark()
        x, _ = self.owned(set)
        for item in items:
            set.add(x, self.key(item))

    def update(self, items: list[Any]) -> None:
        x, _ = self.owned(dict)
        if len(items) % 2:
            raise PickleError("a key without a value")
        put = self.put_of(type(x))
        for key, item in zip(items[::2], items[1::2]):
            put(x, self.key(key), self.value(item))

    @staticmethod
    def put_of(cls: type) -> Callable[[Any, Any, Any], None]:
        """The function that fills a dictionary, bypassing overrides of a derived class."""
        for base in cls.__mro__:
            if base.__module__ in ("builtins", "collections") and "__setitem__" in base.__dict__:
                found: Callable[[Any, Any, Any], None] = base.__dict__["__setitem__"]
                return found
        raise PickleError(f"{cls.__name__} is no dictionary")

    def made_dict(self) -> None:
        items = self.since_mark()
        self.push({})
        self.update(items)

    def made_list(self) -> None:
        self.push([self.value(x) for x in self.since_mark()])

    def made_frozenset(self) -> None:
        self.push(self.counted(frozenset([self.key(x) for x in self.since_mark()])))

    def append_one(self) -> None:
        self.extend([self.pop()])

    def set_one(self) -> None:
        value, key = self.pop(), self.pop()
        self.update([key, value])

    # ---- the rest

    def drop(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.pop()

    def keep(self, place: int) -> None:
        self.memo[place] = self.top()

    def recall(self, place: int) -> None:
        if place not in self.memo:
            raise PickleError(f"place {place} of the memo is empty")
        self.push(self.memo[place])

    def integer_line(self) -> None:
        text = self.line()
        self.push({b"00": False, b"01": True}[text] if text in (b"00", b"01") else self.integer(text))

    def quoted_line(self) -> None:
        text = self.line().strip()
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in b"'\"":
            raise PickleError("a string without quotation marks")
        self.push(codecs.escape_decode(text[1:-1])[0].decode("ascii"))

    def frame(self) -> None:
        size = self.number(8)
        if size > len(self.data) - self.at:
            raise PickleError(f"a frame of {size} bytes where {len(self.data) - self.at} are left")
        if self.at < self.frame_end:
            raise PickleError(f"a frame begins at byte {self.at}, within another")
        self.frame_end = self.at + size

    def protocol(self) -> None:
        self.version = self.read(1)[0]
        if self.version > 5:
            raise PickleError(f"protocol {self.version}")


def _signed(four: bytes) -> int:
    found: int = struct.unpack("<i", four)[0]
    return found


_STOP = ord(".")
_INSTRUCTIONS: dict[int, Callable[[_Machine], None]] = {
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("0"): _Machine.drop,
    ord("1"): lambda m: (m.since_mark(), None)[1],
    ord("2"): lambda m: m.push(m.top()),
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
    # numbers
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("I"): _Machine.integer_line,
    ord("J"): lambda m: m.push(_signed(m.read(4))),
    ord("K"): lambda m: m.push(m.number(1)),
    ord("M"): lambda m: m.push(m.number(2)),
    ord("L"): lambda m: m.push(m.integer(m.line().rstrip(b"L"))),
    0x8A: lambda m: m.push(m.long(m.number(1))),
    0x8B: lambda m: m.push(m.long(m.number(4))),
    ord("F"): lambda m: m.push(float(m.line())),
    ord("G"): lambda m: m.push(struct.unpack(">d", m.read(8))[0]),
    # strings
    ord("S"): _Machine.quoted_line,
    ord("T"): lambda m: m.push(m.read(_signed(m.read(4))).decode("ascii")),
    ord("U"): lambda m: m.push(m.read(m.number(1)).decode("ascii")),
    ord("V"): lambda m: m.push(m.line().decode("raw-unicode-escape")),
    0x8C: lambda m: m.push(m.string(m.number(1))),
    ord("X"): lambda m: m.push(m.string(m.number(4))),
    0x8D: lambda m: m.push(m.string(m.number(8))),
    ord("C"): lambda m: m.push(m.read(m.number(1))),
    ord("B"): lambda m: m.push(m.read(m.number(4))),
    0x8E: lambda m: m.push(m.read(m.number(8))),
    0x96: lambda m: m.push(bytearray(m.read(m.number(8)))),
    # containers
    ord(")"): lambda m: m.push(()),
    0x85: lambda m: m.made_tuple([m.pop()]),
    0x86: lambda m: m.made_tuple([m.pop(), m.pop()][::-1]),
    0x87: lambda m: m.made_tuple([m.pop(), m.pop(), m.pop()][::-1]),
    ord("t"): lambda m: m.made_tuple(m.since_mark()),
    ord("]"): lambda m: m.push([]),
    ord("l"): _Machine.made_list,
    ord("a"): _Machine.append_one,
    ord("e"): lambda m: m.extend(m.since_mark()),
    ord("}"): lambda m: m.push({}),
    ord("d"): _Machine.made_dict,
    ord("s"): _Machine.set_one,
    ord("u"): lambda m: m.update(m.since_mark()),
    0x8F: lambda m: m.push(set()),
    0x90: _Machine.add,
    0x91: _Machine.made_frozenset,
    # the memo
    ord("p"): lambda m: m.keep(m.integer(m.line())),
    ord("q"): lambda m: m.keep(m.number(1)),
    ord("r"): lambda m: m.keep(m.number(4)),
    0x94: lambda m: m.keep(len(m.memo)),
    ord("g"): lambda m: m.recall(m.integer(m.line())),
    ord("h"): lambda m: m.recall(m.number(1)),
    ord("j"): lambda m: m.recall(m.number(4)),
    # names, and objects of classes
    ord("c"): _Machine.global_line,
    0x93: _Machine.global_of_stack,
    ord("R"): _Machine.reduce,
    0x81: lambda m: m.new(*[m.pop(), m.pop()][::-1]),
    0x92: _Machine.new_with_keywords,
    ord("o"): _Machine.old_object,
    ord("i"): _Machine.old_instance,
    ord("b"): _Machine.build,
    ord("Q"): _Machine.persistent,
}
