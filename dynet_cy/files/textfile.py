"""DyNet's text format for models: a reader and a writer, independent of the engine.

A file is a sequence of entries. An entry is a header line and one line of numbers, or two when gradients follow::

    #Parameter# /W {2,3} 97 ZERO_GRAD
    +1.00000000e+00 +2.00000000e+00 ... (the values, first index fastest, a blank after each)
    #LookupParameter# /E {4,10} 1282 FULL_GRAD
    ... (the values, row after row: the dimensions are those of a row, then the number of rows)
    ... (the gradients)

The number in the header is the length of the lines of numbers in bytes, which DyNet uses to skip entries. This reader
goes by line ends and then compares the length: a file that has lost bytes, within a number or elsewhere, is an error.
Nothing in a file is executed.
"""

from __future__ import annotations

import codecs
import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynet_cy.files.reading import Path, is_plain, not_whole, other_format, unpacked
from dynet_cy.files.replacing import replacing

if TYPE_CHECKING:
    from numpy.typing import NDArray


PARAMETER = "Parameter"
LOOKUP = "LookupParameter"

_HEADER = re.compile(
    r"#(Parameter|LookupParameter)# (.+) \{((?:[0-9]{1,10},){0,7}[0-9]{1,10}|)\} ([0-9]{1,19}) (ZERO_GRAD|FULL_GRAD)\s*"
)
_HEADER_LIMIT = 1 << 16
_BLOCK = 1 << 20  # bytes read at a time from a line of numbers
_VALUES = 1 << 14  # numbers formatted at a time
_WIDTH = 16  # bytes of a finite number and the blank after it
_SHORT = 11  # how many bytes shorter others are, such as "+nan"

# How files of other models begin, and how to read them. DyNet 1 wrote archives of Boost, as text or binary.
_MODELS: list[tuple[Any, str]] = [
    (b"\x1f\x8b", "it is compressed by gzip; uncompress it first (gunzip)"),
    (
        b"PK\x03\x04",
        "it is a zip archive, such as those of torch.save and numpy.savez: read it there, and give the arrays to "
        "load_state_dict, or to load_pytorch of the layer",
    ),
    (b"\x80\x02\x8a\n", "it is a file of torch.save: read it there, and see load_pytorch"),
    (b"\x80", "it is a pickle, such as the .meta file of dy.save; the parameters are in the .data file beside it"),
    (b"\x93NUMPY", "it is an array of numpy.save: read it by numpy.load, and set the parameter by set_value"),
    (b"\x89HDF", "it is an HDF5 file: read it by h5py, and give the arrays to load_state_dict"),
    ((b"#Parameter#", b"#LookupParameter#"), "it is a text model file; populate of a collection reads those"),
    (
        (b"22 serialization::archive", b"\x16\0\0\0\0\0\0\0serialization::archive"),
        "it is a model of DyNet 1, an archive of Boost: load it there, and save its arrays by NumPy",
    ),
]
_SAFETENSORS = re.compile(rb".{6}\0\0 *\{", re.DOTALL)


class Entry(NamedTuple):
    """A parameter or a lookup table of a text file."""

    kind: str
    """PARAMETER or LOOKUP."""
    name: str
    """The full name, such as "/encoder/W"."""
    dim: tuple[int, ...]
    """The dimensions; for a lookup table those of a row, then the number of rows."""
    values: NDArray[np.float32]
    """The values, flat, first index fastest."""
    grads: NDArray[np.float32] | None = None
    """The gradients in the same order, or None."""


class ModelFileError(ValueError, RuntimeError):
    """A text model file cannot be used. (DyNet raises RuntimeError here.)

    Args:
        message: what is wrong.

    Attributes:
        path: the file.
        line: the number of the line, from 1, or None.
        parameter: the full name of the parameter, or None.

    Example:
        >>> with open("broken", "w") as file:
        ...     _ = file.write("?")
        >>> dy.load_safetensors("broken", model)
        Traceback (most recent call last):
            ...
        dynet_cy.files.textfile.ModelFileError: not a safetensors file
    """

    def __init__(self, message: str, path: str, line: int | None = None, parameter: str | None = None) -> None:
        where = path + (f", line {line}" if line is not None else "")
        super().__init__(f"{where}: {f'parameter {parameter}: ' if parameter is not None else ''}{message}")
        self.path = path
        self.line = line
        self.parameter = parameter


