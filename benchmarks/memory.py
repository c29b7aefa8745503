"""Memory of dynet_cy compared with PyTorch's and DyNet's.

    python benchmarks/memory.py [--torch PYTHON] [--dynet PYTHON] [--programs NAME ...]

First, what training adds to a process: the peak of its resident memory over four updates, less what is resident
before the first one, when the parameters have their values.  Each form of each program of `workloads/` runs in a
process of its own, on one thread.  For automatic batching the table says what it consists of: the arenas of the graph,
and all else (gradients of parameters, the state of the trainer, packed weights, nodes).  DyNet's pools are set to 8 MB
each and grow as needed, which automatic batching refuses; its default is 512 MB at the start.

Then, a decoder that feeds its own output to itself in one graph, which DyNet keeps completely: resident memory after
certain numbers of steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

import workloads
from compare import Child
from worker import resident

POOLS = "8"
UPDATES = 4
ARENAS = ("values", "gradients", "scratch")
PROGRAMS = ["language_model", "tagger", "tree_lstm", "mnist_cnn", "seq2seq", "parser", "chain", "mlp", "tagger_letters"]
PROGRAMS += ["transformer_tagger", "transformer_tagger_buckets"]
STEPS = (1_000, 10_000, 30_000)
WORDS, HIDDEN = 5_000, 128


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


def added(python: str, library: str, form: str, name: str) -> dict[str, float]:
    """What four updates of a program add to a process, in MB, and what the arenas of its graph hold."""
    child = Child(python, library, form, name)
    try:
        for _ in range(UPDATES):
            child.round()
        return {key: child.rounds[-1].get(key, 0) / 1e6 for key in ("added", *ARENAS)}
    finally:
        child.close()


def row(name: str, pythons: dict[str, str]) -> list[str]:
    """The cells of a program."""
    workload = workloads.load(name)
    forms = [*workload.dynet_forms, *workload.own_forms]
    batched = next(form for form in ("autobatch", "map", *forms) if form in forms)
    found = added(pythons["dynet_cy"], "dynet_cy", batched, name)
    rest = found["added"] - sum(found[key] for key in ARENAS)
    cells = [f"{x:.0f}" for x in (found["added"], *(found[key] for key in ARENAS), rest)]
    for library in pythons:
        form = workload.torch_forms[-1] if library == "torch" else "minibatch"
        there = form in forms if library != "torch" else True
        there &= library != "dynet" or workload.in_dynet
        cells.append(f"{added(pythons[library], library, form, name)['added']:.0f}" if there else "")
    return [name, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has PyTorch")
    parser.add_argument("--dynet", metavar="PYTHON", help="an interpreter that has DyNet (dyNET38)")
    parser.add_argument("--programs", nargs="+", metavar="NAME", default=PROGRAMS, choices=workloads.NAMES)
    parser.add_argument("--decode", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.decode:
        decode(args.decode)
        return
    os.environ["DYNET_POOLS"] = POOLS
    pythons = {"dynet_cy": sys.executable, "torch": args.torch, "dynet": args.dynet}
    pythons = {library: python for library, python in pythons.items() if python}
    titles = {"dynet_cy": "minibatch", "torch": "PyTorch, batched", "dynet": "DyNet, minibatch"}
    print("MB added", "autobatch", *ARENAS, "all else", *(titles[library] for library in pythons), sep=" | ")
    for name in args.programs:
        print(*row(name, pythons), sep=" | ", flush=True)
    pythons.pop("torch", None)
    print("MiB resident", *pythons, sep=" | ")
    found = [decoding(python, library) for library, python in pythons.items()]
    for steps, *memory in zip(STEPS, *found):
        print(f"decoding {steps:,} words", *(f"{m / 2**20:.0f}" if m else "out of memory" for m in memory), sep=" | ")


if __name__ == "__main__":
    main()
