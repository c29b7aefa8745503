"""Kernels: the C functions that compute on floats, one set for each instruction set."""

from __future__ import annotations

import importlib
import os
import sys

import numpy as np  # noqa: F401 - before the kernels: it has another OpenBLAS, which reads the same variables

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
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "flags":
                    return set(value.split())
    except OSError:
        pass
    return set()


def _load() -> None:
    """Load the kernels, and OpenBLAS with them.

    OpenBLAS reads environment variables when it is loaded; they are restored afterwards. It would begin a thread for
    each CPU, which waits busily for a while before it sleeps; products here have threads of their own. It chooses its
    kernels, and on some CPUs with AVX-512 it chooses those for AVX2. If the user has set that variable, it is
    overridden unless it names kernels with AVX-512: a setting meant for other programs would halve the speed of
    products. If DYNET_CY_ISA selects our kernels without AVX-512, OpenBLAS uses no AVX-512 either.
    """
    narrow = os.environ.get("DYNET_CY_ISA") in _WITHOUT_AVX512
    given = {"OPENBLAS_NUM_THREADS": "1"}
    kept = {"haswell"} if narrow else _WITH_AVX512
    if _cpu_flags() >= _SKYLAKEX and os.environ.get("OPENBLAS_CORETYPE", "").lower() not in kept:
        given["OPENBLAS_CORETYPE"] = "Haswell" if narrow else "SkylakeX"
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        importlib.import_module("dynet_cy.kernels.kernels")
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_load()
