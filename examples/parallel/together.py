"""What the programs of this folder share: the loop of training with several processes.  No program."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1]))  # the programs that these train are there

from helpers import save_model

Item = TypeVar("Item")


def train(
    dy: ModuleType,
    network: Any,
    training: list[Item],
    size: Callable[[Item], int],
    measure: Callable[[], tuple[float, float]],
    args: argparse.Namespace,
    unit: str = "words",
) -> None:
    """Train as `learning.train` does, with all processes that were started; rank 0 prints and saves.

    `measure` returns how good the network is on this process's share of the dev data, and the weight of that in the
    mean over all processes.
    """
    rank, processes = dy.parallel.rank(), dy.parallel.size()
    trainer = dy.parallel.wrap(getattr(dy, f"{args.trainer}Trainer")(network.pc))
    # All ranks get as many sentences: some see one of the first again at the end of an epoch. In each update they have
    # about the same number of words.
    data = dy.parallel.shard(training, shuffle=True, seed=args.seed, uneven="pad", batch_size=args.batch, cost=size)
    network.rng = random.Random(f"{args.seed} {rank}")  # which words are hidden

    best = {"score": float("-inf"), "epoch": 0}
    restart = {"data": data, "generators": [network.rng]}
    if args.checkpoint and args.checkpoint.exists():
        best = dy.parallel.load_checkpoint(args.checkpoint, network.pc, trainer, **restart)
        tell(rank, f"going on from {args.checkpoint}: epoch {data.epoch + 1}, item {data.state()['position']}")

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
        score = dy.parallel.average(*measure())
        words = f"loss {loss_mean:.4f}, {seconds:.1f} s, {speed:.0f} {unit}/s, dev accuracy {score:.2%}"
        tell(rank, f"epoch {epoch}: {words}")
        if score > best["score"]:
            best = {"score": score, "epoch": epoch}
            if rank == 0:
                save_model(args.model, network.spec, network.pc)
        elif epoch - best["epoch"] >= args.patience:
            break
    tell(rank, f"best dev accuracy {best['score']:.2%} after epoch {best['epoch']}, model saved in {args.model}")


def tell(rank: int, words: str) -> None:
    if rank == 0:
        print(words, flush=True)


def share(dy: ModuleType, items: list[Item]) -> list[Item]:
    """This process's share of the dev data."""
    return items[dy.parallel.rank() :: dy.parallel.size()]


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the options of this folder's programs, and read the command line."""
    add = parser.add_argument
    add("--checkpoint", type=Path, metavar="FILE", help="write one now and then, and go on from it if it is there")
    add("--every", type=int, default=100, metavar="N", help="updates between checkpoints")
    args = parser.parse_args()
    if args.engine != "dynet_cy":
        parser.error(f"--engine {args.engine}: these programs need dynet_cy.parallel")
    return args
