"""The compiler of CUDA takes every file without a warning and without spills.

For sm_90; with DYNET_CY_EVERY_ARCHITECTURE=1 for every one that the compiler knows.
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


def architectures() -> list[str]:
    """The real architectures of this compiler, the oldest that is supported and later ones."""
    if NVCC is None or not os.environ.get("DYNET_CY_EVERY_ARCHITECTURE"):
        return ["sm_90"]
    listed = subprocess.run([NVCC, "--list-gpu-code"], capture_output=True, text=True).stdout
    numbers = sorted({int(x) for x in re.findall(r"sm_(\d+)\s", listed)})
    return [f"sm_{n}" for n in numbers if n >= OLDEST] or ["sm_90"]


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NVCC is None or "nvcc_emu" in NVCC, reason="there is no nvcc"),
]


@pytest.mark.parametrize("architecture", architectures())
@pytest.mark.parametrize("name", module_names())
def test_compiles(name: str, architecture: str, tmp_path: Path) -> None:
    command = [str(NVCC), "--cubin", f"-arch={architecture}", *OPTIONS, "-Xptxas", "-v", "-Werror", "all-warnings"]
    command += ["-I", str(CUDA), "-I", str(INCLUDE), "-o", str(tmp_path / "k.cubin"), str(CUDA / f"{name}.cu")]
    # A preloaded sanitizer is for this process: nvcc crashes with it.
    plain = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    done = subprocess.run(command, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    none = "0 bytes spill stores, 0 bytes spill loads"
    assert not [line for line in done.stdout.splitlines() if "spill" in line and none not in line]
