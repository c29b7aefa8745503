"""What the examples share: their options, the choice of the engine, batches, saving a model in one step."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["dynet_cy", "dynet"], default="dynet_cy", help="dynet: to compare")
    # The engine finds these in sys.argv when it is imported; they are named here so that the program lets them pass.
    own = parser.add_argument_group("options of the engine")
    own.add_argument("--dynet-gpu", action="store_true", help="compute on GPU:0")
    own.add_argument("--dynet-devices", metavar="NAMES", help="devices to use, such as CPU,GPU:1")
    own.add_argument("--dynet-mem", metavar="MB", help="limit for the memory of values, gradients and parameters")
    own.add_argument("--dynet-profiling", metavar="N", help="1: print what took how long")


def import_engine(args: argparse.Namespace, autobatch: bool) -> ModuleType:
    """Import the engine, to be named dy: its options must be set before.  `--engine dynet` is there to compare."""
    if args.engine == "dynet":
        import dynet_config

        dynet_config.set(autobatch=int(autobatch), random_seed=args.seed)
        import dynet as dy
    else:
        import dynet_cy as dy
        import dynet_cy.config

        dynet_cy.config.set(autobatch=int(autobatch), random_seed=args.seed)
    return dy


def batched_map(dy: ModuleType, function: Callable[..., Result], *iterables: Iterable) -> list[Result]:
    """Call a function for each item; dynet_cy computes the values together that the calls ask for, DyNet one by one."""
    return dy.batched_map(function, *iterables) if hasattr(dy, "batched_map") else list(map(function, *iterables))


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


def save_model(folder: Path, spec: dict, pc) -> None:
    """Replace the model in a single step, so that whoever loads it finds the old one or the new one, whole.

    The weights go into a file named after their checksum, beside the old ones.  `model.json` holds the
    spec (all that is needed to build the network again) and names the weights: the moment it is replaced,
    the new model counts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "weights.tmp"
    pc.save(str(temporary))
    checksum = hashlib.sha256(temporary.read_bytes()).hexdigest()
    weights = folder / f"weights-{checksum[:16]}.txt"
    os.replace(temporary, weights)

    temporary = folder / "model.json.tmp"
    text = json.dumps({"weights": weights.name, "sha256": checksum, **spec}, ensure_ascii=False)
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, folder / "model.json")

    for old in folder.glob("weights-*.txt"):
        if old != weights:
            old.unlink()


def load_spec(folder: Path) -> tuple[dict, str]:
    """Return the spec of a saved model and the name of the file with its weights, whose checksum is right."""
    spec = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    weights = folder / spec.pop("weights")
    if hashlib.sha256(weights.read_bytes()).hexdigest() != spec.pop("sha256"):
        raise ValueError(f"{weights}: damaged: its checksum is not the one in model.json")
    return spec, str(weights)
