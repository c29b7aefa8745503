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
from dataclasses import replace
from functools import partial

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import ArcHybrid, ArcHybridOracle, ConlluSentence, Vocabulary, read_conllu

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


class Inputs:
    """Looks up a vector for each word of a sentence: one for the word in lower case joined to one for its tag."""

    def __init__(self, pc: dy.ParameterCollection, spec: dict) -> None:
        self.spec, self.rng = spec, random.Random(spec["seed"])
        self.words, self.tags = Vocabulary(spec["words"]), Vocabulary(spec["tags"])
        self.dim = spec["word_dim"] + spec["tag_dim"]
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.tag_vectors = pc.add_lookup_parameters((len(self.tags), spec["tag_dim"]))

    def look_up(self, words: list[str], tags: list[str], training: bool) -> list[dy.Expression]:
        vectors = []
        for word, tag in zip(map(str.lower, words), tags):
            hidden = training and self.words.word_dropout(word, self.spec["word_dropout"], self.rng)
            word_vector = self.word_vectors[0 if hidden else self.words[word]]
            vector = dy.concatenate([word_vector, self.tag_vectors[self.tags[tag]]])
            vectors.append(dy.dropout(vector, self.spec["dropout"]) if training else vector)
        return vectors


class Parser:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.actions = ArcHybrid.actions(spec["relations"])
        self.training, self.rng = False, random.Random(spec["seed"])
        self.pc = pc = dy.ParameterCollection()
        self.inputs = Inputs(pc, spec)
        self.root = pc.add_parameters(self.inputs.dim)  # comes before the first word
        states, hidden = 2 * spec["hidden"], spec["mlp_dim"]
        self.reader = dy.BiRNNBuilder(spec["layers"], self.inputs.dim, states, pc, dy.LSTMBuilder)
        self.nothing = pc.add_parameters(states)  # takes the place of a missing word
        self.looks = [pc.add_parameters((hidden, states)) for _ in range(4)]
        self.bias = pc.add_parameters(hidden, init=0)
        self.choose = pc.add_parameters((len(self.actions), hidden))
        self.choose_bias = pc.add_parameters(len(self.actions), init=0)

    def start(self, words: list[str], tags: list[str]) -> State:
        inputs = [self.root, *self.inputs.look_up(words, tags, self.training)]
        return State(self, self.reader.transduce(inputs), self.nothing * 1.0)

    def loss(self, batch: list[ConlluSentence]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch: each word takes two actions."""
        if self.training:
            self.reader.set_dropout(self.spec["dropout"])
        losses = dy.batched_map(self.loss_of_one, batch, [self.rng.random() for _ in batch])
        return dy.esum(losses) / sum(map(len, batch))

    def loss_of_one(self, tree: ConlluSentence, seed: float) -> dy.Expression:
        """Return the summed loss of the actions of a sentence.

        The target is the best action; if there are several, the one with the highest score.  At the rate of `explore`,
        the parser takes the action with the highest score, right or wrong, so that it learns to continue after errors.
        At a rate of 0 no value is needed: the first of the best actions is the target, and is taken.
        """
        state = self.start(tree.form, tree.column(self.spec["tag_column"]))
        oracle = ArcHybridOracle(tree, self.actions)
        explore, rng, losses = self.spec["explore"], random.Random(seed), []
        while not state.parse.over():
            scores, best = state.scores(), oracle.best(state.parse)
            learnt = taken = best[0]
            if explore:
                values = scores.npvalue()
                learnt = taken = max(best, key=values.__getitem__)
                if rng.random() < explore:
                    taken = state.parse.best(values, self.actions)
            losses.append(dy.pickneglogsoftmax(scores, learnt))
            state.apply(taken)
        return dy.esum(losses)

    def parse(self, sentences: list[ConlluSentence]) -> list[Parse]:
        """Return the heads and the relations of sentences, whose words have tags."""
        dy.renew_cg(forward_only=True)
        self.reader.disable_dropout()
        tags = [sentence.column(self.spec["tag_column"]) for sentence in sentences]
        return dy.batched_map(self.parse_one, [sentence.form for sentence in sentences], tags)

    def parse_one(self, words: list[str], tags: list[str]) -> Parse:
        """Take the action with the best score until the tree is complete."""
        state = self.start(words, tags)
        while not state.parse.over():
            state.apply(state.parse.best(state.scores().npvalue(), self.actions))
        return state.parse.heads[1:], state.parse.relations[1:]


class State:
    """A partly parsed sentence."""

    def __init__(self, parser: Parser, vectors: list[dy.Expression], nothing: dy.Expression) -> None:
        self.parser = parser
        self.vectors = vectors  # of the root, and of each word
        self.nothing = nothing  # a node like these, not a parameter, so that all states batch
        self.parse = ArcHybrid(len(vectors) - 1)

    def scores(self) -> dy.Expression:
        """Return the scores of all actions, including those that are not allowed."""
        net, now = self.parser, self.parse
        words = [*now.stack[:-4:-1], *[None] * (3 - len(now.stack)), now.next if now.next <= now.length else None]
        terms = [net.bias]
        for look, word in zip(net.looks, words):
            terms += [look, self.nothing if word is None else self.vectors[word]]
        hidden = dy.rectify(dy.affine_transform(terms))
        if net.training:
            hidden = dy.dropout(hidden, net.spec["dropout"])
        return dy.affine_transform([net.choose_bias, net.choose, hidden])

    def apply(self, action: int) -> None:
        self.parse.apply(self.parser.actions[action])


def train(parser: Parser, trees: list[ConlluSentence], dev: list[ConlluSentence], args: argparse.Namespace) -> None:
    trainer = dy.AdamTrainer(parser.pc)
    data = dy.data.batches(trees, args.batch, shuffle=True, seed=args.seed)
    words = sum(map(len, trees))
    training = commandline.training(args, parser.pc, data, extra=parser.spec, unit="words", total=words)
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
        uas, las = dy.metrics.attachment(dy.data.map_batches(parser.parse, dev), dev)
        epoch.report(UAS=uas, LAS=las)


def main(args: argparse.Namespace) -> None:
    if args.command == "train":
        read = partial(read_conllu, required=[args.tags, "HEAD", "DEPREL"])
        trees, dev = commandline.read_data(args, read, default=("turkish-treebanks", "web.conllu"))
        spec = {
            "words": Vocabulary((word.lower() for tree in trees for word in tree.form), min_count=2).counts,
            "tags": Vocabulary(tag for tree in trees for tag in tree.column(args.tags)).counts,
            "relations": sorted({relation for tree in trees for relation in tree.deprel}),
            "tag_column": args.tags,
            "seed": args.seed,
            **args.sizes,
        }
        sizes = f"{len(spec['words'])} words, {len(spec['tags'])} tags and {len(spec['relations'])} relations"
        print(f"{len(trees)} training and {len(dev)} dev sentences, {sizes}")
        train(Parser(spec), trees, dev, args)
        sentences = [ConlluSentence(dev[0].form, **{args.tags.lower(): dev[0].column(args.tags)})]
    parser = dy.load_network(args.model, Parser)
    if args.command == "parse":
        sentences = read_conllu(args.file, required=[parser.spec["tag_column"]])
    for sentence, (heads, relations) in zip(sentences, dy.data.map_batches(parser.parse, sentences)):
        print(replace(sentence, head=heads, deprel=relations, deps=[]), flush=True)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a transition-based dependency parser, or parse with one.",
        data="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks",
        command="parse",
        file="a CoNLL-U file, whose words have tags",
        stdin=False,
        epochs=10,
        patience=3,
        batch=16,
        learning_rate=0.002,  # falls to 0
        sizes=SIZES,
    )
    parser.add_argument("--tags", choices=["UPOS", "XPOS"], default="UPOS", help="which tags to read with the words")
    parser.run(main)
