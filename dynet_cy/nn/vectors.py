"""Pretrained word vectors: word2vec, fastText, GloVe, npz and safetensors files.

- text, of word2vec, fastText (`.vec`) and GloVe: a line for each word, followed by its numbers, with blanks or tabs
  between them; except in GloVe, the first line has the number of words and the length of a vector
- binary, of word2vec (`.bin`): the same first line; then each word, followed by a space and 32-bit floats
- `.npz`: arrays `words` (strings) and `vectors` (a row for each word)
- `.safetensors`: one matrix, with a row for each word; the metadata have `words`, a list in JSON

The size stated in a file is compared with its contents before memory is allocated.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import warnings
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from dynet_cy.core.items import check_no_table
from dynet_cy.files.reading import FileName, is_plain, not_whole, opened, text_bytes, unpacked
from dynet_cy.files.textfile import ModelFileError
from dynet_cy.model import ParameterCollection
from dynet_cy.model.initializers import NormalInitializer
from dynet_cy.model.weights import read_tensors
from dynet_cy.nn.basic import Embedding

if TYPE_CHECKING:
    from zipfile import ZipFile

__all__ = ["WordVectors", "read_vectors"]

Floats = npt.NDArray[np.float32]
Rows = Iterator[tuple[bytes, Floats]]

_LONGEST_LINE = 1 << 22
_LONGEST_WORD = 1 << 16
_BLOCK = 1 << 20
_LARGEST_RATIO = 1100  # deflate never compresses by more than this
_FASTTEXT_MODEL = struct.pack("<i", 793712314)


class WordVectors:
    """Words and their vectors: `vectors["dog"]`, `"dog" in vectors`, `len(vectors)`, iteration over the words.

    Args:
        words: the words; if one is repeated, its first vector counts
        array: shape (words, dim): a row for each word

    Attributes:
        words: the words, in the order of the rows
        array: the vectors

    Raises:
        ValueError: the number of rows is not that of words

    Example:
        >>> import dynet_cy as dy
        >>> vectors = dy.nn.WordVectors(["the", "dog"], [[1, 2, 3], [4, 5, 6]])
        >>> "dog" in vectors, vectors["dog"].tolist()
        (True, [4.0, 5.0, 6.0])
        >>> table = dy.ParameterCollection().lookup_parameters_from_numpy(vectors.array)
        >>> table[1].npvalue().tolist()
        [4.0, 5.0, 6.0]
    """

    def __init__(self, words: Iterable[str], array: npt.ArrayLike) -> None:
        self.words = list(words)
        self.array: Floats = np.asarray(array, dtype=np.float32)
        if self.array.ndim != 2 or len(self.array) != len(self.words):
            raise ValueError(f"WordVectors: {len(self.words)} words, but the array has shape {self.array.shape}")
        self._rows: dict[str, int] = {}
        for row, word in enumerate(self.words):
            self._rows.setdefault(word, row)

    @property
    def dim(self) -> int:
        """Length of a vector.

        Example:
            >>> import dynet_cy as dy
            >>> dy.nn.WordVectors(["the", "dog"], [[1, 2, 3], [4, 5, 6]]).dim
            3
        """
        return int(self.array.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __getitem__(self, word: str) -> Floats:
        """The vector of a word.

        Raises:
            KeyError: it has none
        """
        found: Floats = self.array[self._rows[word]]
        return found

    def embedding(
        self,
        model: ParameterCollection,
        words: Sequence[str] | None = None,
        padding: int | None = None,
        frozen: bool = False,
    ) -> Embedding:
        """An `Embedding` with these vectors.

        Args:
            model: where the table goes
            words: a vocabulary: the word of each number. A word without a vector gets the vector of its lower-case
                form or, if there is none, normally distributed numbers with the variance of all these vectors. None,
                the default, for `self.words`.
            padding, frozen: see `Embedding`

        Raises:
            ValueError: an empty vocabulary, or `padding` is not one of its numbers

        Example:
            >>> import dynet_cy as dy
            >>> vectors = dy.nn.WordVectors(["the", "dog"], [[1, 2, 3], [4, 5, 6]])
            >>> vocabulary = dy.data.Vocabulary(["a", "dog"])
            >>> layer = vectors.embedding(dy.ParameterCollection(), vocabulary.words)
            >>> layer(vocabulary["dog"]).npvalue().tolist()
            [4.0, 5.0, 6.0]
            >>> layer.table.shape()  # a row for each word, a lookup table like others
            (3, 3)
        """
        if words is None:
            return Embedding.from_numpy(self.array, model, padding, frozen)
        if len(words) == 0:
            raise ValueError("WordVectors.embedding: argument words: the vocabulary is empty")
        layer = Embedding(len(words), self.dim, model, padding, frozen, NormalInitializer(0, float(self.array.var())))
        table = layer.table.as_array().copy()
        for number, word in enumerate(words):
            row = self._rows.get(word, self._rows.get(word.lower()))
            if row is not None:
                table[number] = self.array[row]
        layer.table.init_from_array(table)
        return layer

    def __repr__(self) -> str:
        return f"<WordVectors of {len(self)} words, {self.dim} numbers each>"


def read_vectors(
    path: FileName, format: str | None = None, words: Collection[str] | None = None, errors: str = "strict"
) -> WordVectors:
    """Read word vectors.

    Args:
        path: name of the file; text and binary files may be gzipped
        format: "text" (word2vec, fastText, GloVe), "binary" (word2vec), "npz" or "safetensors"; None, the default:
            by the extension `.bin`, `.npz` or `.safetensors`, and text for all others
        words: which words to keep; None for all
        errors: "strict" for an error at the first bad line; "skip" to leave bad lines out, and to read what there is of
            a file that is cut off or has fewer words than its first line says, with a warning that says how much is
            missing. Or what to do with words that are not UTF-8, as in `bytes.decode`: "replace", "ignore"

    Returns:
        The words and vectors, in the order of the file; of repeated words the first.

    Raises:
        ModelFileError: the file is damaged or of another kind; the message says where
        ValueError: there is no such format
        OSError: the file cannot be read

    Example:
        >>> import dynet_cy as dy, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "tiny.vec")
        >>> with open(path, "w") as file:
        ...     _ = file.write("2 3\\nthe 0.1 0.2 0.3\\ndog 1 2 3\\n")
        >>> vectors = dy.nn.read_vectors(path)
        >>> vectors["dog"].tolist()
        [1.0, 2.0, 3.0]
        >>> layer = vectors.embedding(dy.ParameterCollection(), words=["dog", "cat"])
        >>> layer([0, 1]).dim()
        ((3, 2), 1)
    """
    name = os.fspath(path)
    ending = name[: -len(".gz")] if name.endswith(".gz") else name
    if format is None:
        known = {".bin": "binary", ".npz": "npz", ".safetensors": "safetensors"}
        format = known.get(os.path.splitext(ending)[1], "text")
    if format == "npz":
        return _chosen(*_read_npz(name), words)
    if format == "safetensors":
        return _chosen(*_read_safetensors(name), words)
    readers: dict[str, Callable[[_Source], tuple[int, Rows]]] = {"text": _text_rows, "binary": _binary_rows}
    if format not in readers:
        expected = "expected 'text', 'binary', 'npz' or 'safetensors'"
        raise ValueError(f"read_vectors: argument format: {expected}, got {format!r:.80}")
    check_no_table("read_vectors", words, "words")
    kept = None if words is None else set(words)
    found: dict[str, None] = {}
    numbers = array("f")
    with _Source(name, format, errors == "skip") as source, np.errstate(over="ignore"):
        dim, rows = readers[format](source)
        for number, (raw, vector) in enumerate(source.whole(rows), 1):
            try:
                word = raw.decode("utf-8", "strict" if errors == "skip" else errors)
            except UnicodeDecodeError:
                source.bad(f"word {number} is not UTF-8: {raw!r:.80}")
                continue
            if word in found or (kept is not None and word not in kept):
                continue
            if not np.isfinite(vector).all():
                source.bad(f"the vector of word {number}, {word!r:.80}, has numbers that are not finite")
                continue
            found[word] = None
            numbers.frombytes(vector.tobytes())
        if source.missing:
            lines = "line" if len(source.missing) == 1 else "lines"
            first = f"{len(source.missing)} bad {lines} left out; the first: {source.missing[0]}"
            warnings.warn(f"{name}: {first}", stacklevel=2)
    return WordVectors(found, np.frombuffer(numbers, np.float32).reshape(len(found), dim))


class _Source:
    """An open text or binary file of vectors, and what is bad in it: an error, or counted where it is to be skipped."""

    def __init__(self, name: str, format: str, skips: bool) -> None:
        self.name, self._skips = name, skips
        self.missing: list[str] = []
        what = "a file of word vectors"
        try:
            self.file: Any = unpacked(name, what) if format == "binary" else text_bytes(name, what)[0]
        except ValueError as error:
            raise ModelFileError(str(error).replace(f"{name}: ", "", 1), name) from error

    def bad(self, message: str, line: int | None = None) -> None:
        if not self._skips:
            raise ModelFileError(f"{message}; errors= says what to do", self.name, line) from None
        self.missing.append(message if line is None else f"line {line}: {message}")

    def whole(self, rows: Rows) -> Rows:
        """The rows, up to the place where a gzip file ends too early."""
        try:
            yield from rows
        except not_whole() as error:
            self.bad(f"not a whole gzip file: {error}")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are not empty, with their numbers and ends."""
        number, empty = 0, 0
        while line := self.file.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise ModelFileError("a line that never ends: not a text file of word vectors", self.name, number)
            if not line.strip():
                empty = empty or number
                continue
            if empty:
                self.bad("an empty line within the file", empty)
                empty = 0
            yield number, line

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()


