"""What programs that learn from sentences share: vocabularies, the loop of training, their commands.  No program."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from helpers import add_engine_options, batches, load_spec, save_model
from tqdm import tqdm

Item = TypeVar("Item")
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


# -- training ------------------------------------------------------------------------------------


def train(
    dy: ModuleType,
    network: Any,
    training: list[Item],
    size: Callable[[Item], int],
    evaluate: Callable[[], tuple[float, str]],
    args: argparse.Namespace,
    unit: str = "words",
) -> None:
    """Train until the epochs or the patience are over; save after each epoch that is the best so far.

    `network` has its parameters in `pc`, what is needed to build it again in `spec`, and a method `loss` that
    makes the mean loss over all units of a minibatch; `training` tells it whether to drop out.  `size` counts
    the units of an item, and `evaluate` returns how good the network is, as a number and in words.
    """
    trainer = getattr(dy, f"{args.trainer}Trainer")(network.pc)
    order = random.Random(args.seed)
    training = list(training)
    total = sum(map(size, training))
    best, best_words, best_epoch, done = float("-inf"), "", 0, 0
    for epoch in range(1, args.epochs + 1):
        order.shuffle(training)
        network.training = True
        summed, start = 0.0, time.perf_counter()
        with tqdm(total=total, desc=f"epoch {epoch}", unit=unit, leave=False, disable=None) as bar:
            for batch in batches(training, args.batch):
                trainer.learning_rate = args.learning_rate * (1 - done / (args.epochs * total))
                dy.renew_cg()
                loss = network.loss(batch)
                value = loss.value()
                loss.backward()
                trainer.update()
                units = sum(map(size, batch))
                done += units
                summed += value * units
                bar.set_postfix(loss=f"{value:.3f}", refresh=False)
                bar.update(units)
        seconds = time.perf_counter() - start
        network.training = False
        score, words = evaluate()
        print(
            f"epoch {epoch}: loss {summed / total:.4f}, {seconds:.1f} s, {total / seconds:.0f} {unit}/s, {words}",
            flush=True,
        )
        if score > best:
            best, best_words, best_epoch = score, words, epoch
            save_model(args.model, network.spec, network.pc)
        elif epoch - best_epoch >= args.patience:
            print(f"no better for {args.patience} epochs: stopping")
            break
    print(f"best {best_words} after epoch {best_epoch}, model saved in {args.model}")


def hold_out(items: list[Item], path: Path | None) -> tuple[list[Item], list[Item]]:
    """Split into those to train on and every tenth, to measure with."""
    if len(items) < 2:
        raise ValueError(f"{path or '--limit 1'}: one sentence only, none is left to train on; give --dev FILE too")
    return [item for i, item in enumerate(items) if i % 10], items[::10]


def load(build: Callable[[dict], Any], folder: Path) -> Any:
    """Build the network that was saved, by `build(spec)`, and read its weights."""
    spec, weights = load_spec(folder)
    try:
        network = build(spec)
    except KeyError as error:
        raise ValueError(f"{folder}: the model of another program: its model.json has no {error}") from error
    network.pc.populate(weights)
    return network


# -- command line --------------------------------------------------------------------------------


def add_training(command: argparse.ArgumentParser, epochs: int, batch: int, rate: float) -> None:
    """Add the options that `train` needs, with these defaults."""
    add = command.add_argument
    add("--epochs", type=int, default=epochs, help="the learning rate falls to 0 over them")
    add("--patience", type=int, default=3, help="epochs without a better dev score before stopping")
    add("--batch", type=int, default=batch, help="sentences in a minibatch")
    trainers = ["Adam", "Amsgrad", "RMSProp", "Adagrad", "MomentumSGD", "SimpleSGD"]
    add("--trainer", choices=trainers, default="Adam")
    add("--learning-rate", type=float, default=rate, help="at the start; SGD needs some 0.1")


def add_common(command: argparse.ArgumentParser, model: str) -> None:
    add = command.add_argument
    add("--model", type=Path, metavar="DIR", default=Path("runs") / model)
    add_engine_options(command)
    add("--no-autobatch", dest="autobatch", action="store_false", help="run node by node")


def train_first(argv: list[str]) -> list[str]:
    """Put the command `train` before options that come without a command."""
    return ["train", *argv] if not argv or argv[0].startswith("-") and argv[0] not in ("-h", "--help") else argv


def guarded(program: str, run: Callable[[], None]) -> None:
    """Run; tell of bad files and interruptions in a line, not by a traceback."""
    try:
        run()
    except (OSError, ValueError) as error:
        sys.exit(f"{program}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{program}: interrupted")
