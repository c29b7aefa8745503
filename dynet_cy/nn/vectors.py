"""Pretrained word vectors: word2vec, fastText, GloVe, npz and safetensors files.

- text, of word2vec, fastText (`.vec`) and GloVe: a line for each word, followed by its numbers; except in GloVe, the
  first line has the number of words and the length of a vector
- binary, of word2vec (`.bin`): the same first line; then each word, followed by a space and 32-bit floats
- `.npz`: arrays `words` (strings) and `vectors` (a row for each word)
- `.safetensors`: one matrix, with a row for each word; the metadata have `words`, a list in JSON

The size stated in a file is compared with its contents before memory is allocated.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import zipfile
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from dynet_cy.files.missing import opened
from dynet_cy.files.textfile import ModelFileError
from dynet_cy.model import ParameterCollection
from dynet_cy.model.initializers import NormalInitializer
from dynet_cy.model.weights import FileName, read_tensors
from dynet_cy.nn.basic import Embedding

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
        if not words:
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
        path: name of the file; text and binary files may be gzipped (`.gz`)
        format: "text" (word2vec, fastText, GloVe), "binary" (word2vec), "npz" or "safetensors"; None, the default:
            by the extension `.bin`, `.npz` or `.safetensors`, and text for all others
        words: which words to keep; None for all
        errors: what to do with words that are not UTF-8, as in `bytes.decode`: "strict" for an error, "replace",
            "ignore"

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
    readers: dict[str, Callable[[IO[bytes], str], tuple[int, Rows]]] = {"text": _text_rows, "binary": _binary_rows}
    if format not in readers:
        expected = "expected 'text', 'binary', 'npz' or 'safetensors'"
        raise ValueError(f"read_vectors: argument format: {expected}, got {format!r:.80}")
    kept = None if words is None else set(words)
    found: dict[str, None] = {}
    numbers = array("f")
    plain = opened(name, "a file of word vectors")
    with plain, gzip.open(plain) if name.endswith(".gz") else plain as unpacked, np.errstate(over="ignore"):
        file: Any = unpacked
        try:
            dim, rows = readers[format](file, name)
            for number, (raw, vector) in enumerate(rows, 1):
                try:
                    word = raw.decode("utf-8", errors)
                except UnicodeDecodeError as error:
                    message = f"word {number} is not UTF-8: {raw!r:.80}; errors= says what to do"
                    raise ModelFileError(message, name) from error
                if word in found or (kept is not None and word not in kept):
                    continue
                if not np.isfinite(vector).all():
                    message = f"the vector of word {number}, {word!r:.80}, has numbers that are not finite"
                    raise ModelFileError(message, name)
                found[word] = None
                numbers.frombytes(vector.tobytes())
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ModelFileError(f"not a whole gzip file: {error}", name) from error
    return WordVectors(found, np.frombuffer(numbers, np.float32).reshape(len(found), dim))


def _chosen(names: list[str], vectors: npt.NDArray[Any], words: Collection[str] | None) -> WordVectors:
    if words is None:
        return WordVectors(names, vectors)
    kept = set(words)
    rows = [row for row, word in enumerate(names) if word in kept]
    return WordVectors([names[row] for row in rows], vectors[rows])


# ---- text and binary


def _line(file: IO[bytes], name: str, number: int) -> bytes:
    line = file.readline(_LONGEST_LINE)
    if len(line) == _LONGEST_LINE:
        raise ModelFileError("a line that never ends: not a text file of word vectors", name, number)
    return line.rstrip(b" \r\n")


def _header(line: bytes) -> tuple[int, int] | None:
    """The number of words and the length of a vector, if the line is a header."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 19 for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def _text_rows(file: IO[bytes], name: str) -> tuple[int, Rows]:
    first = _line(file, name, 1)
    header = _header(first)
    dim = len(first.split(b" ")) - 1 if header is None else header[1]
    if dim < 1:
        raise ModelFileError(f"neither a header nor a word with numbers: {first!r:.80}", name, 1)

    def rows() -> Rows:
        number, line = (1, first) if header is None else (2, _line(file, name, 2))
        count = 0
        while line:
            parts = line.rsplit(b" ", dim)  # words may contain spaces
            if len(parts) != dim + 1:
                raise ModelFileError(f"{len(parts) - 1} numbers, there should be {dim}", name, number)
            try:
                vector = np.array(parts[1:], dtype=np.float32)
            except ValueError as error:
                raise ModelFileError(f"not numbers behind a word: {error}", name, number) from error
            yield parts[0], vector
            count += 1
            number += 1
            line = _line(file, name, number)
        if file.read(1):
            raise ModelFileError("an empty line within the file", name, number)
        if header is not None and count != header[0]:
            raise ModelFileError(f"{count} words, the first line says {header[0]}", name)

    return dim, rows()


def _binary_rows(file: IO[bytes], name: str) -> tuple[int, Rows]:
    first = file.readline(64)
    if first.startswith(_FASTTEXT_MODEL):
        raise ModelFileError("a model of fastText, with parts of words; its vectors are in the .vec file", name)
    header = _header(first)
    if header is None or header[1] < 1 or not first.endswith(b"\n"):
        raise ModelFileError(f"the first line does not say how many words and numbers there are: {first!r:.80}", name)
    count, dim = header
    if not name.endswith(".gz"):
        left = os.fstat(file.fileno()).st_size - file.tell()
        if count * (4 * dim + 2) > left:
            raise ModelFileError(f"{left} bytes for {count} words of {dim} numbers: the file is not whole", name)

    def rows() -> Rows:
        data, at = b"", 0
        for number in range(1, count + 1):
            end = data.find(b" ", at)
            while end < 0 or end + 1 + 4 * dim > len(data):
                block = file.read(_BLOCK)
                if not block or (end < 0 and len(data) - at > _LONGEST_WORD):
                    raise ModelFileError(f"it ends within word {number} of {count}, or is no such file", name)
                data, at = data[at:] + block, 0
                end = data.find(b" ")
            vector = np.frombuffer(data, "<f4", dim, end + 1)
            yield data[at:end].lstrip(b"\n"), vector
            at = end + 1 + 4 * dim
        if (data[at:] + file.read(2)).strip(b"\n"):
            raise ModelFileError(f"there is more behind its {count} words", name)

    return dim, rows()


# ---- arrays


def _read_npz(name: str) -> tuple[list[str], npt.NDArray[Any]]:
    with opened(name, "a file of word vectors") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                words, vectors = (_npz_array(archive, key) for key in ("words", "vectors"))
        # OSError: the position of the table of contents is negative (Python 3.9).
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, KeyError, OSError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(f"not a whole npz file with words and vectors: {error}", name) from error
    if words.dtype.kind == "S":
        words = np.char.decode(words, "utf-8")
    if words.ndim != 1 or words.dtype.kind != "U":
        raise ModelFileError(f"words must be strings, not an array {words.dtype}{list(words.shape)}", name)
    return words.tolist(), _checked(vectors, len(words), name)


def _npz_array(archive: zipfile.ZipFile, key: str) -> npt.NDArray[Any]:
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
