"""Speed of dynet_cy compared with DyNet and PyTorch, on typical programs.

    python benchmarks/compare.py                                            # dynet_cy alone
    python benchmarks/compare.py --dynet PYTHON --torch PYTHON --goals      # beside the others
    python benchmarks/compare.py --torch PYTHON --devices cpu gpu --goals   # on the CPU and on GPU:0

Every form of a program (see `workloads/common.py`) runs in each library in a
separate process, on one thread.  The processes take turns, one round each;
results are medians of CPU time.  All must have the same losses to 1e-4 in
every round, or the comparison fails.  The peak is the speed of a large float32
product, measured in turns with them; a program's share of it counts only its
matrix products.

On a GPU, results are wall times until the device is done; PyTorch then has all
data on the device from the start and computes in float32, as dynet_cy does.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report
import workloads
from worker import GEMM

WORKER = Path(__file__).with_name("worker.py")
TOLERANCE = 1e-4
CPU = {"dynet_cy": "cpu", "dynet": "cpu", "torch": "cpu"}


class Child:
    """A worker process."""

    def __init__(
        self,
        python: str,
        library: str,
        form: str = "",
        workload: str = "",
        threads: int = 1,
        script: Path = WORKER,
        options: Sequence[str] = (),
    ) -> None:
        self.name = " ".join(filter(None, [library, form, workload, *options]))
        self.rounds: list[dict[str, float]] = []
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        environment.update(OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
        if library in report.PEERS:  # in another interpreter, which has its own modules
            environment.pop("PYTHONPATH", None)
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, str(script), library, form, workload, str(threads), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=environment,
        )

    def round(self) -> dict[str, float]:
        """Run one round.

        Raises:
            RuntimeError: the worker failed; the message has what it wrote.
        """
        assert self.process.stdin and self.process.stdout  # noqa: PT018
        answer = ""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            pass
        if not answer:
            status = self.process.wait()
            self.errors.seek(0)
            raise RuntimeError(f"{self.name}: exit status {status}\n{self.errors.read()}")
        self.rounds.append(json.loads(answer))
        return self.rounds[-1]

    @property
    def seconds(self) -> float:
        """Median without the first round, which is a warm-up."""
        return statistics.median(r["seconds"] for r in self.rounds[1:])

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()


def same_losses(children: list[Child]) -> None:
    """Compare the losses of the last round.

    Raises:
        RuntimeError: they differ.
    """
    losses = [child.rounds[-1]["loss"] for child in children]
    scale = max(1.0, abs(losses[0]))
    if not all(abs(loss - losses[0]) <= TOLERANCE * scale for loss in losses):  # NaN fails, too
        lines = [f"{child.name}: {loss}" for child, loss in zip(children, losses)]
        raise RuntimeError(f"losses differ in round {len(children[0].rounds)}:\n" + "\n".join(lines))


def measure(
    name: str, pythons: dict[str, str], rounds: int, devices: dict[str, str] = CPU, options: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a workload in all its forms.

    Args:
        name: name of the workload.
        pythons: the interpreter of each library.
        rounds: number of rounds that count.
        devices: the library's name of the device, for each library or entry of `report.ON_GPU`.
        options: further options for the workers.
    """
    workload = workloads.load(name, "--tiny" in options)
    gemm = Child(sys.executable, "gemm")
    children: dict[tuple[str, str], Child] = {}
    try:
        for label, device in devices.items():
            library = report.ON_GPU.get(label, label)
            if library not in pythons or (library == "dynet" and not workload.in_dynet):
                continue
            own = workload.own_forms if library == "dynet_cy" else ()
            more = [*options, *([] if device == "cpu" else ["--device", device])]
            for form in workload.torch_forms if library == "torch" else (*workload.dynet_forms, *own):
                children[label, form] = Child(pythons[library], library, form, name, options=more)
        for _ in range(rounds + 1):
            for child in (gemm, *children.values()):
                child.round()
            same_losses(list(children.values()))
    finally:
        for child in (gemm, *children.values()):
            child.close()
    peak = 2 * GEMM**3 / gemm.seconds
    forms = [
        {
            "library": library,
            "form": form,
            "own": form in workload.own_forms,
            "seconds": [r["seconds"] for r in child.rounds[1:]],
            "median": child.seconds,
            "result": workload.result(child.seconds),
            "share_of_peak": 0.0 if library in report.ON_GPU else workload.flops / child.seconds / peak,
            "memory": child.rounds[-1]["memory"],
        }
        for (library, form), child in children.items()
    ]
    return {
        "workload": name,
        "title": workload.title,
        "unit": workload.unit,
        "peak": peak,
        "forms": forms,
        "goals": [goal._asdict() for goal in workload.goals],
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def gpu_name() -> str:
    """The model of GPU:0, read in a separate process, so that this one does not occupy the device."""
    code = "import dynet_cy.gpu.driver as d, dynet_cy as dy; dy.get_device_info('GPU:0'); print(d.device_name(0))"
    here = Path(__file__).parent  # Python searches this folder first, and it has no unbuilt package
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=here)
    if done.returncode:
        sys.exit(f"there is no GPU:0: {done.stderr.splitlines()[-1]}")
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--workloads", nargs="+", metavar="NAME", default=workloads.NAMES, help=f"of {', '.join(workloads.NAMES)}")
    add("--rounds", type=int, default=7, help="measured rounds, after one to warm up")
    add("--dynet", metavar="PYTHON", help="an interpreter that has DyNet (dyNET38)")
    add("--torch", metavar="PYTHON", help="an interpreter that has PyTorch")
    add("--devices", nargs="+", choices=["cpu", "gpu"], default=["cpu"], help="gpu: dynet_cy and PyTorch on GPU:0")
    add("--torch-device", default="cuda", metavar="NAME", help="PyTorch's name for gpu; cpu to check that it works")
    add("--repeat", type=int, metavar="N", help="updates in a round; default: as each workload defines")
    add("--tiny", action="store_true", help="tiny sizes, to check that it works")
    add("--goals", action="store_true", help="compare with the goals too")
    add("--json", type=Path, metavar="FILE", help="write all measurements to this file")
    add("--plot", type=Path, metavar="FILE", help="plot the results to this file (needs matplotlib)")
    args = parser.parse_args()
    unknown = set(args.workloads) - set(workloads.NAMES)
    if unknown or args.rounds < 1:
        parser.error(f"no workload {', '.join(sorted(unknown))}" if unknown else "--rounds must be at least 1")
    pythons = {"dynet_cy": sys.executable, "dynet": args.dynet, "torch": args.torch}
    pythons = {library: python for library, python in pythons.items() if python}
    devices = dict(CPU) if "cpu" in args.devices else {}
    if "gpu" in args.devices:
        devices.update(dynet_cy_gpu="GPU:0", torch_gpu=args.torch_device)
    options = [*(["--tiny"] if args.tiny else []), *(["--repeat", str(args.repeat)] if args.repeat else [])]
    measured = []
    for name in args.workloads:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            measured.append(measure(name, pythons, args.rounds, devices, options))
        except RuntimeError as error:
            sys.exit(f"{name}: {error}")
        result = {
            "date": datetime.date.today().isoformat(),
            "processor": processor(),
            "device": gpu_name() if "gpu" in args.devices else None,
            "rounds": args.rounds,
            "OPENBLAS_CORETYPE": os.environ.get("OPENBLAS_CORETYPE"),
            "workloads": measured,
        }
        if args.json:  # after each workload, so that nothing is lost
            args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(report.table(result, args.goals))
    if args.plot:
        report.plot(result, args.plot)


if __name__ == "__main__":
    main()
