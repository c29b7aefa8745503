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
from dataclasses import replace
from functools import partial

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import ArcHybrid, ArcHybridOracle, ConlluSentence, Vocabulary, read_conllu

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
        self.spec, self.actions = spec, ArcHybrid.actions(spec["relations"])
        self.training, self.rng = False, random.Random(spec["seed"])
        self.pc = pc = dy.ParameterCollection()
        self.inputs = Inputs(pc, spec)
        dim, hidden = spec["tree_dim"], spec["hidden"]
        self.enter, self.enter_bias = pc.add_parameters((dim, self.inputs.dim)), pc.add_parameters(dim, init=0)
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

    def loss(self, batch: list[ConlluSentence]) -> dy.Expression:
        """Return the mean loss over all words of a minibatch: each word takes two actions."""
        losses = dy.batched_map(self.loss_of_one, batch, [self.rng.random() for _ in batch])
        return dy.esum(losses) / sum(map(len, batch))

    def loss_of_one(self, tree: ConlluSentence, seed: float) -> dy.Expression:
        """Return the summed loss of the actions of a sentence; at the rate of `explore`, wrong ones may be taken."""
        oracle = ArcHybridOracle(tree, self.actions)
        state = State(self, tree.form, tree.column(self.spec["tag_column"]))
        explore, rng, losses = self.spec["explore"], random.Random(seed), []
        while not state.parse.over():
            scores, best = state.scores(), oracle.best(state.parse)
            values = scores.npvalue() if explore else None  # not needed if the first of the best actions is taken
            learnt = max(best, key=values.__getitem__) if explore else best[0]
            losses.append(dy.pickneglogsoftmax(scores, learnt))
            state.apply(state.parse.best(values, self.actions) if explore > rng.random() else learnt)
        return dy.esum(losses)

    def parse(self, sentences: list[ConlluSentence]) -> list[Parse]:
        """Return the heads and the relations of sentences, whose words have tags."""
        dy.renew_cg()
        tags = [sentence.column(self.spec["tag_column"]) for sentence in sentences]
        return dy.batched_map(self.parse_one, [sentence.form for sentence in sentences], tags)

    def parse_one(self, words: list[str], tags: list[str]) -> Parse:
        """Take the action with the best score until the tree is complete."""
        state = State(self, words, tags)
        while not state.parse.over():
            state.apply(state.parse.best(state.scores().npvalue(), self.actions))
        return state.parse.heads[1:], state.parse.relations[1:]


class State:
    """A partly parsed sentence."""

    def __init__(self, parser: Parser, words: list[str], tags: list[str]) -> None:
        self.parser = net = parser
        self.parse = ArcHybrid(len(words))
        vectors = net.inputs.look_up(words, tags, net.training)
        self.words = [dy.rectify(dy.affine_transform([net.enter_bias, net.enter, x])) for x in vectors]
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
        hidden = dy.rectify(dy.affine_transform(terms))
        hidden = dy.dropout(hidden, net.spec["dropout"]) if net.training else hidden
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
        "Train a stack-LSTM dependency parser, or parse with one.",
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
