"""The text format of models: exact values, clear errors for broken files, and files saved whole or not at all."""

from __future__ import annotations

import bz2
import fcntl
import io
import lzma
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.files import textfile
from dynet_cy.files.replacing import replacing
from dynet_cy.files.textfile import (
    LOOKUP,
    PARAMETER,
    Entry,
    ModelFileError,
    ModelMismatchError,
    NotAModelFileError,
    TruncatedModelFileError,
    WrongCountError,
    key_filter,
    populate_entries,
    read_text_model,
    write_text_model,
)

TEXT = """\
#Parameter# /W {2,2} 65 ZERO_GRAD
+1.00000000e+00 +3.00000000e+00 +2.00000000e+00 +4.00000000e+00 
#Parameter# /s/b {2} 66 FULL_GRAD
+5.00000000e-01 -0.00000000e+00 
+1.00000001e-07 +3.40282347e+38 
#LookupParameter# /E {2,3} 97 ZERO_GRAD
+0.00000000e+00 +1.00000000e+00 +2.00000000e+00 +3.00000000e+00 +4.00000000e+00 +5.00000000e+00 
"""  # noqa: W291


def entries() -> list[Entry]:
    f = np.float32
    return [
        Entry(PARAMETER, "/W", (2, 2), np.array([1, 3, 2, 4], f)),
        Entry(PARAMETER, "/s/b", (2,), np.array([0.5, -0.0], f), np.array([1e-7, 3.4028235e38], f)),
        Entry(LOOKUP, "/E", (2, 3), np.arange(6, dtype=f)),
    ]


def assert_same(have: list[Entry], want: list[Entry]) -> None:
    assert [e[:3] for e in have] == [e[:3] for e in want]
    for a, b in zip(have, want):
        assert a.values.dtype == np.float32
        np.testing.assert_array_equal(a.values.view(np.uint32), b.values.view(np.uint32))
        assert (a.grads is None) == (b.grads is None)
        if a.grads is not None and b.grads is not None:
            np.testing.assert_array_equal(a.grads.view(np.uint32), b.grads.view(np.uint32))


def save(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "model.txt"
    path.write_bytes(text.encode())
    return path


def test_writes_the_format(tmp_path: Path) -> None:
    write_text_model(tmp_path / "m", entries())
    assert (tmp_path / "m").read_text() == TEXT
    file = io.BytesIO()
    write_text_model(file, entries())
    assert file.getvalue().decode() == TEXT


def test_reads_the_format(tmp_path: Path) -> None:
    assert_same(list(read_text_model(save(tmp_path, TEXT))), entries())


def test_every_float_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 1 << 32, 100_001, dtype=np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    values[:4] = [np.inf, -np.inf, 1e-45, -0.0]
    if not np.float32(1e-45):  # a library has switched off denormal numbers
        values[(values.view(np.uint32) & 0x7F800000) == 0] = 0
    written = [Entry(PARAMETER, "/a", (values.size,), values, values[::-1].copy())]
    write_text_model(tmp_path / "m", written)
    assert_same(list(read_text_model(tmp_path / "m")), written)


def test_numbers_are_written_and_read_exactly() -> None:
    rng = np.random.default_rng(4)
    with np.errstate(under="ignore"):
        powers = np.float32(10) ** np.arange(-45, 39, dtype=np.float32)
    halves = (2 * rng.integers(1 << 23, 1 << 24, 20_000) + 1).astype(np.float32) / np.float32(1 << 10)
    near = [powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(np.inf)), halves]
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    for values in [*near, -powers, bits, rng.normal(size=100_000).astype(np.float32), np.zeros(3, np.float32)]:
        if not np.float32(1e-45):  # see above
            values = np.where(np.abs(values) < np.finfo(np.float32).tiny, np.float32(0), values)
        text = textfile._formatted(values)
        assert text == (("%+.8e " * len(values)) % tuple(values.tolist())).encode()
        usual = values[np.abs(values) < 1e37]
        again = textfile._regular(textfile._formatted(usual) + b"\n")
        assert again is not None
        np.testing.assert_array_equal(again.view(np.uint32), usual.view(np.uint32))


@pytest.mark.parametrize("column", range(16))
def test_what_is_not_regular_is_read_the_slow_way(column: int) -> None:
    text = bytearray(b"+1.00000000e+00 -2.50000000e-03 \n")
    assert textfile._regular(bytes(text)) is not None
    text[16 + column] = ord("x")
    assert textfile._regular(bytes(text)) is None