class NotAModelFileError(ModelFileError):
    """A header or a number is missing: the file has other text in its place."""


class TruncatedModelFileError(ModelFileError):
    """The file ends in the middle of an entry."""


class WrongCountError(ModelFileError):
    """A line holds more or fewer numbers than the dimensions ask for, or bytes than the header says."""


class ModelMismatchError(ModelFileError):
    """The file is complete, but its parameters do not match those that are to be filled."""


# Numbers as they are written, "+d.dddddddde+dd ", are converted many at a time, in both directions.
_POWERS = 10.0 ** np.arange(-120, 121)  # 10**k is _POWERS[k + 120]
_DIGITS = np.array([1, 3, 4, 5, 6, 7, 8, 9, 10])  # columns of the digits
_PLACES = 10 ** np.arange(8, -1, -1)


def _regular(block: bytes) -> NDArray[np.float32] | None:
    """The numbers of a block in which all are written in this form; None for any other block."""
    count = len(block) // _WIDTH
    if count == 0 or len(block) > count * _WIDTH + 2 or block[count * _WIDTH :].strip():
        return None
    text = np.frombuffer(block, dtype=np.uint8, count=count * _WIDTH).reshape(count, _WIDTH)
    digits = text[:, _DIGITS] - np.uint8(48)  # other characters become larger than 9
    power = text[:, 13:15] - np.uint8(48)
    signs = text[:, [0, 12]]
    if (digits > 9).any() or (power > 9).any() or ((signs != 43) & (signs != 45)).any():
        return None
    if (text[:, 2] != 46).any() or (text[:, 11] != 101).any() or (text[:, 15] != 32).any():
        return None
    exponent = power[:, 0].astype(np.intp) * 10 + power[:, 1]
    exponent[signs[:, 1] == 45] *= -1
    if exponent.max() > 37:  # perhaps more than a float32 holds
        return None
    wide = (digits @ _PLACES) * _POWERS[exponent + 112]
    wide[signs[:, 0] == 45] *= -1
    with np.errstate(under="ignore"):
        values: NDArray[np.float32] = wide.astype(np.float32)
    return values


