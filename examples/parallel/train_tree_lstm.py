"""Train a Tree-LSTM on the sentiment of phrases with several processes.

    python train_tree_lstm.py                                                 # one process, trees that are made up
    python -m dynet_cy.launch -n 2 train_tree_lstm.py --train sst/train.txt.gz --dev sst/dev.txt.gz
    python -m dynet_cy.launch -n 2 --mode async train_tree_lstm.py
    mpirun -n 2 python train_tree_lstm.py

Read the function `train`: it contains everything that several processes need.  `--batch` is per process.  With
`--checkpoint FILE` a run that was stopped continues where it was, with any number of processes.  The network, with
a loss at every node, and the files of the Stanford Sentiment Treebank are those of the example `tree_lstm.py`, which
can label trees with the model saved here.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dynet_cy as dy
from dynet_cy import config

LABELS = 5  # from 0, very negative, to 4, very positive


@dataclass
class Tree:
    """A phrase: either a word, or two phrases."""

    label: int
    word: str = ""
    children: tuple[Tree, ...] = ()

    def nodes(self) -> Iterator[Tree]:
        """Yield all phrases, parts before the whole."""
        for child in self.children:
            yield from child.nodes()
        yield self


# -- training with several processes -------------------------------------------------------------


def train(network: Sentiment, training: list[Tree], dev: list[Tree], args: argparse.Namespace) -> None:
    """Train with all processes that were started; rank 0 prints and saves."""
    rank, processes = dy.parallel.rank(), dy.parallel.size()
    trainer = dy.parallel.wrap(dy.AdamTrainer(network.pc))
    # All ranks get equally many trees: some get one of the first again at the end. In each update they have
    # about the same number of nodes.
    data = dy.parallel.shard(training, shuffle=True, seed=args.seed, uneven="pad", batch_size=args.batch, cost=size)
    own_dev = dev[rank::processes]  # this process's share of the dev data
    network.rng = random.Random(f"{args.seed} {rank}")  # which words are hidden
    args.model.parent.mkdir(parents=True, exist_ok=True)

    best = {"score": float("-inf"), "epoch": 0}
    restart = {"data": data, "generators": [network.rng]}
    if args.checkpoint and args.checkpoint.exists():
        best = dy.parallel.load_checkpoint(args.checkpoint, network.pc, trainer, **restart)
        tell(f"resuming from {args.checkpoint}: epoch {data.epoch + 1}, item {data.state()['position']}")

    while data.epoch < args.epochs:
        epoch = data.epoch + 1
        network.training = True
        summed, units, start = 0.0, 0, time.perf_counter()
        shown = dy.parallel.progress(data, total=len(data), leave=False, disable=None)
        for number, batch in enumerate(shown, start=1):
            state = data.state()
            done = state["epoch"] + state["position"] / state["length"]
            trainer.learning_rate = args.learning_rate * max(1 - done / args.epochs, 0.01)
            dy.renew_cg()
            loss = network.loss(batch)
            value = loss.value()
            loss.backward()
            trainer.update()
            own = sum(map(size, batch))
            summed, units = summed + value * own, units + own
            if args.checkpoint and number % args.every == 0:
                dy.parallel.save_checkpoint(args.checkpoint, network.pc, trainer, **restart, extra=best)
        dy.parallel.barrier()  # until asynchronous processes have finished their updates
        seconds = time.perf_counter() - start
        network.training = False
        loss_mean = dy.parallel.average(summed / max(units, 1), units)
        speed = dy.parallel.average(units / seconds) * processes
        score = dy.parallel.average(network.accuracy(own_dev), len(own_dev))
        tell(f"epoch {epoch}: loss {loss_mean:.4f}, {seconds:.1f} s, {speed:.0f} nodes/s, dev accuracy {score:.2%}")
        if score > best["score"]:
            best = {"score": score, "epoch": epoch}
            if rank == 0:
                dy.save_safetensors(args.model, network.pc, extra=network.spec)
        elif epoch - best["epoch"] >= args.patience:
            break
    tell(f"best dev accuracy {best['score']:.2%} after epoch {best['epoch']}, model saved in {args.model}")


def size(tree: Tree) -> int:
    return sum(1 for _ in tree.nodes())


def tell(words: str) -> None:
    if dy.parallel.rank() == 0:
        print(words, flush=True)


# -- the network ---------------------------------------------------------------------------------


class Sentiment:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.words = {word: i for i, word in enumerate(spec["words"], start=1)}  # 0 is for unknown ones
        self.training = False  # whether to apply dropout
        self.rng = random.Random(spec["seed"])

        self.pc = pc = dy.ParameterCollection()
        dim, self.hidden = spec["word_dim"], spec["hidden"]
        self.word_vectors = pc.add_lookup_parameters((len(self.words) + 1, dim))
        # The rows of a word: input gate, output gate, candidate.
        self.leaf = pc.add_parameters((3 * self.hidden, dim))
        self.leaf_bias = pc.add_parameters(3 * self.hidden, init=0)
        # The rows of a pair: input gate, output gate, forget gates for the left and the right cell, candidate.
        self.left = pc.add_parameters((5 * self.hidden, self.hidden))
        self.right = pc.add_parameters((5 * self.hidden, self.hidden))
        self.bias = pc.add_parameters(5 * self.hidden, init=0)
        self.label, self.label_bias = pc.add_parameters((LABELS, self.hidden)), pc.add_parameters(LABELS, init=0)

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
            rows = dy.affine_transform([self.leaf_bias, self.leaf, self.drop(self.embed(tree.word.lower()))])
            gates = dy.logistic(self.part(rows, 0, 2))
            cell = dy.cmult(self.part(gates, 0), dy.tanh(self.part(rows, 2)))
        state = dy.cmult(self.part(gates, 1), dy.tanh(cell))
        found.append(dy.affine_transform([self.label_bias, self.label, self.drop(state)]))
        return state, cell

    def part(self, rows: dy.Expression, number: int, parts: int = 1) -> dy.Expression:
        return dy.pick_range(rows, number * self.hidden, (number + parts) * self.hidden)

    def embed(self, word: str) -> dy.Expression:
        # Words are sometimes treated as unknown, rare ones more often, to train the vector for unknown words.
        rate = self.spec["word_dropout"]
        hidden = self.training and self.rng.random() * (self.spec["words"].get(word, 0) + rate) < rate
        return self.word_vectors[0 if hidden else self.words.get(word, 0)]

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

    def accuracy(self, trees: list[Tree]) -> float:
        """Return the share of trees whose root is labelled right; 0 if there are none."""
        right = 0
        for batch in dy.data.batches(trees, 64):
            dy.renew_cg(forward_only=True)
            roots = [self.scores(tree)[-1] for tree in batch]
            dy.forward(roots)  # all at once, so that it can be batched
            right += sum(int(scores.npvalue().argmax()) == tree.label for scores, tree in zip(roots, batch))
        return right / max(len(trees), 1)


# -- data ----------------------------------------------------------------------------------------


def new_spec(training: list[Tree], args: argparse.Namespace) -> dict:
    """Collect the vocabulary, with how often each word was seen, and the sizes given on the command line."""
    words = Counter(node.word.lower() for tree in training for node in tree.nodes() if node.word)
    sizes = {size: getattr(args, size) for size in ("word_dim", "hidden", "dropout", "word_dropout", "seed")}
    return {"words": {word: n for word, n in words.items() if n > 1}, **sizes}


def read_trees(path: Path) -> list[Tree]:
    """Read a file, plain or gzipped, with one tree per line, such as `(3 (2 a) (4 (3 very) (3 good)))`."""
    trees = []
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            stack: list = []  # labels, words and trees that are not yet part of one
            try:
                for token in line.replace("(", " ( ").replace(")", " ) ").strip().split(" "):
                    if token == ")":
                        start = len(stack) - stack[::-1].index("(")
                        stack[start - 1 :] = [tree_of(*stack[start:])]
                    elif token:
                        stack.append(token)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {number}: not a tree of words and pairs") from error
            if len(stack) > 1 or not all(isinstance(tree, Tree) for tree in stack):
                raise ValueError(f"{path}, line {number}: not one tree with all brackets closed")
            trees += stack
    return trees


def tree_of(label: str, *parts: object) -> Tree:
    if label not in map(str, range(LABELS)):
        raise ValueError(label)
    if len(parts) == 1 and isinstance(parts[0], str):
        return Tree(int(label), word=parts[0])
    left, right = parts
    if isinstance(left, Tree) and isinstance(right, Tree):
        return Tree(int(label), children=(left, right))
    raise TypeError(parts)


ADJECTIVES = ["awful dreadful", "dull weak clumsy", "long quiet French", "good fresh charming", "superb brilliant"]


def made_up_tree(rng: random.Random, depth: int = 4) -> Tree:
    """Generate a phrase: `very` moves a label further from 2, `not` reverses and weakens it, and two phrases joined by
    `but` have the label of the second.
    """
    if depth == 0 or rng.random() < 0.2:
        label = rng.randrange(LABELS)
        return Tree(label, rng.choice(ADJECTIVES[label].split()))
    inner = made_up_tree(rng, depth - 1)
    label, sign = inner.label, (inner.label > 2) - (inner.label < 2)
    kind = rng.choice(["very", "not", "but"])
    if kind == "very":
        label = min(max(label + sign, 0), LABELS - 1)
    elif kind == "not":
        label = 2 - sign
    pair = Tree(label, children=(Tree(2, kind), inner))
    return Tree(label, children=(made_up_tree(rng, 1), pair)) if kind == "but" else pair


# -- command line --------------------------------------------------------------------------------


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a Tree-LSTM with several processes.")
    add = parser.add_argument
    add("--train", type=Path, metavar="FILE", help="one tree per line, plain or .gz; else 2,000 trees are made up")
    add("--dev", type=Path, metavar="FILE", help="likewise; else every tenth tree of those to train on")
    add("--limit", type=int, metavar="N", help="take only the first N trees of each file")
    add("--word-dim", type=int, default=100)
    add("--hidden", type=int, default=128)
    add("--dropout", type=float, default=0.3)
    add("--word-dropout", type=float, default=0.25, help="a word seen n times is hidden at the rate of d / (d + n)")
    add("--checkpoint", type=Path, metavar="FILE", help="save checkpoints here, and resume if it exists")
    add("--every", type=int, default=100, metavar="N", help="updates between checkpoints")
    add("--epochs", type=int, default=10, help="the learning rate falls to 0 over them")
    add("--patience", type=int, default=3, help="epochs without a better score before it stops")
    add("--batch", type=int, default=25, help="trees in a minibatch, of each process")
    add("--learning-rate", type=float, default=0.002, help="initial learning rate")
    add("--seed", type=int, default=1)
    add("--model", type=Path, metavar="FILE", default=Path("runs/tree_lstm.safetensors"))
    config.add_options(parser)
    return parser.parse_args(argv)


def main() -> None:
    args = parse(sys.argv[1:])
    dy.reset_random_seed(args.seed)
    try:
        rng = random.Random(args.seed)
        training = read_trees(args.train) if args.train else [made_up_tree(rng) for _ in range(2000)]
        training = training[: args.limit]
        if args.dev:
            dev = read_trees(args.dev)[: args.limit]
        else:
            training, dev = [item for i, item in enumerate(training) if i % 10], training[::10]
        if not training or not dev:
            raise ValueError(f"{len(training)} trees to train on and {len(dev)} to measure with: both are needed")
        train(Sentiment(new_spec(training, args)), training, dev, args)
    except (OSError, EOFError, ValueError) as error:
        sys.exit(f"train_tree_lstm.py: {error}")
    except KeyboardInterrupt:
        sys.exit("train_tree_lstm.py: interrupted")


if __name__ == "__main__":
    main()
