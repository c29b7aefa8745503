"""`dy.metrics`: scores of results."""

from __future__ import annotations

import numpy as np
import pytest

from dynet_cy.data import ConlluSentence
from dynet_cy.data.metrics import accuracy, attachment, entities, precision_recall, to_bio


def test_accuracy() -> None:
    assert accuracy([], []) == 0
    assert accuracy(iter("abc"), "abd") == pytest.approx(2 / 3)
    assert accuracy([["A", "B"], [], ["C"]], [["A", "C"], [], ["C"]]) == pytest.approx(2 / 3)
    assert accuracy([np.array([1, 2, 3])], [np.array([1, 2, 4])]) == pytest.approx(2 / 3)
    for found, right in [([1], []), ([["A"]], [["A", "B"]])]:
        with pytest.raises(ValueError, match="1 results( in item 0)?, but [02] right ones"):
            accuracy(found, right)


def test_attachment() -> None:
    trees = [
        ConlluSentence(["a", "b", "c"], head=[2, 0, 2], deprel=["x", "root", "y"]),
        ConlluSentence(["d"], head=[0], deprel=["root"]),
    ]
    found = [([2, 0, 1], ["y", "root", "y"]), ([0], ["root"])]
    assert attachment(found, trees) == (0.75, 0.5)
    assert attachment(found, trees)._asdict() == {"UAS": 0.75, "LAS": 0.5}
    assert attachment([], []) == (0, 0)
    for wrong in ([2, 0], ["x", "root", "y"]), ([2, 0, 2], ["x", "root"]):
        with pytest.raises(ValueError, match="2 results in item [01], but 3 right ones"):
            attachment([wrong, found[1]], trees)


def test_precision_and_recall_count_repetitions() -> None:
    found = precision_recall([["a", "a", "b"], ["c"]], [["a", "b", "b"], []])
    assert found == (0.5, 2 / 3, pytest.approx(4 / 7))
    assert precision_recall([[]], [[]]) == (0, 0, 0)


def test_entities() -> None:
    assert to_bio(["I-A", "I-A", "B-A", "O", "I-B"]) == ["B-A", "I-A", "B-A", "O", "B-B"]
    assert entities(["B-A", "I-A", "I-B", "O", "I-A", "B-A"]) == {
        (0, 2, "A"),
        (2, 3, "B"),
        (4, 5, "A"),
        (5, 6, "A"),
    }
    assert entities([]) == set()
    for tags in (["PER"], ["B-A", "X-A"], [""], ["B_A"], ["o"], ["B-"], ["O", "*"]):
        with pytest.raises(ValueError, match=r"no tag \(O, B-\.\.\., I-\.\.\., or of BIOES or BILOU\)"):
            entities(tags)


@pytest.mark.parametrize(
    ("tags", "wanted"),
    [
        ("S-A O B-A E-A", "B-A O B-A I-A"),  # BIOES
        ("B-A I-A E-A S-A S-A", "B-A I-A I-A B-A B-A"),
        ("U-A O B-A I-A L-A", "B-A O B-A I-A I-A"),  # BILOU
        ("B-A M-A E-A S-A", "B-A I-A I-A B-A"),  # BMES
        ("I-A E-A E-A I-A", "B-A I-A B-A B-A"),  # IOE2
        ("B I O I", "B I O B"),  # no kind
        ("S O B E", "B O B I"),
        ("B-GPE.NAM I-GPE.NAM I-GPE-X", "B-GPE.NAM I-GPE.NAM B-GPE-X"),
        ("(A* * *) * (B) (C*)", "B-A I-A I-A O B-B B-C"),  # OntoNotes
        ("* *", "O O"),
        ("", ""),
    ],
)
def test_schemes(tags: str, wanted: str) -> None:
    assert to_bio(tags.split()) == wanted.split()
    assert to_bio(wanted.split()) == wanted.split()


@pytest.mark.parametrize("tags", ["*) *", "(A* (B*", "(A* (B) *)"])
def test_brackets_that_do_not_match(tags: str) -> None:
    with pytest.raises(ValueError, match="inside another entity, or follows no beginning"):
        to_bio(tags.split())


def test_results_of_other_shapes() -> None:
    column = np.array([[1], [2], [3]])
    assert accuracy(column, [1, 2, 0]) == accuracy([1, 2, 0], column[:, 0]) == 2 / 3
    for found, right in (([[1, 2]], [1]), (np.ones((2, 3)), [1, 1])):
        with pytest.raises(ValueError, match="metrics: a result of shape"):
            accuracy(found, right)
    with pytest.raises(ValueError, match="metrics: 1 results, but 3"):
        accuracy(column.T, [1, 2, 3])
