"""Transition systems: dependency trees as sequences of actions, and the best actions in each state of a parse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.data.conllu import ConlluSentence

Action = tuple[str, str]  # its kind (shift, left or right), and the relation of the arc that it makes


class ArcHybrid:
    """The state of a parse in the arc-hybrid system (Kuhlmann, Gómez-Rodríguez, Satta, ACL 2011).

    A stack holds words, with the root 0 at its bottom; the unread words follow in order. The action "shift" reads the
    next word onto the stack. "left" makes the next word the head of the one on top of the stack, "right" the one below
    it; the word that gets its head leaves the stack. Every tree without crossing arcs can be built, and n words take 2n
    actions.

    Args:
        length: the number of words

    Attributes:
        length: the number of words
        stack: the words on the stack, the top last
        next: the next word to be read; `length` + 1 after the last one
        heads: of the root and the words; -1 for a word without a head
        relations: of the same; "" for a word without a head

    Example:
        >>> parse = dy.data.ArcHybrid(2)
        >>> for action in [("shift", ""), ("left", "nsubj"), ("shift", ""), ("right", "root")]:
        ...     parse.apply(action)
        >>> parse.over(), parse.heads[1:], parse.relations[1:]
        (True, [2, 0], ['nsubj', 'root'])
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.stack = [0]
        self.next = 1
        self.heads = [-1] * (length + 1)
        self.relations = [""] * (length + 1)

    @staticmethod
    def actions(relations: Sequence[str]) -> list[Action]:
        """All actions, each a kind and a relation, in an order that depends only on the relations.

        Args:
            relations: those that an arc may have

        Example:
            >>> dy.data.ArcHybrid.actions(["nsubj", "root"])
            [('shift', ''), ('left', 'nsubj'), ('left', 'root'), ('right', 'nsubj'), ('right', 'root')]
        """
        return [("shift", ""), *((kind, relation) for kind in ("left", "right") for relation in relations)]

    def over(self) -> bool:
        """Whether all words have heads.

        Example:
            >>> dy.data.ArcHybrid(2).over()
            False
        """
        return self.next > self.length and len(self.stack) == 1

    def allowed(self) -> set[str]:
        """The kinds of actions that are possible; the root gets only one word, after all have been read.

        Example:
            >>> dy.data.ArcHybrid(2).allowed()
            {'shift'}
        """
        kinds = {"shift", "left"} if self.next <= self.length else set()
        if len(self.stack) == 1:
            kinds.discard("left")
        elif len(self.stack) > 2 or not kinds:
            kinds.add("right")
        return kinds

    def best(self, scores: npt.ArrayLike, actions: Sequence[Action]) -> int:
        """The number of the action with the highest score among those that are possible.

        Args:
            scores: array (actions,), with a score for each action; -inf: never
            actions: the actions

        Raises:
            ValueError: there are more or fewer scores than actions, one is NaN, or no action is possible

        Example:
            >>> actions = dy.data.ArcHybrid.actions(["nsubj"])
            >>> actions[dy.data.ArcHybrid(2).best(np.array([0.1, 0.8, 0.3]), actions)]  # no word can get a head yet
            ('shift', '')
        """
        checked = _checked(scores, actions, "ArcHybrid.best")
        allowed = self.allowed()
        for number in (-checked).argsort():
            if actions[number][0] in allowed and checked[number] > -np.inf:
                return int(number)
        why = f"all of the kinds {sorted(allowed)} have the score -inf" if allowed else "the parse is over"
        raise ValueError(f"ArcHybrid.best: no action is possible: {why}")

    def apply(self, action: Action) -> None:
        """Take an action.

        Args:
            action: its kind, and the relation of the arc that it makes

        Raises:
            ValueError: it is not possible

        Example:
            >>> parse = dy.data.ArcHybrid(2)
            >>> parse.apply(("shift", ""))
            >>> parse.stack, parse.next
            ([0, 1], 2)
        """
        kind, relation = action
        if kind not in self.allowed():
            raise ValueError(f"ArcHybrid.apply: {kind!r:.80} is not possible, only {sorted(self.allowed())}")
        if kind == "shift":
            self.stack.append(self.next)
            self.next += 1
            return
        child = self.stack.pop()
        self.heads[child] = self.next if kind == "left" else self.stack[-1]
        self.relations[child] = relation