def _formatted(values: NDArray[np.float32]) -> bytes:
    """The numbers, each as "%+.8e" and a blank."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        size = np.abs(values.astype(np.float64))
    usual = (size >= 1e-37) & (size < 1e38)
    size[~usual] = 1
    exponent = np.floor(np.log10(size)).astype(np.intp)
    scaled = size * _POWERS[128 - exponent]
    exponent += (scaled >= 1e9).astype(np.intp) - (scaled < 1e8)  # where the logarithm was rounded across an integer
    scaled = size * _POWERS[128 - exponent]
    mantissa = np.rint(scaled)
    # The product is off by less than 1e-6. If that could change the rounding, format the number exactly.
    usual &= (np.abs(scaled - np.floor(scaled) - 0.5) > 1e-4) & (mantissa >= 1e8) & (mantissa < 1e9)
    text = np.empty((len(values), _WIDTH), dtype=np.uint8)
    text[:, 0] = np.where(np.signbit(values), 45, 43)
    text[:, 2], text[:, 11], text[:, 15] = 46, 101, 32
    rest = mantissa.astype(np.int64)
    for column in _DIGITS[::-1]:
        text[:, column] = rest % 10 + 48
        rest //= 10
    text[:, 12] = np.where(exponent < 0, 45, 43)
    np.abs(exponent, out=exponent)
    text[:, 13], text[:, 14] = exponent // 10 + 48, exponent % 10 + 48
    zero = values == 0
    text[zero, 1], text[zero, 12] = 48, 43
    others = np.flatnonzero(~(usual | zero))
    if len(others) == 0:
        return text.tobytes()
    parts = []
    start = 0
    for place in others.tolist():
        parts += [text[start:place].tobytes(), b"%+.8e " % values[place].item()]
        start = place + 1
    return b"".join([*parts, text[start:].tobytes()])


def _braces(dim: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, dim)) + "}"


def _shown(line: bytes) -> str:
    text = line[:60].decode("utf-8", "replace").rstrip("\r\n")
    return repr(text) + ("..." if len(line) > 60 else "")


def known_format(beginning: bytes) -> str:
    """The format of a file that is neither a text file nor one of safetensors, and what reads it, behind a colon; ""
    if it is not known."""
    return next((f": {what}" for start, what in _MODELS if beginning.startswith(start)), other_format(beginning))


def _known_to_text(line: bytes) -> str:
    """`known_format` of the first line of a file that is no text file."""
    if _SAFETENSORS.match(line):
        return ": it is a safetensors file; load_safetensors reads those"
    return known_format(line)


class Header(NamedTuple):
    """The first line of an entry of a text file."""

    kind: str
    name: str
    dim: tuple[int, ...]
    size: int
    """Bytes of the lines of numbers."""
    full: bool
    """Whether gradients follow."""

    @property
    def n_numbers(self) -> int:
        """The number of numbers in each line."""
        return math.prod(self.dim)


class _Reader:
    """The lines of a file, with their numbers; lines of numbers are read in blocks."""

    def __init__(self, file: IO[bytes], path: str) -> None:
        self.file = file
        self.path = path
        self.line = 0
        self.last = b""  # the last number of a line without an end
        self.sizes = np.zeros(2, np.int64)  # bytes of an entry's lines of numbers: in this file, as first written

    def header(self) -> Header | None:
        """The next header; None at the end of the file."""
        while True:
            line = self.file.readline(_HEADER_LIMIT)
            if not line:
                return None
            self.line += 1
            if self.line == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                break
        try:
            match = _HEADER.fullmatch(line.decode("utf-8"))
        except UnicodeDecodeError:
            match = None
        if match is None:
            if not line.endswith(b"\n") and len(line) < _HEADER_LIMIT and line.startswith((b"#P", b"#L")):
                raise TruncatedModelFileError(f"the file ends in a header: {_shown(line)}", self.path, self.line)
            message = f"Bad parameter specification in model: {_shown(line)}"
            raise NotAModelFileError(message + (_known_to_text(line) if self.line == 1 else ""), self.path, self.line)
        if not line.endswith(b"\n"):
            raise TruncatedModelFileError("the file ends after a header", self.path, self.line, match[2])
        dim = tuple(map(int, match[3].split(","))) if match[3] else ()
        return Header(match[1], match[2], dim, int(match[4]), match[5] == "FULL_GRAD")

    def skip(self, header: Header) -> None:
        """Skip an entry's lines of numbers, which must be long enough for its numbers."""
        for _ in range(1 + header.full):
            self.line += 1
            block = self.file.readline(_BLOCK)
            if not block:
                message = "the file ends where its numbers must be"
                raise TruncatedModelFileError(message, self.path, self.line, header.name)
            size = len(block)
            while block and not block.endswith(b"\n"):
                block = self.file.readline(_BLOCK)
                size += len(block)
            if size < 2 * header.n_numbers - 1:
                kind = WrongCountError if block else TruncatedModelFileError
                message = f"{size} bytes where its dimensions {_braces(header.dim)} take {header.n_numbers} numbers"
                raise kind(message, self.path, self.line, header.name)

    def headers(self) -> Iterator[Header]:
        """All headers; the numbers of an entry are skipped after its header was used."""
        while (header := self.header()) is not None:
            yield header
            self.skip(header)

    def numbers(self, header: Header) -> NDArray[np.float32]:
        """A line of numbers."""
        self.line += 1
        name, dim, want = header.name, header.dim, header.n_numbers
        parts: list[NDArray[np.float32]] = []  # as they are read, whatever is claimed
        count = size = written = 0  # numbers, bytes, bytes without trailing blanks and the line end
        block = rest = last = b""  # `last` is the last block with numbers
        while not block.endswith(b"\n"):
            block = self.file.readline(_BLOCK)
            if not block and not size and want:
                raise TruncatedModelFileError("the file ends where its numbers must be", self.path, self.line, name)
            if content := len(block.rstrip()):
                written = size + content
            size += len(block)
            cut_off = not block
            block = rest + block
            if not cut_off and not block.endswith(b"\n"):  # the last word may continue in the next block
                cut = max(block.rfind(b" "), block.rfind(b"\t")) + 1
                block, rest = block[:cut], block[cut:]
                if len(rest) > _BLOCK:
                    raise NotAModelFileError(f"not a number: {_shown(rest)}", self.path, self.line, name)
            parts.append(self.parsed(block, name))
            count += len(parts[-1])
            if count > want:
                message = f"more numbers than its dimensions {_braces(dim)} take ({want})"
                raise WrongCountError(message, self.path, self.line, name)
            last = block if block.strip() else last
            if cut_off:
                break
        if count < want:
            kind = TruncatedModelFileError if cut_off else WrongCountError
            message = f"{count} numbers where its dimensions {_braces(dim)} take {want}"
            raise kind(message + (", then the file ends" if cut_off else ""), self.path, self.line, name)
        self.last = (last.split() or [last])[-1] if cut_off else b""
        self.sizes += np.array([size, written + 2 if written else 1])
        return np.concatenate(parts)

    def parsed(self, block: bytes, name: str) -> NDArray[np.float32]:
        """The numbers of a block."""
        regular = _regular(block)
        if regular is not None:
            return regular
        words = block.split()
        wide = np.array([self.number(word, name) for word in words])
        with np.errstate(over="ignore", under="ignore"):
            values: NDArray[np.float32] = wide.astype(np.float32)
        overflow = np.isinf(values) & ~np.isinf(wide)
        if overflow.any():
            bad = words[int(overflow.argmax())]
            raise NotAModelFileError(f"beyond the range of float32: {_shown(bad)}", self.path, self.line, name)
        return values

    def number(self, word: bytes, name: str) -> float:
        try:
            return float(b"" if b"_" in word else word)  # Python's float accepts "1_000"
        except ValueError:
            raise NotAModelFileError(f"not a number: {_shown(word)}", self.path, self.line, name) from None

    def entry(self, header: Header) -> Entry:
        """The rest of an entry after its header."""
        self.sizes = np.zeros(2, np.int64)
        lines = [self.numbers(header) for _ in range(1 + header.full)]
        # The present length, or that before line ends were converted or lost at the end.
        sizes = self.sizes.tolist()
        if header.size not in sizes:
            # DyNet counts "+nan" and "+inf" as long as other numbers.
            others = sum(int((~np.isfinite(line)).sum()) for line in lines)
            if header.size != sizes[1] + _SHORT * others:
                if self.last:
                    message = f"the file ends in a number: {_shown(self.last)}"
                    raise TruncatedModelFileError(message, self.path, self.line, header.name)
                message = (
                    f"{sizes[0]} bytes of numbers where its header counts {header.size}; the file was damaged, or "
                )
                message += "was changed without the number before ZERO_GRAD or FULL_GRAD"
                raise WrongCountError(message, self.path, self.line, header.name)
        return Entry(header.kind, header.name, header.dim, lines[0], lines[1] if header.full else None)

    def entries(self, select: Callable[[str, str], bool] | None = None) -> Iterator[Entry]:
        """The entries for which `select` is true, or all."""
        while (header := self.header()) is not None:
            if select is None or select(header.kind, header.name):
                yield self.entry(header)
            else:
                self.skip(header)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Reader]:
    shown = os.fsdecode(path)
    with unpacked(path, "a text model file") as file:
        try:
            yield _Reader(file, shown)
        except not_whole() as error:
            raise TruncatedModelFileError(f"not a whole gzip file: {error}", shown) from error


