"""A stack-LSTM parser: three LSTMs follow the stack, the words not read yet, and the actions taken.

    python stack_lstm_parser.py           # has the commands and options of transition_parser.py

The state of an LSTM never changes: a push adds an input to a state, which makes a new one, and a pop goes back to the
previous state, with `prev()`.  When a word gets a child, its vector is composed again from both, so that the stack
holds trees (Dyer and others: Transition-Based Dependency Parsing with Stack Long Short-Term Memory,
ACL 2015).  As in `transition_parser.py`, the actions are those of `dy.data.ArcHybrid`, and the parser learns from its
own errors too (Ballesteros and others: Training with Exploration Improves a Greedy Stack LSTM Parser, EMNLP 2016).
No two sentences of a minibatch have the same graph; the engine still runs equal operations together.
"""

from __future__ import annotations

import argparse
import random

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import ArcHybrid, ArcHybridOracle, ConlluSentence, Vocabulary

Parse = tuple[list[int], list[str]]  # the heads and the relations of the words of a sentence

SIZES = {
    "word_dim": 64,
    "tag_dim": 16,
    "action_dim": 16,
    "tree_dim": 64,  # of the words and trees on the stack
    "hidden": 100,  # of the three LSTMs
    "dropout": 0.2,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
    "explore": 0.5,  # probability that it takes the action with the best score in training, even if it is wrong
}


