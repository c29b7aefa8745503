"""Sentiment of phrases: a binary Tree-LSTM over parse trees, with a loss at every node.

    python tree_lstm.py                                        # on trees made up from a small grammar
    python tree_lstm.py --train sst/train.txt --dev sst/dev.txt
    python tree_lstm.py label sst/test.txt                     # print trees with the labels found

The files are those of the Stanford Sentiment Treebank (Socher et al. 2013): a tree a line, such as
`(3 (2 a) (4 (3 very) (3 good)))`, with a label from 0, very negative, to 4, very positive, at each node.  The trees
that are made up when no file is given follow rules of a few lines, see `made_up_tree`: they show that the network
learns negation and the like, not how good it is on language.

The network is that of Tai, Socher and Manning (Improved Semantic Representations From Tree-Structured Long Short-Term
Memory Networks, ACL 2015), for trees whose inner nodes have two children.  It is written as one recursive function for
one tree.  Each tree has a shape of its own; the engine runs together all nodes, of all trees of a minibatch, whose
children are known.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.curves import Curves

UNKNOWN = 0  # the id of everything outside a vocabulary


class Vocabulary:
    """Numbers things from 1 on; 0 is for unknown ones.  `counts` says how often each was seen in training."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.ids = {thing: i for i, thing in enumerate(counts, start=1)}

    def __len__(self) -> int:
        return len(self.ids) + 1

    def id(self, thing: str) -> int:
        return self.ids.get(thing, UNKNOWN)

    def hide(self, thing: str, rate: float, rng: random.Random) -> bool:
        """Draw whether to take something for unknown while training, so that unknown ones have something to learn
        from: the rarer, the likelier.  What was seen n times is hidden with the probability rate / (rate + n).
        """
        return rng.random() * (self.counts.get(thing, 0) + rate) < rate


def count(things: Iterable[str], least: int = 1) -> dict[str, int]:
    """Count things, in the order in which they come first; those seen less often than `least` are left out."""
    return {thing: n for thing, n in Counter(things).items() if n >= least}


LABELS = 5


@dataclass
class Tree:
    """A phrase: either a word, or two phrases."""

    label: int
    word: str = ""
    children: tuple[Tree, ...] = ()

    def nodes(self) -> Iterator[Tree]:
        """Go through all phrases, the parts before the whole."""
        for child in self.children:
            yield from child.nodes()
        yield self

    def __str__(self) -> str:
        return f"({self.label} {self.word or ' '.join(map(str, self.children))})"


