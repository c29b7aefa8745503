"""A graph-based dependency parser: a BiLSTM, a biaffine score for each pair of words, the best tree of all.

    python graph_parser.py                                     # train on a Turkish treebank, then parse a sentence
    python graph_parser.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python graph_parser.py parse text.conllu                   # print a treebank with the trees found

In training each word picks its head by softmax over all other words, and its relation to the true head likewise.
The parser keeps the heads that form the best tree: the maximum spanning tree, by the algorithm of Chu and Liu (1965)
and Edmonds (1967).  The network is that of Dozat and Manning (Deep Biaffine Attention for Neural Dependency Parsing,
ICLR 2017), made smaller, and with an MLP for the relations.

The network is written for one sentence; a minibatch is the sum of the losses of its sentences, and the engine finds
what it can compute together, even if all sentences have different lengths.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.curves import Curves
from dynet_cy.data import ConlluSentence, Vocabulary, read_conllu

Parses = list[tuple[list[int], list[str]]]  # for each sentence the heads and the relations of its words

SIZES = {
    "word_dim": 100,
    "tag_dim": 32,
    "hidden": 128,  # of the BiLSTM, in each direction
    "layers": 2,
    "arc_dim": 160,
    "label_dim": 100,
    "dropout": 0.33,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
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
        self.relations = Vocabulary(spec["relations"], unknown=None)
        self.training = False  # whether to apply dropout
        self.pc = pc = dy.ParameterCollection()
        self.inputs = Inputs(pc, spec)
        self.root = pc.add_parameters(self.inputs.dim)  # comes before the first word
        states = 2 * spec["hidden"]
        self.reader = dy.BiRNNBuilder(spec["layers"], self.inputs.dim, states, pc, dy.LSTMBuilder)
        arc, label = spec["arc_dim"], spec["label_dim"]
        self.as_head, self.as_head_bias = pc.add_parameters((arc, states)), pc.add_parameters(arc, init=0)
        self.as_child, self.as_child_bias = pc.add_parameters((arc, states)), pc.add_parameters(arc, init=0)
        self.pair = pc.add_parameters((arc, arc))
        self.wanted = pc.add_parameters((1, arc))  # scores words as heads, whatever the dependent
        self.label_head, self.label_child = pc.add_parameters((label, states)), pc.add_parameters((label, states))
        self.label_bias = pc.add_parameters(label, init=0)
        self.label = pc.add_parameters((len(self.relations), label))
        self.last_bias = pc.add_parameters(len(self.relations), init=0)

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def read(self, words: list[str], tags: list[str]) -> dy.Expression:
        """Return a matrix with a column for the root and one for each word."""
        inputs = [self.root, *self.inputs.look_up(words, tags, self.training)]
        return self.drop(dy.concatenate_cols(self.reader.transduce(inputs)))

    def arcs(self, states: dy.Expression) -> dy.Expression:
        """Return a matrix whose element (i, j) is the score of word i, or the root 0, as the head of word j + 1."""
        length = states.dim()[0][1]
        words = dy.pick_range(states, 1, length, 1)
        heads = self.drop(dy.rectify(dy.colwise_add(self.as_head * states, self.as_head_bias)))
        children = self.drop(dy.rectify(dy.colwise_add(self.as_child * words, self.as_child_bias)))
        wanted = dy.reshape(self.wanted * heads, (length,))
        return dy.colwise_add(dy.transpose(heads) * (self.pair * children), wanted)

    def labels(self, states: dy.Expression, heads: list[int]) -> dy.Expression:
        """Return a matrix with a column for each word: the scores of its relations to its head."""
        words = dy.pick_range(states, 1, len(heads) + 1, 1)
        pairs = dy.select_cols(self.label_head * states, heads) + self.label_child * words
        hidden = self.drop(dy.rectify(dy.colwise_add(pairs, self.label_bias)))
        return dy.colwise_add(self.label * hidden, self.last_bias)

    def loss(self, batch: list[ConlluSentence]) -> dy.Expression:
        """Return the mean over all words of the losses for head and relation."""
        if self.training:
            self.reader.set_dropout(self.spec["dropout"])
        losses = []
        for tree in batch:
            states = self.read(tree.form, tree.column(self.spec["tag_column"]))
            losses.append(picked(self.arcs(states), tree.head))
            losses.append(picked(self.labels(states, tree.head), self.relations.encode(tree.deprel)))
        return dy.esum(losses) / sum(len(tree) for tree in batch)

    def parse(self, words: list[list[str]], tags: list[list[str]]) -> Parses:
        """Return the heads and the relations of sentences."""
        dy.renew_cg(forward_only=True)
        self.reader.disable_dropout()
        states = [self.read(*sentence) for sentence in zip(words, tags)]
        scores = [self.arcs(matrix) for matrix in states]
        dy.forward(scores)  # all at once, so that it can be batched
        heads = [best_tree(matrix.npvalue()) for matrix in scores]
        labels = [self.labels(matrix, found) for matrix, found in zip(states, heads)]
        dy.forward(labels)
        best = [matrix.npvalue().reshape(len(self.relations), -1).argmax(0) for matrix in labels]
        return [(found, self.relations.decode(numbers)) for found, numbers in zip(heads, best)]


def picked(scores: dy.Expression, right: list[int]) -> dy.Expression:
    """Sum the losses of all columns, each of which has one right row."""
    (rows, columns), _ = scores.dim()
    return dy.sum_batches(dy.pickneglogsoftmax_batch(dy.reshape(scores, (rows,), columns), right))


# -- the best tree -------------------------------------------------------------------------------


def best_tree(scores: np.ndarray) -> list[int]:
    """Return the heads of the words 1 to n in the tree with the highest total score that has a single root.

    `scores` has shape (n + 1, n): element (i, j) is the score of word i, or the root 0, as the head of word j + 1.
    """
    words = scores.shape[1]
    square = np.full((words + 1, words + 1), -np.inf)
    square[:, 1:] = scores
    square[0] -= (np.ptp(scores) + 1) * words  # a second root costs more than anything else can gain
    np.fill_diagonal(square, -np.inf)
    return [int(head) for head in _arborescence(square)[1:]]


def _arborescence(scores: np.ndarray) -> np.ndarray:
    """Return the heads of all nodes in the best tree with root 0: choose heads greedily, and contract cycles."""
    heads = scores[:, 1:].argmax(0)
    heads = np.concatenate([[0], heads])
    cycle = _cycle(heads)
    if not len(cycle):
        return heads
    rest = np.setdiff1d(np.arange(len(heads)), cycle)  # begins with node 0
    # The cycle becomes one node, the last.  An arc into it costs the arc of the cycle that it replaces.
    into = scores[np.ix_(rest, cycle)] - scores[heads[cycle], cycle]
    out = scores[np.ix_(cycle, rest)]
    smaller = np.full((len(rest) + 1, len(rest) + 1), -np.inf)
    smaller[:-1, :-1] = scores[np.ix_(rest, rest)]
    smaller[:-1, -1] = into.max(1)
    smaller[-1, :-1] = out.max(0)
    found = _arborescence(smaller)
    from_cycle = found[:-1] == len(rest)
    heads[rest] = np.where(from_cycle, cycle[out.argmax(0)], rest[np.where(from_cycle, 0, found[:-1])])
    entering = found[-1]
    heads[cycle[into[entering].argmax()]] = rest[entering]
    return heads


def _cycle(heads: np.ndarray) -> np.ndarray:
    """Return the nodes of a cycle; none if there is no cycle."""
    free = {0}  # nodes from which the root is reached
    for start in range(1, len(heads)):
        path: dict[int, None] = {}
        node = start
        while node not in free and node not in path:
            path[node] = None
            node = int(heads[node])
        if node in path:
            steps = list(path)
            return np.array(steps[steps.index(node) :])
        free.update(path)
    return np.array([], int)


# -- training ------------------------------------------------------------------------------------


def train(parser: Parser, training: list[ConlluSentence], dev: list[ConlluSentence], args: argparse.Namespace) -> None:
    """Train for all epochs, or until several bring no improvement; save the model whenever it is the best so far."""
    trainer = dy.AdamTrainer(parser.pc)
    data = dy.data.batches(training, args.batch, shuffle=True, seed=args.seed)
    total, done, best = sum(len(tree) for tree in training), 0, ""
    args.model.parent.mkdir(parents=True, exist_ok=True)
    stopping = dy.EarlyStopping(parser.pc, args.patience, path=args.model)
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            parser.training = True
            summed, start = 0.0, time.perf_counter()
            for batch in tqdm(data, desc=f"epoch {epoch}", unit=" batches", leave=False, disable=None):
                trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * total))
                dy.renew_cg()
                loss = parser.loss(batch)
                words = sum(len(tree) for tree in batch)
                summed += loss.value() * words
                loss.backward()
                trainer.update()
                done += words
            seconds = time.perf_counter() - start
            parser.training = False
            score, found = attachment(parser, dev)
            curves.add(epoch, loss=summed / total, LAS=score)
            speed = f"{seconds:.1f} s, {total / seconds:.0f} words/s"
            print(f"epoch {epoch}: loss {summed / total:.4f}, {speed}, dev {found}", flush=True)
            best = found if stopping.report(score, extra=parser.spec) else best
            if stopping.stopped:
                print(f"no better for {args.patience} epochs: stopping")
                break
    print(f"best dev {best} after epoch {stopping.best_at}, model saved in {args.model}")


def load(path: Path) -> Parser:
    """Build the network that was saved, and read its weights."""
    try:
        parser = Parser(dy.read_extra(path))
    except KeyError as error:
        raise ValueError(f"{path}: the model of another program: it has no {error}") from error
    dy.load_safetensors(path, parser.pc)
    return parser


# -- data ----------------------------------------------------------------------------------------


def default_treebank() -> Path:
    """The Turkish web treebank of the package turkish-treebanks."""
    try:
        files = metadata.files("turkish-treebanks") or []
    except metadata.PackageNotFoundError:
        raise ValueError("no treebank: pip install turkish-treebanks, or give one with --train FILE") from None
    print("learning from a Turkish treebank (package turkish-treebanks); --train FILE takes one of any language")
    return next(Path(str(file.locate())) for file in files if file.name == "web.conllu")


def read_trees(path: Path, tags: str) -> list[ConlluSentence]:
    return read_conllu(path, required=[tags, "HEAD", "DEPREL"])


def attachment(parser: Parser, trees: list[ConlluSentence]) -> tuple[float, str]:
    """Return LAS, and UAS and LAS as text: the share of words, with punctuation, whose head (and relation) is right."""
    heads = both = total = 0
    tags = parser.spec["tag_column"]
    for batch in dy.data.batches(trees, 64):
        found = parser.parse([tree.form for tree in batch], [tree.column(tags) for tree in batch])
        for tree, (guessed, relations) in zip(batch, found):
            right = [head == gold for head, gold in zip(guessed, tree.head)]
            heads += sum(right)
            both += sum(same and relation == gold for same, relation, gold in zip(right, relations, tree.deprel))
            total += len(tree)
    return both / total, f"UAS {heads / total:.2%}, LAS {both / total:.2%}"


# -- command line --------------------------------------------------------------------------------


def train_command(args: argparse.Namespace) -> None:
    training = read_trees(args.train or default_treebank(), args.tags)[: args.limit]
    if args.dev:
        dev = read_trees(args.dev, args.tags)[: args.limit]
    elif len(training) < 2:
        source = args.train or "--limit 1"
        raise ValueError(f"{source}: one sentence only, none is left to train on; give --dev FILE too")
    else:  # every tenth
        training, dev = [tree for i, tree in enumerate(training) if i % 10], training[::10]
    spec = {
        "words": Vocabulary((word.lower() for tree in training for word in tree.form), min_count=2).counts,
        "tags": Vocabulary(tag for tree in training for tag in tree.column(args.tags)).counts,
        "relations": sorted({relation for tree in training for relation in tree.deprel}),
        "tag_column": args.tags,
        "seed": args.seed,
        **{size: getattr(args, size) for size in SIZES},
    }
    print(
        f"{len(training)} training and {len(dev)} dev sentences, {len(spec['words'])} words, "
        f"{len(spec['tags'])} tags and {len(spec['relations'])} relations"
    )
    train(Parser(spec), training, dev, args)
    tags = {args.tags.lower(): dev[0].column(args.tags)}
    print_parsed(load(args.model), [ConlluSentence(dev[0].form, **tags)])


def parse_command(args: argparse.Namespace) -> None:
    """Print a treebank, with its heads and relations replaced by the predicted ones."""
    if args.file is None:
        raise ValueError("parse: a file is needed")
    parser = load(args.model)
    for batch in dy.data.batches(read_conllu(args.file, required=[parser.spec["tag_column"]]), 64):
        print_parsed(parser, batch)


def print_parsed(parser: Parser, sentences: list[ConlluSentence]) -> None:
    tags = [sentence.column(parser.spec["tag_column"]) for sentence in sentences]
    found = parser.parse([sentence.form for sentence in sentences], tags)
    for sentence, (heads, relations) in zip(sentences, found):
        print(replace(sentence, head=heads, deprel=relations, deps=[]), flush=True)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a graph-based dependency parser, or parse with one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "parse"], default="train")
    add("file", nargs="?", type=Path, help="parse: a CoNLL-U file, whose words have tags")
    add("--train", type=Path, metavar="FILE", help="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks")
    add("--dev", type=Path, metavar="FILE", help="CoNLL-U; else every tenth sentence of the training file")
    add("--limit", type=int, metavar="N", help="take only the first N sentences of each file")
    add("--tags", choices=["UPOS", "XPOS"], default="UPOS", help="which tags to read with the words")
    for size, value in SIZES.items():
        add(f"--{size.replace('_', '-')}", type=type(value), default=value, help="see SIZES in the program")
    add("--epochs", type=int, default=10, help="the learning rate falls to 0 over them")
    add("--patience", type=int, default=3, help="epochs without a better score before it stops")
    add("--batch", type=int, default=16, help="sentences in a minibatch")
    add("--learning-rate", type=float, default=0.002, help="initial learning rate")
    add("--seed", type=int, default=1)
    add("--model", type=Path, metavar="FILE", default=Path("runs/graph_parser.safetensors"))
    add("--curves", type=Path, metavar="FILE", help="plot loss and score to this file: .svg, .png or .pdf (matplotlib)")
    add("--tensorboard", type=Path, metavar="DIR", help="log them for TensorBoard (tensorboardX)")
    config.add_options(parser)
    return parser.parse_intermixed_args(argv)


def main() -> None:
    args = parse(sys.argv[1:])
    dy.reset_random_seed(args.seed)
    try:
        (train_command if args.command == "train" else parse_command)(args)
    except (OSError, ValueError) as error:
        sys.exit(f"graph_parser.py: {error}")
    except KeyboardInterrupt:
        sys.exit("graph_parser.py: interrupted")


if __name__ == "__main__":
    main()
