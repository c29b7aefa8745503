"""nvcc compiles every file without warnings and without spills.

For sm_90, or with DYNET_CY_EVERY_ARCHITECTURE=1 for every architecture that nvcc knows. The front end, half the work,
writes the same PTX for many of them: it runs once for each group, and the assembler for each architecture.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from dynet_cy.gpu.compiler import OPTIONS, module_names, nvcc, source_folders

NVCC = nvcc()
CUDA, INCLUDE = source_folders()
OLDEST = 75
PROBE = "linalg"  # a small module, whose PTX differs between architectures if any other's does (CUDA 13.0)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NVCC is None or "nvcc_emu" in NVCC, reason="needs nvcc"),
]


def run_nvcc(name: str, *options: str) -> str:
    """The output of the compiler for a module; it must succeed."""
    command = [str(NVCC), *OPTIONS, *options, "-I", str(CUDA), "-I", str(INCLUDE), str(CUDA / f"{name}.cu")]
    # nvcc crashes with a preloaded sanitizer.
    plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    done = subprocess.run(command, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def architectures() -> list[int]:
    """The real architectures of this compiler, from the oldest supported one on."""
    if not os.environ.get("DYNET_CY_EVERY_ARCHITECTURE"):
        return [90]
    listed = subprocess.run([str(NVCC), "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
    return sorted({int(x) for x in re.findall(r"sm_(\d+)\s", listed) if int(x) >= OLDEST})


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Groups of architectures for which the front end writes the same PTX, the oldest first."""
    found: dict[str, list[int]] = {}
    for number in architectures():
        path = tmp_path_factory.mktemp("ptx") / "probe.ptx"
        run_nvcc(PROBE, "--ptx", f"-arch=compute_{number}", "-o", str(path))
        text = re.sub(r"^(\.target|//).*\n", "", path.read_text(), flags=re.MULTILINE)
        found.setdefault(text, []).append(number)
    return list(found.values())


def test_the_front_end_is_not_told_the_architecture() -> None:
    sources = [*CUDA.iterdir(), *(INCLUDE / "dynet_cy").iterdir()]
    assert not [path for path in sources if "__CUDA_ARCH" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", module_names())
def test_compiles(name: str, families: list[list[int]], tmp_path: Path) -> None:
    targets = [f"-gencode=arch=compute_{family[0]},code=sm_{number}" for family in families for number in family]
    said = run_nvcc(
        name, "--fatbin", *targets, "-Xptxas", "-v", "-Werror", "all-warnings", "-o", str(tmp_path / "k.fatbin")
    )
    assembled = {int(x) for x in re.findall(r"Compiling entry function .* for 'sm_(\d+)'", said)}
    assert sorted(assembled) == architectures()
    none = "0 bytes spill stores, 0 bytes spill loads"
    assert not [line for line in said.splitlines() if "spill" in line and none not in line]
