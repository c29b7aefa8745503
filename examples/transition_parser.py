"""A transition-based dependency parser: a BiLSTM reads the sentence, an MLP chooses one action after the other.

    python transition_parser.py                                # train on a Turkish treebank, then parse a sentence
    python transition_parser.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python transition_parser.py parse text.conllu              # print a treebank with the trees found

The actions are those of `arc_hybrid.py`.  The choice is made from the BiLSTM's states of four words: the three on top
of the stack and the next one to be read (Kiperwasser and Goldberg, Simple and Accurate Dependency Parsing Using
Bidirectional LSTM Feature Representations, TACL 2016).

While it learns, the parser now and then takes the action that it likes best, though it may be wrong, and learns what is
best from there on.  So each sentence goes its own way, which depends on values.  It is written as for one sentence all
the same: `batched_map` lets the sentences of a minibatch run side by side, and computes their scores together.
"""

from __future__ import annotations

import random
from types import ModuleType

import arc_hybrid
import trees
from arc_hybrid import Action, Configuration, Oracle
from conllu import Tree
from helpers import batched_map


class Parser:
    """The network.  `spec` is all that is needed, beside the weights, to build it again."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.actions = arc_hybrid.actions(spec["relations"])
        self.ids = {action: i for i, action in enumerate(self.actions)}
        self.training = False  # whether to drop out
        self.rng = random.Random(spec["seed"])

        self.pc = pc = dy.ParameterCollection()
        self.inputs = trees.Inputs(dy, pc, spec)
        self.root = pc.add_parameters(self.inputs.dim)  # stands before the first word
        states, hidden = 2 * spec["hidden"], spec["mlp_dim"]
        self.reader = dy.BiRNNBuilder(spec["layers"], self.inputs.dim, states, pc, dy.LSTMBuilder)
        self.nothing = pc.add_parameters(states)  # stands for a word where there is none
        self.looks = [pc.add_parameters((hidden, states)) for _ in range(4)]
        self.bias = pc.add_parameters(hidden, init=0)
        self.choose = pc.add_parameters((len(self.actions), hidden))
        self.choose_bias = pc.add_parameters(len(self.actions), init=0)

    def start(self, words: list[str], tags: list[str]) -> State:
        inputs = [self.root, *self.inputs.look_up(words, tags, self.training)]
        return State(self, self.reader.transduce(inputs))

    def loss(self, batch: list[Tree]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch: each word takes two actions."""
        if self.training:
            self.reader.set_dropout(self.spec["dropout"])
        losses = batched_map(dy, self.loss_of_one, batch, [self.rng.random() for _ in batch])
        return dy.esum(losses) / sum(len(tree) for tree in batch)

    def loss_of_one(self, tree: Tree, seed: float) -> dy.Expression:
        state = self.start(tree.words, tree.tags)
        return arc_hybrid.loss(dy, state, Oracle(tree, self.ids), self.spec["explore"], random.Random(seed))

    def parse(self, words: list[list[str]], tags: list[list[str]]) -> trees.Parses:
        """Return the heads and the relations of sentences."""
        dy.renew_cg(forward_only=True)
        self.reader.disable_dropout()
        return batched_map(dy, self.parse_one, words, tags)

    def parse_one(self, words: list[str], tags: list[str]) -> tuple[list[int], list[str]]:
        return arc_hybrid.parse(self.start(words, tags), self.actions)


class State:
    """A sentence on its way to be parsed."""

    def __init__(self, parser: Parser, vectors: list[dy.Expression]) -> None:
        self.parser = parser
        self.vectors = vectors  # of the root, and of each word
        self.configuration = Configuration(len(vectors) - 1)

    def scores(self) -> dy.Expression:
        """Return the scores of all actions, those that are not allowed too."""
        net, now = self.parser, self.configuration
        words = [*now.stack[:-4:-1], *[None] * (3 - len(now.stack)), now.next if now.next <= now.length else None]
        terms = [net.bias]
        for look, word in zip(net.looks, words):
            terms += [look, net.nothing if word is None else self.vectors[word]]
        hidden = dy.rectify(dy.affine_transform(terms))
        if net.training:
            hidden = dy.dropout(hidden, net.spec["dropout"])
        return dy.affine_transform([net.choose_bias, net.choose, hidden])

    def take(self, action: Action) -> None:
        self.configuration.apply(action)


SIZES = {
    "word_dim": 100,
    "tag_dim": 32,
    "hidden": 128,  # of the BiLSTM, in each direction
    "layers": 2,
    "mlp_dim": 128,
    "dropout": 0.33,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
    "explore": 0.1,  # how often it takes, while it learns, the action that it likes best, though another may be right
}


def build(engine: ModuleType, spec: dict) -> Parser:
    global dy
    dy = engine
    return Parser(spec)


if __name__ == "__main__":
    about = "Train a transition-based dependency parser, or parse with one."
    trees.main("transition_parser", about, build, SIZES)
