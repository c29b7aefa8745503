"""The kernels and the threads that OpenBLAS is set to use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dynet_cy.kernels as kernels

AVX512 = {"avx2", "avx512f", "avx512vl", "avx512dq", "avx512bw"}


@pytest.mark.parametrize(
    ("flags", "isa", "before", "told"),
    [
        (AVX512, None, None, "SkylakeX"),
        (AVX512, None, "Haswell", "SkylakeX"),
        (AVX512, None, "", "SkylakeX"),
        (AVX512, None, "Cooperlake", "Cooperlake"),
        (AVX512, "avx512", "SAPPHIRERAPIDS", "SAPPHIRERAPIDS"),
        (AVX512, "avx512", None, "SkylakeX"),
        (AVX512, "another", None, "SkylakeX"),
        (AVX512, "avx2", None, "Haswell"),
        (AVX512, "avx2", "SkylakeX", "Haswell"),
        (AVX512, "baseline", "haswell", "haswell"),
        ({"avx2"}, None, None, None),
        ({"avx2"}, "avx2", None, None),
        ({"avx2"}, None, "Haswell", "Haswell"),
    ],
)
def test_coretype(
    flags: set[str], isa: str | None, before: str | None, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(kernels, "_cpu_flags", lambda: flags)
    monkeypatch.setattr(
        kernels.importlib, "import_module", lambda name: seen.append(os.environ.get("OPENBLAS_CORETYPE"))
    )
    for name, value in (("OPENBLAS_CORETYPE", before), ("DYNET_CY_ISA", isa)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    kernels._load()
    assert seen == [told]
    assert os.environ.get("OPENBLAS_CORETYPE") == before


@pytest.mark.parametrize("before", [None, "3"])
def test_openblas_is_told_to_begin_no_threads(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        kernels.importlib, "import_module", lambda name: seen.append(os.environ.get("OPENBLAS_NUM_THREADS"))
    )
    if before is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", before)
    kernels._load()
    assert seen == ["1"]
    assert os.environ.get("OPENBLAS_NUM_THREADS") == before


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc, which only Linux has")
def test_no_thread_begins_with_the_package() -> None:
    program = """
import os
import numpy
before = len(os.listdir("/proc/self/task"))
import dynet_cy
print(before, len(os.listdir("/proc/self/task")))
"""
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    assert before == after
