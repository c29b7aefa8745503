"""Reads pairs of a word's dictionary form and an inflected form of it, for `seq2seq.py`."""

from __future__ import annotations

import gzip
import random
import zlib
from importlib import metadata
from pathlib import Path

Pair = tuple[list[str], list[str]]  # tags and letters of the dictionary form; letters of the inflected form

SLOTS = {  # what the columns of lemminflect's table hold, after the dictionary form and the part of speech
    "noun": ["N;PL"],
    "adj": ["ADJ;CMPR", "ADJ;SPRL"],
    "adv": ["ADV;CMPR", "ADV;SPRL"],
    "verb": ["V;PST", "V;V.PTCP;PST", "V;V.PTCP;PRS", "V;3;SG;PRS"],
}


def make_pair(lemma: str, form: str, tags: str) -> Pair:
    return [f"<{tag}>" for tag in tags.split(";")] + list(lemma), list(form)


def read_tsv(path: Path) -> list[Pair]:
    """Return the pairs of a file in the format of the SIGMORPHON tasks: lemma, form, tags, separated by tabs."""
    pairs = []
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                number += 1
                fields = line.decode("utf-8").rstrip("\r\n").split("\t")
                if len(fields) != 3 or not all(fields):
                    raise ValueError(f"expected lemma, form and tags, separated by tabs, not {line!r}")
                pairs.append(make_pair(*fields))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}, after line {number}: not a whole gzip file: {error}") from error
    except ValueError as error:  # ours from above, or bytes that are not UTF-8
        raise ValueError(f"{path}, line {number}: {error}") from error
    if not pairs:
        raise ValueError(f"{path}: no pairs")
    return pairs


def read_lemminflect(count: int) -> tuple[list[Pair], list[Pair]]:
    """Return `count` pairs drawn from the table of English that the package lemminflect brings, and dev pairs.

    A tenth of the dictionary forms is held out for dev, with all their inflected forms; dev has a tenth of `count`.
    """
    try:
        files = metadata.files("lemminflect") or []
    except metadata.PackageNotFoundError:
        raise ValueError("no pairs: pip install lemminflect, or give some with --train FILE") from None
    path = next(Path(str(file.locate())) for file in files if file.name == "infl_lu.csv.gz")
    forms: dict[str, list[Pair]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            lemma, part_of_speech, *columns = line.rstrip("\n").split(",")
            for tags, variants in zip(SLOTS[part_of_speech], columns):
                if variants:  # else there is no such form, or it is the same as the one before
                    forms.setdefault(lemma, []).append(make_pair(lemma, variants.split("/")[0], tags))
    rng = random.Random(0)
    lemmas = sorted(forms)
    rng.shuffle(lemmas)
    tenth = len(lemmas) // 10
    dev = [pair for lemma in lemmas[:tenth] for pair in forms[lemma]]
    training = [pair for lemma in lemmas[tenth:] for pair in forms[lemma]]
    return rng.sample(training, min(count, len(training))), rng.sample(dev, min(count // 10, len(dev)))
