"""The arc-hybrid transitions of dependency parsing, and what each costs (Goldberg and Nivre, Training Deterministic
Parsers with Non-Deterministic Oracles, TACL 2013).

A stack holds words, at its bottom the root 0; the words not read yet follow in their order.  `shift` reads the next
word onto the stack.  `left` makes the next word the head of the one on top of the stack, `right` the one below; the
word that has got its head leaves the stack.  All trees without crossing arcs can be made.

An action costs as many arcs of the right tree as can still be made before it and no longer after it.  So it is known
for every configuration what is best there, also where the parser has gone wrong, and in trees whose arcs cross.
No program.
"""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import numpy as np
from conllu import Tree

Action = tuple[str, str]  # shift, left or right, and the relation of the arc
SHIFT: Action = ("shift", "")


def actions(relations: list[str]) -> list[Action]:
    return [SHIFT, *((kind, relation) for kind in ("left", "right") for relation in relations)]


class Configuration:
    """Where the parser of a sentence is: its stack, the next word to be read, the heads and relations found."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.stack = [0]
        self.next = 1
        self.heads = [-1] * (length + 1)
        self.relations = [""] * (length + 1)

    def over(self) -> bool:
        return self.next > self.length and len(self.stack) == 1

    def allowed(self) -> set[str]:
        """Return the kinds of actions that can be done; the root is to get one word only, when all are read."""
        kinds = {"shift", "left"} if self.next <= self.length else set()
        if len(self.stack) == 1:
            kinds.discard("left")
        elif len(self.stack) > 2 or not kinds:
            kinds.add("right")
        return kinds

    def apply(self, action: Action) -> None:
        kind, relation = action
        if kind == "shift":
            self.stack.append(self.next)
            self.next += 1
            return
        child = self.stack.pop()
        self.heads[child] = self.next if kind == "left" else self.stack[-1]
        self.relations[child] = relation


class Oracle:
    """Knows the right tree of a sentence, and so the best actions in each configuration."""

    def __init__(self, tree: Tree, ids: dict[Action, int]) -> None:
        self.tree, self.ids = tree, ids
        self.heads = [-1, *tree.heads]
        self.children: list[list[int]] = [[] for _ in self.heads]
        for child, head in enumerate(tree.heads, start=1):
            self.children[head].append(child)
        self.of_kind: dict[str, list[int]] = {}
        for (kind, _), number in ids.items():
            self.of_kind.setdefault(kind, []).append(number)

    def cost(self, now: Configuration, kind: str) -> int:
        """Return how many arcs of the right tree are lost by an action of this kind."""
        top, word = now.stack[-1], now.next
        if kind == "shift":  # the word gets no child from the stack any more, and its head from no deeper than the top
            return sum(child in now.stack for child in self.children[word]) + (self.heads[word] in now.stack[:-1])
        lost = sum(child >= word for child in self.children[top])
        if kind == "left":
            return lost + (self.heads[top] == now.stack[-2] or self.heads[top] > word)
        return lost + (self.heads[top] >= word)

    def best(self, now: Configuration) -> list[int]:
        """Return the numbers of all actions that cost least; those that make an arc first."""
        costs = {kind: self.cost(now, kind) for kind in ("left", "right", "shift") if kind in now.allowed()}
        least, found = min(costs.values()), []
        for kind, cost in costs.items():
            if cost == least:
                head, child = now.next if kind == "left" else now.stack[-2:][0], now.stack[-1]
                right = kind != "shift" and self.heads[child] == head  # then its relation counts too
                found += [self.ids[kind, self.tree.relations[child - 1]]] if right else self.of_kind[kind]
        return found


def loss(dy: ModuleType, state: Any, oracle: Oracle, explore: float, rng: random.Random) -> Any:
    """Return the summed loss of the actions of a sentence.

    A state has its `configuration`, `scores()`, an expression with the scores of all actions, and `take(action)`.
    What is learnt is the best action, of several that to which the network gives the most.  At the rate of `explore`
    the action taken is that which the network likes best, right or wrong, so that it learns to go on after errors.
    At a rate of 0 no value is needed: the first of the best actions is learnt and taken.
    """
    names, losses, now = list(oracle.ids), [], state.configuration
    while not now.over():
        scores, best = state.scores(), oracle.best(now)
        learnt = taken = best[0]
        if explore:
            values = scores.npvalue()
            learnt = taken = max(best, key=lambda number: values[number])
            if rng.random() < explore:
                taken = best_allowed(values, names, now.allowed())
        losses.append(dy.pickneglogsoftmax(scores, learnt))
        state.take(names[taken])
    return dy.esum(losses)


def parse(state: Any, names: list[Action]) -> tuple[list[int], list[str]]:
    """Take the best action, again and again, until there is a tree; return its heads and relations."""
    now = state.configuration
    while not now.over():
        state.take(names[best_allowed(state.scores().npvalue(), names, now.allowed())])
    return now.heads[1:], now.relations[1:]


def best_allowed(values: np.ndarray, names: list[Action], allowed: set[str]) -> int:
    """Return the number of the action with the highest score among those that are allowed."""
    return next(i for i in (-values).argsort() if names[i][0] in allowed)
