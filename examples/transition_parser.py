"""A transition-based dependency parser: a BiLSTM reads the sentence, an MLP chooses one action after the other.

    python transition_parser.py                                # train on a Turkish treebank, then parse a sentence
    python transition_parser.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python transition_parser.py parse text.conllu              # print a treebank with the trees found

The choice is made from the BiLSTM's states of four words: the three on top of the stack and the next one to be read
(Kiperwasser and Goldberg, Simple and Accurate Dependency Parsing Using Bidirectional LSTM Feature Representations, TACL
2016).  The actions, and those that are best in a state, are those of `dy.data.ArcHybrid` and its oracle.

In training, the parser now and then takes the action with the best score, even if it is wrong, and learns which action
is best after it.  So the graph of each sentence depends on values.  The code is still written for one sentence:
`batched_map` runs the sentences of a minibatch side by side, and computes their scores together.
"""

from __future__ import annotations

import argparse
import random

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import ArcHybrid, ArcHybridOracle, ConlluSentence, Vocabulary

Parse = tuple[list[int], list[str]]  # the heads and the relations of the words of a sentence

SIZES = {
    "word_dim": 100,
    "tag_dim": 32,
    "hidden": 128,  # of the BiLSTM, in each direction
    "layers": 2,
    "mlp_dim": 128,
    "dropout": 0.33,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
    "explore": 0.1,  # probability that it takes the action with the best score in training, even if it is wrong
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
        inputs, states, hidden = spec["word_dim"] + spec["tag_dim"], 2 * spec["hidden"], spec["mlp_dim"]
        self.root = pc.add_parameters(inputs)  # comes before the first word
        self.reader = dy.BiRNNBuilder(spec["layers"], inputs, states, pc, dy.LSTMBuilder)
        self.nothing = pc.add_parameters(states)  # takes the place of a missing word
        self.looks = [pc.add_parameters((hidden, states)) for _ in range(4)]
        self.bias = pc.add_parameters(hidden, init=0)
        self.choose = pc.add_parameters((len(self.actions), hidden))
        self.choose_bias = pc.add_parameters(len(self.actions), init=0)

    def look_up(self, sentence: ConlluSentence) -> list[dy.Expression]:
        """Return a vector for each word: one for the word in lower case joined to one for its tag."""
        rate = self.spec["word_dropout"] if self.training else 0
        words = self.words.encode(map(str.lower, sentence.form), rate, self.word_rng)
        tags = self.tags.encode(sentence.column(self.spec["tag_column"]))
        return [self.drop(dy.concatenate([self.word_vectors[i], self.tag_vectors[j]])) for i, j in zip(words, tags)]

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def loss(self, batch: list[ConlluSentence]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch: each word takes two actions."""
        if self.training:
            self.reader.set_dropout(self.spec["dropout"])
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
            state.parse.apply(self.actions[taken])
        return dy.esum(losses)

    def parse(self, sentences: list[ConlluSentence]) -> list[Parse]:
        """Return the heads and the relations of sentences, whose words have tags."""
        dy.renew_cg(forward_only=True)
        self.reader.disable_dropout()
        return dy.batched_map(self.parse_one, sentences)

    def parse_one(self, sentence: ConlluSentence) -> Parse:
        """Take the action with the best score until the tree is complete."""
        state = State(self, sentence)
        while not state.parse.over():
            state.parse.apply(self.actions[state.parse.best(state.scores().npvalue(), self.actions)])
        return state.parse.heads[1:], state.parse.relations[1:]


class State:
    """A partly parsed sentence."""

    def __init__(self, net: Parser, sentence: ConlluSentence) -> None:
        self.parser, self.parse = net, ArcHybrid(len(sentence))
        self.vectors = net.reader.transduce([net.root, *net.look_up(sentence)])  # of the root, and of each word
        self.nothing = net.nothing * 1.0  # a node like these, not a parameter, so that all states batch

    def scores(self) -> dy.Expression:
        """Return the scores of all actions, including those that are not allowed."""
        net, now = self.parser, self.parse
        words = [*now.stack[:-4:-1], *[None] * (3 - len(now.stack)), now.next if now.next <= now.length else None]
        terms = [net.bias]
        for look, word in zip(net.looks, words):
            terms += [look, self.nothing if word is None else self.vectors[word]]
        hidden = net.drop(dy.rectify(dy.affine_transform(terms)))
        return dy.affine_transform([net.choose_bias, net.choose, hidden])


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
        "Train a transition-based dependency parser, or parse with one.",
        Parser,
        train,
        epochs=10,
        patience=3,
        batch=16,
        learning_rate=0.002,  # falls to 0
        sizes=SIZES,
    )
