"""Counts the launches, copies and waits of a device in one update of each program.

    python benchmarks/launches.py                                                 # on GPU:0
    python tools/gpu/emulate.py env EMU_IDLE=1 python benchmarks/launches.py      # without a GPU
    python tools/gpu/emulate.py env EMU_IDLE=1 python benchmarks/launches.py --model h100     # and its time on an H100

With EMU_IDLE the emulated driver only counts and computes nothing, so that programs can run at full size.

Each form of a program has two rows.  "fresh" is an update whose structure has not occurred before: every operation is
launched on its own.  (The data of a program are the same in each update, so CUDA graphs are switched off for this row.
Kernels of several elementwise ops are compiled in the updates before, however few launches they save.)
"repeated" is an update whose passes are replayed as CUDA graphs, which happens for minibatches of one shape, and with
automatic batching if structures repeat.  The remaining work is that of the trainer.

An update consists of forward, backward and trainer, as far as the program has them.  Reading the value of the loss
afterwards takes one more copy and one more wait.

With --model, a row also has the least CPU time of the host in an update, and the milliseconds that the model of
`device_model.py` predicts for an update of which the loss is read.  This needs the emulated driver with EMU_IDLE.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import device_model
import workloads
from report import markdown
from worker import make_update

# Updates that are not counted: memory grows, tables of trainers are sent, kernels are compiled.
WARM_UP = 2
# Updates after which passes have been seen often enough to be captured; one more, since captures launch as well.
SIGHTS = 3

HEADS = [
    "program",
    "form",
    "nodes",
    "batches",
    "update",
    "launches",
    "products",
    "fills",
    "CUDA graphs",
    "copies there",
    "KiB there",
    "copies back",
    "waits",
]
# The last: what the model would say of the measured updates of a program, if it had been fitted without that program.
MODEL_HEADS = ["host ms", "predicted ms", "error, fitted without it"]
# The host is timed in this many updates, or for this many seconds, but at least in three updates.
TIMED, SECONDS = 40, 2.0
COUNTED = ["launches", "products", "fills", "replays", "uploads", "uploaded_bytes", "fetches", "waits"]


def least_time(run: Callable[[bool], Any]) -> float:
    """The least milliseconds of CPU time of an update."""
    least, end = float("inf"), time.perf_counter() + SECONDS
    for i in range(TIMED):
        begun = time.process_time()
        run(False)
        least = min(least, time.process_time() - begun)
        if i >= 2 and time.perf_counter() > end:
            break
    return 1e3 * least


def measure(name: str, form: str, tiny: bool = False, timed: bool = False) -> dict[str, Any]:
    """Count the work of GPU:0 in an update.  GPU:0 becomes the default device.

    Args:
        name: name of the program.
        form: its form.
        tiny: use small sizes, for tests.
        timed: also measure what `device_model.amounts` needs besides: "host", the milliseconds of the host in both
            kinds of updates, "gflop" and "convolves".

    Returns:
        Nodes and batches of the graph, and the counts of `dynet_cy.core.engine.stats` for a "fresh" and for a
        "repeated" update.
    """
    import dynet_cy as dy
    from dynet_cy.core import engine

    workload = workloads.load(name, tiny)
    found: dict[str, Any] = {"program": name, "form": form}
    if timed:
        found.update(gflop=workload.flops / 1e9, convolves=workload.convolves, host={})
    with dy.ComputationGraph():
        run = make_update("dynet_cy", form, workload, device="GPU:0")

        def count(kind: str, before: int) -> None:
            for _ in range(before):
                run(False)
            start = engine.stats("gpu.0")
            run(False)
            found[kind] = {key: n - start[key] for key, n in engine.stats("gpu.0").items()}
            if timed:
                found["host"][kind] = least_time(run)

        with engine.tuned({"gpu.graphs.most_graphs": 0, "gpu.fusion.least_saved": 0}):
            count("fresh", WARM_UP)
        count("repeated", SIGHTS)
        found["nodes"] = len(dy.cg().op_names())
        found["batches"] = dy.cg().n_batches()
    return found


def rows(
    found: dict[str, Any], costs: dict[str, float] | None = None, speed: float = 1, error: str = ""
) -> list[list[str]]:
    """The rows of the table; with costs of `device_model`, also what it predicts for a host of this speed."""
    lines = []
    for kind in ("fresh", "repeated"):
        counts = [found[kind][key] for key in COUNTED]
        counts[COUNTED.index("uploaded_bytes")] = round(found[kind]["uploaded_bytes"] / 1024)
        heads = [found["program"], found["form"], f"{found['nodes']:,}", f"{found['batches']:,}"]
        lines.append([*(heads if kind == "fresh" else [""] * 4), kind, *(f"{n:,}" for n in counts)])
        if costs is not None:
            ms = device_model.predict(device_model.amounts(found, kind, speed), costs)
            lines[-1] += [f"{found['host'][kind]:.3g}", f"{ms:.3g}", error if kind == "fresh" else ""]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--workloads", nargs="+", metavar="NAME", default=workloads.NAMES, help=f"of {', '.join(workloads.NAMES)}")
    add(
        "--forms",
        nargs="+",
        metavar="FORM",
        default=["minibatch", "autobatch", "fused", "joined"],
        help="those with automatic batching or batched by hand",
    )
    add("--tiny", action="store_true", help="tiny sizes, to check that it works")
    add("--json", type=Path, metavar="FILE", help="write all counts to this file")
    add("--model", choices=["h100"], help="predict the time of updates on this device")
    args = parser.parse_args()
    if args.model and os.environ.get("EMU_IDLE") != "1":
        parser.error(
            "--model needs the emulated driver with EMU_IDLE=1, or the host's time includes that of the device"
        )
    costs = device_model.fit(device_model.measured()) if args.model else None
    speed = device_model.host_speed() if args.model else 1
    errors = device_model.ranges(device_model.measured()) if args.model else {}
    unknown = set(args.workloads) - set(workloads.NAMES)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}")
    table, measured = [], []
    for name in args.workloads:
        workload = workloads.load(name, args.tiny)
        for form in (*workload.dynet_forms, *workload.own_forms):
            if form in args.forms:
                print(f"{name} {form} ...", file=sys.stderr, flush=True)
                measured.append(measure(name, form, args.tiny, timed=bool(args.model)))
                table += rows(measured[-1], costs, speed, errors.get((name, form), "not measured"))
                if args.json:  # after each program, so that nothing is lost
                    args.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print(markdown([*HEADS, *(MODEL_HEADS if args.model else [])], table))


if __name__ == "__main__":
    main()
