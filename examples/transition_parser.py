"""A transition-based dependency parser: a BiLSTM reads the sentence, an MLP chooses one action after the other.

    python transition_parser.py                                # train on a Turkish treebank, then parse a sentence
    python transition_parser.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python transition_parser.py parse text.conllu              # print a treebank with the trees found

The choice is made from the BiLSTM's states of four words: the three on top
of the stack and the next one to be read (Kiperwasser and Goldberg, Simple and Accurate Dependency Parsing Using
Bidirectional LSTM Feature Representations, TACL 2016).

In training, the parser now and then takes the action with the best score, even if it is wrong, and learns which action
is best after it.  So the graph of each sentence depends on values.  The code is still written for one sentence:
`batched_map` runs the sentences of a minibatch side by side, and computes their scores together.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

import numpy as np

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import ConlluSentence, Vocabulary, read_conllu

Parses = list[tuple[list[int], list[str]]]  # for each sentence the heads and the relations of its words

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
        self.spec = spec
        self.words = Vocabulary(spec["words"])
        self.tags = Vocabulary(spec["tags"])
        self.rng = random.Random(spec["seed"])
        self.dim = spec["word_dim"] + spec["tag_dim"]
        self.word_vectors = pc.add_lookup_parameters((len(self.words), spec["word_dim"]))
        self.tag_vectors = pc.add_lookup_parameters((len(self.tags), spec["tag_dim"]))

    def look_up(self, words: list[str], tags: list[str], training: bool) -> list[dy.Expression]:
        vectors = []
        for word, tag in zip(words, tags):
            word = word.lower()
            hidden = training and self.words.word_dropout(word, self.spec["word_dropout"], self.rng)
            word_vector = self.word_vectors[0 if hidden else self.words[word]]
            vector = dy.concatenate([word_vector, self.tag_vectors[self.tags[tag]]])
            vectors.append(dy.dropout(vector, self.spec["dropout"]) if training else vector)
        return vectors


class Parser:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.actions = actions_for(spec["relations"])
        self.ids = {action: i for i, action in enumerate(self.actions)}
        self.training = False  # whether to apply dropout
        self.rng = random.Random(spec["seed"])

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
        return dy.esum(losses) / sum(len(tree) for tree in batch)

    def loss_of_one(self, tree: ConlluSentence, seed: float) -> dy.Expression:
        state = self.start(tree.form, tree.column(self.spec["tag_column"]))
        return explored_loss(state, Oracle(tree, self.ids), self.spec["explore"], random.Random(seed))

    def parse(self, words: list[list[str]], tags: list[list[str]]) -> Parses:
        """Return the heads and the relations of sentences."""
        dy.renew_cg(forward_only=True)
        self.reader.disable_dropout()
        return dy.batched_map(self.parse_one, words, tags)

    def parse_one(self, words: list[str], tags: list[str]) -> tuple[list[int], list[str]]:
        return take_best(self.start(words, tags), self.actions)


class State:
    """A partly parsed sentence."""

    def __init__(self, parser: Parser, vectors: list[dy.Expression], nothing: dy.Expression) -> None:
        self.parser = parser
        self.vectors = vectors  # of the root, and of each word
        self.nothing = nothing  # a node like these, not a parameter, so that all configurations batch
        self.configuration = Configuration(len(vectors) - 1)

    def scores(self) -> dy.Expression:
        """Return the scores of all actions, including those that are not allowed."""
        net, now = self.parser, self.configuration
        words = [*now.stack[:-4:-1], *[None] * (3 - len(now.stack)), now.next if now.next <= now.length else None]
        terms = [net.bias]
        for look, word in zip(net.looks, words):
            terms += [look, self.nothing if word is None else self.vectors[word]]
        hidden = dy.rectify(dy.affine_transform(terms))
        if net.training:
            hidden = dy.dropout(hidden, net.spec["dropout"])
        return dy.affine_transform([net.choose_bias, net.choose, hidden])

    def apply(self, action: Action) -> None:
        self.configuration.apply(action)


# -- the actions ---------------------------------------------------------------------------------
# The actions of the arc-hybrid system: a stack holds words, with the root 0 at its bottom; the unread words follow in
# order.  `shift` reads the next word onto the stack.  `left` makes the next word the head of the one on top of the
# stack, `right` the one below it; the word that gets its head leaves the stack.  Every tree without crossing arcs can
# be built.  The cost of an action is the number of arcs of the correct tree that it makes impossible.  So the best
# actions are known in every configuration, even after errors of the parser, and for trees with crossing arcs
# (Goldberg and Nivre, Training Deterministic Parsers with Non-Deterministic Oracles, TACL 2013).

Action = tuple[str, str]  # shift, left or right, and the relation of the arc
SHIFT: Action = ("shift", "")


def actions_for(relations: list[str]) -> list[Action]:
    return [SHIFT, *((kind, relation) for kind in ("left", "right") for relation in relations)]


class Configuration:
    """The state of a parse: the stack, the next word to be read, the heads and relations found so far."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.stack = [0]
        self.next = 1
        self.heads = [-1] * (length + 1)
        self.relations = [""] * (length + 1)

    def over(self) -> bool:
        return self.next > self.length and len(self.stack) == 1

    def allowed(self) -> set[str]:
        """Return the kinds of actions that are possible; the root gets only one word, after all have been read."""
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
    """Knows the correct tree of a sentence, and so the best actions in each configuration."""

    def __init__(self, tree: ConlluSentence, ids: dict[Action, int]) -> None:
        self.tree, self.ids = tree, ids
        self.heads = [-1, *tree.head]
        self.children: list[list[int]] = [[] for _ in self.heads]
        for child, head in enumerate(tree.head, start=1):
            self.children[head].append(child)
        self.of_kind: dict[str, list[int]] = {}
        for (kind, _), number in ids.items():
            self.of_kind.setdefault(kind, []).append(number)

    def cost(self, now: Configuration, kind: str) -> int:
        """Return the number of arcs of the correct tree that an action of this kind loses."""
        top, word = now.stack[-1], now.next
        if kind == "shift":  # the word can get no more children from the stack, and no head from below its top
            return sum(child in now.stack for child in self.children[word]) + (self.heads[word] in now.stack[:-1])
        lost = sum(child >= word for child in self.children[top])
        if kind == "left":
            return lost + (self.heads[top] == now.stack[-2] or self.heads[top] > word)
        return lost + (self.heads[top] >= word)

    def best(self, now: Configuration) -> list[int]:
        """Return the numbers of all actions with the lowest cost, those that make an arc first."""
        costs = {kind: self.cost(now, kind) for kind in ("left", "right", "shift") if kind in now.allowed()}
        least, found = min(costs.values()), []
        for kind, cost in costs.items():
            if cost == least:
                head, child = now.next if kind == "left" else now.stack[-2:][0], now.stack[-1]
                right = kind != "shift" and self.heads[child] == head  # then its relation counts too
                found += [self.ids[kind, self.tree.deprel[child - 1]]] if right else self.of_kind[kind]
        return found


