"""Runs lines of programs in one library, in a separate process, and reports the result of each.

``python program_worker.py MODULE [NOISE]`` reads pickled requests from standard input and answers on standard output.
A request is a list of lines, with None for a new program. With the seed NOISE, everything the library computes is
multiplied by 1 +- 3e-6: how far the results move shows how large a difference rounding can explain.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import warnings
from typing import Any

import numpy as np

NOISE = 3e-6


class Noisy:
    """A module whose functions return expressions with small errors."""

    def __init__(self, module: Any, seed: int) -> None:
        self.module, self.rng = module, np.random.default_rng(seed)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        if isinstance(value, type) or not callable(value):
            return value

        def call(*args: Any, **keywords: Any) -> Any:
            result = value(*args, **keywords)
            if type(result) is not self.module.Expression or name == "scale_gradient":
                return result
            return result * (1 + NOISE * self.rng.choice([-1.0, 1.0]))

        return call


def numbers(seed: int, shape: tuple[int, ...], low: float = -1.0, high: float = 1.0) -> np.ndarray:
    """Random numbers that depend only on the seed; no two of them are nearly equal."""
    n = int(np.prod(shape))
    rng = np.random.default_rng(seed)
    steps = (rng.permutation(n) + rng.uniform(0.25, 0.75, n)) / max(n, 1)
    return (low + (high - low) * steps).astype(np.float32).astype(np.float64).reshape(shape)


def described(value: Any, library: Any) -> Any:
    """The description of a value in plain Python and NumPy."""
    if isinstance(value, library.Expression):
        return "expression", value.dim()
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [described(v, library) for v in value]
    if isinstance(value, np.ndarray):
        return "array", value.shape, np.asarray(value, np.float64)
    if isinstance(value, (bool, int, float, str, type(None))):
        return type(value).__name__, value
    return "object", type(value).__name__


def run(line: str, names: dict[str, Any], library: Any) -> Any:
    """Run a line; return ("ok", description of its value) or ("error", class, text)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target, _, expression = line.partition(" = ")
            if expression and target.isidentifier():
                names[target] = eval(expression, names)
                value = names[target]
            else:
                value = eval(line, names)
            return "ok", described(value, library)
    except Exception as error:
        return "error", type(error).__name__, str(error)


def main() -> None:
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that a library prints
    module, *noise = sys.argv[1:]
    sys.argv[1:] = []
    library: Any = importlib.import_module(module)
    if module == "dynet_cy":
        importlib.import_module("dynet_cy.core.threads").follow_dynet()  # these are programs written for DyNet
    dy = Noisy(library, int(noise[0])) if noise else library
    names: dict[str, Any] = {}
    while True:
        try:
            lines = pickle.load(requests)
        except EOFError:
            return
        found = []
        for line in lines:
            if line is None:
                library.renew_cg()
                names = {"dy": dy, "np": np, "A": numbers}
                found.append(None)
            else:
                found.append(run(line, names, library))
        pickle.dump(found, answers)
        answers.flush()


if __name__ == "__main__":
    main()
