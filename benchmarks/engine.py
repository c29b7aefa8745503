"""Cost of a node: making it from Python, forward, backward, and scheduling it in batches.

    python benchmarks/engine.py                           # dynet_cy alone
    python benchmarks/engine.py --dynet PYTHON            # compared with DyNet, in that interpreter

Each library runs in its own process, on one thread.  Rounds alternate;
results are medians of CPU time, in nanoseconds per node.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROWS = [
    "build tanh(x)",
    "build x + y",
    "build W * x",
    "chain tanh 128: forward",
    "chain tanh 128: backward",
    "chain x + y 128: forward",
    "chain x + y 128: backward",
    "cells 14 nodes, 64 x 25: build",
    "cells 14 nodes, 64 x 25: plain forward",
    "cells 14 nodes, 64 x 25: batched forward",
    "cells 14 nodes, 64 x 25: batched forward, hidden 1",
    "cells 14 nodes, 64 x 25: batched backward",
]


def measure(dy, set_batching) -> dict[str, float]:
    """Run one round of all rows."""
    result = {}
    clock = time.process_time

    def built(n, step, start, finish):
        t = clock()
        x = start
        for _ in range(n):
            x = step(x)
        result[finish] = (clock() - t) / n * 1e9
        return x

    set_batching(0)
    n = 20_000
    pc = dy.ParameterCollection()
    W = pc.add_parameters((16, 16))
    p16 = pc.add_parameters(16)
    p128 = pc.add_parameters(128)
    for name, step in (
        ("build tanh(x)", dy.tanh),
        ("build x + y", lambda x: x + p16),
        ("build W * x", lambda x: W * x),
    ):
        dy.renew_cg()
        built(n, step, dy.tanh(p16), name)
    for name, step in (
        ("chain tanh 128", dy.tanh),
        ("chain x + y 128", lambda x: x + p128),
    ):
        dy.renew_cg()
        y = dy.pick(built(n, step, dy.tanh(p128), "unused"), 0)
        t = clock()
        y.forward()
        result[f"{name}: forward"] = (clock() - t) / n * 1e9
        t = clock()
        y.backward()
        result[f"{name}: backward"] = (clock() - t) / n * 1e9

    for hidden in (128, 1):
        pc = dy.ParameterCollection()
        cell = [pc.add_parameters((4 * hidden, hidden)) for _ in range(2)]
        bias = pc.add_parameters(4 * hidden)
        start = pc.add_parameters(hidden)
        table = pc.add_lookup_parameters((100, hidden))

        def loss(hidden=hidden, cell=cell, bias=bias, start=start, table=table):
            losses, count = [], 0
            for sentence in range(64):
                h = c = start
                for word in range(25):
                    x = table[(sentence * 7 + word) % 100]
                    gates = dy.affine_transform([bias, cell[0], x, cell[1], h])
                    i = dy.logistic(dy.pick_range(gates, 0, hidden))
                    f = dy.logistic(dy.pick_range(gates, hidden, 2 * hidden))
                    o = dy.logistic(dy.pick_range(gates, 2 * hidden, 3 * hidden))
                    g = dy.tanh(dy.pick_range(gates, 3 * hidden, 4 * hidden))
                    c = dy.cmult(f, c) + dy.cmult(i, g)
                    h = dy.cmult(o, dy.tanh(c))
                    count += 15
                losses.append(dy.pick(h, 0))
            return dy.esum(losses), count + 65

        for strategy in (0, 1):
            set_batching(strategy)
            dy.renew_cg()
            t = clock()
            y, nodes = loss()
            built_in = clock() - t
            t = clock()
            y.forward()
            forward = clock() - t
            t = clock()
            y.backward()
            backward = clock() - t
            name = "cells 14 nodes, 64 x 25: "
            if hidden == 1:
                if strategy:
                    result[name + "batched forward, hidden 1"] = forward / nodes * 1e9
                continue
            result[name + "build"] = built_in / nodes * 1e9
            result[name + ("batched forward" if strategy else "plain forward")] = forward / nodes * 1e9
            if strategy:
                result[name + "batched backward"] = backward / nodes * 1e9
    del result["unused"]
    return result


def serve(library: str) -> None:
    """Answer each line of standard input with one round, as JSON."""
    if library == "dynet":
        import dynet as dy

        batching = 0
        renew = dy.renew_cg

        def set_batching(strategy):
            nonlocal batching
            batching = strategy

        # In DyNet, batching is a setting of each graph.
        dy.renew_cg = lambda: renew(autobatching=batching)
    else:
        import dynet_cy as dy
        from dynet_cy import config

        def set_batching(strategy):
            config.set(autobatch=strategy)

    for _ in sys.stdin:
        print(json.dumps(measure(dy, set_batching)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dynet", metavar="PYTHON", help="an interpreter that has DyNet (dyNET38)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    pythons = {"dynet_cy": sys.executable}
    if args.dynet:
        pythons["dynet"] = args.dynet
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "DYNET_CY_THREADS": "1"}
    children = {
        library: subprocess.Popen(
            [python, __file__, "--serve", library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        for library, python in pythons.items()
    }
    rounds: dict[str, list[dict[str, float]]] = {library: [] for library in children}
    for i in range(args.rounds + 1):
        for library, child in children.items():
            assert child.stdin
            assert child.stdout
            child.stdin.write("\n")
            child.stdin.flush()
            answer = child.stdout.readline()
            if not answer:
                sys.exit(f"{library} failed in {pythons[library]}")
            if i:  # the first round is a warm-up
                rounds[library].append(json.loads(answer))
    for child in children.values():
        child.stdin.close()
        child.wait()
    print(f"{'ns per node':52} " + " ".join(f"{library:>9}" for library in children) + "  ratio")
    for row in ROWS:
        medians = [statistics.median(r[row] for r in rounds[library]) for library in children]
        ratio = f"{medians[1] / medians[0]:6.2f}" if len(medians) > 1 else ""
        print(f"{row:52} " + " ".join(f"{m:9.1f}" for m in medians) + f" {ratio}")


if __name__ == "__main__":
    main()
