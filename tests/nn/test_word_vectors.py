"""Word vectors in all formats, from intact and damaged files."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import dynet_cy as dy
from dynet_cy import nn

WORDS = ["the", "dog", "çiçek", "New York", "."]
VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def text(header=True, end="\n", words=WORDS):
    lines = [f"{len(words)} {VECTORS.shape[1]}"] if header else []
    lines += [word + " " + " ".join(repr(float(x)) for x in row) for word, row in zip(words, VECTORS)]
    return "".join(line + end for line in lines).encode()


WITHOUT_BLANKS = ["the", "dog", "çiçek", "york", "."]  # words in binary files have no blanks


def binary(newline=b"\n"):
    rows = [word.encode() + b" " + row.tobytes() + newline for word, row in zip(WITHOUT_BLANKS, VECTORS)]
    return b"5 3\n" + b"".join(rows)


def write_npz(path):
    np.savez(path, words=np.array(WORDS), vectors=VECTORS)


def write_compressed(path):
    np.savez_compressed(path, words=np.array([w.encode() for w in WORDS]), vectors=VECTORS.astype(np.float64))


def write_safetensors(path):
    save_file({"vectors": VECTORS}, path, metadata={"words": json.dumps(WORDS)})


WRITERS = {
    "word2vec.txt": lambda path: path.write_bytes(text()),
    "fasttext.vec": lambda path: path.write_bytes(text(end=" \n")),
    "fasttext.vec.gz": lambda path: path.write_bytes(gzip.compress(text(end=" \n"))),
    "windows.txt": lambda path: path.write_bytes(text(end="\r\n")),
    "glove.txt": lambda path: path.write_bytes(text(header=False)),
    "word2vec.bin": lambda path: path.write_bytes(binary()),
    "other.bin": lambda path: path.write_bytes(binary(b"")),
    "word2vec.bin.gz": lambda path: path.write_bytes(gzip.compress(binary())),
    "plain.npz": write_npz,
    "compressed.npz": write_compressed,
    "some.safetensors": write_safetensors,
}


@pytest.mark.parametrize("name", WRITERS)
def test_formats(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    found = nn.read_vectors(tmp_path / name)
    words = WITHOUT_BLANKS if ".bin" in name else WORDS
    assert found.words == words
    assert list(found) == words
    assert found.array.dtype == np.float32
    np.testing.assert_array_equal(found.array, VECTORS)
    np.testing.assert_array_equal(found["çiçek"], VECTORS[2])
    assert "dog" in found
    assert "cat" not in found
    assert (len(found), found.dim) == (5, 3)
    assert repr(found) == "<WordVectors of 5 words, 3 numbers each>"
    few = nn.read_vectors(tmp_path / name, words={"dog", "cat", "."})
    assert few.words == ["dog", "."]
    np.testing.assert_array_equal(few.array, VECTORS[[1, 4]])


def test_embedding() -> None:
    vectors = nn.WordVectors(WORDS, VECTORS)
    model = dy.ParameterCollection()
    layer = vectors.embedding(model, frozen=True)
    np.testing.assert_array_equal(layer([1, 4]).npvalue(), VECTORS[[1, 4]].T)
    assert not layer.table.is_updated()
    layer = vectors.embedding(model, ["<pad>", "unseen", "Dog", "."], padding=0)
    found = layer([0, 1, 2, 3]).npvalue()
    np.testing.assert_array_equal(found[:, 2:], VECTORS[[1, 4]].T)
    np.testing.assert_array_equal(found[:, 0], 0)
    assert (found[:, 1] != 0).any()
    with pytest.raises(ValueError, match="the vocabulary is empty"):
        vectors.embedding(model, [])
    with pytest.raises(ValueError, match="4 words, but the array has shape"):
        nn.WordVectors(WORDS[1:], VECTORS)


def test_the_first_of_equal_words(tmp_path: Path) -> None:
    (tmp_path / "m.vec").write_bytes(b"3 1\na 1\nb 2\na 3\n")
    found = nn.read_vectors(tmp_path / "m.vec")
    assert found.words == ["a", "b"]
    assert found["a"] == 1
    assert nn.WordVectors(["a", "a"], [[1], [2]])["a"] == 1


def test_words_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_bytes(b"\xff\xff 1 2\n")
    with pytest.raises(dy.ModelFileError, match="word 1 is not UTF-8"):
        nn.read_vectors(tmp_path / "m.txt")
    assert nn.read_vectors(tmp_path / "m.txt", errors="replace").words == ["\ufffd\ufffd"]


DAMAGED = {
    "empty.txt": (b"", "neither a header nor a word"),
    "short.txt": (b"3 2\na 1 2\nb 1\n", "line 3: 1 numbers, there should be 2"),
    "letters.txt": (b"a 1 2\nb 1 x\n", "line 2: not numbers behind a word"),
    "few.vec": (b"3 2\na 1 2\nb 1 2\n", "2 words, the first line says 3"),
    "gap.vec": (b"2 2\na 1 2\n\nb 1 2\n", "line 3: an empty line"),
    "nan.txt": (b"a 1 nan\n", "word 1, 'a', has numbers that are not finite"),
    "cut.vec.gz": (gzip.compress(text())[:-9], "not a whole gzip file"),
    "no.vec.gz": (b"\x1f\x8babc", "not a whole gzip file"),
    "cut.bin": (binary()[:-20], "the file is not whole"),
    "end.bin": (binary()[:-5], "it ends within word 5 of 5"),
    "cut.bin.gz": (gzip.compress(binary()[:-5]), "it ends within word 5 of 5"),
    "more.bin": (binary() + b"abc", "there is more behind its 5 words"),
    "huge.bin": (b"99999999999 300\na ", "the file is not whole"),
    "model.bin": (b"\xba\x16\x4f\x2f\x0c\0\0\0", "a model of fastText"),
    "other.bin": (b"abc\n", "must have the numbers of words and of elements"),
    "no.npz": (b"abc", "not a whole npz file"),
    "no.safetensors": (b"abc", "not a safetensors file"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    data, message = DAMAGED[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(dy.ModelFileError, match=message):
        nn.read_vectors(tmp_path / name)


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    for words, vectors in [(np.array(WORDS), VECTORS[1:]), (np.arange(5), VECTORS), (np.array(WORDS), np.array(WORDS))]:
        np.savez(tmp_path / "m.npz", words=words, vectors=vectors)
        with pytest.raises(dy.ModelFileError, match=r"m.npz: (vectors are|words must be)"):
            nn.read_vectors(tmp_path / "m.npz")
    np.savez(tmp_path / "m.npz", vectors=VECTORS)
    with pytest.raises(dy.ModelFileError, match="words.npy"):
        nn.read_vectors(tmp_path / "m.npz")
    np.savez(tmp_path / "m.npz", words=np.array([[]], dtype=object), vectors=VECTORS)
    with pytest.raises(dy.ModelFileError, match="words is object"):
        nn.read_vectors(tmp_path / "m.npz")
    for metadata, tensors, message in [
        ({}, {"a": VECTORS}, "no list of words; Embedding.load_pytorch"),
        ({"words": "[1"}, {"a": VECTORS}, "are no list"),
        ({"words": "[1]"}, {"a": VECTORS}, "no list of words"),
        ({"words": '["a"]'}, {"a": VECTORS}, "for 1 words"),
        ({"words": "[]"}, {"a": VECTORS, "b": VECTORS}, "one matrix of vectors is expected, there are 2"),
    ]:
        save_file(tensors, tmp_path / "m.safetensors", metadata=metadata)
        with pytest.raises(dy.ModelFileError, match=message):
            nn.read_vectors(tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="argument format: expected 'text'"):
        nn.read_vectors(tmp_path / "m.npz", format="pickle")
    with pytest.raises(FileNotFoundError):
        nn.read_vectors(tmp_path / "none.vec")


def test_a_size_that_the_file_does_not_have(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"
    header += b" " * (64 - (10 + len(header) + 1) % 64) + b"\n"
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        for key in ("words", "vectors"):
            archive.writestr(f"{key}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    (tmp_path / "m.vec").write_bytes(b"999999999999 999999999999\na 1 2\n")
    tracemalloc.start()
    try:
        for name in ("m.npz", "m.vec"):
            with pytest.raises(dy.ModelFileError):
                nn.read_vectors(tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", WRITERS)
def test_bytes_that_are_changed(name: str, tmp_path: Path) -> None:
    """A damaged file raises ModelFileError, or is read as it stands; nothing crashes."""
    path = tmp_path / name
    WRITERS[name](path)
    whole = path.read_bytes()
    rng = random.Random(1)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
        try:
            found = nn.read_vectors(path)
        except dy.ModelFileError:
            continue
        assert found.array.shape[0] == len(found.words)
        assert np.isfinite(found.array).all()