def read_text_model(path: Path, select: Callable[[str, str], bool] | None = None) -> Iterator[Entry]:
    """The entries of a text model file, one after the other as they are requested.

    Blank lines between entries, other line ends, a byte order mark, compression by gzip, other ways to write a number,
    nan and inf are accepted.

    Args:
        path: the file.
        select: called with kind and full name; an entry for which it is false is skipped without reading its
            numbers.

    Raises:
        NotAModelFileError: this is not a text model file.
        TruncatedModelFileError: the file ends in the middle of an entry.
        WrongCountError: a line holds more or fewer numbers than its header says, or has more or fewer bytes.
    """
    with _opened(path) as reader:
        yield from reader.entries(select)


def scan_text_model(file: IO[bytes], path: str) -> tuple[list[Header], Iterator[Entry]]:
    """The headers of an open text model file, and its entries, which are read when they are requested.

    Each line of numbers has been checked to be long enough for the dimensions in its header, so these can be trusted.

    Args:
        file: the file, which is read from its beginning, whatever its position.
        path: its name, for errors.

    Raises:
        ModelFileError: see `read_text_model`.
    """
    file.seek(0)
    headers = [*_Reader(file, path).headers()]
    file.seek(0)
    return headers, _Reader(file, path).entries()


def key_filter(key: str) -> Callable[[str], bool]:
    """Whether a full name lies below `key`, the name of a collection: "/s" and "/s/" have "/s/W" but not "/s_1/W".

    "" and "/" have everything.
    """
    prefix = key if key.endswith("/") or not key else key + "/"
    return lambda name: name.startswith(prefix)


