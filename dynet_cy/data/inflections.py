"""Forms of words: the files of the SIGMORPHON tasks, or the English table of the package lemminflect."""

from __future__ import annotations

import random

from dynet_cy.data.files import FileName, installed, lines
from dynet_cy.data.text import read_tsv

__all__ = ["english_inflections", "read_inflections"]

Inflection = tuple[list[str], list[str]]

_TAGS = {  # of the columns of lemminflect's table after the dictionary form and the part of speech
    "noun": ["N;PL"],
    "adj": ["ADJ;CMPR", "ADJ;SPRL"],
    "adv": ["ADV;CMPR", "ADV;SPRL"],
    "verb": ["V;PST", "V;V.PTCP;PST", "V;V.PTCP;PRS", "V;3;SG;PRS"],
}


def read_inflections(path: FileName) -> list[Inflection]:
    """Read forms of words in the format of the SIGMORPHON tasks: lemma, form and tags, separated by tabs.

    Args:
        path: name of the file, UTF-8; gzipped if it ends in ".gz"

    Returns:
        For each line the input and the output of a network that inflects: the tags in angle brackets and the letters of
        the lemma; and the letters of the form.

    Raises:
        OSError, ValueError: those of `read_tsv`

    Example:
        >>> from pathlib import Path
        >>> _ = Path("forms.tsv").write_text("go\\twent\\tV;PST\\n")
        >>> dy.data.read_inflections("forms.tsv")
        [(['<V>', '<PST>', 'g', 'o'], ['w', 'e', 'n', 't'])]
    """
    return [_inflection(*row) for row in read_tsv(path, ["lemma", "form", "tags"])]


def english_inflections(count: int) -> tuple[list[Inflection], list[Inflection]]:
    """English forms drawn from the table of the package lemminflect, to train with and to measure with.

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
    return [f"<{tag}>" for tag in tags.split(";")] + list(lemma), list(form)
