"""Time to write and read a model: text files, safetensors checkpoints and pickles.

    python benchmarks/files.py [MILLIONS_OF_NUMBERS]

Prints a Markdown table with the best of three runs, for a model of 10 million numbers, half of them in a lookup table;
the sizes of the files; and how many times longer the text format takes.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import dynet_cy as dy


def best(work: Callable[[], object], times: int = 3) -> float:
    """The time of the fastest run, in seconds."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    millions = float(sys.argv[1]) if len(sys.argv) > 1 else 10
    model = dy.ParameterCollection()
    table = model.add_lookup_parameters((int(millions * 50000), 10))
    matrices = [model.add_parameters((1000, int(millions * 50))) for _ in range(10)]
    del table, matrices

    def write_pickle() -> None:
        with open(folder / "m.pickle", "wb") as file:
            pickle.dump(model, file, pickle.HIGHEST_PROTOCOL)

    def read_pickle() -> None:
        with open(folder / "m.pickle", "rb") as file:
            pickle.load(file)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ways: list[tuple[str, str, Callable[[], object], Callable[[], object]]] = [
            ("text", "m.txt", lambda: model.save(folder / "m.txt"), lambda: model.populate(folder / "m.txt")),
            (
                "safetensors",
                "m.st",
                lambda: dy.save_safetensors(folder / "m.st", model),
                lambda: dy.load_safetensors(folder / "m.st", model),
            ),
            ("pickle", "m.pickle", write_pickle, read_pickle),
        ]
        print(f"{model.parameter_count():,} numbers\n")
        print("| format | MB | write, s | read, s | text / this: write | read |")
        print("|---|---|---|---|---|---|")
        text: tuple[float, float] | None = None
        for label, file, write, read in ways:
            took = best(write), best(read)
            text = text or took
            megabytes = os.path.getsize(folder / file) / 1e6
            ratios = f"{text[0] / took[0]:.0f} | {text[1] / took[1]:.0f}"
            print(f"| {label} | {megabytes:.0f} | {took[0]:.3f} | {took[1]:.3f} | {ratios} |")


if __name__ == "__main__":
    main()
