"""Kernels: the C functions that compute on floats, one set for each instruction set."""

from __future__ import annotations

import importlib
import os
import sys

# The CPU features required by the kernels that OpenBLAS calls SkylakeX, and the names of all its kernels that use them.
_SKYLAKEX = {"avx512f", "avx512vl", "avx512dq", "avx512bw"}
_WITH_AVX512 = {"skylakex", "cooperlake", "sapphirerapids"}
# Names of our kernels that do not.
_WITHOUT_AVX512 = {"avx2", "baseline"}


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
    environment variable selects the kernels; afterwards the variable is restored. If the user has set the variable, it
    is overridden unless it names kernels with AVX-512: a setting meant for other programs would halve the speed of
    products. If DYNET_CY_ISA selects our kernels without AVX-512, OpenBLAS uses no AVX-512 either.
    """
    before = os.environ.get("OPENBLAS_CORETYPE")
    narrow = os.environ.get("DYNET_CY_ISA") in _WITHOUT_AVX512
    choose = _cpu_flags() >= _SKYLAKEX and (before or "").lower() not in ({"haswell"} if narrow else _WITH_AVX512)
    if choose:
        os.environ["OPENBLAS_CORETYPE"] = "Haswell" if narrow else "SkylakeX"
    try:
        importlib.import_module("dynet_cy.kernels.kernels")
    finally:
        if choose and before is None:
            del os.environ["OPENBLAS_CORETYPE"]
        elif choose:
            os.environ["OPENBLAS_CORETYPE"] = before or ""


_load()
