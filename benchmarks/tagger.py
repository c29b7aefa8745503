"""Training time of `examples/tagger.py`, compared with the real DyNet with automatic batching.

    python benchmarks/tagger.py --dynet PYTHON --train train.conllu.gz --dev dev.conllu.gz

Both libraries run the same file with the same settings, each in its own
process on one thread.  Rounds alternate; medians of the seconds per epoch and
the accuracies of the last round are printed.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TAGGER = Path(__file__).resolve().parent.parent / "examples" / "tagger.py"
EPOCH = re.compile(r"^epoch (\d+): loss ([\d.]+), ([\d.]+) s, (\d+) words/s, dev accuracy ([\d.]+)%", re.M)

# Makes DyNet importable as dynet_cy, adds functions that it lacks, and keeps the `extra` of saved models in memory.
UNDER_DYNET = """
import runpy, sys, types
sys.argv = sys.argv[1:]
import dynet_config
dynet_config.set(autobatch=1)
import dynet
dynet.batched_map = lambda function, *items: list(map(function, *items))
renew, saved = dynet.renew_cg, {}
dynet.renew_cg = lambda forward_only=False: renew()
dynet.save_safetensors = lambda path, model, extra: (model.save(str(path)), saved.update(extra))
dynet.read_extra = lambda path: saved
dynet.load_safetensors = lambda path, model: model.populate(str(path))
config = types.ModuleType("dynet_cy.config")
config.add_options = lambda parser: None
curves = types.ModuleType("dynet_cy.curves")

class Curves:
    def __init__(self, *files): pass
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def add(self, *numbers, **named): pass

curves.Curves = Curves
dynet.config = config
sys.modules.update({"dynet_cy": dynet, "dynet_cy.config": config, "dynet_cy.curves": curves})
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(engine: str, python: str, epochs: int, options: list[str]) -> list[tuple[float, float]]:
    """Seconds and dev accuracy of each epoch."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-c", UNDER_DYNET, str(TAGGER)] if engine == "dynet" else [python, str(TAGGER)]
        command += ["train", "--model", f"{folder}/model.safetensors", "--epochs", str(epochs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "DYNET_CY_THREADS": "1"}
        done = subprocess.run(command + options, env=environment, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{engine} failed:\n{done.stderr}")
    return [(float(m[3]), float(m[5])) for m in EPOCH.finditer(done.stdout)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dynet", metavar="PYTHON", required=True, help="an interpreter that has DyNet (dyNET38)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=5)
    args, options = parser.parse_known_args()
    pythons = {"dynet_cy": sys.executable, "dynet": args.dynet}
    seconds: dict[str, list[float]] = {engine: [] for engine in pythons}
    accuracies = {}
    for _ in range(args.rounds):
        for engine, python in pythons.items():
            epochs = run(engine, python, args.epochs, options)
            seconds[engine] += [s for s, _ in epochs]
            accuracies[engine] = [accuracy for _, accuracy in epochs]
            print(f"{engine:9} s/epoch {[s for s, _ in epochs]}  dev accuracy {accuracies[engine]}", flush=True)
    medians = {engine: statistics.median(values) for engine, values in seconds.items()}
    print(
        f"median s/epoch: dynet_cy {medians['dynet_cy']:.1f}, dynet {medians['dynet']:.1f}, "
        f"ratio {medians['dynet'] / medians['dynet_cy']:.2f}"
    )


if __name__ == "__main__":
    main()