class ArcHybridOracle:
    """Finds the best actions in each state of a parse, also after errors, from the right tree.

    The cost of an action is the number of arcs of the right tree that it makes impossible, which is known in every
    state, also for trees with crossing arcs (Goldberg and Nivre, Training Deterministic Parsers with Non-Deterministic
    Oracles, TACL 2013). So a parser can learn from states that its own choices led to.

    Args:
        tree: the right tree
        actions: the actions, see `ArcHybrid.actions`, which have all relations of the tree

    Raises:
        ValueError: the heads do not form a tree with one root

    Example:
        >>> tree = dy.data.ConlluSentence(["dogs", "bark"], head=[2, 0], deprel=["nsubj", "root"])
        >>> actions, parse = dy.data.ArcHybrid.actions(["nsubj", "root"]), dy.data.ArcHybrid(2)
        >>> oracle = dy.data.ArcHybridOracle(tree, actions)
        >>> while not parse.over():
        ...     parse.apply(actions[oracle.best(parse)[0]])
        >>> parse.heads[1:], parse.relations[1:]
        ([2, 0], ['nsubj', 'root'])
    """

    def __init__(self, tree: ConlluSentence, actions: Sequence[Action]) -> None:
        if not tree.is_tree():
            raise ValueError(f"ArcHybridOracle: no tree with one root: the heads are {tree.head}")
        self._heads = [-1, *(head for head in tree.head if head is not None)]
        self._relations = ["", *tree.deprel]
        self._children: list[list[int]] = [[] for _ in self._heads]
        for child, head in enumerate(self._heads[1:], start=1):
            self._children[head].append(child)
        self._actions = list(actions)
        self._numbers = {action: i for i, action in enumerate(actions)}
        self._of_kind: dict[str, list[int]] = {}
        for i, (kind, _) in enumerate(actions):
            self._of_kind.setdefault(kind, []).append(i)

    def cost(self, parse: ArcHybrid, kind: str) -> int:
        """The number of arcs of the right tree that an action makes impossible.

        Args:
            parse: the state of the parse
            kind: that of an action that is possible

        Example:
            >>> tree, parse = dy.data.ConlluSentence(["dogs", "bark"], head=[2, 0]), dy.data.ArcHybrid(2)
            >>> parse.apply(("shift", ""))
            >>> oracle = dy.data.ArcHybridOracle(tree, dy.data.ArcHybrid.actions(["_"]))
            >>> oracle.cost(parse, "left"), oracle.cost(parse, "shift")
            (0, 2)
        """
        top, word = parse.stack[-1], parse.next
        if kind == "shift":  # the word can get no more children from the stack, and no head from below its top
            children = sum(child in parse.stack for child in self._children[word])
            return children + (self._heads[word] in parse.stack[:-1])
        lost = sum(child >= word for child in self._children[top])
        if kind == "left":
            return lost + (self._heads[top] == parse.stack[-2] or self._heads[top] > word)
        return lost + (self._heads[top] >= word)

    def best(self, parse: ArcHybrid) -> list[int]:
        """The numbers of all actions with the lowest cost, those that make an arc first.

        An action that makes an arc of the right tree must have its relation too; after an arc that is wrong anyway, all
        relations are as good.

        Args:
            parse: the state of the parse, which is not over

        Raises:
            KeyError: there is no action for a relation of the tree

        Example:
            >>> tree = dy.data.ConlluSentence(["dogs", "bark"], head=[2, 0], deprel=["nsubj", "root"])
            >>> actions = dy.data.ArcHybrid.actions(["nsubj", "root"])
            >>> dy.data.ArcHybridOracle(tree, actions).best(dy.data.ArcHybrid(2))
            [0]
        """
        allowed = parse.allowed()
        costs = {kind: self.cost(parse, kind) for kind in ("left", "right", "shift") if kind in allowed}
        least, found = min(costs.values()), []
        for kind, cost in costs.items():
            if cost == least:
                head, child = parse.next if kind == "left" else parse.stack[-2:][0], parse.stack[-1]
                right = kind != "shift" and self._heads[child] == head  # then its relation counts too
                found += [self._number(kind, self._relations[child])] if right else self._of_kind[kind]
        return found

    def _number(self, kind: str, relation: str) -> int:
        number = self._numbers.get((kind, relation))
        if number is None:
            known = ", ".join(sorted({name for own, name in self._numbers if own == kind})) or "none"
            raise KeyError(
                f"ArcHybridOracle: the tree has the relation {relation!r:.80}, but no action {kind!r} makes it; make "
                f"the actions from the relations of all training trees (ArcHybrid.actions). Relations: {known:.400}"
            )
        return number

    def explore(
        self, parse: ArcHybrid, scores: npt.ArrayLike | None, rate: float, rng: random.Random
    ) -> tuple[int, int]:
        """The numbers of the action to learn in a state and of the one to take, in training with exploration.

        A parser that sometimes takes the action with its highest score, right or wrong, learns to continue after errors
        (Goldberg and Nivre, TACL 2013; Ballesteros and others, EMNLP 2016).

        Args:
            parse: the state of the parse, which is not over
            scores: array (actions,), the scores of the parser: of several best actions, the one with the highest score
                is learnt. None for a rate of 0, which needs none: the first of them
            rate: probability of taking the action with the highest score; otherwise the one to learn is taken
            rng: where the random numbers come from

        Raises:
            KeyError: there is no action for a relation of the tree
            ValueError: the rate is above 0, and there are no scores; or see `ArcHybrid.best`

        Example:
            >>> import random
            >>> tree = dy.data.ConlluSentence(["dogs", "bark"], head=[2, 0], deprel=["nsubj", "root"])
            >>> actions, parse = dy.data.ArcHybrid.actions(["nsubj", "root"]), dy.data.ArcHybrid(2)
            >>> parse.apply(("shift", ""))
            >>> oracle, scores = dy.data.ArcHybridOracle(tree, actions), np.array([0.9, 0.2, 0.1, 0.0, 0.0])
            >>> learnt, taken = oracle.explore(parse, scores, 1.0, random.Random(1))
            >>> actions[learnt], actions[taken]
            (('left', 'nsubj'), ('shift', ''))
        """
        best = self.best(parse)
        if scores is None:
            if rate:
                raise ValueError(f"ArcHybridOracle.explore: scores are needed for a rate of {rate}")
            return best[0], best[0]
        checked = _checked(scores, self._actions, "ArcHybridOracle.explore")
        learnt = max(best, key=checked.__getitem__)
        return learnt, parse.best(checked, self._actions) if rate > rng.random() else learnt


def _checked(scores: npt.ArrayLike, actions: Sequence[Action], where: str) -> npt.NDArray[Any]:
    """Scores as an array, one for each action, none of them NaN."""
    array = np.asarray(scores)
    if array.shape != (len(actions),):
        raise ValueError(f"{where}: scores of shape ({len(actions)},) are needed, not {array.shape}")
    if np.isnan(array).any():
        number = int(np.isnan(array).argmax())
        raise ValueError(f"{where}: the score of action {number}, {actions[number]}, is NaN")
    return array
