"""A stack-LSTM parser: three LSTMs follow the stack, the words not read yet, and the actions taken.

    python stack_lstm_parser.py                                # train on a Turkish treebank, then parse a sentence
    python stack_lstm_parser.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python stack_lstm_parser.py parse text.conllu              # print a treebank with the trees found

The state of an LSTM never changes: to push is to add an input to a state, which makes another, and to pop is to go back
to the state before, by `prev()`, from which the LSTM may go on differently.  The vector of a word that gets a child is
composed anew from both, so that the stack holds trees (Dyer, Ballesteros, Ling, Matthews, Smith: Transition-Based
Dependency Parsing with Stack Long Short-Term Memory, ACL 2015; here without vectors trained elsewhere).

What is computed depends on each action of each sentence: no two sentences of a minibatch have the same graph.  The
engine still runs together what is alike.  As in `transition_parser.py`, the parser learns from its own errors too
(Ballesteros, Goldberg, Dyer, Smith: Training with Exploration Improves a Greedy Stack LSTM Parser, EMNLP 2016).
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
        dim, hidden = spec["tree_dim"], spec["hidden"]
        self.enter, self.enter_bias = pc.add_parameters((dim, self.inputs.dim)), pc.add_parameters(dim, init=0)
        self.action_vectors = pc.add_lookup_parameters((len(self.actions), spec["action_dim"]))
        self.arc_vectors = pc.add_lookup_parameters((len(self.actions), spec["action_dim"]))

        self.stack = dy.LSTMBuilder(1, dim, hidden, pc)
        self.buffer = dy.LSTMBuilder(1, dim, hidden, pc)
        self.history = dy.LSTMBuilder(1, spec["action_dim"], hidden, pc)
        self.root, self.end = pc.add_parameters(dim), pc.add_parameters(dim)  # bottom of the stack, and of the buffer
        self.begin = pc.add_parameters(spec["action_dim"])  # before the first action

        self.head, self.child = pc.add_parameters((dim, dim)), pc.add_parameters((dim, dim))
        self.arc, self.compose_bias = pc.add_parameters((dim, spec["action_dim"])), pc.add_parameters(dim, init=0)
        self.looks = [pc.add_parameters((hidden, hidden)) for _ in range(3)]
        self.bias = pc.add_parameters(hidden, init=0)
        self.choose = pc.add_parameters((len(self.actions), hidden))
        self.choose_bias = pc.add_parameters(len(self.actions), init=0)

    def loss(self, batch: list[Tree]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch: each word takes two actions."""
        losses = batched_map(dy, self.loss_of_one, batch, [self.rng.random() for _ in batch])
        return dy.esum(losses) / sum(len(tree) for tree in batch)

    def loss_of_one(self, tree: Tree, seed: float) -> dy.Expression:
        state = State(self, tree.words, tree.tags)
        return arc_hybrid.loss(dy, state, Oracle(tree, self.ids), self.spec["explore"], random.Random(seed))

    def parse(self, words: list[list[str]], tags: list[list[str]]) -> trees.Parses:
        """Return the heads and the relations of sentences."""
        dy.renew_cg()
        return batched_map(dy, self.parse_one, words, tags)

    def parse_one(self, words: list[str], tags: list[str]) -> tuple[list[int], list[str]]:
        return arc_hybrid.parse(State(self, words, tags), self.actions)


class State:
    """A sentence on its way to be parsed."""

    def __init__(self, parser: Parser, words: list[str], tags: list[str]) -> None:
        self.parser = net = parser
        self.configuration = Configuration(len(words))
        self.words = [
            dy.rectify(dy.affine_transform([net.enter_bias, net.enter, x]))
            for x in net.inputs.look_up(words, tags, net.training)
        ]
        self.trees = [net.root]  # the vectors of what is on the stack, beside the state of its LSTM
        self.stack = net.stack.initial_state().add_input(net.root)
        self.history = net.history.initial_state().add_input(net.begin)
        # The buffer is read from its end.  It starts in the last state; reading a word takes it a state back.
        self.buffer = net.buffer.initial_state().add_inputs([net.end, *self.words[::-1]])[-1]

    def scores(self) -> dy.Expression:
        """Return the scores of all actions, those that are not allowed too."""
        net, terms = self.parser, [self.parser.bias]
        for look, state in zip(net.looks, (self.stack, self.buffer, self.history)):
            terms += [look, state.output()]
        hidden = dy.rectify(dy.affine_transform(terms))
        if net.training:
            hidden = dy.dropout(hidden, net.spec["dropout"])
        return dy.affine_transform([net.choose_bias, net.choose, hidden])

    def take(self, action: Action) -> None:
        net, number = self.parser, self.parser.ids[action]
        next_word = self.configuration.next - 1
        if action == arc_hybrid.SHIFT:
            self.push(self.words[next_word])
            self.buffer = self.buffer.prev()
        elif action[0] == "left":
            self.words[next_word] = self.compose(self.words[next_word], self.pop(), number)
            self.buffer = self.buffer.prev().add_input(self.words[next_word])
        else:
            child, head = self.pop(), self.pop()
            self.push(self.compose(head, child, number))
        self.history = self.history.add_input(net.action_vectors[number])
        self.configuration.apply(action)

    def compose(self, head: dy.Expression, child: dy.Expression, arc: int) -> dy.Expression:
        """Return the vector of a word that has got a child."""
        net = self.parser
        terms = [net.compose_bias, net.head, head, net.child, child, net.arc, net.arc_vectors[arc]]
        return dy.tanh(dy.affine_transform(terms))

    def push(self, tree: dy.Expression) -> None:
        self.trees.append(tree)
        self.stack = self.stack.add_input(tree)

    def pop(self) -> dy.Expression:
        self.stack = self.stack.prev()
        return self.trees.pop()


SIZES = {
    "word_dim": 64,
    "tag_dim": 16,
    "action_dim": 16,
    "tree_dim": 64,  # of the words and trees on the stack
    "hidden": 100,  # of the three LSTMs
    "dropout": 0.2,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
    "explore": 0.5,  # how often it takes, while it learns, the action that it likes best, though another may be right
}


def build(engine: ModuleType, spec: dict) -> Parser:
    global dy
    dy = engine
    return Parser(spec)


if __name__ == "__main__":
    about = "Train a stack-LSTM dependency parser, or parse with one."
    trees.main("stack_lstm_parser", about, build, SIZES)
