"""Compares two builds: results that differ in any bit, and costs that grew.

    python tools/builds/compare.py OLD NEW [--parts NAME ...] [--poison]

OLD and NEW are commits, which are built in a folder of their own, or folders that hold a build. The first table has all
that has to stay and does not, the second one what costs more, or less, by one in a hundred. The parts are those of
`measure.py`; `cost` needs valgrind, `device` PyCUDA and the headers of CUDA. The exit status is 1 if bits differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PARTS = ("updates", "programs", "memory", "limited", "random_programs", "device", "cost", "size")


def built(what: str, work: Path) -> Path:
    """The folder of a build: one that is there, or a commit that is built here."""
    if (Path(what) / "dynet_cy").is_dir():
        return Path(what).resolve()
    folder = work / what.replace("/", "_")
    subprocess.run(["git", "clone", "--quiet", f"file://{ROOT}", folder], check=True)
    subprocess.run(["git", "-C", folder, "checkout", "--quiet", what], check=True)
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], check=True, cwd=folder)
    return folder


def measured(build: Path, part: str, poison: bool) -> dict[str, Any]:
    """All that a part finds of a build."""
    environment = {**os.environ, "PYTHONPATH": str(build), **({"DYNET_CY_POISON": "1"} if poison else {})}
    command = [sys.executable, str(HERE / "measure.py"), part]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, timeout=3600)
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    return found if not done.returncode else {**found, f"{part} ended bits": f"with status {done.returncode}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--poison", action="store_true", help="memory that is given back is filled with NaN")
    args = parser.parse_args()
    differ, costs, same = [], [], 0
    with tempfile.TemporaryDirectory() as work:
        builds = [built(what, Path(work)) for what in (args.old, args.new)]
        for part in args.parts:
            old, new = (measured(build, part, args.poison) for build in builds)
            for name in {**old, **new}:
                a, b = old.get(name), new.get(name)
                if name.endswith(" bits"):
                    same += a == b
                    differ += [] if a == b else [(name, a, b)]
                elif not a or not b or abs(b / a - 1) > 0.01:
                    costs.append((name, a, b))
                else:
                    same += 1
            print(f"{part}: {len(new)} measured", file=sys.stderr, flush=True)
    print(f"{len(differ)} differ, {len(costs)} cost more or less, {same} are as before\n")
    print("| differs | old | new |\n|---|---|---|", *(f"| {name} | {a} | {b} |" for name, a, b in differ), sep="\n")
    print("\n| costs | old | new | new / old |\n|---|---|---|---|")
    for name, a, b in costs:
        print(f"| {name} | {a} | {b} | {b / a if a and b else 0:.3f} |")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main())