def test_nan_comes_back_and_the_size_is_right(tmp_path: Path) -> None:
    values = np.array([np.nan, 1, np.inf], np.float32)
    write_text_model(tmp_path / "m", [Entry(PARAMETER, "/a", (3,), values)])
    header, numbers = (tmp_path / "m").read_bytes().splitlines(keepends=True)
    assert int(header.split()[-2]) == len(numbers)
    np.testing.assert_array_equal(next(read_text_model(tmp_path / "m")).values, values)


@pytest.mark.parametrize("dim", [(), (0,), (3, 0), (1,), (2, 3, 4), (1, 1, 1, 1, 1, 1, 1, 1)])
def test_dimensions(tmp_path: Path, dim: tuple[int, ...]) -> None:
    values = np.arange(np.prod(dim, dtype=int), dtype=np.float32).reshape(dim, order="F")
    write_text_model(tmp_path / "m", [Entry(PARAMETER, "/a", dim, values), *entries()])
    first, *others = read_text_model(tmp_path / "m")
    assert first.dim == dim
    np.testing.assert_array_equal(first.values, values.reshape(-1, order="F"))
    assert_same(others, entries())


def test_lines_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text_model(tmp_path / "m", entries())
    for block in range(1, 40):
        monkeypatch.setattr(textfile, "_BLOCK", block)
        if block >= 15:  # a number fits
            assert_same(list(read_text_model(tmp_path / "m")), entries())
        assert [e.name for e in read_text_model(tmp_path / "m", lambda kind, name: False)] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t.replace("\n#", "\n\n#") + "\n\n",
        lambda t: t.replace(" 65 ", " 36 ").replace("+1.00000000e+00 +3.00000000e+00 +2.0", "1 3\t2.0"),
        lambda t: t.rstrip("\n"),
        lambda t: t.rstrip(),
    ],
    ids=["crlf", "blank lines", "other numbers", "no newline", "no blank"],
)
def test_lenient(tmp_path: Path, change) -> None:  # type: ignore[no-untyped-def]
    assert_same(list(read_text_model(save(tmp_path, change(TEXT)))), entries())


@pytest.mark.parametrize("name", ["/a b", "/x#y", "/é", "/a {2} 3"])
def test_names(tmp_path: Path, name: str) -> None:
    write_text_model(tmp_path / "m", [Entry(LOOKUP, name, (1,), np.ones(1, np.float32))])
    assert [e.name for e in read_text_model(tmp_path / "m")] == [name]


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    data = TEXT.encode()
    ends = [0]  # where entries end
    for entry in TEXT.split("#Parameter#")[1:3]:
        ends.append(ends[-1] + len("#Parameter#" + entry.partition("#Lookup")[0]))
    ends.append(len(data))
    path = tmp_path / "cut"
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        whole = next((n for n, end in enumerate(ends) if data[cut:end].strip() == b"" and cut <= end), None)
        if whole is not None:  # at most the blank and the line end after the last number are cut
            assert len(list(read_text_model(path))) == whole
            continue
        with pytest.raises((TruncatedModelFileError, NotAModelFileError)) as caught:
            list(read_text_model(path))
        assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("text", "kind", "line", "parameter", "words"),
    [
        ("hello\n1 2 3\n", NotAModelFileError, 1, None, "Bad parameter specification in model: 'hello'"),
        ("\x80\x04binary", NotAModelFileError, 1, None, "Bad parameter specification"),
        ("x" * 200_000, NotAModelFileError, 1, None, "Bad parameter specification"),
        ("#Parameter# /W {2,2} 65\n", NotAModelFileError, 1, None, "Bad parameter specification"),
        ("#Parameter# /W {2,,2} 65 ZERO_GRAD\n1 2 3 4\n", NotAModelFileError, 1, None, "Bad parameter"),
        ("#Parameter# /W {2,-2} 65 ZERO_GRAD\n1 2 3 4\n", NotAModelFileError, 1, None, "Bad parameter"),
        ("#Parameter# /W {2} 65 ZERO_GRAD\n1 x\n", NotAModelFileError, 2, "/W", "not a number: 'x'"),
        ("#Parameter# /W {2} 65 ZERO_GRAD\n1 2_0\n", NotAModelFileError, 2, "/W", "not a number: '2_0'"),
        ("#Parameter# /W {2} 65 ZERO_GRAD\n1 1e39\n", NotAModelFileError, 2, "/W", "range of float32: '1e39'"),
        ("#Parameter# /W {2,2} 65 ZERO_GRAD\n1 2 3\n", WrongCountError, 2, "/W", r"3 numbers.*\{2,2\} take 4"),
        ("#Parameter# /W {2} 65 ZERO_GRAD\n1 2 3\n", WrongCountError, 2, "/W", r"more numbers.*\{2\}"),
        ("#Parameter# /W {2} 65 FULL_GRAD\n1 2\n3\n", WrongCountError, 3, "/W", "1 numbers"),
        ("#Parameter# /W {2} 65 FULL_GRAD\n1 2\n", TruncatedModelFileError, 3, "/W", "the file ends"),
        ("#Parameter# /W {2} 33 ZERO_GRAD\n1 2", TruncatedModelFileError, 2, "/W", "ends in a number: '2'"),
        ("#Parameter# /W {99999999,99999999,99999999} 9 ZERO_GRAD\n1", TruncatedModelFileError, 2, "/W", "then the"),
    ],
)
def test_broken_files(
    tmp_path: Path, text: str, kind: type[ModelFileError], line: int, parameter: str | None, words: str
) -> None:
    path = save(tmp_path, text)
    with pytest.raises(kind, match=words) as caught:
        list(read_text_model(path))
    assert (caught.value.path, caught.value.line, caught.value.parameter) == (str(path), line, parameter)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert len(str(caught.value)) < 400
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RuntimeError)