def populate_entries(
    path: Path,
    parameters: Sequence[tuple[str, tuple[int, ...]]],
    lookups: Sequence[tuple[str, tuple[int, ...]]],
    key: str = "",
    collection: str | None = "/",
) -> Iterator[tuple[int, Entry]]:
    """The entries of a file for the parameters of a collection, each with the index of its parameter among its kind.

    As in DyNet, parameters in the file match those of the collection by order, and so do lookup tables. But where both
    have the same names in another order, they match by name. All headers are checked before the first entry is yielded,
    so a file of another model leaves the collection unchanged.

    Args:
        path: the file.
        parameters: full name and dimensions of each parameter to fill.
        lookups: the same for the lookup tables (dimensions of a row, then the number of rows).
        key: take only entries below the collection of this name in the file.
        collection: the name of the collection, which begins the names; None: names do not matter.

    Raises:
        ModelMismatchError: the dimensions differ, or there are too many or too few parameters.
        ModelFileError: see `read_text_model`.
    """
    shown = os.fsdecode(path)
    wanted = {PARAMETER: parameters, LOOKUP: lookups}
    label = {PARAMETER: "parameter", LOOKUP: "lookup parameter"}
    below, above = key_filter(key), len(key.rstrip("/")) + 1
    found: dict[str, list[tuple[str, tuple[int, ...], int]]] = {PARAMETER: [], LOOKUP: []}
    with _opened(path) as reader:
        for header in reader.headers():
            kind, name, dim = header[:3]
            if below(name):
                if len(found[kind]) == len(wanted[kind]):
                    message = f"Too many {label[kind]}s: the model to be populated has {len(wanted[kind])}"
                    raise ModelMismatchError(message, shown, reader.line, name)
                found[kind].append((name, dim, reader.line))
    places: dict[str, Sequence[int]] = {}
    for kind, entries in found.items():
        own = {name[len((collection or "").rstrip("/")) + 1 :]: k for k, (name, _) in enumerate(wanted[kind])}
        names = [name[above:] for name, *_ in entries]
        by_name = collection is not None and own.keys() == {*names} and len(own) == len(wanted[kind]) == len(names)
        places[kind] = [own[name] for name in names] if by_name else range(len(names))
        for (name, dim, line), place in zip(entries, places[kind]):
            own_name, own_dim = wanted[kind][place]
            if tuple(own_dim) != dim:
                message = f"Dimensions of {label[kind]} {name} looked up from file ({_braces(dim)}) do not match "
                message += f"parameters to be populated ({_braces(tuple(own_dim))}, {own_name})"
                raise ModelMismatchError(message, shown, line, name)
    n_parameters, n_lookups = len(found[PARAMETER]), len(found[LOOKUP])
    if (n_parameters, n_lookups) != (len(parameters), len(lookups)):
        counts = f"({n_parameters}/{n_lookups}) did not match number to be populated "
        counts += f"({len(parameters)}/{len(lookups)})"
        missing = [name for kind, names in wanted.items() for name, _ in names[len(found[kind]) :]]
        message = f"Number of parameter/lookup parameter objects loaded from file {counts}; nothing for "
        message += ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        if key:
            message += f" below {key}"
        raise ModelMismatchError(message, shown)
    if key.strip("/") and not n_parameters + n_lookups:
        raise ModelMismatchError(f"has nothing below {key}", shown)
    position = {kind: iter(of_kind) for kind, of_kind in places.items()}
    for entry in read_text_model(path, lambda _, name: below(name)):
        yield next(position[entry.kind]), entry


