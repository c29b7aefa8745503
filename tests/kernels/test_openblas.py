"""The kernels that OpenBLAS is set to use."""

from __future__ import annotations

import os

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
