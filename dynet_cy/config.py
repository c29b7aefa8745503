"""Settings: from the command line, the environment, or `set`.

When dynet_cy is imported it reads, in this order, the environment variables
``DYNET_CY_MEM``, ``DYNET_CY_SEED``, ``DYNET_CY_AUTOBATCH`` and
``DYNET_CY_WEIGHT_DECAY``, then the options ``--dynet-mem``, ``--dynet-seed``,
``--dynet-autobatch`` and ``--dynet-weight-decay`` (also with underscores, as
``--dynet_mem``) of ``sys.argv``, which are left there.  `set`
changes settings at any time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from dynet_cy.graph import graph as _graph
from dynet_cy.kernels import draws as _draws
from dynet_cy.memory import arena as _arena
from dynet_cy.model import parameters as _parameters

__all__ = ["get", "set"]

_NOT_YET = ("profiling", "shared_parameters", "requested_gpus", "gpu_mask")
# Options of DyNet that stand for something that is not there yet.
_OPTIONS_NOT_YET = (
    "gpu",
    "gpus",
    "gpu-ids",
    "devices",
    "profiling",
    "viz",
    "shared-parameters",
)


def _megabytes(mem: str | int | float) -> int:
    """Bytes of a limit in megabytes; several numbers, as DyNet has them for its pools, add up."""
    try:
        total = sum(float(part) for part in str(mem).split(","))
    except ValueError:
        raise ValueError(f"mem must be megabytes, or several numbers separated by commas, not {mem!r}") from None
    if not 0 <= total < 2**40:
        raise ValueError(f"mem must be between 0 and 2**40 megabytes, not {mem!r}")
    return int(total * 2**20)


def set(
    mem: str | int | float | None = None,
    random_seed: int | None = None,
    autobatch: int | None = None,
    profiling: int = 0,
    weight_decay: float | None = None,
    shared_parameters: int = 0,
    requested_gpus: int = 0,
    gpu_mask: object = None,
) -> None:
    """Change settings; those that are None stay.

    Args:
        mem: limit in megabytes on the memory of graphs and parameters; 0 for
            none but the machine's.  Past it, MemoryError is raised.
        random_seed: seed of all random numbers; 0 draws one at random.
        autobatch: 0 runs nodes in the order of making, 1 batches them by agenda,
            2 by depth.  Holds for graphs from their next renewal on; the
            current graph is renewed if it has no node.
        weight_decay: lambda of the collections made from now on; see
            `ParameterCollection.set_weight_decay`.
        profiling, shared_parameters, requested_gpus, gpu_mask: not done yet.

    Raises:
        ValueError: a setting is out of range.
        NotImplementedError: a setting that is not done yet is asked for.
    """
    not_yet = (profiling, shared_parameters, requested_gpus, gpu_mask)
    for name, value in zip(_NOT_YET, not_yet):
        if value:
            raise NotImplementedError(f"dynet_cy.config: {name}={value!r} is not done yet")
    if mem is not None:
        _arena.set_limit(_megabytes(mem))
    if random_seed is not None:
        _graph.set_seed(int(random_seed) or _draws.random_bits())
    if autobatch is not None:
        _graph.set_autobatching(autobatch)
    if weight_decay is not None:
        _parameters.set_default_weight_decay(weight_decay)


def get() -> dict[str, int | float]:
    """The settings in force: mem (megabytes, 0 for no limit), random_seed, autobatch, weight_decay."""
    return {
        "mem": _arena.limit() / 2**20,
        "random_seed": _draws.seed(),
        "autobatch": _graph.autobatching(),
        "weight_decay": _parameters.get_default_weight_decay(),
    }


def _options(argv: Sequence[str]) -> dict[str, str]:
    """The --dynet options of a command line, by name with dashes."""
    found = {}
    i = 0
    while i < len(argv):
        word = argv[i].replace("_", "-") if argv[i].startswith("--dynet") else ""
        i += 1
        if not word.startswith("--dynet-"):
            continue
        name, given, value = word[len("--dynet-") :].partition("=")
        if given:
            value = argv[i - 1].partition("=")[2]
        elif i < len(argv) and not argv[i].startswith("--"):
            value = argv[i]
            i += 1
        found[name] = value
    return found


def _read_environment_and_options() -> None:
    given = {
        "mem": os.environ.get("DYNET_CY_MEM"),
        "seed": os.environ.get("DYNET_CY_SEED"),
        "autobatch": os.environ.get("DYNET_CY_AUTOBATCH"),
        "weight-decay": os.environ.get("DYNET_CY_WEIGHT_DECAY"),
    }
    options = _options(getattr(sys, "argv", [])[1:])
    for name, value in options.items():
        if name in given:
            given[name] = value
        elif name in _OPTIONS_NOT_YET:
            if value not in ("0", "0.0", "CPU"):
                raise NotImplementedError(f"--dynet-{name} {value} is not done yet")
        else:
            raise ValueError(f"unknown option --dynet-{name}")
    for name, text in given.items():
        if text is not None:
            try:
                float(text.split(",")[0])
            except ValueError:
                raise ValueError(f"--dynet-{name} needs a number, not {text!r}") from None
    set(
        given["mem"],
        int(given["seed"]) if given["seed"] is not None else None,
        int(given["autobatch"]) if given["autobatch"] is not None else None,
        weight_decay=float(given["weight-decay"]) if given["weight-decay"] is not None else None,
    )


_read_environment_and_options()
