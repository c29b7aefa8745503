"""The arc-standard transitions of dependency parsing (Nivre, Incrementality in Deterministic Parsing, 2004).

A stack holds words, at its bottom the root 0; the words not read yet follow in their order.  `shift` reads the next
word onto the stack.  `left` makes the word on top of the stack the head of the one below it, and `right` the one below
the head of the one on top; the word that has got its head leaves the stack.  All trees without crossing arcs can be
made.  No program.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

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
        return not self.allowed()

    def allowed(self) -> set[str]:
        """Return the kinds of actions that can be done; the root is to get one word only, when all are read."""
        kinds = {"shift"} if self.next <= self.length else set()
        if len(self.stack) > 1 and self.stack[-2] != 0:
            kinds |= {"left", "right"}
        elif len(self.stack) > 1 and not kinds:
            kinds = {"right"}
        return kinds

    def apply(self, action: Action) -> None:
        kind, relation = action
        if kind == "shift":
            self.stack.append(self.next)
            self.next += 1
            return
        child = self.stack.pop(-2 if kind == "left" else -1)
        self.heads[child] = self.stack[-1]
        self.relations[child] = relation


def oracle(tree: Tree) -> list[Action] | None:
    """Return the actions that make the tree, each arc as soon as it can be; None if arcs of the tree cross."""
    heads = [-1, *tree.heads]
    waiting = [heads.count(word) for word in range(len(heads))]  # children that are not attached yet
    now, taken = Configuration(len(tree)), []
    while not now.over():
        below, top = now.stack[-2:] if len(now.stack) > 1 else (-1, 0)
        action = SHIFT
        if below > 0 and heads[below] == top and not waiting[below]:
            action = ("left", tree.relations[below - 1])
        elif below >= 0 and heads[top] == below and not waiting[top]:
            action = ("right", tree.relations[top - 1])
        if action[0] not in now.allowed():
            return None
        if action != SHIFT:
            waiting[top if action[0] == "left" else below] -= 1
        now.apply(action)
        taken.append(action)
    return taken


def is_projective(tree: Tree) -> bool:
    return oracle(tree) is not None


def parse_together(dy: ModuleType, states: list[Any], names: list[Action]) -> list[tuple[list[int], list[str]]]:
    """Take the best action in all sentences, again and again until each has its tree.

    A state has its `configuration`, `scores()`, an expression with the scores of the actions in `names`, and
    `take(action)`.  The sentences go side by side, so that the engine can batch the scores of a step.
    """
    going = [state for state in states if not state.configuration.over()]
    while going:
        scores = [state.scores() for state in going]
        dy.forward(scores)
        for state, expression in zip(going, scores):
            allowed = state.configuration.allowed()
            order = (-expression.npvalue()).argsort()
            state.take(next(names[i] for i in order if names[i][0] in allowed))
        going = [state for state in going if not state.configuration.over()]
    return [(state.configuration.heads[1:], state.configuration.relations[1:]) for state in states]