def _chosen(names: list[str], vectors: npt.NDArray[Any], words: Collection[str] | None) -> WordVectors:
    if words is None:
        return WordVectors(names, vectors)
    kept = set(words)
    rows = [row for row, word in enumerate(names) if word in kept]
    return WordVectors([names[row] for row in rows], vectors[rows])


# ---- text and binary


def _header(line: bytes) -> tuple[int, int] | None:
    """The number of words and the length of a vector, if the line is a header."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 19 for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _dim(line: bytes) -> int:
    """The number of numbers after a word, which may have blanks, or be a number itself."""
    parts = line.partition(b"\t")[2].split() if b"\t" in line else line.split()[1:]
    return next((i for i, part in enumerate(reversed(parts)) if not _is_number(part)), len(parts))


def _parts(line: bytes, dim: int) -> list[bytes]:
    """The word of a line, and its numbers: behind a tab, or the last ones."""
    if b"\t" in line:
        word, _, numbers = line.partition(b"\t")
        return [word.strip(b" "), *numbers.split()]
    parts = line.rsplit(b" ", dim)
    return parts if all(parts) else line.rsplit(None, dim)


def _text_rows(source: _Source) -> tuple[int, Rows]:
    lines = source.lines()
    try:
        number, first = next(lines, (1, b""))
    except not_whole() as error:
        raise ModelFileError(f"not a whole gzip file: {error}", source.name) from error
    header = _header(first)
    dim = _dim(first) if header is None else header[1]
    if dim < 1:
        raise ModelFileError(f"neither a header nor a word with numbers: {first.rstrip()!r:.80}", source.name, 1)
    taken = "first row" if header is None else "header"

    def rows() -> Rows:
        count = 0
        for number, line in lines if header else itertools.chain([(1, first)], lines):
            count += 1
            if header and count < header[0] and not line.endswith(b"\n"):
                source.bad(f"the file ends in word {count} of {header[0]}", number)
                continue
            if line[:1].isspace():
                source.bad("no word before the numbers", number)
                continue
            parts = _parts(line.rstrip(b" \t\r\n"), dim)
            if len(parts) != dim + 1:
                counted = f"{len(parts) - 1} numbers, there should be {dim} behind a word"
                source.bad(f"{counted}; line 1 was taken for a {taken}: {first.rstrip()!r:.60}", number)
                continue
            try:
                vector = np.array(parts[1:], dtype=np.float32)
            except ValueError as error:
                source.bad(f"not numbers behind a word: {error}", number)
                continue
            yield parts[0], vector
        if header is not None and count != header[0]:
            source.bad(f"{count} words, the first line says {header[0]}")

    return dim, rows()


def _binary_rows(source: _Source) -> tuple[int, Rows]:
    name, file = source.name, source.file
    try:
        first = file.readline(64)
    except not_whole() as error:
        raise ModelFileError(f"not a whole gzip file: {error}", name) from error
    if first.startswith(_FASTTEXT_MODEL):
        raise ModelFileError("a model of fastText, with parts of words; its vectors are in the .vec file", name)
    header = _header(first)
    if header is None or header[1] < 1 or not first.endswith(b"\n"):
        raise ModelFileError(f"the first line must have the numbers of words and of elements, not {first!r:.80}", name)
    count, dim = header
    if is_plain(file):
        left = os.fstat(file.fileno()).st_size - file.tell()
        if count * (4 * dim + 2) > left:
            source.bad(f"{left} bytes for {count} words of {dim} numbers: the file is not whole")

    def rows() -> Rows:
        data, at = b"", 0
        for number in range(1, count + 1):
            end = data.find(b" ", at)
            while end < 0 or end + 1 + 4 * dim > len(data):
                block = file.read(_BLOCK)
                if not block or (end < 0 and len(data) - at > _LONGEST_WORD):
                    source.bad(f"it ends within word {number} of {count}, or is no such file")
                    return
                data, at = data[at:] + block, 0
                end = data.find(b" ")
            vector = np.frombuffer(data, "<f4", dim, end + 1)
            yield data[at:end].lstrip(b"\n"), vector
            at = end + 1 + 4 * dim
        if (data[at:] + file.read(2)).strip(b"\n"):
            source.bad(f"there is more behind its {count} words")

    return dim, rows()


# ---- arrays


def _read_npz(name: str) -> tuple[list[str], npt.NDArray[Any]]:
    from zipfile import BadZipFile, ZipFile  # with what they import, they would add 8 ms to `import dynet_cy`

    with opened(name, "a file of word vectors") as file:
        try:
            with ZipFile(file) as archive:
                words, vectors = (_npz_array(archive, key) for key in ("words", "vectors"))
        # OSError: the position of the table of contents is negative (Python 3.9).
        except (BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, KeyError, OSError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(f"not a whole npz file with words and vectors: {error}", name) from error
    if words.dtype.kind == "S":
        words = np.char.decode(words, "utf-8")
    if words.ndim != 1 or words.dtype.kind != "U":
        raise ModelFileError(f"words must be strings, not an array {words.dtype}{list(words.shape)}", name)
    return words.tolist(), _checked(vectors, len(words), name)


def _npz_array(archive: ZipFile, key: str) -> npt.NDArray[Any]:
    """An array, read after checking its size against that of the file."""
    info = archive.getinfo(f"{key}.npy")
    if info.file_size > _LARGEST_RATIO * (info.compress_size + 1):
        raise ValueError(f"{key} cannot have {info.file_size} bytes")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        size = dtype.itemsize
        for n in shape:
            size *= n
        if dtype.hasobject or size > info.file_size:
            raise ValueError(f"{key} is {dtype}{list(shape)} in {info.file_size} bytes")
    with archive.open(info) as file:
        found: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return found


def _read_safetensors(name: str) -> tuple[list[str], npt.NDArray[Any]]:
    tensors = {key: tensor for key, tensor in read_tensors(name).items() if tensor.ndim == 2}
    if len(tensors) != 1:
        raise ModelFileError(f"one matrix of vectors is expected, there are {len(tensors)}", name)
    try:
        with safe_open(name, "numpy") as file:
            text = (file.metadata() or {}).get("words")
        words = json.loads(text) if text is not None else None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise ModelFileError(f"words in the metadata are no list: {error}", name) from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        message = "the metadata have no list of words; Embedding.load_pytorch reads tables without words"
        raise ModelFileError(message, name)
    (vectors,) = tensors.values()
    return words, _checked(vectors, len(words), name)


def _checked(vectors: npt.NDArray[Any], words: int, name: str) -> npt.NDArray[Any]:
    if vectors.ndim != 2 or len(vectors) != words or vectors.dtype.kind not in "fiu":
        raise ModelFileError(f"vectors are {vectors.dtype}{list(vectors.shape)} for {words} words", name)
    with np.errstate(over="ignore"):
        vectors = vectors.astype(np.float32)
    if not np.isfinite(vectors).all():
        raise ModelFileError("vectors have numbers that are not finite", name)
    return vectors
