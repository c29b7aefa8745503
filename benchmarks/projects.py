"""CPU time and memory of the programs of tests/projects, under DyNet and under dynet_cy's compat mode.

    python benchmarks/projects.py --dynet PYTHON [--scale 8] [--rounds 3] [--cases NAME ...]

Every program runs in a process of its own, from start to end, in turns in both libraries, with one thread.
`--scale` multiplies the numbers of hidden units and of sentences. CPU time (user and system, of all runs of a case) and
the peak of resident memory are minima of all rounds. The first line is a process that only imports the library.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from compare import processor
from report import markdown, number

HERE = Path(__file__).resolve().parent
PROJECTS = HERE.parent / "tests" / "projects"
sys.path.insert(0, str(PROJECTS))
from project_cases import CASES  # noqa: E402

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}


class Cost(NamedTuple):
    seconds: float
    memory: int  # bytes


def cost(command: list[str], folder: Path, scale: int) -> Cost:
    """Run a program to its end.

    Raises:
        RuntimeError: it failed; the message has what it wrote.
    """
    environment = {**os.environ, **ONE_THREAD, "PROJECT_SCALE": str(scale), "DYNET_CY_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{command}: exit status {process.returncode}\n{output.read().decode()}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def case_cost(prefix: list[str], runs: list[list[str]], folder: Path, scale: int) -> Cost:
    """The costs of all runs of a case: the sum of times, the greatest memory."""
    found = [cost([*prefix, str(PROJECTS / "programs" / p), *rest], folder, scale) for p, *rest in runs]
    return Cost(sum(c.seconds for c in found), max(c.memory for c in found))


def measure(runs: list[list[str]], prefixes: list[list[str]], rounds: int, scale: int) -> list[Cost]:
    """The least costs of a case after each prefix of command lines, which take turns."""
    found: list[list[Cost]] = [[] for _ in prefixes]
    for _ in range(rounds):
        for prefix, costs in zip(prefixes, found):
            with tempfile.TemporaryDirectory() as folder:
                costs.append(case_cost(prefix, runs, Path(folder), scale))
    return [Cost(min(c.seconds for c in costs), min(c.memory for c in costs)) for costs in found]


def line(theirs: Cost, ours: Cost) -> list[str]:
    ratio = number(theirs.seconds / ours.seconds)
    times = [number(theirs.seconds), number(ours.seconds), ratio if theirs.seconds > ours.seconds else f"**{ratio}**"]
    return [*times, *(f"{c.memory / 2**20:.0f}" for c in (theirs, ours))]


def main() -> None:
    first_of_each = {runs[0][0]: name for name, runs in reversed(CASES.items())}
    default = list(reversed(first_of_each.values()))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--dynet", metavar="PYTHON", required=True, help="an interpreter that has DyNet (dyNET38)")
    add("--scale", type=int, default=8, help="multiplies hidden units and sentences")
    add("--rounds", type=int, default=3)
    add("--cases", nargs="+", choices=CASES, metavar="NAME", default=default, help=f"of {', '.join(CASES)}")
    args = parser.parse_args()
    prefixes = [[args.dynet], [sys.executable, "-m", "dynet_cy.compat"]]
    rows = []
    with tempfile.NamedTemporaryFile("w", suffix=".py") as nothing:
        nothing.write("import dynet\n")
        nothing.flush()
        cases = {"import of the library": [[nothing.name]], **{name: CASES[name] for name in args.cases}}
        for name, runs in cases.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            rows.append([name, *line(*measure(runs, prefixes, args.rounds, args.scale))])
    print(f"{datetime.date.today().isoformat()}, {processor()}, scale {args.scale}, {args.rounds} rounds\n")
    heads = ["program", "DyNet, CPU s", "dynet_cy, CPU s", "times DyNet", "DyNet, MiB", "dynet_cy, MiB"]
    print(markdown(heads, rows))


if __name__ == "__main__":
    main()