def test_skips_without_reading_numbers(tmp_path: Path) -> None:
    path = save(tmp_path, TEXT.replace("+3.0", "junk", 1))
    assert_same(list(read_text_model(path, lambda kind, name: name != "/W")), entries()[1:])
    assert [e.name for e in read_text_model(path, lambda kind, name: kind == LOOKUP)] == ["/E"]


@pytest.mark.parametrize(
    ("key", "names"),
    [("", "/a /s/b /s_1/c"), ("/", "/a /s/b /s_1/c"), ("/s", "/s/b"), ("/s/", "/s/b"), ("s/", ""), ("/a", "")],
)
def test_key_filter(key: str, names: str) -> None:
    assert [n for n in ["/a", "/s/b", "/s_1/c"] if key_filter(key)(n)] == names.split()


def test_populate(tmp_path: Path) -> None:
    path = save(tmp_path, TEXT)
    found = list(populate_entries(path, [("/x", (2, 2)), ("/y", (2,))], [("/z", (2, 3))]))
    assert [number for number, _ in found] == [0, 1, 0]
    assert_same([entry for _, entry in found], entries())
    found = list(populate_entries(path, [("/y", (2,))], [], key="/s/"))
    assert_same([entry for _, entry in found], entries()[1:2])


def test_populate_in_another_order(tmp_path: Path) -> None:
    """The same names are matched whatever their order, below a key and a collection too; other names by position."""
    names = [f"/net/{part}/W" for part in ("encoder", "decoder", "scores")]
    path = tmp_path / "model"
    write_text_model(path, [Entry(PARAMETER, name, (1,), np.full(1, k, np.float32)) for k, name in enumerate(names)])

    def order(wanted: list[str], **options: Any) -> list[int]:
        found = populate_entries(path, [(name, (1,)) for name in wanted], [], **options)
        return [place for place, _ in found]

    assert order([names[2], names[0], names[1]]) == [1, 2, 0]
    assert order([names[2], names[0], names[1]], collection=None) == [0, 1, 2]
    below = [name.replace("/net", "/other") for name in names]
    assert order([below[1], below[0], below[2]], key="/net", collection="/other/") == [1, 0, 2]
    assert order([names[1], names[0], "/net/another"]) == [0, 1, 2]


def test_layers_whose_definitions_are_exchanged(tmp_path: Path) -> None:
    class Net(dy.nn.Layer):
        def __init__(self, model: dy.ParameterCollection, *names: str) -> None:
            super().__init__(model)
            for name in names:
                setattr(self, name, dy.nn.Linear(3, 3, self.collection))

    one, other = dy.ParameterCollection(), dy.ParameterCollection()
    before = Net(one, "encoder", "decoder")
    after = Net(other, "decoder", "encoder")
    one.save(tmp_path / "model")
    other.populate(tmp_path / "model")
    for name, array in before.state_dict().items():
        np.testing.assert_array_equal(after.state_dict()[name], array)


