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
import random
import time
from pathlib import Path

import dynet_cy as dy
from dynet_cy import commandline
from dynet_cy.data import Tree, Vocabulary, read_trees

LABELS = 5
SIZES = {
    "word_dim": 100,
    "hidden": 128,
    "dropout": 0.3,
    "word_dropout": 0.25,  # a word seen n times is hidden at the rate of d / (d + n)
}


def train(network: Sentiment, training: list[Tree], dev: list[Tree], args: argparse.Namespace) -> None:
    """Train with all processes that were started; rank 0 prints and saves."""
    rank, processes = dy.parallel.rank(), dy.parallel.size()
    trainer = dy.parallel.wrap(dy.AdamTrainer(network.pc))
    # All ranks get equally many trees: some get one of the first again at the end. In each update they have
    # about the same number of nodes.
    data = dy.parallel.shard(training, shuffle=True, seed=args.seed, uneven="pad", batch_size=args.batch, cost=size)
    own_dev = dev[rank::processes]  # this process's share of the dev data
    network.rng = random.Random(f"{args.seed} {rank}")  # which words are hidden
    for path in filter(None, (args.model, args.checkpoint)):
        path.parent.mkdir(parents=True, exist_ok=True)

    best = {"score": float("-inf"), "epoch": 0}
    restart = {"data": data, "generators": [network.rng]}
    if args.checkpoint and args.checkpoint.exists():
        best = dy.parallel.load_checkpoint(args.checkpoint, network.pc, trainer, **restart)
        tell(f"resuming from {args.checkpoint}: epoch {data.epoch + 1}, item {data.state()['position']}")

    while data.epoch < args.epochs and data.epoch - best["epoch"] < args.patience:
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
        if args.checkpoint:  # an epoch may have fewer updates than there are between two checkpoints
            dy.parallel.save_checkpoint(args.checkpoint, network.pc, trainer, **restart, extra=best)
    tell(f"best dev accuracy {best['score']:.2%} after epoch {best['epoch']}, model saved in {args.model}")


def size(tree: Tree) -> int:
    return sum(1 for _ in tree.nodes())


def tell(words: str) -> None:
    if dy.parallel.rank() == 0:
        print(words, flush=True)


class Sentiment:
    """The network.  `spec` holds everything needed to build it again, except the weights."""

    def __init__(self, spec: dict) -> None:
        self.spec = spec
        self.words = Vocabulary(spec["words"])
        self.training = False  # whether to apply dropout
        self.rng = random.Random(spec["seed"])

        self.pc = pc = dy.ParameterCollection()
        dim, self.hidden = spec["word_dim"], spec["hidden"]
        self.word_vectors = pc.add_lookup_parameters((len(self.words), dim))
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
        if len(tree.parts) == 2:
            (left, left_cell), (right, right_cell) = (self.encode(part, found) for part in tree.parts)
            rows = dy.affine_transform([self.bias, self.left, left, self.right, right])
            gates = dy.logistic(self.part(rows, 0, 4))
            new = dy.cmult(self.part(gates, 0), dy.tanh(self.part(rows, 4)))
            forget_left, forget_right = self.part(gates, 2), self.part(gates, 3)
            cell = new + dy.cmult(forget_left, left_cell) + dy.cmult(forget_right, right_cell)
        else:
            rows = dy.affine_transform([self.leaf_bias, self.leaf, self.drop(self.embed(tree.parts[0].lower()))])
            gates = dy.logistic(self.part(rows, 0, 2))
            cell = dy.cmult(self.part(gates, 0), dy.tanh(self.part(rows, 2)))
        state = dy.cmult(self.part(gates, 1), dy.tanh(cell))
        found.append(dy.affine_transform([self.label_bias, self.label, self.drop(state)]))
        return state, cell

    def part(self, rows: dy.Expression, number: int, parts: int = 1) -> dy.Expression:
        return dy.pick_range(rows, number * self.hidden, (number + parts) * self.hidden)

    def embed(self, word: str) -> dy.Expression:
        # Words are sometimes treated as unknown, rare ones more often, to train the vector for unknown words.
        hidden = self.training and self.words.word_dropout(word, self.spec["word_dropout"], self.rng)
        return self.word_vectors[0 if hidden else self.words[word]]

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
            dy.pickneglogsoftmax(scores, int(node.label))
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
            right += sum(int(scores.npvalue().argmax()) == int(tree.label) for scores, tree in zip(roots, batch))
        return right / max(len(trees), 1)


def read(path: Path) -> list[Tree]:
    return read_trees(path, labels="01234", binary=True)


def main(args: argparse.Namespace) -> None:
    trees, dev = commandline.read_data(args, read, lambda: dy.data.toy_sentiment(2000, args.seed))
    words = Vocabulary((word.lower() for tree in trees for word in tree.words()), min_count=2)
    spec = {"words": words.counts, "seed": args.seed, **args.sizes}
    train(Sentiment(spec), trees, dev, args)


if __name__ == "__main__":
    parser = commandline.Parser(
        "Train a Tree-LSTM with several processes.",
        data="one tree per line, plain or .gz; else 2,000 trees are made up",
        epochs=10,
        patience=3,
        batch=25,  # of each process
        learning_rate=0.002,  # falls to 0
        sizes=SIZES,
        curves=False,
    )
    add = parser.add_argument
    add("--checkpoint", type=Path, metavar="FILE", help="save checkpoints here, and resume if it exists")
    add("--every", type=int, default=100, metavar="N", help="updates between checkpoints, besides one after each epoch")
    parser.set_defaults(model=Path("runs/tree_lstm.safetensors"))  # so that tree_lstm.py finds it
    parser.run(main)