class Parser:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec, self.actions = spec, ArcHybrid.actions(spec["relations"])
        self.training = False  # whether to apply dropout
        self.rng, self.word_rng = (random.Random(spec["seed"]) for _ in range(2))
        self.pc = pc = dy.ParameterCollection()
        self.words, self.tags = Vocabulary(spec["words"]), Vocabulary(spec["tags"])
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.tag_vectors = pc.add_lookup_parameters((len(self.tags), spec["tag_dim"]))
        dim, hidden, inputs = spec["tree_dim"], spec["hidden"], spec["word_dim"] + spec["tag_dim"]
        self.enter, self.enter_bias = pc.add_parameters((dim, inputs)), pc.add_parameters(dim, init=0)
        table = (len(self.actions), spec["action_dim"])
        self.action_vectors, self.arc_vectors = (pc.add_lookup_parameters(table) for _ in range(2))
        self.stack, self.buffer = (dy.LSTMBuilder(1, dim, hidden, pc) for _ in range(2))
        self.history = dy.LSTMBuilder(1, spec["action_dim"], hidden, pc)
        # The bottom of the stack, that of the buffer, and what comes before the first action.
        self.root, self.end, self.begin = (pc.add_parameters(n) for n in (dim, dim, spec["action_dim"]))
        self.head, self.child = pc.add_parameters((dim, dim)), pc.add_parameters((dim, dim))
        self.arc, self.compose_bias = pc.add_parameters((dim, spec["action_dim"])), pc.add_parameters(dim, init=0)
        self.looks = [pc.add_parameters((hidden, hidden)) for _ in range(3)]
        self.bias, self.choose = pc.add_parameters(hidden, init=0), pc.add_parameters((len(self.actions), hidden))
        self.choose_bias = pc.add_parameters(len(self.actions), init=0)

    def look_up(self, sentence: ConlluSentence) -> list[dy.Expression]:
        """Return a vector for each word, made from one for the word in lower case and one for its tag."""
        rate = self.spec["word_dropout"] if self.training else 0
        words = self.words.encode(map(str.lower, sentence.form), rate, self.word_rng)
        tags = self.tags.encode(sentence.column(self.spec["tag_column"]))
        pairs = [dy.concatenate([self.word_vectors[i], self.tag_vectors[j]]) for i, j in zip(words, tags)]
        return [dy.rectify(dy.affine_transform([self.enter_bias, self.enter, self.drop(pair)])) for pair in pairs]

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def loss(self, batch: list[ConlluSentence]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch: each word takes two actions."""
        losses = dy.batched_map(self.loss_of_one, batch, [self.rng.random() for _ in batch])
        return dy.esum(losses) / sum(map(len, batch))

    def loss_of_one(self, tree: ConlluSentence, seed: float) -> dy.Expression:
        """Return the summed loss of the actions of a sentence; at the rate of `explore`, wrong ones may be taken."""
        state, oracle = State(self, tree), ArcHybridOracle(tree, self.actions)
        explore, rng, losses = self.spec["explore"], random.Random(seed), []
        while not state.parse.over():
            scores = state.scores()
            values = scores.npvalue() if explore else None
            learnt, taken = oracle.explore(state.parse, values, explore, rng)
            losses.append(dy.pickneglogsoftmax(scores, learnt))
            state.apply(taken)
        return dy.esum(losses)

    def parse(self, sentences: list[ConlluSentence]) -> list[Parse]:
        """Return the heads and the relations of sentences, whose words have tags."""
        dy.renew_cg()
        return dy.batched_map(self.parse_one, sentences)

    def parse_one(self, sentence: ConlluSentence) -> Parse:
        """Take the action with the best score until the tree is complete."""
        state = State(self, sentence)
        while not state.parse.over():
            state.apply(state.parse.best(state.scores().npvalue(), self.actions))
        return state.parse.heads[1:], state.parse.relations[1:]


class State:
    """A partly parsed sentence."""

    def __init__(self, net: Parser, sentence: ConlluSentence) -> None:
        self.parser, self.parse, self.words = net, ArcHybrid(len(sentence)), net.look_up(sentence)
        self.trees = [net.root]  # the vectors of the items on the stack
        self.stack = net.stack.initial_state().add_input(net.root)
        self.history = net.history.initial_state().add_input(net.begin)
        # The buffer is read from its end.  It starts in the last state; reading a word takes it a state back.
        self.buffer = net.buffer.initial_state().add_inputs([net.end, *self.words[::-1]])[-1]

    def scores(self) -> dy.Expression:
        """Return the scores of all actions, including those that are not allowed."""
        net, terms = self.parser, [self.parser.bias]
        for look, state in zip(net.looks, (self.stack, self.buffer, self.history)):
            terms += [look, state.output()]
        hidden = net.drop(dy.rectify(dy.affine_transform(terms)))
        return dy.affine_transform([net.choose_bias, net.choose, hidden])

    def apply(self, action: int) -> None:
        net, next_word, kind = self.parser, self.parse.next - 1, self.parser.actions[action][0]
        if kind == "shift":
            self.push(self.words[next_word])
            self.buffer = self.buffer.prev()
        elif kind == "left":
            self.words[next_word] = self.compose(self.words[next_word], self.pop(), action)
            self.buffer = self.buffer.prev().add_input(self.words[next_word])
        else:
            child, head = self.pop(), self.pop()
            self.push(self.compose(head, child, action))
        self.history = self.history.add_input(net.action_vectors[action])
        self.parse.apply(net.actions[action])

    def compose(self, head: dy.Expression, child: dy.Expression, arc: int) -> dy.Expression:
        """Return the new vector of a word to which a child has been attached."""
        net = self.parser
        terms = [net.compose_bias, net.head, head, net.child, child, net.arc, net.arc_vectors[arc]]
        return dy.tanh(dy.affine_transform(terms))

    def push(self, tree: dy.Expression) -> None:
        self.trees.append(tree)
        self.stack = self.stack.add_input(tree)

    def pop(self) -> dy.Expression:
        self.stack = self.stack.prev()
        return self.trees.pop()


def train(parser: Parser, trees: list[ConlluSentence], dev: list[ConlluSentence], args: argparse.Namespace) -> None:
    trainer = dy.AdamTrainer(parser.pc)
    data = dy.data.batches(trees, args.batch, shuffle=True, seed=args.seed)
    options = {"extra": parser.spec, "unit": "words", "total": sum(map(len, trees))}
    training = commandline.training(args, parser.pc, data, **options)
    for epoch in training:
        parser.training = True
        for batch in epoch:
            trainer.learning_rate = args.learning_rate * (1 - training.done)
            dy.renew_cg()
            loss = parser.loss(batch)
            epoch.add(loss.value(), sum(map(len, batch)))
            loss.backward()
            trainer.update()
        parser.training = False
        epoch.report(**dy.metrics.attachment(dy.data.map_batches(parser.parse, dev), dev)._asdict())


if __name__ == "__main__":
    commandline.run_dependency_parser(
        "Train a stack-LSTM dependency parser, or parse with one.",
        Parser,
        train,
        epochs=10,
        patience=3,
        batch=16,
        learning_rate=0.002,  # falls to 0
        sizes=SIZES,
    )
