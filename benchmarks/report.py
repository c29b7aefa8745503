"""Tables and a plot of what `compare.py` measured.

python benchmarks/report.py FILE.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LIBRARIES = {"dynet_cy": "dynet_cy", "dynet": "DyNet", "torch": "PyTorch"}
ON_GPU = {"dynet_cy_gpu": "dynet_cy", "torch_gpu": "torch"}  # names of libraries on a GPU
GPU_NAMES = {label: f"{LIBRARIES[library]}, GPU" for label, library in ON_GPU.items()}
PEERS = ("dynet", "torch")
BATCHING_COSTS = 0.95  # goal: autobatch has at least this share of plain's speed everywhere
Form = dict[str, Any]


def fastest(workload: dict[str, Any], *libraries: str, form: str = "") -> Form | None:
    """The fastest form of some libraries, or their form of that name; None if there is none.

    Forms that use functions that DyNet does not have are left out, since their source differs.
    """
    found = [f for f in workload["forms"] if f["library"] in libraries]
    chosen = [f for f in found if (f["form"] == form if form else not f.get("own"))]
    return min(chosen, key=lambda f: f["median"], default=None)


def ratio(slow: Form | None, fast: Form | None) -> float | None:
    return slow["median"] / fast["median"] if slow and fast else None


def reached(workload: dict[str, Any], goal: dict[str, Any]) -> float | None:
    """The ratio for a goal; None if there is nothing to compare with."""
    if goal["over"] == "torch_gpu":
        return ratio(fastest(workload, "torch_gpu"), fastest(workload, "dynet_cy_gpu", form=goal["form"]))
    own = fastest(workload, "dynet_cy", form=goal["form"])
    if goal["over"] == "peak":
        return own["share_of_peak"] if own else None
    if goal["over"] == "peers":
        return ratio(fastest(workload, *PEERS), own)
    return ratio(fastest(workload, "dynet_cy", form=goal["over"]), own)


# -- tables --------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 3) -> str:
    """A number with a few significant digits, without exponent."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:#.{digits}g}".rstrip(".")


def share(form: Form) -> str:
    return f"{form['share_of_peak']:.0%}".replace("%", " %") if form["share_of_peak"] else ""


def cell(form: Form | None) -> str:
    """A result, its form, and its share of the peak."""
    if not form:
        return ""
    return f"{number(form['result'])} ({', '.join(filter(None, [form['form'], share(form)]))})"


def markdown(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def table(result: dict[str, Any], goals: bool = False) -> str:
    """Markdown: the best form of each library, with the goals if asked for; then all forms.  Bold: goal missed."""
    heads = ["workload", "unit", *LIBRARIES.values(), "to DyNet", "to PyTorch", "plain / autobatch"]
    on_gpu = any(form["library"] in ON_GPU for workload in result["workloads"] for form in workload["forms"])
    if on_gpu:
        heads += [*GPU_NAMES.values(), "to PyTorch on it"]
    best, every = [], []
    for workload in result["workloads"]:
        own, *peers = (fastest(workload, library) for library in LIBRARIES)
        batching = ratio(fastest(workload, "dynet_cy", form="plain"), fastest(workload, "dynet_cy", form="autobatch"))
        ratios = [number(ratio(peer, own)) for peer in peers] + [against(batching, BATCHING_COSTS)]
        row = [workload["title"], workload["unit"], *map(cell, (own, *peers)), *ratios]
        if on_gpu:
            own, peer = (fastest(workload, label) for label in ON_GPU)
            row += [cell(own), cell(peer), number(ratio(peer, own))]
        if goals:
            wanted = [g for g in workload["goals"] if on_gpu or g["over"] != "torch_gpu"]
            row += ["; ".join(g["text"] for g in wanted), "; ".join(verdicts(workload, wanted))]
        best.append(row)
        for form in workload["forms"]:
            spread = max(form["seconds"]) / min(form["seconds"])
            memory = f"{form['memory'] / 2**20:.0f}"
            label = form["form"] + (", not in DyNet" if form.get("own") else "")
            names = [workload["workload"], {**LIBRARIES, **GPU_NAMES}[form["library"]], label]
            every.append([*names, f"{number(form['result'])} {workload['unit']}", share(form), memory, number(spread)])
    peak = statistics.median(w["peak"] for w in result["workloads"]) / 1e9
    machine = ", ".join(filter(None, [result["processor"], result.get("device")]))
    text = f"{result['date']}, {machine}, {result['rounds']} rounds, peak {peak:.0f} GFLOP/s\n\n"
    text += markdown(heads + ["goal", "reached"] * goals, best) + "\n\n"
    return text + markdown(["workload", "library", "form", "result", "of peak", "MiB", "slowest / fastest"], every)


def verdicts(workload: dict[str, Any], goals: list[dict[str, Any]]) -> list[str]:
    """For each goal, the ratio reached, and whether it is enough."""
    texts = []
    for goal in goals:
        now = reached(workload, goal)
        texts.append(f"{'not measured' if now is None else against(now, goal['least'])} of {number(goal['least'])}")
    return texts


def against(value: float | None, least: float) -> str:
    """A number, in bold if it is not enough."""
    return f"**{number(value)}**" if value is not None and value < least else number(value)


# -- plot ----------------------------------------------------------------------------------------


def plot(result: dict[str, Any], path: Path) -> None:
    """Plot the speed of the best form of each library, relative to the best of the other libraries."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = result["workloads"][::-1]
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.7 * len(measured)), layout="constrained")
    there = {form["library"] for workload in measured for form in workload["forms"]}
    drawn = {label: name for label, name in {**LIBRARIES, **GPU_NAMES}.items() if label in there}
    height = 0.8 / len(drawn)
    for i, (library, name) in enumerate(drawn.items()):
        speeds = []
        for workload in measured:
            unit = fastest(workload, *PEERS) or fastest(workload, "dynet_cy")
            speeds.append(ratio(unit, fastest(workload, library)) or 0)
        if any(speeds):
            places = [row - i * height for row in range(len(measured))]
            bars = axes.barh(places, speeds, height, label=name)
            axes.bar_label(bars, [f" {s:.2f}" if s else "" for s in speeds], fontsize="small")
    axes.set_yticks([row - height for row in range(len(measured))], [w["workload"] for w in measured])
    axes.axvline(1, color="black", linewidth=0.5)
    axes.set_xlabel("speed, the best of DyNet and PyTorch being 1")
    axes.set_title(f"{result['processor']}, one thread, {result['date']}", fontsize="medium")
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="what `compare.py --json` wrote")
    parser.add_argument("--goals", action="store_true")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    args = parser.parse_args()
    result = json.loads(args.file.read_text(encoding="utf-8"))
    print(table(result, args.goals))
    if args.plot:
        plot(result, args.plot)


if __name__ == "__main__":
    main()
