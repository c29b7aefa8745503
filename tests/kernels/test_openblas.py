"""Which kernels OpenBLAS is told to take."""

from __future__ import annotations

import os

import pytest

import dynet_cy.kernels as kernels

AVX512 = {"avx2", "avx512f", "avx512vl", "avx512dq", "avx512bw"}


@pytest.mark.parametrize(
    ("flags", "before", "told"),
    [
        (AVX512, None, "SkylakeX"),
        (AVX512, "Haswell", "SkylakeX"),
        (AVX512, "", "SkylakeX"),
        (AVX512, "Cooperlake", "Cooperlake"),
        (AVX512, "SAPPHIRERAPIDS", "SAPPHIRERAPIDS"),
        ({"avx2"}, None, None),
        ({"avx2"}, "Haswell", "Haswell"),
    ],
)
def test_coretype(flags: set[str], before: str | None, told: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(kernels, "_cpu_flags", lambda: flags)
    monkeypatch.setattr(
        kernels.importlib, "import_module", lambda name: seen.append(os.environ.get("OPENBLAS_CORETYPE"))
    )
    if before is None:
        monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    else:
        monkeypatch.setenv("OPENBLAS_CORETYPE", before)
    kernels._load()
    assert seen == [told]
    assert os.environ.get("OPENBLAS_CORETYPE") == before