def explored_loss(state: State, oracle: Oracle, explore: float, rng: random.Random) -> dy.Expression:
    """Return the summed loss of the actions of a sentence.

    The target is the best action; if there are several, the one with the highest score.  At the rate of `explore`, the
    parser takes the action with the network's highest score, right or wrong, so that it learns to continue after
    errors.  At a rate of 0 no value is needed: the first of the best actions is the target, and is taken.
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
        state.apply(names[taken])
    return dy.esum(losses)


def take_best(state: State, names: list[Action]) -> tuple[list[int], list[str]]:
    """Take the action with the best score until the tree is complete; return its heads and relations."""
    now = state.configuration
    while not now.over():
        state.apply(names[best_allowed(state.scores().npvalue(), names, now.allowed())])
    return now.heads[1:], now.relations[1:]


def best_allowed(values: np.ndarray, names: list[Action], allowed: set[str]) -> int:
    """Return the number of the action with the highest score among those that are allowed."""
    return next(i for i in (-values).argsort() if names[i][0] in allowed)


# -- training ------------------------------------------------------------------------------------


def train(parser: Parser, trees: list[ConlluSentence], dev: list[ConlluSentence], args: argparse.Namespace) -> None:
    """Train for all epochs, or until several bring no improvement; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(parser.pc)
    data = dy.data.batches(trees, args.batch, shuffle=True, seed=args.seed)
    words = sum(len(tree) for tree in trees)
    training = commandline.training(args, parser.pc, data, extra=parser.spec, unit="words", total=words)
    for epoch in training:
        parser.training = True
        for batch in epoch:
            trainer.learning_rate = args.learning_rate * (1 - training.done)
            dy.renew_cg()
            loss = parser.loss(batch)
            epoch.add(loss.value(), sum(len(tree) for tree in batch))
            loss.backward()
            trainer.update()
        parser.training = False
        uas, las = dy.metrics.attachment(parse(parser, dev), dev)
        epoch.report(UAS=uas, LAS=las)


def parse(parser: Parser, trees: list[ConlluSentence]) -> Parses:
    """Return the heads and the relations of sentences whose words have tags."""
    found: Parses = []
    for batch in dy.data.batches(trees, 64):
        tags = [tree.column(parser.spec["tag_column"]) for tree in batch]
        found += parser.parse([tree.form for tree in batch], tags)
    return found


# -- the program ---------------------------------------------------------------------------------


def main(args: argparse.Namespace) -> None:
    def read(path: Path) -> list[ConlluSentence]:
        return read_conllu(path, required=[args.tags, "HEAD", "DEPREL"])

    if args.command == "train":
        trees, dev = commandline.read_data(args, read, default=("turkish-treebanks", "web.conllu"))
        spec = {
            "words": Vocabulary((word.lower() for tree in trees for word in tree.form), min_count=2).counts,
            "tags": Vocabulary(tag for tree in trees for tag in tree.column(args.tags)).counts,
            "relations": sorted({relation for tree in trees for relation in tree.deprel}),
            "tag_column": args.tags,
            "seed": args.seed,
            **{size: getattr(args, size) for size in SIZES},
        }
        print(
            f"{len(trees)} training and {len(dev)} dev sentences, {len(spec['words'])} words, "
            f"{len(spec['tags'])} tags and {len(spec['relations'])} relations"
        )
        train(Parser(spec), trees, dev, args)
        tags = {args.tags.lower(): dev[0].column(args.tags)}
        show(dy.load_network(args.model, Parser), [ConlluSentence(dev[0].form, **tags)])
    elif args.file is None:
        raise ValueError("parse: a file is needed")
    else:
        parser = dy.load_network(args.model, Parser)
        show(parser, read_conllu(args.file, required=[parser.spec["tag_column"]]))


def show(parser: Parser, sentences: list[ConlluSentence]) -> None:
    """Print sentences with the heads and relations that are found."""
    for sentence, (heads, relations) in zip(sentences, parse(parser, sentences)):
        print(replace(sentence, head=heads, deprel=relations, deps=[]), flush=True)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a transition-based dependency parser, or parse with one.",
        data="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks",
        epochs=10,
        patience=3,
        batch=16,
        learning_rate=0.002,  # falls to 0
        sizes=SIZES,
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "parse"], default="train")
    add("file", nargs="?", type=Path, help="parse: a CoNLL-U file, whose words have tags")
    add("--tags", choices=["UPOS", "XPOS"], default="UPOS", help="which tags to read with the words")
    parser.run(main)
