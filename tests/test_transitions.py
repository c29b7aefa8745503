"""Transition systems: all trees are built, and the oracle agrees with exhaustive search in all states of a parse."""

from __future__ import annotations

import copy
import itertools
import random

import numpy as np
import pytest

from dynet_cy.data import ArcHybrid, ArcHybridOracle, ConlluSentence


def is_tree(heads: list[int]) -> bool:
    return ConlluSentence(["w"] * len(heads), head=heads).is_tree()


def all_trees(words: int) -> list[tuple[int, ...]]:
    return [heads for heads in itertools.product(range(words + 1), repeat=words) if is_tree(list(heads))]


def crosses(heads: tuple[int, ...]) -> bool:
    arcs = [tuple(sorted(arc)) for arc in enumerate(heads, start=1)]
    return any(a < c < b < d for a, b in arcs for c, d in arcs)


def oracle_of(heads: tuple[int, ...]):
    """The oracle of a tree, and the names of the actions."""
    words = len(heads)
    tree = ConlluSentence(["w"] * words, head=list(heads), deprel=[f"r{i % 2}" for i in range(words)])
    names = ArcHybrid.actions(["r0", "r1"])
    return ArcHybridOracle(tree, names), names


def test_the_oracle_makes_all_trees_without_crossing_arcs() -> None:
    rng = random.Random(1)
    for words in (1, 2, 3, 4, 5):
        for heads in all_trees(words):
            oracle, names = oracle_of(heads)
            for choose in (lambda best: best[0], lambda best: best[-1], rng.choice):
                now, steps = ArcHybrid(words), 0
                while not now.over():
                    action = names[choose(oracle.best(now))]
                    assert action[0] in now.allowed()
                    now.apply(action)
                    steps += 1
                assert steps == 2 * words
                made = now.heads[1:] == list(heads)
                assert made == (not crosses(heads))
                assert not made or now.relations[1:] == [f"r{i % 2}" for i in range(words)]


def right_arcs_at_most(now, heads: list[int]) -> int:
    """The number of correct arcs that a configuration can still reach, by exhaustive search."""
    if now.over():
        return sum(a == b for a, b in zip(now.heads[1:], heads))
    found = []
    for kind in now.allowed():
        after = copy.deepcopy(now)
        after.apply((kind, "r0"))
        found.append(right_arcs_at_most(after, heads))
    return max(found)


def test_the_oracle_knows_what_is_best_after_errors() -> None:
    """The cheapest actions are those that lead to the most correct arcs, in all kinds of configurations."""
    rng = random.Random(2)
    for words in (2, 3, 4):
        for heads in all_trees(words):
            if crosses(heads):
                continue
            oracle, names = oracle_of(heads)
            now = ArcHybrid(words)
            while not now.over():
                reached = {}
                for kind in now.allowed():
                    after = copy.deepcopy(now)
                    after.apply((kind, "r0"))
                    reached[kind] = right_arcs_at_most(after, list(heads))
                best = {names[number][0] for number in oracle.best(now)}
                assert best == {kind for kind, right in reached.items() if right == max(reached.values())}
                now.apply((rng.choice(sorted(now.allowed())), "r0"))


def test_all_ways_of_allowed_actions_end_in_a_tree() -> None:
    rng = random.Random(2)
    for _ in range(200):
        now = ArcHybrid(rng.randrange(1, 8))
        while not now.over():
            now.apply((rng.choice(sorted(now.allowed())), "r"))
        assert is_tree(now.heads[1:])


def test_the_best_action_is_a_possible_one() -> None:
    actions = ArcHybrid.actions(["r", "s"])
    parse, scores = ArcHybrid(2), np.arange(len(actions))
    taken = []
    while not parse.over():
        taken.append(actions[parse.best(scores, actions)])
        parse.apply(taken[-1])
    assert taken == [("shift", ""), ("left", "s"), ("shift", ""), ("right", "s")]
    with pytest.raises(ValueError, match="ArcHybrid.best: no action is possible"):
        parse.best(scores, actions)
    with pytest.raises(ValueError, match=r"scores of shape \(5,\) are needed, not \(4,\)"):
        ArcHybrid(2).best(scores[:4], actions)


@pytest.mark.parametrize("kind", ["left", "right", "read"])
def test_impossible_actions(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"ArcHybrid.apply: '{kind}' is not possible, only \['shift'\]"):
        ArcHybrid(2).apply((kind, "r"))


@pytest.mark.parametrize("heads", [[2, 1], [None, 1], [2, 3]])
def test_oracle_of_no_tree(heads: list[int | None]) -> None:
    with pytest.raises(ValueError, match="ArcHybridOracle: no tree with one root: the heads are "):
        ArcHybridOracle(ConlluSentence(["a", "b"], head=heads), ArcHybrid.actions(["_"]))


def test_exploration() -> None:
    """The action to learn is a best one, that with the highest score; the one to take may be any possible one."""
    oracle, names = oracle_of((2, 0))
    parse, rng = ArcHybrid(2), random.Random(1)
    parse.apply(("shift", ""))
    best = oracle.best(parse)
    assert oracle.explore(parse, None, 0.0, rng) == (best[0], best[0])
    for _ in range(20):
        scores = np.array([rng.random() for _ in names])
        learnt = max(best, key=lambda action: scores[action])
        assert oracle.explore(parse, scores, 0.0, rng) == (learnt, learnt)
        assert oracle.explore(parse, scores, 1.0, rng) == (learnt, parse.best(scores, names))
    with pytest.raises(ValueError, match=r"ArcHybridOracle.explore: scores are needed for a rate of 0.5"):
        oracle.explore(parse, None, 0.5, rng)


NAMES = ArcHybrid.actions(["r"])


def test_actions_that_are_never_taken() -> None:
    now = ArcHybrid(2)
    now.apply(NAMES[0])
    assert NAMES[now.best([-np.inf, 2, 9], NAMES)] == ("left", "r")  # right is not possible
    with pytest.raises(
        ValueError, match=r"no action is possible: all of the kinds \['left', 'shift'\] have the score -inf"
    ):
        now.best([-np.inf, -np.inf, 0], NAMES)
    for choose in (
        now.best,
        lambda scores, names: oracle_of((2, 0))[0].explore(now, [0, *scores, 0], 0.5, random.Random(1)),
    ):
        with pytest.raises(ValueError, match=r"^ArcHybrid.*: the score of action \d, \('.*'\), is NaN"):
            choose([0, 1, np.nan], NAMES)


def test_a_relation_without_an_action() -> None:
    tree = ConlluSentence(["a", "b"], head=[2, 0], deprel=["new", "r"])
    now = ArcHybrid(2)
    now.apply(NAMES[0])
    with pytest.raises(KeyError, match="the tree has the relation 'new', but no action 'left' makes it.*Relations: r"):
        ArcHybridOracle(tree, NAMES).best(now)
