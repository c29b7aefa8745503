"""Forms of words: the files of the SIGMORPHON tasks, or the English table of the package lemminflect."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from dynet_cy.data.files import installed, lines
from dynet_cy.data.text import Column, Table
from dynet_cy.files.reading import FileName, TextFile

Inflection = tuple[list[str], list[str]]

_NAMES = ("lemma", "form", "tags")
_TAG = re.compile(r"\w+=.*|[A-Z][A-Z0-9.]*([^\w\s].*)?")
_SEVERAL = re.compile("[;=]")
_TAGS = {  # of the columns of lemminflect's table after the dictionary form and the part of speech
    "noun": ["N;PL"],
    "adj": ["ADJ;CMPR", "ADJ;SPRL"],
    "adv": ["ADV;CMPR", "ADV;SPRL"],
    "verb": ["V;PST", "V;V.PTCP;PST", "V;V.PTCP;PRS", "V;3;SG;PRS"],
}


def read_inflections(
    path: FileName, columns: Sequence[Column] | None = None, *, encoding: str = "utf-8", errors: str = "strict"
) -> list[Inflection]:
    """Read forms of words in the format of the SIGMORPHON tasks: lemma, form and tags, separated by tabs.

    Tags are those of UniMorph (V;PST) or of the task of 2016 (pos=V,tense=PST). They are in the third column or, as in
    the tasks of 2016 and from 2021 on, in the second: the one that has tags in all rows.

    Args:
        path: name of the file, plain or gzipped. Empty lines are left out.
        columns: the columns of the lemma, the form and the tags, from 0 on; (0, 2, 1) for tags in the second. None:
            there are three, and what tags look like decides
        encoding, errors: see `read_tsv`

    Returns:
        For each line the input and the output of a network that inflects: the tags in angle brackets and the letters of
        the lemma; and the letters of the form.

    Raises:
        OSError: the file cannot be read
        ValueError: a line has another number of columns or an empty one, is not text in the encoding, or there is none;
            the message names the file and the line. Or none of the columns has tags in all rows, or both have.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("forms.tsv").write_text("go\\twent\\tV;PST\\n")
        >>> dy.data.read_inflections("forms.tsv")
        [(['<V>', '<PST>', 'g', 'o'], ['w', 'e', 'n', 't'])]
    """
    source = TextFile(path, "a file of forms of words", encoding, errors)
    table = Table(source, columns or _NAMES)
    rows = source.items(table.rows, table.full_cells, "form")
    if columns is None:
        rows = _with_tags_last(rows, source.name)
    return [_inflection(lemma, form, tags) for lemma, form, tags in rows]


def _with_tags_last(rows: list[tuple[str, ...]], name: str) -> list[tuple[str, ...]]:
    second, third = (all(_TAG.fullmatch(row[place]) for row in rows) for place in (1, 2))
    if second and third:  # forms in capitals; tags are mostly several
        second, third = (any(_SEVERAL.search(row[place]) for row in rows) for place in (1, 2))
    if second == third:
        raise ValueError(
            f"{name}: one column must look like tags (V;PST or pos=V,tense=PST), alone, not {rows[0][1]!r:.60} and "
            f"{rows[0][2]!r:.60}; columns=(0, 1, 2) is for lemma, form and tags, (0, 2, 1) for lemma, tags and form"
        )
    return rows if third else [(lemma, form, tags) for lemma, tags, form in rows]


def english_inflections(count: int) -> tuple[list[Inflection], list[Inflection]]:
    """English inflections for training and evaluation, from the package lemminflect.

    A tenth of the lemmas is held out for the latter, with all their forms. The choice is always the same.

    Args:
        count: how many to train with; a tenth of it is to measure with

    Returns:
        Both lists, as `read_inflections` returns them.

    Raises:
        ValueError: the package is not installed

    Example:
        >>> training, dev = dy.data.english_inflections(8000)  # doctest: +SKIP
        >>> len(training), len(dev)  # doctest: +SKIP
        (8000, 800)
    """
    forms: dict[str, list[Inflection]] = {}
    for line in lines(installed("lemminflect", "infl_lu.csv.gz")):
        lemma, part_of_speech, *columns = line.split(",")
        for tags, variants in zip(_TAGS[part_of_speech], columns):
            if variants:  # otherwise there is no such form, or it is the same as the previous one
                forms.setdefault(lemma, []).append(_inflection(lemma, variants.split("/")[0], tags))
    rng = random.Random(0)
    lemmas = sorted(forms)
    rng.shuffle(lemmas)
    tenth = len(lemmas) // 10
    dev = [one for lemma in lemmas[:tenth] for one in forms[lemma]]
    training = [one for lemma in lemmas[tenth:] for one in forms[lemma]]
    return rng.sample(training, min(count, len(training))), rng.sample(dev, min(count // 10, len(dev)))


def _inflection(lemma: str, form: str, tags: str) -> Inflection:
    separator = "," if "=" in tags else ";"
    return [f"<{tag}>" for tag in tags.split(separator)] + list(lemma), list(form)
