#!/usr/bin/env python3
"""Run a program on the emulated driver: GPU:0 is then emulated on the CPU, slowly and strictly.

    python tools/gpu/emulate.py python examples/mnist.py --dynet-gpu

It needs PyCUDA, the CUDA headers and g++, but no GPU. The driver and the kernels that are compiled for it are cached in
a folder in the system's temporary folder.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from make_driver import INCLUDE, make  # noqa: E402


def environment() -> dict[str, str]:
    """The environment variables that make dynet_cy use the emulated driver, which is built if necessary."""
    sources = [
        HERE / "make_driver.py",
        *sorted((HERE / "emu").iterdir()),
        *sorted((INCLUDE / "dynet_cy").glob("gpu_*.h")),
    ]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in sources if p.is_file())).hexdigest()[:16]
    kept = Path(tempfile.gettempdir()) / f"dynet_cy_emulated_{os.getuid()}"
    folder = kept / digest
    if not (folder / "libcuda.so.1").exists():
        kept.mkdir(mode=0o700, exist_ok=True)
        include = Path(os.environ.get("CUDA_ROOT", "/usr/local/cuda")) / "include"
        with tempfile.TemporaryDirectory(dir=kept) as work:
            made = Path(work) / "driver"
            make(made, include, emulated=True)
            try:
                made.rename(folder)
            except OSError:  # another process was first
                if not (folder / "libcuda.so.1").exists():
                    raise
    return {
        "DYNET_CY_LIBCUDA": str(folder / "libcuda.so.1"),
        "DYNET_CY_LIBCUBLAS": str(folder / "libcublas.so.13"),
        "DYNET_CY_NVCC": str(HERE / "emu" / "nvcc_emu"),
        "DYNET_CY_CUDA_CACHE": str(kept / "cubins"),
        "EMU_OBJECTS": str(kept / "objects"),
    }


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    os.environ.update(environment())
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
