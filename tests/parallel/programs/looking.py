"""Writes the arguments and the environment of a worker to FOLDER/RANK.json."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import dynet_cy as dy

sys.stdout.write("first\nsecond\rthird\n\nlast without an end")
sys.stderr.write("an error\n")
dy.renew_cg()
m = dy.ParameterCollection()
child = [sys.executable, "-c", "import dynet_cy as dy; print(dy.parallel.rank(), dy.parallel.size())"]
found = {
    "argv": sys.argv[1:],
    "name": __name__,
    "rank": dy.parallel.rank(),
    "size": dy.parallel.size(),
    "mode": dy.parallel.mode(),
    "launched": dy.parallel.launched(),
    "seed": dy.config.get()["seed"],
    "autobatch": dy.config.get()["autobatch"],
    "threads": os.environ["OMP_NUM_THREADS"],
    "hash": hash("some words"),
    "input": sys.stdin.read() if dy.parallel.rank() else None,
    "initial": m.add_parameters((5,)).as_array().tolist(),
    "noise": dy.random_normal((5,)).npvalue().tolist(),
    "gathered": dy.parallel.gather({"rank": dy.parallel.rank()}),
    "long": [len(x) for x in dy.parallel.gather("x" * 100_000 * (1 + dy.parallel.rank()))],
    "broadcast": dy.parallel.broadcast(f"from {dy.parallel.rank()}", root=1),
    "average": dy.parallel.average(dy.parallel.rank() + 1, weight=dy.parallel.rank() + 1),
    "child": subprocess.run(child, capture_output=True, text=True).stdout.split(),
}
random.seed(dy.parallel.rank())
(Path(sys.argv[1]) / f"{dy.parallel.rank()}.json").write_text(json.dumps(found))
