"""Train the tagger of `tagger.py` with several processes.

    python train_tagger.py                                                    # one process, a Turkish treebank
    python -m dynet_cy.launch -n 2 train_tagger.py --train en-train.conllu.gz --dev en-dev.conllu.gz
    python -m dynet_cy.launch -n 2 --mode async train_tagger.py
    mpirun -n 2 python train_tagger.py
    python ../tagger.py tag --model runs/tagger.safetensors                               # use what was trained

The network and its file are those of `tagger.py`; `--batch` is of each process.  With `--checkpoint FILE`
a run that was stopped goes on where it was, with as many processes as one likes.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the programs that these train are there

import tagger

import dynet_cy as dy
from dynet_cy import config


def train(network: tagger.Tagger, training: list, dev: list, args: argparse.Namespace) -> None:
    """Train with all processes that were started; rank 0 prints and saves."""
    rank, processes = dy.parallel.rank(), dy.parallel.size()
    trainer = dy.parallel.wrap(dy.AdamTrainer(network.pc))
    # All ranks get as many sentences: some see one of the first again at the end of an epoch. In each update they have
    # about the same number of words.
    data = dy.parallel.shard(training, shuffle=True, seed=args.seed, uneven="pad", batch_size=args.batch, cost=size)
    own_dev = dev[rank::processes]  # this process's share of the dev data
    network.rng = random.Random(f"{args.seed} {rank}")  # which words are hidden
    args.model.parent.mkdir(parents=True, exist_ok=True)

    best = {"score": float("-inf"), "epoch": 0}
    restart = {"data": data, "generators": [network.rng]}
    if args.checkpoint and args.checkpoint.exists():
        best = dy.parallel.load_checkpoint(args.checkpoint, network.pc, trainer, **restart)
        tell(f"going on from {args.checkpoint}: epoch {data.epoch + 1}, item {data.state()['position']}")

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
        dy.parallel.barrier()  # asynchronous processes are through with their updates
        seconds = time.perf_counter() - start
        network.training = False
        loss_mean = dy.parallel.average(summed / max(units, 1), units)
        speed = dy.parallel.average(units / seconds) * processes
        score = dy.parallel.average(tagger.accuracy(network, own_dev)[0] if own_dev else 0.0, sum(map(size, own_dev)))
        tell(f"epoch {epoch}: loss {loss_mean:.4f}, {seconds:.1f} s, {speed:.0f} words/s, dev accuracy {score:.2%}")
        if score > best["score"]:
            best = {"score": score, "epoch": epoch}
            if rank == 0:
                dy.save_safetensors(args.model, network.pc, extra=network.spec)
        elif epoch - best["epoch"] >= args.patience:
            break
    tell(f"best dev accuracy {best['score']:.2%} after epoch {best['epoch']}, model saved in {args.model}")


def size(item: tagger.Sentence) -> int:
    return len(item[0])


def tell(words: str) -> None:
    if dy.parallel.rank() == 0:
        print(words, flush=True)


# -- command line --------------------------------------------------------------------------------


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a tagger with several processes.")
    add = parser.add_argument
    add("--train", type=Path, metavar="FILE", help="CoNLL-U, plain or .gz; else a treebank from turkish-treebanks")
    add("--dev", type=Path, metavar="FILE", help="CoNLL-U; else every tenth sentence of the training file")
    add("--column", choices=tagger.COLUMNS[3:], default="UPOS", help="what to predict")
    add("--limit", type=int, metavar="N", help="take the first N sentences of each file only")
    tagger.add_sizes(parser)
    add("--checkpoint", type=Path, metavar="FILE", help="write one now and then, and go on from it if it is there")
    add("--every", type=int, default=100, metavar="N", help="updates between checkpoints")
    add("--epochs", type=int, default=10, help="the learning rate falls to 0 over them")
    add("--patience", type=int, default=3, help="epochs without a better score before it stops")
    add("--batch", type=int, default=16, help="sentences in a minibatch, of each process")
    add("--learning-rate", type=float, default=0.002, help="at the start")
    add("--seed", type=int, default=1)
    add("--model", type=Path, metavar="FILE", default=Path("runs/tagger.safetensors"))
    config.add_options(parser)
    return parser.parse_args(argv)


def main() -> None:
    args = parse(sys.argv[1:])
    dy.reset_random_seed(args.seed)
    try:
        training = tagger.read_sentences(args.train or tagger.default_treebank(), args.column)
        if args.dev:
            dev = tagger.read_sentences(args.dev, args.column)
        else:
            training, dev = tagger.hold_out(training, args.train)
        training, dev = training[: args.limit], dev[: args.limit]
        network = tagger.Tagger(tagger.new_spec(training, args))
        train(network, training, dev, args)
    except (OSError, ValueError) as error:
        sys.exit(f"train_tagger.py: {error}")
    except KeyboardInterrupt:
        sys.exit("train_tagger.py: interrupted")


if __name__ == "__main__":
    main()
