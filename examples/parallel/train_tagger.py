"""Train the tagger of `tagger.py` with several processes.

    python train_tagger.py                                                    # one process, a Turkish treebank
    python -m dynet_cy.launch -n 2 train_tagger.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python -m dynet_cy.launch -n 2 --mode async train_tagger.py
    mpirun -n 2 python train_tagger.py
    python ../tagger.py tag --model runs/tagger                               # use what was trained

The network, its options and its file are those of `tagger.py`; `--batch` is of each process.  With `--checkpoint FILE`
a run that was stopped goes on where it was, with as many processes as one likes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import together  # isort: skip  # first: it finds the modules of the other examples

import learning
import tagger
from conllu import COLUMNS, default_treebanks, read_conllu


def train(args: argparse.Namespace) -> None:
    training = read_conllu(args.train or default_treebanks()[0], args.column)
    if args.dev:
        dev = read_conllu(args.dev, args.column)
    else:
        training, dev = learning.hold_out(training, args.train)
    training, dev = training[: args.limit], dev[: args.limit]
    dy = tagger.import_engine(args)
    network = tagger.Tagger(tagger.new_spec(training, args))
    own_dev = together.share(dy, dev)

    def measure() -> tuple[float, float]:
        words = sum(len(words) for words, _ in own_dev)
        return (tagger.accuracy(network, own_dev) if words else 0.0), words

    together.train(dy, network, training, lambda sentence: len(sentence[0]), measure, args)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a tagger with several processes.")
    add = parser.add_argument
    add("--train", type=Path, metavar="FILE", help="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks")
    add("--dev", type=Path, metavar="FILE", help="CoNLL-U; else every tenth sentence of the training file")
    add("--column", choices=COLUMNS[3:], default="UPOS", help="what to predict")
    add("--limit", type=int, metavar="N", help="take the first N sentences of each file only")
    tagger.add_sizes(parser)
    learning.add_training(parser, epochs=10, batch=16, rate=0.002)
    learning.add_common(parser, "tagger")
    return together.parse(parser)


if __name__ == "__main__":
    args = parse()
    learning.guarded("train_tagger.py", lambda: train(args))