@pytest.mark.parametrize(
    ("parameters", "lookups", "key", "words"),
    [
        ([(2, 2)], [(2, 3)], "", "line 3: .*Too many parameters.*has 1"),
        ([(2, 2), (2,)], [], "", "line 6: parameter /E: Too many lookup parameters.*has 0"),
        ([(2,), (2, 2)], [(2, 3)], "", r"line 1: .*/W looked up from file \(\{2,2\}\) do not match.*\(\{2\}, /p0\)"),
        ([(2, 2), (2,)], [(3, 2)], "", r"line 6: .*lookup parameter /E looked up.*\(\{2,3\}\).*\(\{3,2\}, /l0\)"),
        ([(2, 2), (2,), (1,)], [(2, 3)], "", r"\(2/1\) did not match.*\(3/1\); nothing for /p2"),
        ([(2, 2)], [], "/nope/", r"\(0/0\).*below /nope/"),
    ],
)
def test_populate_with_another_model(
    tmp_path: Path, parameters: list[tuple[int, ...]], lookups: list[tuple[int, ...]], key: str, words: str
) -> None:
    named = [[(f"/{c}{i}", d) for i, d in enumerate(dims)] for c, dims in (("p", parameters), ("l", lookups))]
    with pytest.raises(ModelMismatchError, match=words):
        next(populate_entries(save(tmp_path, TEXT), *named, key=key))  # before any entry is returned


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Entry(PARAMETER, "/a", (3,), np.ones(2, np.float32)), r"values of /a have shape \(2,\).*\{3\}"),
        (Entry(PARAMETER, "/a", (3,), np.ones(3, np.float32), np.ones(2, np.float32)), "gradients of /a"),
        (Entry("Model", "/a", (3,), np.ones(3, np.float32)), "kind of /a"),
        (Entry(PARAMETER, "/a\n#", (3,), np.ones(3, np.float32)), "not a name"),
        (Entry(PARAMETER, "", (3,), np.ones(3, np.float32)), "not a name"),
    ],
)
def test_entries_that_cannot_be_written(tmp_path: Path, bad: Entry, words: str) -> None:
    path = save(tmp_path, TEXT)
    with pytest.raises(ValueError, match=words):
        write_text_model(path, [entries()[0], bad])
    assert path.read_text() == TEXT
    assert os.listdir(tmp_path) == ["model.txt"]


