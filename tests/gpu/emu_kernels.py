"""Compiles a .cu file for the CPU, and calls its kernels on NumPy arrays.

    m = EmuModule("cuda/unary.cu")
    m.launch("unary_forward_tanh", grid=4, block=128, args=[np.uint64(x.size), x, np.float32(0), np.float32(0), y])

Arrays are passed as pointers (C-contiguous, changed in place); NumPy scalars, and structs as bytes, by value. The
number and sizes of parameters are checked.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
EMU = ROOT / "tools" / "gpu" / "emu"


class KernelError(RuntimeError):
    """An error that the emulation found in a kernel."""


class _Info(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("nparams", ctypes.c_int),
        ("sizes", ctypes.POINTER(ctypes.c_size_t)),
        ("offsets", ctypes.POINTER(ctypes.c_size_t)),
        (
            "launch",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.POINTER(ctypes.c_uint),
                ctypes.POINTER(ctypes.c_uint),
                ctypes.c_size_t,
                ctypes.POINTER(ctypes.c_void_p),
            ),
        ),
        ("error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
    ]


def _sources(path: Path) -> Iterable[Path]:
    """All files that the compiled file depends on."""
    yield from (path, EMU / "accesses.h", EMU / "accesses.cpp", EMU / "cuda_emu.h", EMU / "nvcc_emu")
    yield from sorted((ROOT / "cuda").glob("*.cuh"))
    yield from sorted((ROOT / "include" / "dynet_cy").glob("*.def"))
    yield from sorted((ROOT / "include" / "dynet_cy").glob("gpu_*.h"))


@lru_cache(maxsize=1024)
def compile_cu(path: Path) -> Path:
    """The shared object of one .cu file, cached in the temporary folder of the system."""
    cache = Path(tempfile.gettempdir()) / f"dynet_cy_emulated_{os.getuid()}" / "kernels"
    cache.mkdir(parents=True, mode=0o700, exist_ok=True)
    digest = hashlib.sha256(os.environ.get("EMU_CXXFLAGS", "").encode())
    for source in _sources(path):
        digest.update(source.read_bytes())
    out = cache / f"{path.stem}-{digest.hexdigest()[:16]}.so"
    if not out.exists():
        work = Path(tempfile.mkdtemp(dir=cache))
        include = f"-I{ROOT / 'include'}"
        subprocess.check_call([sys.executable, str(EMU / "nvcc_emu"), "--cubin", include, str(path)], cwd=work)
        (work / f"{path.stem}.cubin").replace(out)
        shutil.rmtree(work)
    return out


def _dim3(value: int | tuple[int, ...]) -> ctypes.Array[ctypes.c_uint]:
    given = (value,) if isinstance(value, int) else tuple(value)
    return (ctypes.c_uint * 3)(*(given + (1, 1, 1))[:3])


class EmuModule:
    """The kernels of one .cu file."""

    def __init__(self, path: Path) -> None:
        self.lib = ctypes.CDLL(str(compile_cu(path)))

    def launch(self, name: str, grid, block, args, shared: int = 0, order: str = "") -> None:
        """Run a kernel; `order` is the order of its threads and blocks: "", "reverse", "random:1" and so on."""
        get = getattr(self.lib, "emu_kernel__" + name)
        get.restype = ctypes.POINTER(_Info)
        info = get().contents
        assert len(args) == info.nparams, f"{name} takes {info.nparams} parameters"
        keep, pointers = [], (ctypes.c_void_p * (len(args) + 1))()
        for i, argument in enumerate(args):
            if isinstance(argument, bytes):
                value = np.frombuffer(argument, np.uint8)
                size = value.size
            else:
                if isinstance(argument, np.ndarray):
                    assert argument.flags.c_contiguous
                    argument = np.uint64(argument.ctypes.data)
                value = np.atleast_1d(argument)
                size = value.itemsize
            assert size == info.sizes[i], f"{name}: parameter {i} has {info.sizes[i]} bytes, not {size}"
            keep.append(value)
            pointers[i] = value.ctypes.data
        before = os.environ.get("EMU_ORDER")
        os.environ["EMU_ORDER"] = order  # read by getenv in C
        try:
            failed = info.launch(_dim3(grid), _dim3(block), shared, pointers)
        finally:
            if before is None:
                del os.environ["EMU_ORDER"]
            else:
                os.environ["EMU_ORDER"] = before
        if failed:
            raise KernelError(f"{name}: {info.error().decode()}")
