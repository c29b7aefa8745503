"""Counts the launches, copies and waits of a device in one update of each program.

    python benchmarks/launches.py                                                 # on GPU:0
    python tools/gpu/emulate.py env EMU_IDLE=1 python benchmarks/launches.py      # without a GPU

With EMU_IDLE the emulated driver only counts and computes nothing, so that programs can run at full size.

Each form of a program has two rows.  "fresh" is an update whose structure has not occurred before: every operation is
launched on its own.  (The data of a program are the same in each update, so CUDA graphs are switched off for this row.)
"repeated" is an update whose passes are replayed as CUDA graphs, which happens for minibatches of one shape, and with
automatic batching if structures repeat.  The remaining work is that of the trainer.

An update consists of forward, backward and trainer, as far as the program has them.  Reading the value of the loss
afterwards takes one more copy and one more wait.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

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
COUNTED = ["launches", "products", "fills", "replays", "uploads", "uploaded_bytes", "fetches", "waits"]


def measure(name: str, form: str, tiny: bool = False) -> dict[str, Any]:
    """Count the work of GPU:0 in an update.  GPU:0 becomes the default device.

    Args:
        name: name of the program.
        form: its form.
        tiny: use small sizes, for tests.

    Returns:
        Nodes and batches of the graph, and the counts of `dynet_cy.gpu.driver.counts` for a "fresh" and for a
        "repeated" update.
    """
    import dynet_cy as dy
    from dynet_cy.gpu.driver import counts
    from dynet_cy.gpu.graphs import set_limits

    found: dict[str, Any] = {"program": name, "form": form}
    with dy.ComputationGraph():
        run = make_update("dynet_cy", form, workloads.load(name, tiny), device="GPU:0")

        def counted(before: int) -> dict[str, int]:
            for _ in range(before):
                run(False)
            start = counts(0)
            run(False)
            return {key: n - start[key] for key, n in counts(0).items()}

        limits = set_limits(0, 0)
        try:
            found["fresh"] = counted(WARM_UP)
        finally:
            set_limits(*limits)
        found["repeated"] = counted(SIGHTS)
        found["nodes"] = len(dy.cg().op_names())
        found["batches"] = dy.cg().n_batches()
    return found


def rows(found: dict[str, Any]) -> list[list[str]]:
    """The rows of the table."""
    lines = []
    for kind in ("fresh", "repeated"):
        counts = [found[kind][key] for key in COUNTED]
        counts[COUNTED.index("uploaded_bytes")] = round(found[kind]["uploaded_bytes"] / 1024)
        heads = [found["program"], found["form"], f"{found['nodes']:,}", f"{found['batches']:,}"]
        lines.append([*(heads if kind == "fresh" else [""] * 4), kind, *(f"{n:,}" for n in counts)])
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
    args = parser.parse_args()
    unknown = set(args.workloads) - set(workloads.NAMES)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}")
    table, measured = [], []
    for name in args.workloads:
        workload = workloads.load(name, args.tiny)
        for form in (*workload.dynet_forms, *workload.own_forms):
            if form in args.forms:
                print(f"{name} {form} ...", file=sys.stderr, flush=True)
                measured.append(measure(name, form, args.tiny))
                table += rows(measured[-1])
                if args.json:  # after each program, so that nothing is lost
                    args.json.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print(markdown(HEADS, table))


if __name__ == "__main__":
    main()