def test_interrupted_save_keeps_the_old_file(tmp_path: Path) -> None:
    path = save(tmp_path, TEXT)

    def interrupted():  # type: ignore[no-untyped-def]
        yield entries()[2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_text_model(path, interrupted())
    assert path.read_text() == TEXT
    assert os.listdir(tmp_path) == ["model.txt"]


def test_append(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write_text_model(path, entries()[:1], append=True)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    write_text_model(path, entries()[1:], append=True)
    assert_same(list(read_text_model(path)), entries())


def test_permissions_and_links_are_kept(tmp_path: Path) -> None:
    path = save(tmp_path, "old")
    path.chmod(0o640)
    (tmp_path / "link").symlink_to(path)
    with replacing(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    mask = os.umask(0o027)
    try:
        write_text_model(tmp_path / "fresh", [])
    finally:
        os.umask(mask)
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o640


def test_what_is_not_a_file_is_written_directly(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        with replacing(f"/dev/fd/{write}") as file:
            file.write(b"through")
        assert os.read(read, 100) == b"through"
    finally:
        os.close(read)
        os.close(write)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nope"):
        list(read_text_model(tmp_path / "nope"))
    with pytest.raises(FileNotFoundError, match="nope"):
        write_text_model(tmp_path / "nope" / "m", [])


HEADER = "#Parameter# /W {2} %d ZERO_GRAD\n"


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (HEADER % 33 + "+2.50000000 +1.00000000e+00 \n", WrongCountError, "29 bytes of numbers.*counts 33"),
        (HEADER % 33 + "+2.50000000e-01 +1.000000e+00 \n", WrongCountError, "31 bytes"),
        (HEADER % 32 + "+2.50000000e-01 +1.00000000e+00 \n", WrongCountError, "33 bytes.*counts 32"),
        (HEADER % 33 + "+2.50000000e-01 +1.00000000", TruncatedModelFileError, r"ends in a number: '\+1.00000000'"),
        (HEADER % 33 + "+2.50000000 +nan \n", WrongCountError, "18 bytes"),
    ],
)
def test_lost_bytes(tmp_path: Path, text: str, error: type[ModelFileError], words: str) -> None:
    """Lost bytes are noticed even if the rest are still valid numbers."""
    for text_ in (text, TEXT.split("#Lookup")[0] + text):
        with pytest.raises(error, match=words):
            list(read_text_model(save(tmp_path, text_)))


@pytest.mark.parametrize(
    "text",
    [
        HEADER % 33 + "+nan +1.00000000e+00 \n",  # as DyNet counts
        HEADER % 22 + "+nan +1.00000000e+00 \n",
        HEADER % 33 + "+2.50000000e-01 +1.00000000e+00\r\n",
        HEADER % 33 + "+2.50000000e-01 +1.00000000e+00",
        HEADER % 4 + "1 2\n",
        HEADER % 5 + "1 2 \n",
    ],
)
def test_right_counts(tmp_path: Path, text: str) -> None:
    assert len(list(read_text_model(save(tmp_path, text)))) == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bz2.compress(TEXT.encode()), "compressed by bzip2"),
        (lzma.compress(TEXT.encode()), "compressed by xz"),
        (pickle.dumps(("Parameters", "/W")), "it is a pickle"),
        (b"PK\x03\x04archive/data.pkl", "such as those of torch.save.*load_state_dict"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a file of torch.save"),
        (b"\x93NUMPY\x01\0", "numpy.load"),
        (b"\x89HDF\r\n", "HDF5"),
        (b"22 serialization::archive 12 1 0\n", "a model of DyNet 1, an archive of Boost"),
        (b"\x16\0\0\0\0\0\0\0serialization::archive\x0c", "a model of DyNet 1"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00{}              ", "it is a safetensors file"),
    ],
)
def test_files_of_other_kinds(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "m").write_bytes(data)
    with pytest.raises(NotAModelFileError, match=words):
        list(read_text_model(tmp_path / "m"))
    if "safetensors" not in words:
        with pytest.raises(ModelFileError, match=f"not a safetensors file: .*{words}"):
            dy.load_safetensors(tmp_path / "m", dy.ParameterCollection())


def test_a_text_model_is_no_checkpoint(tmp_path: Path) -> None:
    path = save(tmp_path, TEXT)
    with pytest.raises(ModelFileError, match="not a safetensors file: it is a text model file; populate"):
        dy.load_safetensors(path, dy.ParameterCollection())


@pytest.mark.parametrize("dim", ["1" * 5000, ",".join("1" * 9), "99999999999", "1,", ",1"])
def test_dimensions_that_cannot_be(tmp_path: Path, dim: str) -> None:
    with pytest.raises(NotAModelFileError, match="Bad parameter specification"):
        list(read_text_model(save(tmp_path, f"#Parameter# /W {{{dim}}} 17 ZERO_GRAD\n1 \n")))


def test_skipped_entries_have_room_for_their_numbers(tmp_path: Path) -> None:
    path = save(tmp_path, "#Parameter# /W {99999999,99} 17 ZERO_GRAD\n1 \n")
    with pytest.raises(WrongCountError, match="3 bytes where its dimensions"):
        list(read_text_model(path, lambda kind, name: False))
    with open(path, "rb") as file, pytest.raises(WrongCountError):
        textfile.scan_text_model(file, "m")


def test_errors_while_saving_name_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, lambda *arguments: os.open("/nope", os.O_RDONLY))
            with pytest.raises(FileNotFoundError, match=re.escape(repr(str(tmp_path / "m"))) + "$"):
                write_text_model(tmp_path / "m", entries())
    assert os.listdir(tmp_path) == []


def test_what_killed_saves_have_left_is_removed(tmp_path: Path) -> None:
    """Temporary files of killed saves are removed, but not those of running saves or other programs."""
    left, others = ".m.0123456789abcdef.tmp", [".n.0123456789abcdef.tmp", ".m.tmp", ".m.0123.tmp"]
    for name in [left, *others]:
        (tmp_path / name).touch()
    with replacing(tmp_path / "m") as first:
        first.write(b"first")
        with replacing(tmp_path / "m") as second:
            second.write(b"second")
        assert (tmp_path / "m").read_bytes() == b"second"
    assert (tmp_path / "m").read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == sorted(["m", *others])


def test_a_save_that_lost_its_file_makes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between creating and locking the file, another save may remove it as left behind."""
    flock, calls = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not calls:
            calls.append(how)
            os.unlink(next(tmp_path.iterdir()))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    write_text_model(tmp_path / "m", entries())
    assert_same(list(read_text_model(tmp_path / "m")), entries())
    assert os.listdir(tmp_path) == ["m"]


def test_collections_and_keys_that_are_not_there(tmp_path: Path) -> None:
    path = save(tmp_path, TEXT)
    for key in ("/nosuch", "/nosuch/", "nosuch", "/W"):
        with pytest.raises(ModelMismatchError, match=f"has nothing below {key}$"):
            dy.ParameterCollection().populate(path, key)
    dy.ParameterCollection().populate(save(tmp_path, ""), "/")
