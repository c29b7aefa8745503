"""nvcc compiles without warnings and without spills.

For sm_90: one file, and what is written at run time. With DYNET_CY_EVERY_FILE=1 all files, for the oldest and the
newest architecture too. The front end, half the work, writes the same PTX for many: it runs once for each group, and
the assembler for each architecture.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from dynet_cy.gpu.compiler import OPTIONS, module_names, nvcc, source_folders
from dynet_cy.gpu.fused_source import FusedNode, source_of
from dynet_cy.ops import cuda_source

NVCC = nvcc()
EVERY_FILE = "DYNET_CY_EVERY_FILE" in os.environ
CUDA, INCLUDE = source_folders()
OLDEST = 75
PROBE = "linalg"  # a small module, whose PTX differs between architectures if any other's does (CUDA 13.0)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NVCC is None or "nvcc_emu" in NVCC, reason="needs nvcc"),
]


def run_nvcc(source: Path, *options: str) -> str:
    """The output of the compiler for a source; it must succeed."""
    command = [str(NVCC), *options, "-I", str(CUDA), "-I", str(INCLUDE), str(source)]
    # nvcc crashes with a preloaded sanitizer.
    plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    done = subprocess.run(command, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def architectures() -> list[int]:
    """sm_90, the oldest supported real architecture, and the newest one of this compiler."""
    if not EVERY_FILE:
        return [90]
    listed = subprocess.run([str(NVCC), "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    return sorted({OLDEST, 90, max(int(x) for x in re.findall(r"sm_(\d+)\s", listed))})


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Groups of architectures for which the front end writes the same PTX, the oldest first."""
    found: dict[str, list[int]] = {}
    for number in architectures():
        path = tmp_path_factory.mktemp("ptx") / "probe.ptx"
        run_nvcc(CUDA / f"{PROBE}.cu", *OPTIONS, "--ptx", f"-arch=compute_{number}", "-o", str(path))
        text = re.sub(r"^(\.target|//).*\n", "", path.read_text(), flags=re.MULTILINE)
        found.setdefault(text, []).append(number)
    return list(found.values())


def test_the_front_end_is_not_told_the_architecture() -> None:
    sources = [*CUDA.iterdir(), *(INCLUDE / "dynet_cy").iterdir()]
    assert not [path for path in sources if "__CUDA_ARCH" in path.read_text(encoding="utf-8")]


def check(source: Path, options: list[str], families: list[list[int]], made: Path) -> str:
    """Compile a source for all architectures; returns what the assembler said."""
    targets = [f"-gencode=arch=compute_{family[0]},code=sm_{number}" for family in families for number in family]
    said = run_nvcc(
        source, *options, "--fatbin", *targets, "-Xptxas", "-v", "-Werror", "all-warnings", "-o", str(made / "k.fatbin")
    )
    assembled = {int(x) for x in re.findall(r"Compiling entry function .* for 'sm_(\d+)'", said)}
    assert sorted(assembled) == architectures()
    none = "0 bytes spill stores, 0 bytes spill loads"
    assert not [line for line in said.splitlines() if "spill" in line and none not in line]
    return said


@pytest.mark.parametrize("name", module_names() if EVERY_FILE else [PROBE])
def test_compiles(name: str, families: list[list[int]], tmp_path: Path) -> None:
    check(CUDA / f"{name}.cu", OPTIONS, families, tmp_path)


def gates() -> list[FusedNode]:
    """The cell of a binary Tree-LSTM that a program writes out: 17 ops."""
    parts = [FusedNode("copy", "", (None,)) for _ in range(5)]
    acts = [FusedNode("unary", "logistic" if i < 4 else "tanh", (i,)) for i in range(5)]
    ends = [((5, 9), "mul"), ((7, None), "mul"), ((8, None), "mul"), ((10, 11), "add"), ((13, 12), "add")]
    state = [FusedNode("binary", name, args) for args, name in ends]
    return [*parts, *acts, *state, FusedNode("unary", "tanh", (14,)), FusedNode("binary", "mul", (6, 15))]


def longest() -> list[FusedNode]:
    """As many ops as a signature may have, of several arguments, whose values all live long."""
    args = [FusedNode("unary", "silu", (None,)) for _ in range(8)]
    middle = [FusedNode("binary", "mul", (i, 15 - i if 15 - i < 8 else None)) for i in range(8)]
    return [*args, *middle, *(FusedNode("sum", "", (8 + i, 15 - i, i, None)) for i in range(8))]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("nodes", [gates(), longest()], ids=["gates", "longest"])
def test_kernels_that_are_written_at_run_time(
    nodes: list[FusedNode], backward: bool, families: list[list[int]], tmp_path: Path
) -> None:
    """They take few registers, too."""
    source = tmp_path / "fused.cu"
    source.write_text(source_of(nodes, [len(nodes) - 2, len(nodes) - 1] if backward else None), encoding="utf-8")
    said = check(source, OPTIONS, families, tmp_path)
    assert max(int(x) for x in re.findall(r"Used (\d+) registers", said)) <= 64


KERNELS = """
__global__ void forward(In x, In c, Out y, float gamma) {
    __shared__ float part[32];
    for (ROWS(b, y.batch)) {
        float total = 0;
        for (LANES(i, x.size)) total += gamma * x(i, b) * c(i, 0, b);
        y(0, b) = block_sum(total, part);
    }
}

extern "C" __global__ void backward(In dy, const In &y, In x, In c, Out dx, Out dc, double gamma) {
    for (EACH(k, x.size * x.batch)) {
        const size_t i = k % x.size, b = k / x.size;
        dx.element(b)[i] = (float)gamma * dy(0, b) * c(i, 0, b);
        atomicAdd(&dc(i, 0, b), dy(0, b) * x(i, b));
    }
}
"""


@pytest.mark.parametrize("cuda", [KERNELS, {"y": "x * c + gamma", "dc": "dy * x"}], ids=["kernels", "expressions"])
def test_kernels_of_custom_ops(cuda: str | dict[str, str], families: list[list[int]], tmp_path: Path) -> None:
    source = tmp_path / "custom.cu"
    source.write_text(cuda_source.source_of("op", ["x", "c"], ["gamma"], cuda).text, encoding="utf-8")
    check(source, OPTIONS, families, tmp_path)
