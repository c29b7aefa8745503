"""Evaluation: accuracy, precision and recall, attachment scores of dependency trees."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dynet_cy.core.items import check_no_table
from dynet_cy.files.places import name_all

__all__ = ["Attachment", "PrecisionRecall", "accuracy", "attachment", "entities", "precision_recall", "to_bio"]


def accuracy(found: Iterable[Any], right: Iterable[Any]) -> float:
    """The share of correct results; for lists, such as the tags of sentences, the share of correct items.

    Args:
        found: the results: single values, or lists, tuples or arrays of them
        right: what they should be

    Returns:
        A number from 0 to 1; 0 if there are none.

    Raises:
        ValueError: a list has another length than it should have, or there are more results than there should be

    Example:
        >>> from dynet_cy import metrics
        >>> metrics.accuracy(["good", "bad"], ["good", "good"])
        0.5
        >>> metrics.accuracy([["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["NOUN"]])
        0.3333333333333333
    """
    equal: list[bool] = []
    for i, (one, gold) in enumerate(_pairs(found, right)):
        lists = isinstance(gold, (list, tuple, np.ndarray)) and hasattr(one, "__len__")
        equal += [_is_equal(a, b) for a, b in (_pairs(one, gold, i) if lists else [(one, gold)])]
    return sum(equal) / max(len(equal), 1)


class Attachment(NamedTuple):
    """Attachment scores from 0 to 1, as `attachment` returns them."""

    UAS: float
    LAS: float


def attachment(found: Iterable[tuple[Sequence[int], Sequence[str]]], trees: Iterable[Any]) -> Attachment:
    """UAS and LAS of dependency trees: the shares of words with correct head, and with correct head and relation.

    All words count, punctuation too, and subtypes of relations ("nmod:poss") are relations of their own.

    Args:
        found: the heads and the relations of each sentence
        trees: the right ones, as `data.read_conllu` reads them

    Returns:
        `UAS` and `LAS`, from 0 to 1; both 0 if there are no words.

    Raises:
        ValueError: the numbers of sentences, or of the words of one, differ

    Example:
        >>> from dynet_cy import metrics
        >>> tree = dy.data.ConlluSentence(["dogs", "bark"], head=[2, 0], deprel=["nsubj", "root"])
        >>> metrics.attachment([([2, 0], ["obj", "root"])], [tree])
        Attachment(UAS=1.0, LAS=0.5)
    """
    heads, both = [], []
    for i, ((guessed, relations), tree) in enumerate(_pairs(found, trees)):
        for (head, gold), (relation, right) in zip(_pairs(guessed, tree.head, i), _pairs(relations, tree.deprel, i)):
            heads.append(head == gold)
            both.append(head == gold and relation == right)
    return Attachment(sum(heads) / max(len(heads), 1), sum(both) / max(len(both), 1))


class PrecisionRecall(NamedTuple):
    """Precision, recall and F1 from 0 to 1, as `precision_recall` returns them."""

    precision: float
    recall: float
    F1: float


def precision_recall(found: Iterable[Iterable[Any]], right: Iterable[Iterable[Any]]) -> PrecisionRecall:
    """Precision, recall and F1 of items found in texts.

    Args:
        found: the things found in each text, such as entities or constituents; what stands there twice counts twice
        right: those that should be found

    Returns:
        Three numbers from 0 to 1: `precision`, `recall` and `F1`; those without anything to count are 0.

    Raises:
        ValueError: there are more texts in one than in the other

    Example:
        >>> from dynet_cy import metrics
        >>> precision, recall, f1 = metrics.precision_recall([["a", "b"], []], [["a"], ["c"]])
        >>> precision, recall, f1
        (0.5, 0.5, 0.5)
    """
    common = guessed = wanted = 0
    for one, gold in _pairs(found, right):
        for name, given in (("found", one), ("right", gold)):
            check_no_table("metrics", given, name)
        own, theirs = Counter(one), Counter(gold)
        common += sum((own & theirs).values())
        guessed, wanted = guessed + sum(own.values()), wanted + sum(theirs.values())
    return PrecisionRecall(common / max(guessed, 1), common / max(wanted, 1), 2 * common / max(guessed + wanted, 1))


_TAG = re.compile(r"O|[BIESULM](-.+)?")
_BRACKETS = re.compile(r"(?=.)(?:\(([^()*]+))?\*?(\))?")
_BEGINS, _ENDS = "BSU", "OESUL"


def is_tag(tag: str) -> bool:
    """Whether `to_bio` reads it as the tag of a word, in any of its schemes."""
    return _TAG.fullmatch(tag) is not None or _BRACKETS.fullmatch(tag) is not None


def to_bio(tags: Sequence[str]) -> list[str]:
    """Tags of entities in the format BIO: B-PER begins one of the kind PER, I-PER continues it, O is outside.

    Converted are the tags of IOB1, where B- only separates an entity from one before it, and an I- that continues
    nothing; of BIOES (S-PER is a single word, E-PER the last one), BILOU (U-, L-) and BMES (M- is in the middle); and
    brackets, as in the files of OntoNotes: (PER*, *, *), (PER). Tags may have no kind: B, I, O.

    Args:
        tags: the tags of a sentence, all of one scheme

    Raises:
        ValueError: a tag of another scheme

    Example:
        >>> from dynet_cy import metrics
        >>> metrics.to_bio(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"])
        ['B-PER', 'I-PER', 'O', 'B-LOC', 'B-LOC']
        >>> metrics.to_bio(["S-PER", "O", "B-LOC", "E-LOC"])
        ['B-PER', 'O', 'B-LOC', 'I-LOC']
        >>> metrics.to_bio(["(PER)", "*", "(LOC*", "*)"])
        ['B-PER', 'O', 'B-LOC', 'I-LOC']
    """
    if tags and all(_BRACKETS.fullmatch(tag) for tag in tags):
        return _of_brackets(tags)
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise ValueError(f"metrics: no tag (O, B-..., I-..., or of BIOES or BILOU): {tag!r:.80}")
    found = []
    for before, tag in zip(["O", *tags], tags):
        begins = tag[0] in _BEGINS or before[0] in _ENDS or before[1:] != tag[1:]
        found.append("O" if tag == "O" else ("B" if begins else "I") + tag[1:])
    return found


def _of_brackets(tags: Sequence[str]) -> list[str]:
    found, kind = [], ""
    for tag in tags:
        match = _BRACKETS.fullmatch(tag)
        opening, closing = match.groups() if match else (None, None)
        if (opening and kind) or (closing and not (opening or kind)):
            raise ValueError(f"metrics: tag {tag!r:.80} is inside another entity, or follows no beginning")
        kind = opening or kind
        found.append(f"{'B' if opening else 'I'}-{kind}" if kind else "O")
        kind = "" if closing else kind
    return found


def entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Find the entities in the tags of a sentence: first word, word after the last, kind.

    Args:
        tags: BIO, or any other scheme that `to_bio` converts; without a kind, kinds are ""

    Raises:
        ValueError: a tag of another scheme

    Example:
        >>> from dynet_cy import metrics
        >>> sorted(metrics.entities(["B-PER", "I-PER", "O", "B-LOC"]))
        [(0, 2, 'PER'), (3, 4, 'LOC')]
    """
    bio = [*to_bio(tags), "O"]
    starts = [i for i, tag in enumerate(bio) if tag[0] == "B"]
    return {(i, next(j for j in range(i + 1, len(bio)) if bio[j][0] != "I"), bio[i][2:]) for i in starts}


def _is_equal(one: Any, gold: Any) -> bool:
    if np.size(one) != 1 and np.size(gold) == 1:
        raise ValueError(f"metrics: a result of shape {np.shape(one)}, but one right value, {gold!r:.80}")
    return bool(one == gold)


def _pairs(found: Iterable[Any], right: Iterable[Any], item: int | None = None) -> list[tuple[Any, Any]]:
    """The results with what is right; `item`: the index of the one that they are parts of."""
    for name, given in (("found", found), ("right", right)):
        check_no_table("metrics", given, name)
    results, gold = list(found), list(right)
    if len(results) != len(gold):
        of = "" if item is None else f" in item {item}"
        raise ValueError(f"metrics: {len(results)} results{of}, but {len(gold)} right ones to compare with")
    return list(zip(results, gold))


name_all(__name__)
