"""Reads CoNLL-U treebanks, plain or gzipped: words with labels, or with their dependency trees.  No program."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")

Sentence = tuple[list[str], list[str]]  # its words, and their labels


@dataclass
class Tree:
    """A sentence and its dependency tree: the head of a word is the number of another, from 1 on, or 0 for the root."""

    words: list[str]
    tags: list[str]
    heads: list[int]
    relations: list[str]

    def __len__(self) -> int:
        return len(self.words)


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
    """Return all sentences of the file, each word with what one column says of it."""
    return [([row["FORM"] for row in rows], [row[column] for row in rows]) for _, rows in _sentences(path, [column])]


def read_trees(path: Path, tags: str = "UPOS") -> list[Tree]:
    """Return the trees of all sentences, with one column as the tags of their words."""
    trees = []
    for number, rows in _sentences(path, [tags, "HEAD", "DEPREL"]):
        columns = [[row[column] for row in rows] for column in ("FORM", tags, "HEAD", "DEPREL")]
        words, labels, heads, relations = columns
        if not all(head.isdecimal() and int(head) <= len(words) for head in heads):
            bad = next(head for head in heads if not head.isdecimal() or int(head) > len(words))
            raise BadTreebankError(f"{path}, line {number}: in the sentence that ends here, no word {bad!r}, a HEAD")
        tree = Tree(words, labels, [int(head) for head in heads], relations)
        if not is_tree(tree.heads):
            raise BadTreebankError(f"{path}, line {number}: the sentence that ends here has not one root, or a cycle")
        trees.append(tree)
    return trees


def is_tree(heads: list[int]) -> bool:
    """Tell whether one word has the head 0, and all words hang from it."""
    reached: set[int] = {0}
    for word in range(1, len(heads) + 1):
        path = []
        while word not in reached and word not in path:
            path.append(word)
            word = heads[word - 1]
        if word not in reached:  # a cycle
            return False
        reached.update(path)
    return heads.count(0) == 1


def read_columns(path: Path, columns: list[str]) -> list[list[dict[str, str]]]:
    """Return all sentences of the file, each word as a dict of its columns; the named ones must not be empty."""
    return [rows for _, rows in _sentences(path, columns)]


def _sentences(path: Path, required: list[str]) -> list[tuple[int, list[dict[str, str]]]]:
    """Return the words of each sentence, with the number of the line where it ends.

    Multiword tokens (ids such as 3-4) and empty nodes (3.1) are left out: what remains are the
    words of the basic tree.
    """
    sentences: list[tuple[int, list[dict[str, str]]]] = []
    words: list[dict[str, str]] = []
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                number += 1
                text = line.decode("utf-8").rstrip("\r\n")
                if text.startswith("#"):
                    continue
                if text.strip():
                    fields = _fields(text, len(words) + 1, required)
                    if fields:
                        words.append(fields)
                elif words:  # a blank line ends the sentence
                    sentences.append((number, words))
                    words = []
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadTreebankError(f"{path}, after line {number}: not a whole gzip file: {error}") from error
    except ValueError as error:  # ours from below, or bytes that are not UTF-8
        raise BadTreebankError(f"{path}, line {number}: {error}") from error
    if words:  # the last blank line is missing: accept it
        sentences.append((number, words))
    if not sentences:
        raise BadTreebankError(f"{path}: no sentence in {number} lines")
    return sentences


def _fields(text: str, expected: int, required: list[str]) -> dict[str, str] | None:
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
    for column in required:
        if fields[column] in ("", "_"):
            raise ValueError(f"no {column} for the word {fields['FORM']!r}")
    return fields