class Sentiment:
    """The network.  `spec` is all that is needed, beside the weights, to build it again."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.words = Vocabulary(spec["words"])
        self.training = False  # whether to drop out
        self.rng = random.Random(spec["seed"])

        self.pc = pc = dy.ParameterCollection()
        dim, self.hidden = spec["word_dim"], spec["hidden"]
        self.word_vectors = pc.add_lookup_parameters((len(self.words), dim))
        # The rows of a word: input gate, output gate, candidate.
        self.leaf, self.leaf_bias = (
            pc.add_parameters((3 * self.hidden, dim)),
            pc.add_parameters(3 * self.hidden, init=0),
        )
        # The rows of a pair: input gate, output gate, forget gates for the left and the right cell, candidate.
        self.left = pc.add_parameters((5 * self.hidden, self.hidden))
        self.right = pc.add_parameters((5 * self.hidden, self.hidden))
        self.bias = pc.add_parameters(5 * self.hidden, init=0)
        self.label, self.label_bias = pc.add_parameters((LABELS, self.hidden)), pc.add_parameters(LABELS, init=0)

    def part(self, rows: dy.Expression, number: int, parts: int = 1) -> dy.Expression:
        return dy.pick_range(rows, number * self.hidden, (number + parts) * self.hidden)

    def encode(self, tree: Tree, found: list[dy.Expression]) -> tuple[dy.Expression, dy.Expression]:
        """Return the state and the cell of a phrase; append the scores of all its nodes, in the order of `nodes`."""
        if tree.children:
            (left, left_cell), (right, right_cell) = (self.encode(child, found) for child in tree.children)
            rows = dy.affine_transform([self.bias, self.left, left, self.right, right])
            gates = dy.logistic(self.part(rows, 0, 4))
            new = dy.cmult(self.part(gates, 0), dy.tanh(self.part(rows, 4)))
            forget_left, forget_right = self.part(gates, 2), self.part(gates, 3)
            cell = new + dy.cmult(forget_left, left_cell) + dy.cmult(forget_right, right_cell)
        else:
            word = tree.word.lower()
            hidden = self.training and self.words.hide(word, self.spec["word_dropout"], self.rng)
            vector = self.drop(self.word_vectors[UNKNOWN if hidden else self.words.id(word)])
            rows = dy.affine_transform([self.leaf_bias, self.leaf, vector])
            gates = dy.logistic(self.part(rows, 0, 2))
            cell = dy.cmult(self.part(gates, 0), dy.tanh(self.part(rows, 2)))
        state = dy.cmult(self.part(gates, 1), dy.tanh(cell))
        found.append(dy.affine_transform([self.label_bias, self.label, self.drop(state)]))
        return state, cell

    def drop(self, x: dy.Expression) -> dy.Expression:
        return dy.dropout(x, self.spec["dropout"]) if self.training else x

    def scores(self, tree: Tree) -> list[dy.Expression]:
        """Return the scores of the labels for all nodes."""
        found: list[dy.Expression] = []
        self.encode(tree, found)
        return found

    def loss(self, trees: list[Tree]) -> dy.Expression:
        """Return the mean loss over all nodes of a minibatch."""
        losses = [
            dy.pickneglogsoftmax(scores, node.label)
            for tree in trees
            for scores, node in zip(self.scores(tree), tree.nodes())
        ]
        return dy.esum(losses) / len(losses)

    def labels(self, trees: list[Tree]) -> list[list[int]]:
        """Return the best label of each node."""
        dy.renew_cg(forward_only=True)
        found = [self.scores(tree) for tree in trees]
        dy.forward([scores for tree in found for scores in tree])  # all at once, so that it can be batched
        return [[int(scores.npvalue().argmax()) for scores in tree] for tree in found]


# -- training ------------------------------------------------------------------------------------


def train(network: Sentiment, training: list[Tree], dev: list[Tree], args: argparse.Namespace) -> None:
    """Train for all epochs, or until some bring nothing; save after each that is the best so far."""
    trainer = dy.AdamTrainer(network.pc)
    data = dy.data.batches(training, args.batch, shuffle=True, seed=args.seed)
    total = sum(sum(1 for _ in tree.nodes()) for tree in training)
    best, best_words, best_epoch, done = -1.0, "", 0, 0
    args.model.parent.mkdir(parents=True, exist_ok=True)
    with Curves(args.curves, args.tensorboard) as curves:
        for epoch in range(1, args.epochs + 1):
            network.training = True
            summed, start = 0.0, time.perf_counter()
            with tqdm(total=total, desc=f"epoch {epoch}", unit=" nodes", leave=False, disable=None) as bar:
                for batch in data:
                    trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * total))
                    dy.renew_cg()
                    loss = network.loss(batch)
                    value = loss.value()
                    loss.backward()
                    trainer.update()
                    nodes = sum(sum(1 for _ in tree.nodes()) for tree in batch)
                    done += nodes
                    summed += value * nodes
                    bar.set_postfix(loss=f"{value:.3f}", refresh=False)
                    bar.update(nodes)
            seconds = time.perf_counter() - start
            network.training = False
            score, found = accuracy(network, dev)
            curves.add(epoch, loss=summed / total, accuracy=score)
            print(
                f"epoch {epoch}: loss {summed / total:.4f}, {seconds:.1f} s, {total / seconds:.0f} nodes/s, "
                f"dev {found}",
                flush=True,
            )
            if score > best:
                best, best_words, best_epoch = score, found, epoch
                dy.save_safetensors(args.model, network.pc, extra=network.spec)
            elif epoch - best_epoch >= args.patience:
                print(f"no better for {args.patience} epochs: stopping")
                break
    print(f"best dev {best_words} after epoch {best_epoch}, model saved in {args.model}")


def load(path: Path) -> Sentiment:
    """Build the network that was saved, and read its weights."""
    try:
        network = Sentiment(dy.read_extra(path))
    except KeyError as error:
        raise ValueError(f"{path}: the model of another program: it has no {error}") from error
    dy.load_safetensors(path, network.pc)
    return network


def hold_out(items: list[Tree], source: object) -> tuple[list[Tree], list[Tree]]:
    """Split into those to train on and every tenth, to measure with."""
    if len(items) < 2:
        raise ValueError(f"{source}: one tree only, none is left to train on; give --dev FILE too")
    return [item for i, item in enumerate(items) if i % 10], items[::10]


def new_spec(training: list[Tree], args: argparse.Namespace) -> dict:
    """Collect the vocabulary, and the sizes that were asked for."""
    words = count((node.word.lower() for tree in training for node in tree.nodes() if node.word), least=2)
    sizes = {size: getattr(args, size) for size in ("word_dim", "hidden", "dropout", "word_dropout", "seed")}
    return {"words": words, **sizes}


def accuracy(network: Sentiment, trees: list[Tree]) -> tuple[float, str]:
    """Return the accuracy at the roots, and those at roots and at all nodes in words."""
    roots = right = total = 0
    for batch in dy.data.batches(trees, 64):
        for tree, labels in zip(batch, network.labels(batch)):
            equal = [node.label == label for node, label in zip(tree.nodes(), labels)]
            roots, right, total = roots + equal[-1], right + sum(equal), total + len(equal)
    score = roots / len(trees)
    return score, f"accuracy {score:.2%} at the roots, {right / total:.2%} at all nodes"


# -- data ----------------------------------------------------------------------------------------


def read_trees(path: Path) -> list[Tree]:
    """Read a file, plain or gzipped, with a tree a line."""
    trees, number = [], 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                number += 1
                # Only these separate: a word may hold a no-break space.
                tokens = line.decode("utf-8").strip("\r\n ").replace("(", " ( ").replace(")", " ) ").split(" ")
                tokens = [token for token in tokens if token]
                if tokens:
                    trees.append(tree_of(tokens))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}, after line {number}: not a whole gzip file: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
    if not trees:
        raise ValueError(f"{path}: no tree in {number} lines")
    return trees


def tree_of(tokens: list[str]) -> Tree:
    """Build a tree from its brackets, labels and words."""
    open_nodes: list[list] = [[]]  # what the nodes hold that are not closed yet; the first is around the tree
    for token in tokens:
        if token == "(":
            open_nodes.append([])
        elif token != ")":
            open_nodes[-1].append(token)
        elif len(open_nodes) == 1:
            raise ValueError("a bracket is closed that was not opened")
        else:
            label, *parts = open_nodes.pop() or [""]
            if label not in ("0", "1", "2", "3", "4"):
                raise ValueError(f"a node begins with {str(label)!r}, not with a label from 0 to 4")
            if len(parts) == 1 and isinstance(parts[0], str):
                open_nodes[-1].append(Tree(int(label), word=parts[0]))
            elif len(parts) == 2 and all(isinstance(part, Tree) for part in parts):
                open_nodes[-1].append(Tree(int(label), children=tuple(parts)))
            else:
                raise ValueError(f"a node of {len(parts)} parts; it must hold one word, or two nodes")
    if len(open_nodes) > 1 or len(open_nodes[0]) != 1 or not isinstance(open_nodes[0][0], Tree):
        raise ValueError("not one tree with all brackets closed")
    return open_nodes[0][0]


NOUNS = ["the film", "the plot", "this story", "every scene", "the music", "her role", "the ending", "its hero"]
ADJECTIVES = {
    -2: ["awful", "dreadful", "unbearable"],
    -1: ["dull", "weak", "clumsy", "thin"],
    0: ["long", "quiet", "French", "recent"],
    1: ["good", "fresh", "charming", "solid"],
    2: ["superb", "brilliant", "wonderful"],
}


def made_up_tree(rng: random.Random) -> Tree:
    """Make up a sentence whose label follows from those of its parts.

    `very` moves what is good or bad further from 0, `hardly` and `not` turn it round and weaken what is extreme, and of
    two sentences joined by `but` the second counts.
    """

    def join(value: int, *children: Tree) -> Tree:
        return Tree(value + 2, children=children)

    def adjective(depth: int) -> Tree:
        if depth == 0 or rng.random() < 0.3:
            value = rng.choice(list(ADJECTIVES))
            return Tree(value + 2, rng.choice(ADJECTIVES[value]))
        inner = adjective(depth - 1)
        value, sign = inner.label - 2, (inner.label > 2) - (inner.label < 2)
        if rng.random() < 0.5:
            return join(max(-2, min(2, value + sign)), Tree(2, "very"), inner)
        return join(-sign, Tree(2, rng.choice(["not", "hardly"])), inner)

    def sentence() -> Tree:
        article, noun = rng.choice(NOUNS).split()
        inner = adjective(3)
        verb = join(inner.label - 2, Tree(2, "is"), inner)
        return join(inner.label - 2, join(0, Tree(2, article), Tree(2, noun)), verb)

    first = sentence()
    if rng.random() < 0.5:
        return first
    second = sentence()
    value = second.label - 2
    return join(value, first, join(value, Tree(2, "but"), second))


# -- command line --------------------------------------------------------------------------------


def train_command(args: argparse.Namespace) -> None:
    if args.train:
        training = read_trees(args.train)
    else:
        rng = random.Random(args.seed)
        training = [made_up_tree(rng) for _ in range(2000)]
        print("trees made up from a small grammar: give others with --train FILE")
    training = training[: args.limit]
    if args.dev:
        dev = read_trees(args.dev)[: args.limit]
    else:
        training, dev = hold_out(training, args.train or "--limit 1")
    network = Sentiment(new_spec(training, args))
    print(f"{len(training)} training and {len(dev)} dev trees, {len(network.words) - 1} words")
    train(network, training, dev, args)
    print_labelled(load(args.model), dev[:1])


def label_command(args: argparse.Namespace) -> None:
    if args.file is None:
        raise ValueError("label: which file?")
    trees, network = read_trees(args.file), load(args.model)
    for batch in dy.data.batches(trees, 64):
        print_labelled(network, batch)


def print_labelled(network: Sentiment, trees: list[Tree]) -> None:
    for tree, labels in zip(trees, network.labels(trees)):
        for node, found in zip(tree.nodes(), labels):
            node.label = found
        print(tree, flush=True)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a Tree-LSTM on the sentiment of phrases, or label with one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("command", nargs="?", choices=["train", "label"], default="train")
    add("file", nargs="?", type=Path, help="label: trees; the labels in the file are not looked at")
    add("--train", type=Path, metavar="FILE", help="a tree a line, plain or .gz; else 2,000 trees are made up")
    add("--dev", type=Path, metavar="FILE", help="likewise; else every tenth tree of those to train on")
    add("--limit", type=int, metavar="N", help="take the first N trees of each file only")
    add_sizes(parser)
    add("--epochs", type=int, default=10, help="the learning rate falls to 0 over them")
    add("--patience", type=int, default=3, help="epochs without a better score before it stops")
    add("--batch", type=int, default=25, help="trees in a minibatch")
    add("--learning-rate", type=float, default=0.002, help="at the start")
    add("--seed", type=int, default=1)
    add("--model", type=Path, metavar="FILE", default=Path("runs/tree_lstm.safetensors"))
    add("--curves", type=Path, metavar="FILE", help="draw loss and score into it: .svg, .png or .pdf (matplotlib)")
    add("--tensorboard", type=Path, metavar="DIR", help="write them for TensorBoard (tensorboardX)")
    config.add_options(parser)
    return parser.parse_intermixed_args(argv)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--word-dim", type=int, default=100)
    add("--hidden", type=int, default=128)
    add("--dropout", type=float, default=0.3)
    add("--word-dropout", type=float, default=0.25, help="a word seen n times is hidden at the rate of d / (d + n)")


def main() -> None:
    args = parse(sys.argv[1:])
    dy.reset_random_seed(args.seed)
    try:
        (train_command if args.command == "train" else label_command)(args)
    except (OSError, ValueError) as error:
        sys.exit(f"tree_lstm.py: {error}")
    except KeyboardInterrupt:
        sys.exit("tree_lstm.py: interrupted")


if __name__ == "__main__":
    main()
