"""Memory of dynet_cy compared with DyNet's.

    python benchmarks/memory.py [--dynet PYTHON]

First, the peak resident memory of those programs of `workloads/` that have a form batched by hand, after some updates.
DyNet's pools are set to 8 MB each and grow as needed; its default is 512 MB at the start.

Then, a decoder that feeds its own output to itself in one graph, which DyNet keeps completely: resident memory after
certain numbers of steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import workloads
from compare import Child

POOLS = "8"
STEPS = (1_000, 10_000, 30_000)
WORDS, HIDDEN = 5_000, 128


def resident() -> int:
    """Resident memory of this process in bytes; 0 if unknown."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def decode(library: str) -> None:
    """Decode, and print the memory after each of STEPS, one per line."""
    if library == "dynet":
        import dynet_config

        dynet_config.set(mem=POOLS)
        import dynet as dy

        dy.renew_cg()
    else:
        import dynet_cy as dy

        dy.renew_cg(forward_only=True)
    pc = dy.ParameterCollection()
    builder = dy.VanillaLSTMBuilder(1, HIDDEN, HIDDEN, pc)
    table = pc.add_lookup_parameters((WORDS, HIDDEN))
    w, b = pc.add_parameters((WORDS, HIDDEN)), pc.add_parameters(WORDS)
    state, word = builder.initial_state(), 0
    answers, sys.stdout = sys.stdout, sys.stderr
    for step in range(1, max(STEPS) + 1):
        state = state.add_input(table[word])
        word = int(dy.log_softmax(dy.affine_transform([b, w, state.output()])).npvalue().argmax())
        if step in STEPS:
            print(json.dumps(resident()), file=answers, flush=True)


def decoding(python: str, library: str) -> list[int | None]:
    """Memory after each of STEPS; None if the library ran out of memory before."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", DYNET_CY_THREADS="1")
    if library == "dynet":
        environment.pop("PYTHONPATH", None)
    command = [python, __file__, "--decode", library]
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found: list[int | None] = [json.loads(line) for line in ran.stdout.splitlines()]
    return found + [None] * (len(STEPS) - len(found))


def updates(python: str, library: str, name: str) -> float:
    """Peak resident memory of a workload batched by hand."""
    child = Child(python, library, "minibatch", name)
    try:
        for _ in range(4):
            child.round()
        return child.rounds[-1]["memory"]
    finally:
        child.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dynet", metavar="PYTHON", help="an interpreter that has DyNet (dyNET38)")
    parser.add_argument("--decode", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.decode:
        decode(args.decode)
        return
    os.environ["DYNET_POOLS"] = POOLS
    pythons = {"dynet_cy": sys.executable, **({"dynet": args.dynet} if args.dynet else {})}
    print("MiB |", " | ".join(pythons))
    for name in workloads.NAMES:
        if "minibatch" in workloads.load(name).dynet_forms:
            print(name, *(f"{updates(python, lib, name) / 2**20:.0f}" for lib, python in pythons.items()), sep=" | ")
    found = [decoding(python, library) for library, python in pythons.items()]
    for steps, *memory in zip(STEPS, *found):
        print(f"decoding {steps:,} words", *(f"{m / 2**20:.0f}" if m else "out of memory" for m in memory), sep=" | ")


if __name__ == "__main__":
    main()
