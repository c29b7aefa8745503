"""A model of a device: estimates the time of an update from the work of host and device.

    python benchmarks/device_model.py          # its costs, and its error for each row that it was fitted to

`python benchmarks/launches.py --model h100` uses it to say how long an update would take, where no GPU is.  The time
is a sum: the host makes the graph, plans it and issues it, and when the loss is read, it waits for the device.  So
each part of the work has a cost, and costs are fitted to the rows of `h100.json`: updates that were timed on
a device, with their counts.  ("counted" names the commit of the counts, which is the one that was timed, or one close
to it.)  The fit minimizes the sum of squares of relative errors.  No cost is negative, and each is drawn towards an
estimate, because some are determined by a single program.  The time of the host is measured where updates are counted,
and converted to that of the machine that counted the first rows by a piece of Python that both run.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from report import markdown

ROWS = Path(__file__).with_name("h100.json")

# What costs time, with an estimate in milliseconds, and what it stands for.
PARTS = {
    "host": (1.5, "the host's part: for each millisecond on the machine that counted"),
    "launch": (0.003, "issuing a kernel, a product or a fill that is not in a CUDA graph"),
    "kernel": (0.001, "a kernel or a fill"),
    "product": (0.004, "a product of matrices"),
    "gflop": (0.05, "10^9 operations of products (two for each multiplication)"),
    "convolved": (0.2, "10^9 operations of convolutions"),
    "wait": (0.02, "a wait of the host, with the copy that it waits for"),
    "megabyte": (0.04, "a megabyte that is copied to the device or back"),
}
# An estimate counts as a measurement with this relative error.
DOUBT = 0.5
ROUNDS = 8


class Pair:
    """Something to make in a loop."""

    def __init__(self, left: int, right: int) -> None:
        self.left, self.right = left, right


def yardstick() -> float:
    """The least milliseconds that this machine takes for a fixed piece of Python, which makes objects as graphs do."""
    least = float("inf")
    for _ in range(120):
        begun = time.process_time()
        made = [Pair(i, i + 1) for i in range(10_000)]
        sum(pair.left + pair.right for pair in made)
        least = min(least, time.process_time() - begun)
    return 1e3 * least


def host_speed() -> float:
    """How fast this machine is, in terms of the one whose times are in `h100.json`."""
    return float(json.loads(ROWS.read_text(encoding="utf-8"))["yardstick"]) / yardstick()


def amounts(found: dict[str, Any], kind: str, speed: float = 1) -> dict[str, float]:
    """How much of each part an update has.

    Args:
        found: what `launches.measure` returns if it is `timed`.
        kind: "fresh" or "repeated".
        speed: of the machine that timed the host; see `host_speed`.
    """
    counts, fresh = found[kind], found["fresh"]
    gflop = found["gflop"]
    return {
        "host": found["host"][kind] * speed,
        "launch": counts["launches"] + counts["products"] + counts["fills"],
        "kernel": fresh["launches"] + fresh["fills"],
        "product": fresh["products"],
        "gflop": 0 if found["convolves"] else gflop,
        "convolved": gflop if found["convolves"] else 0,
        "wait": counts["waits"],
        "megabyte": (counts["uploaded_bytes"] + counts["fetched_bytes"]) / 1e6,
    }


def predict(amount: dict[str, float], costs: dict[str, float]) -> float:
    """Milliseconds of an update."""
    return sum(costs[part] * amount[part] for part in PARTS)


def identity(stored: dict[str, Any]) -> tuple[str, str, str]:
    """What a row and its counts have in common: program, form, and the commit at which updates were counted.  What an
    update launches changes from commit to commit, so times stay with the counts of their own time."""
    return stored["program"], stored["form"], stored["counted"]


def measured() -> list[dict[str, Any]]:
    """The rows that were measured on a device: program, form, whether passes were CUDA graphs, when, the commit whose
    counts they have, milliseconds of an update, and its amounts."""
    stored = json.loads(ROWS.read_text(encoding="utf-8"))
    programs = {identity(found): found for found in stored["programs"]}
    rows = []
    for row in stored["rows"]:
        found = programs[identity(row)]
        rows.append({**row, "amounts": amounts(found, "repeated" if row["graphs"] else "fresh")})
    return rows


def fit(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The cost of each part in milliseconds."""
    estimates = np.array([estimate for estimate, _ in PARTS.values()])
    work = np.array([[row["amounts"][part] for part in PARTS] for row in rows]) * estimates
    times = np.array([row["ms"] for row in rows])
    costs = np.ones(len(PARTS))  # in units of the estimates
    for _ in range(ROUNDS):
        # Divided by the means of measured and predicted times, so that half of a time is as wrong as twice of it.
        means = np.sqrt(times * (work @ costs))
        matrix = np.concatenate([work / means[:, None], np.eye(len(PARTS)) / DOUBT])
        costs = nearest(matrix, np.concatenate([times / means, np.full(len(PARTS), 1 / DOUBT)]))
    return {part: float(cost) for part, cost in zip(PARTS, costs * estimates)}


