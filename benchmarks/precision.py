"""Training with products in bfloat16, compared with float32: python benchmarks/precision.py

Programs of `compare.py`, on one thread. The two precisions alternate, a few updates each, in one process and from the
same model; the least CPU time of an update is taken, so that other load hardly matters. Accuracies are those of the
examples:

    python examples/tagger.py train --train TRAIN --dev DEV --dynet-precision bf16
    python examples/rnnlm.py --train TRAIN --dev DEV --dynet-precision bf16
"""

from __future__ import annotations

import argparse
import json
import time

import workloads
from worker import make_update

# Workload, form, and sizes that differ from those of the workload.
ROWS: list[tuple[str, str, dict[str, int]]] = [
    ("tagger", "autobatch", {}),
    ("tagger", "autobatch", {"hidden": 512}),
    ("language_model", "autobatch", {}),
    ("language_model", "minibatch", {}),
    ("mlp", "minibatch", {}),
    ("mlp", "autobatch", {}),
    ("mlp", "minibatch", {"hidden": 1024, "count": 256}),
    ("tree_lstm", "autobatch", {}),
]
PRECISIONS = ("float32", "bf16")


def measure(name: str, form: str, sizes: dict[str, int], seconds: float, tiny: bool) -> dict[str, object]:
    """The least seconds of CPU time for an update in each precision, and the loss of the first update in each."""
    from dynet_cy import config

    workload = workloads.load(name, tiny)
    if not tiny:
        vars(workload).update(sizes)
        workload.prepare()
    losses, least = {}, {}
    runs = {}
    for precision in PRECISIONS:
        config.set(precision=precision)
        runs[precision] = make_update("dynet_cy", form, workload)
        losses[precision] = runs[precision]()
        least[precision] = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for precision, run in runs.items():
            config.set(precision=precision)
            for _ in range(workload.repeat):
                begun = time.process_time()
                run()
                least[precision] = min(least[precision], time.process_time() - begun)
    config.set(precision="float32")
    return {"seconds": least, "losses": losses, "flops": workload.flops}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("names", nargs="*", help="of workloads; else all rows")
    add("--seconds", type=float, default=20, help="for each row")
    add("--tiny", action="store_true", help="tiny sizes, to check that it works")
    add("--json", action="store_true", help="print each row as JSON")
    args = parser.parse_args()
    print(
        f"{'program':52} float32 ms   bf16 ms  ratio   GFLOP/s    loss of an update",
    )
    for name, form, sizes in ROWS:
        if args.names and name not in args.names:
            continue
        found = measure(name, form, sizes, args.seconds, args.tiny)
        if args.json:
            print(json.dumps([name, form, sizes, found]), flush=True)
            continue
        exact, rounded = (found["seconds"][p] for p in PRECISIONS)  # type: ignore[index]
        what = ", ".join([name, form, *(f"{k} {v}" for k, v in sizes.items())])
        rates = " / ".join(f"{found['flops'] / s / 1e9:.0f}" for s in (exact, rounded))  # type: ignore[operator]
        loss = " / ".join(f"{found['losses'][p]:.5f}" for p in PRECISIONS)  # type: ignore[index]
        print(
            f"{what:52} {exact * 1e3:10.2f} {rounded * 1e3:9.2f} {exact / rounded:6.2f} {rates:>9}    {loss}",
            flush=True,
        )


if __name__ == "__main__":
    main()
