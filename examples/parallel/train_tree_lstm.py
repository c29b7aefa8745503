"""Train the Tree-LSTM of `tree_lstm.py` with several processes.

    python train_tree_lstm.py                                                 # one process, trees that are made up
    python -m dynet_cy.launch -n 2 train_tree_lstm.py --train sst/train.txt.gz --dev sst/dev.txt.gz
    python -m dynet_cy.launch -n 2 --mode async train_tree_lstm.py
    mpirun -n 2 python train_tree_lstm.py
    python ../tree_lstm.py label sst/test.txt --model runs/tree_lstm          # use what was trained

The network, its options and its file are those of `tree_lstm.py`; `--batch` is of each process.  With
`--checkpoint FILE` a run that was stopped goes on where it was, with as many processes as one likes.
"""

from __future__ import annotations

import argparse
import random

import together  # isort: skip  # first: it finds the modules of the other examples

import learning
import tree_lstm


def train(args: argparse.Namespace) -> None:
    if args.train:
        training = tree_lstm.read_trees(args.train)
    else:
        rng = random.Random(args.seed)
        training = [tree_lstm.made_up_tree(rng) for _ in range(2000)]
    training = training[: args.limit]
    if args.dev:
        dev = tree_lstm.read_trees(args.dev)[: args.limit]
    else:
        training, dev = learning.hold_out(training, args.train)
    dy = tree_lstm.import_engine(args)
    network = tree_lstm.Sentiment(tree_lstm.new_spec(training, args))
    own_dev = together.share(dy, dev)

    def measure() -> tuple[float, float]:
        return (tree_lstm.accuracy(network, own_dev)[0] if own_dev else 0.0), len(own_dev)

    together.train(dy, network, training, lambda tree: sum(1 for _ in tree.nodes()), measure, args, "nodes")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a Tree-LSTM with several processes.")
    tree_lstm.add_data_and_sizes(parser)
    learning.add_training(parser, epochs=10, batch=25, rate=0.002)
    learning.add_common(parser, "tree_lstm")
    return together.parse(parser)


if __name__ == "__main__":
    args = parse()
    learning.guarded("train_tree_lstm.py", lambda: train(args))