def nearest(matrix: npt.NDArray[np.float64], desired: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The solution of least squares without negative numbers: the best of those with each choice of zeros."""
    n = matrix.shape[1]
    best, least = np.zeros(n), np.inf
    for chosen in itertools.product([True, False], repeat=n):
        found = np.zeros(n)
        found[list(chosen)] = np.linalg.lstsq(matrix[:, list(chosen)], desired, rcond=None)[0]
        error = ((matrix @ found - desired) ** 2).sum()
        if error < least and (found >= 0).all():
            best, least = found, error
        if all(chosen) and (found >= 0).all():
            break  # then zeros make nothing better
    return best


def errors(rows: Sequence[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """For each row: the predicted milliseconds; the relative error; and that of costs which are fitted to the rows of
    other programs only."""
    costs = fit(rows)
    others = {name: fit([row for row in rows if row["program"] != name]) for name in {row["program"] for row in rows}}
    found = []
    for row in rows:
        ms = predict(row["amounts"], costs)
        without = predict(row["amounts"], others[row["program"]])
        found.append((ms, ms / row["ms"] - 1, without / row["ms"] - 1))
    return found


def ranges(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """By program and form: the least and the greatest error of costs which are fitted without the program."""
    found: dict[tuple[str, str], list[float]] = {}
    for row, (_, _, without) in zip(rows, errors(rows)):
        found.setdefault((row["program"], row["form"]), []).append(100 * without)
    return {key: " to ".join(dict.fromkeys(f"{x:+.0f}" for x in (min(x), max(x)))) + " %" for key, x in found.items()}


def main() -> None:
    rows = measured()
    costs = fit(rows)
    parts = [[p, f"{1e3 * costs[p]:.3g}", f"{1e3 * own:.3g}", text] for p, (own, text) in PARTS.items()]
    print(markdown(["part", "us", "estimate", "meaning"], parts))
    found = errors(rows)
    table = [
        [
            row["program"],
            row["form"],
            "yes" if row["graphs"] else "no",
            row["run"],
            f"{row['ms']:.3g}",
            f"{ms:.3g}",
            f"{100 * error:+.0f} %",
            f"{100 * without:+.0f} %",
        ]
        for row, (ms, error, without) in zip(rows, found)
    ]
    heads = ["program", "form", "CUDA graphs", "run", "ms", "predicted", "error", "fitted without the program"]
    print(f"\n{markdown(heads, table)}\n")
    for name, column in (("error", 1), ("fitted without the program", 2)):
        sizes = np.abs([row[column] for row in found])
        print(
            f"{name}: median {100 * np.median(sizes):.0f} %, root mean square {100 * np.sqrt((sizes**2).mean()):.0f} %"
        )


if __name__ == "__main__":
    main()
