"""Toy data: random trees from small grammars, to try networks without files."""

from __future__ import annotations

import random

from dynet_cy.data.trees import Tree

_NOUNS = ["the film", "the plot", "this story", "every scene", "the music", "her role", "the ending", "its hero"]
_ADJECTIVES = {
    -2: ["awful", "dreadful", "unbearable"],
    -1: ["dull", "weak", "clumsy", "thin"],
    0: ["long", "quiet", "French", "recent"],
    1: ["good", "fresh", "charming", "solid"],
    2: ["superb", "brilliant", "wonderful"],
}


def toy_sentiment(count: int, seed: int = 1) -> list[Tree]:
    """Sentences on films, with labels from 0 (very bad) to 4 (very good) at all nodes, as in sentiment treebanks.

    The label of a node follows from those of its parts: `very` moves a label further from 2, `hardly` and `not` reverse
    and weaken it, and two sentences joined by `but` have the label of the second. The trees are binary.

    Args:
        count: how many
        seed: of the random numbers; equal seeds make equal trees

    Example:
        >>> print(dy.data.toy_sentiment(2, seed=2)[1])
        (1 (2 (2 this) (2 story)) (1 (2 is) (1 (2 hardly) (3 (2 not) (1 (2 hardly) (4 brilliant))))))
    """
    rng = random.Random(seed)
    return [_sentiment(rng) for _ in range(count)]


def _sentiment(rng: random.Random) -> Tree:
    first = _opinion(rng)
    if rng.random() < 0.5:
        return first
    second = _opinion(rng)
    value = _value_of(second)
    return _node(value, first, _node(value, _node(0, "but"), second))


def _opinion(rng: random.Random) -> Tree:
    article, noun = rng.choice(_NOUNS).split()
    inner = _adjective(rng, 3)
    value = _value_of(inner)
    return _node(value, _node(0, _node(0, article), _node(0, noun)), _node(value, _node(0, "is"), inner))


def _adjective(rng: random.Random, depth: int) -> Tree:
    if depth == 0 or rng.random() < 0.3:
        value = rng.choice(list(_ADJECTIVES))
        return _node(value, rng.choice(_ADJECTIVES[value]))
    inner = _adjective(rng, depth - 1)
    value = _value_of(inner)
    sign = (value > 0) - (value < 0)
    if rng.random() < 0.5:
        return _node(max(-2, min(2, value + sign)), _node(0, "very"), inner)
    return _node(-sign, _node(0, rng.choice(["not", "hardly"])), inner)


def _node(value: int, *parts: str | Tree) -> Tree:
    """A node with a label for a value from -2 to 2."""
    return Tree(str(value + 2), parts)


def _value_of(tree: Tree) -> int:
    return int(tree.label) - 2


def toy_constituents(count: int, seed: int = 1) -> list[Tree]:
    """Sentences with their constituents, in which `of` belongs to the noun before it, and `with` to the verb.

    Args:
        count: how many
        seed: of the random numbers; equal seeds make equal trees

    Example:
        >>> print(dy.data.toy_constituents(2, seed=2)[1])
        (S (NP a house) (VP finds (NP (NP the dog) (PP of (NP a book)))))
    """
    rng = random.Random(seed)
    return [Tree("S", (_noun_phrase(rng, 0), _verb_phrase(rng))) for _ in range(count)]


def _noun_phrase(rng: random.Random, depth: int) -> Tree:
    if rng.random() < 0.2:
        return Tree("NP", (rng.choice(["Anna", "Bob"]),))
    simple = Tree("NP", (rng.choice(["the", "a"]), rng.choice(["dog", "cat", "tree", "book", "house"])))
    if depth < 3 and rng.random() < 0.4:
        return Tree("NP", (simple, Tree("PP", ("of", _noun_phrase(rng, depth + 1)))))
    return simple


def _verb_phrase(rng: random.Random) -> Tree:
    parts: tuple[str | Tree, ...] = (rng.choice(["sees", "paints", "finds"]), _noun_phrase(rng, 0))
    if rng.random() < 0.5:
        parts = (*parts, Tree("PP", ("with", _noun_phrase(rng, 1))))
    return Tree("VP", parts if rng.random() < 0.8 else (rng.choice(["barks", "sleeps"]),))
