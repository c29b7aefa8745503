"""Reads the words of a CoNLL-U treebank, plain or gzipped, with one of its columns as their labels."""

from __future__ import annotations

import gzip
import zlib
from importlib import metadata
from pathlib import Path

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")

Sentence = tuple[list[str], list[str]]  # its words, and their labels


class BadTreebankError(ValueError):
    """The file is not CoNLL-U, or lacks the labels; the message says where and why."""


def default_treebanks() -> tuple[Path, Path]:
    """Return the Turkish web treebank and the wiki treebank that the package turkish-treebanks brings."""
    try:
        files = metadata.files("turkish-treebanks") or []
    except metadata.PackageNotFoundError:
        raise ValueError("no treebank: pip install turkish-treebanks, or give one with --train FILE") from None
    found = {file.name: Path(str(file.locate())) for file in files}
    return found["web.conllu"], found["wiki.conllu"]


def read_conllu(path: Path, column: str = "UPOS") -> list[Sentence]:
    """Return all sentences of the file.

    Multiword tokens (ids such as 3-4) and empty nodes (3.1) are left out: what remains are the
    words of the basic tree.
    """
    sentences: list[Sentence] = []
    words: list[str] = []
    labels: list[str] = []
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                number += 1
                text = line.decode("utf-8").rstrip("\r\n")
                if text.startswith("#"):
                    continue
                if text.strip():
                    fields = _fields(text, len(words) + 1, column)
                    if fields:
                        words.append(fields["FORM"])
                        labels.append(fields[column])
                elif words:  # a blank line ends the sentence
                    sentences.append((words, labels))
                    words, labels = [], []
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadTreebankError(f"{path}, after line {number}: not a whole gzip file: {error}") from error
    except ValueError as error:  # ours from below, or bytes that are not UTF-8
        raise BadTreebankError(f"{path}, line {number}: {error}") from error
    if words:  # the last blank line is missing: accept it
        sentences.append((words, labels))
    if not sentences:
        raise BadTreebankError(f"{path}: no sentence in {number} lines")
    return sentences


def _fields(text: str, expected: int, column: str) -> dict[str, str] | None:
    """Split and check one line; None if it is not a word of the basic tree."""
    parts = text.split("\t")
    if len(parts) != len(COLUMNS):
        raise ValueError(f"{len(parts)} columns separated by tabs, CoNLL-U has {len(COLUMNS)}")
    fields = dict(zip(COLUMNS, parts))
    number = fields["ID"]
    if "-" in number or "." in number:
        return None
    if number != str(expected):
        raise ValueError(f"word {expected} of the sentence has the id {number!r} (is a blank line missing?)")
    if not fields["FORM"]:
        raise ValueError("empty FORM")
    if fields[column] in ("", "_"):
        raise ValueError(f"no {column} for the word {fields['FORM']!r}")
    return fields