def write_text_model(path_or_file: Path | IO[bytes], entries: Iterable[Entry | Any], append: bool = False) -> None:
    """Write a text model file.

    Args:
        path_or_file: a file name, which is replaced whole or not at all, or a binary file, which is
            written to.
        entries: tuples (kind, name, dim, values, grads); values and grads flat with the first index fastest, or of
            shape `dim`. The entries are consumed one at a time.
        append: whether to keep the present content of the file.

    Raises:
        ModelFileError: the content to keep is not a whole, uncompressed text model.
        ValueError: an entry cannot be written because of its kind, its name, or a number of values that does not match
            its dimensions.
    """
    if isinstance(path_or_file, (str, bytes, os.PathLike)):
        if append and os.path.isfile(path_or_file):
            _check_whole(path_or_file)
        with replacing(path_or_file, append) as file:
            _write(file, entries)
    else:
        _write(path_or_file, entries)


def _check_whole(path: Path) -> None:
    """Read a file to which entries will be appended: after a part of an entry, they could not be read."""
    with _opened(path) as reader:
        if not is_plain(reader.file):
            raise NotAModelFileError("it is compressed by gzip; nothing can be appended to it", reader.path)
        for _ in reader.headers():
            pass
        has_end = not reader.line or (reader.file.seek(-1, os.SEEK_END), reader.file.read())[1] == b"\n"
    if not has_end:  # perhaps cut off in its last number
        for _ in read_text_model(path):
            pass


def _write(file: IO[bytes], entries: Iterable[Any]) -> None:
    for item in entries:
        entry = Entry(*item)
        lines = [_flat(entry, entry.values, "values")]
        if entry.grads is not None:
            lines.append(_flat(entry, entry.grads, "gradients"))
        if entry.kind not in (PARAMETER, LOOKUP):
            raise ValueError(f"the kind of {entry.name} is neither {PARAMETER} nor {LOOKUP}: {entry.kind!r}")
        if not entry.name or not entry.name.isprintable() or entry.name != entry.name.strip():
            raise ValueError(f"not a name for a parameter in a text file: {entry.name!r}")
        size = sum(_WIDTH * line.size + 1 - _SHORT * int((~np.isfinite(line)).sum()) for line in lines)
        flag = "ZERO_GRAD" if entry.grads is None else "FULL_GRAD"
        header = f"#{entry.kind}# {entry.name} {_braces(entry.dim)} {size} {flag}\n".encode()
        if len(header) >= _HEADER_LIMIT:
            message = f"{entry.name[:60]!r}... of {len(entry.name)} characters is too long for a text file"
            raise ValueError(f"{message}, whose headers have less than {_HEADER_LIMIT} bytes")
        file.write(header)
        for line in lines:
            for start in range(0, line.size, _VALUES):
                file.write(_formatted(line[start : start + _VALUES]))
            file.write(b"\n")


def _flat(entry: Entry, values: Any, what: str) -> NDArray[np.float32]:
    array: NDArray[np.float32] = np.asarray(values, dtype=np.float32)
    if array.shape != (math.prod(entry.dim),) and array.shape != tuple(entry.dim):
        message = f"the {what} of {entry.name} have shape {array.shape}, its dimensions are {_braces(entry.dim)}"
        raise ValueError(message)
    return array.reshape(-1, order="F")
