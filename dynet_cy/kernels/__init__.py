"""Kernels: the C functions that compute on floats, one set for each instruction set."""

from __future__ import annotations

import importlib
import os
import sys

# The CPU features required by the kernels that OpenBLAS calls SkylakeX, and the names of all its kernels that use them.
_SKYLAKEX = {"avx512f", "avx512vl", "avx512dq", "avx512bw"}
_WITH_AVX512 = {"skylakex", "cooperlake", "sapphirerapids"}


def _cpu_flags() -> set[str]:
    """The instruction sets of this CPU, as Linux names them; none elsewhere."""
    if not sys.platform.startswith("linux"):
        return set()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "flags":
                    return set(value.split())
    except OSError:
        pass
    return set()


def _load() -> None:
    """Load the kernels, and OpenBLAS with them.

    OpenBLAS chooses its kernels when it is loaded, and on some CPUs with AVX-512 it chooses those for AVX2. An
    environment variable tells it which to use; afterwards the variable is restored. If the user has set the variable,
    it is overridden unless it names kernels with AVX-512: a setting meant for other programs would halve the speed of
    products.
    """
    before = os.environ.get("OPENBLAS_CORETYPE")
    choose = _cpu_flags() >= _SKYLAKEX and (before or "").lower() not in _WITH_AVX512
    if choose:
        os.environ["OPENBLAS_CORETYPE"] = "SkylakeX"
    try:
        importlib.import_module("dynet_cy.kernels.kernels")
    finally:
        if choose and before is None:
            del os.environ["OPENBLAS_CORETYPE"]
        elif choose:
            os.environ["OPENBLAS_CORETYPE"] = before or ""


_load()
