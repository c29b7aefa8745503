"""Counts the instructions that kernels take on 64-bit ARM, for each instruction set, under the emulator.

    bash tools/arm/make_root.sh ROOT
    chroot ROOT /venv/bin/pip install scipy-openblas32
    python tools/arm/count.py ROOT

Prints instructions for each element, and for products for each four multiplications, which one instruction (fmla) does
at best.  OpenBLAS, which multiplies where a set has no kernel of its own, chooses
its kernels by the CPU that is emulated.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "dynet_cy" / "kernels" / "native"
SOURCES = [Path(__file__).with_suffix(".c"), *(NATIVE / f"{part}.c" for part in ("kernels", "baseline", "neon"))]
FLAGS = ["-O3", "-fwrapv", "-DNDEBUG", "-pthread", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
INCLUDES = [f"-I{ROOT / 'include'}", f"-I{NATIVE}"]
SETS = ("baseline", "neon")


def build(root: Path, target: Path) -> None:
    (blas,) = root.glob("venv/lib/python3*/site-packages/scipy_openblas32/lib")
    libraries = [f"-L{blas}", "-lscipy_openblas", f"-Wl,-rpath,/{blas.relative_to(root)}", "-lm"]
    command = ["aarch64-linux-gnu-gcc", *FLAGS, *INCLUDES, *map(str, SOURCES), "-o", str(target), *libraries]
    subprocess.run(command, check=True)


def counted(emulator: list[str], isa: str) -> dict[str, float]:
    """Instructions for each element, by the name of what ran: the emulator writes a line for each instruction."""
    note = ["-singlestep", "-d", "exec,nochain"]
    found: dict[str, float] = {}
    instructions, name, elements, between = 0, "", 1, 0
    with subprocess.Popen([emulator[0], *note, *emulator[1:], isa], stderr=subprocess.PIPE) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith(b"kernel "):
                if name == "nothing":
                    between = instructions
                elif name:
                    found[name] = (instructions - between) / elements
                count, name = line[len(b"kernel ") :].decode().rstrip("\n").split(" ", 1)
                elements, instructions = int(count), 0
            instructions += line.startswith(b"Trace ")
    if run.returncode:
        raise SystemExit(f"{emulator[-1]} {isa} ended with {run.returncode}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="what make_root.sh has made")
    parser.add_argument("--cpu", default="neoverse-n1", help="the CPU that is emulated (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build(args.root, Path(folder, "count"))
        emulator = ["qemu-aarch64-static", "-cpu", args.cpu, "-L", str(args.root), "-E", "OPENBLAS_NUM_THREADS=1"]
        emulator += [str(Path(folder, "count"))]
        results = {isa: counted(emulator, isa) for isa in SETS}
    print("| kernel | " + " | ".join(SETS) + " |")
    print("|---|" + "---|" * len(SETS))
    for name in results["baseline"]:
        print(f"| {name} | " + " | ".join(f"{results[isa][name]:.2f}" for isa in SETS) + " |")


if __name__ == "__main__":
    main()
