"""The speed of matrix products with panel sizes other than the compiled ones: python benchmarks/panels.py

The geometry of panels (include/dynet_cy/panels.inl) is how many vectors of rows a panel has, and by how many columns
of B it is multiplied at once; their product is the number of sums in registers. Each geometry whose sums, one column
of a panel and one number of B fit the registers is compiled and measured in turns with the others, with products as
in programs: of a packed matrix, and of one that is packed on the fly (gradients of weights: B transposed).
GFLOP/s of the fastest call; the last column is the geometric mean, and the geometry that is built is the first row.

Needs gcc or clang. Other work on the machine hardly matters as long as single calls get through undisturbed.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import report

from dynet_cy.kernels import kernels

ROOT = Path(__file__).resolve().parents[1]
# Rows, inner dimension and columns.
PACKED = [
    (800, 200, 1),
    (800, 200, 4),
    (800, 200, 8),
    (800, 200, 16),
    (800, 200, 64),
    (200, 800, 32),
    (1024, 256, 20),
    (256, 256, 100),
    (2048, 512, 32),
    (10_000, 512, 32),
]
TRANSPOSED = [(800, 200, 256), (256, 128, 256)]
REGISTERS = {16: 32, 8: 16}  # by lanes
BUILT = {16: (3, 8), 8: (3, 4)}
ROOM = 48 * 512  # floats of a packed panel: DY_SCRATCH_PANEL
TARGETS = {16: "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", 8: "avx2,fma"}

SOURCE = """
#define _POSIX_C_SOURCE 200809L
#include <time.h>
#include "isa.h"
#include "dynet_cy/scratch.h"
DY_TARGET("@TARGET@")
@AVX512@
#define DY_ISA measured
#define DY_W @LANES@
#include "dynet_cy/simd.h"
#include "dynet_cy/panels.inl"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Nanoseconds of the fastest of some calls. */
double fastest(int packed, size_t m, size_t k, size_t n, const float *a, float *panels, const float *b, float *c,
               int calls) {
    double best = 1e300;
    if (packed) DY_N(pack)(0, m, k, a, m, panels);
    for (int i = 0; i < calls; i++) {
        double begun = now();
        if (packed) DY_N(sgemm_packed)(m, n, k, panels, b, k, 0, c, m, c, m);
        else DY_N(gemm_panels)(0, 1, m, k, n, 1, a, m, b, k, 1, c, m, dy_scratch());
        double taken = now() - begun;
        if (taken < best) best = taken;
    }
    return best;
}
DY_TARGET_END
"""


@dataclass
class Geometry:
    vectors: int
    columns: int
    lanes: int
    fastest: ctypes._CFuncPtr | None = None
    best: dict[tuple[bool, tuple[int, int, int]], float] = field(default_factory=dict)

    def passes(self) -> int:
        """Columns of A in one pass: as many as the room for a panel has, at most as many as are built."""
        return min(ROOM // (self.vectors * self.lanes), 512 if self.lanes == 16 else 256) // 16 * 16

    def macros(self) -> dict[str, str]:
        several = min(self.columns, 6)  # columns by panels, where several panels are multiplied at once
        more = {n: [p for p in (3, 2) if n == 1 or (p == 2 and 2 * n <= several)] for n in range(1, self.columns + 1)}
        tiles = [(n, p) for n, panels in more.items() for p in [*panels, 1]]
        return {
            "DY_PANEL": str(self.vectors),
            "DY_PANEL_COLUMNS": str(self.columns),
            "DY_PASS": str(self.passes()),
            "DY_PANEL_TILES(T, R)": " ".join(f"T({n}, {p}, R)" for n, p in tiles),
            "DY_PANEL_ALL(T)": " ".join(f"DY_PANEL_TILES(T, {r})" for r in range(1, self.vectors + 1)),
        }

    def compile(self, folder: Path) -> None:
        source, target = folder / f"{self.vectors}_{self.columns}.c", folder / f"{self.vectors}_{self.columns}.so"
        defines = "".join(f"#define {name} {value}\n" for name, value in self.macros().items())
        text = SOURCE.replace("@TARGET@", TARGETS[self.lanes]).replace("@LANES@", str(self.lanes))
        source.write_text(defines + text.replace("@AVX512@", "#define DY_AVX512" if self.lanes == 16 else ""))
        flags = ["-O3", "-fPIC", "-shared", "-fwrapv", "-DNDEBUG", "-pthread", "-Wno-psabi", "-w", "-fno-math-errno"]
        includes = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'dynet_cy' / 'kernels' / 'native'}"]
        command = [*shlex.split(sysconfig.get_config_var("CC") or "cc"), *flags, *includes, str(source)]
        subprocess.run([*command, "-o", str(target), "-lm"], check=True)
        function = ctypes.CDLL(str(target)).fastest
        function.restype = ctypes.c_double
        function.argtypes = [ctypes.c_int, *[ctypes.c_size_t] * 3, *[ctypes.c_void_p] * 4, ctypes.c_int]
        self.fastest = function


def geometries(lanes: int) -> list[Geometry]:
    """Geometries that keep all sums in registers and use more than half of the registers; the built one first."""
    registers = REGISTERS[lanes]
    found = [
        (vectors, columns)
        for vectors in range(1, 7)
        for columns in range(2, 17)
        if registers // 2 < vectors * columns and vectors * columns + vectors < registers
    ]
    return [Geometry(*x, lanes) for x in sorted(found, key=lambda x: (x != BUILT[lanes], x))]


def measure(all_of: list[Geometry], rounds: int) -> None:
    """Note the nanoseconds of the fastest call of each product, geometry after geometry in every round."""
    most = max(max(m * k, k * n, m * n) for m, k, n in PACKED + TRANSPOSED)
    arrays = [np.random.default_rng(i).uniform(-1, 1, most + 64 * 10_000).astype(np.float32) for i in range(4)]
    a, panels, b, c = (x.ctypes.data + -x.ctypes.data % 64 for x in arrays)
    products = [(True, size) for size in PACKED] + [(False, size) for size in TRANSPOSED]
    for _ in range(rounds):
        for packed, (m, k, n) in products:
            calls = max(3, 20_000_000 // (m * k * n))
            for geometry in all_of:
                taken = geometry.fastest(packed, m, k, n, a, panels, b, c, calls)
                known = geometry.best.get((packed, (m, k, n)), math.inf)
                geometry.best[packed, (m, k, n)] = min(known, taken)


def table(all_of: list[Geometry]) -> str:
    products = list(all_of[0].best)
    heads = ["vectors x columns"]
    heads += [" x ".join(map(str, size)) + ("" if packed else ", B transposed") for packed, size in products]
    lines = []
    for geometry in all_of:
        rates = [2 * math.prod(size) / geometry.best[packed, size] for packed, size in products]
        mean = math.exp(sum(map(math.log, rates)) / len(rates))
        lines.append([f"{geometry.vectors} x {geometry.columns}", *(f"{rate:.0f}" for rate in rates), f"{mean:.1f}"])
    return report.markdown([*heads, "mean"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds over all geometries")
    parser.add_argument("--lanes", type=int, nargs="+", choices=sorted(BUILT), default=[16, 8])
    args = parser.parse_args()
    isa = {16: "avx512", 8: "avx2"}
    for lanes in args.lanes:
        if isa[lanes] not in kernels.tables():
            sys.exit(f"this CPU has no {isa[lanes]}")
        all_of = geometries(lanes)
        with tempfile.TemporaryDirectory() as folder:
            for geometry in all_of:
                geometry.compile(Path(folder))
            measure(all_of, args.rounds)
        print(f"\n{lanes} lanes, GFLOP/s\n\n{table(all_of)}")


if __name__ == "__main__":
    main()
