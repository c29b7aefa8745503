"""The emulated driver in a process of its own, without the package, for tests of what it checks.

A file of tests has a dict of jobs and calls `run_jobs` as a program: `python FILE [JOB...]` prints the errors that
launches end with. Errors of a device stay, so each job has its process, which is forked from that program.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "gpu"))

from emulate import environment  # noqa: E402
from make_driver import HEADERS  # noqa: E402

CUDA_INCLUDE = Path(os.environ.get("CUDA_ROOT", "/usr/local/cuda")) / "include"

needs_driver = pytest.mark.skipif(
    shutil.which("g++") is None or not (CUDA_INCLUDE / HEADERS[0]).exists(), reason="needs g++ and the CUDA headers"
)

FLOATS = 1024
WORDS = 496  # of dy_group


class Device:
    """The emulated driver, in this process: memory for FLOATS numbers, and launches."""

    def __init__(self, folder: Path) -> None:
        self.env = environment()
        self.folder = folder
        self.modules: dict[str, ctypes.c_void_p] = {}
        self.cuda = ctypes.CDLL(self.env["DYNET_CY_LIBCUDA"])
        self.base = self.allocate(FLOATS)

    def allocate(self, floats: int, *, zeros: bool = True) -> int:
        """The address of memory for so many numbers."""
        at = ctypes.c_uint64()
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(4 * floats)) == 0
        if zeros:
            self.send(at.value, bytes(4 * floats))
        return at.value

    def free(self, at: int) -> None:
        assert self.cuda.cuMemFree_v2(ctypes.c_uint64(at)) == 0

    def send(self, at: int, data: bytes) -> None:
        assert self.cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(at), data, ctypes.c_size_t(len(data))) == 0

    def fill(self, at: int, bits: int, n: int) -> None:
        """Fill n numbers with these bits."""
        assert self.cuda.cuMemsetD32_v2(ctypes.c_uint64(at), ctypes.c_uint(bits), ctypes.c_size_t(n)) == 0

    def at(self, i: int) -> int:
        """The address of number i."""
        return self.base + 4 * i

    def function(self, source: str, kernel: str) -> ctypes.c_void_p:
        """A kernel of a family, or of a source that is given as text."""
        module, function = self.modules.get(source), ctypes.c_void_p()
        if module is None:
            module = self.modules[source] = self.module(source)
        assert self.cuda.cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()) == 0
        return function

    def module(self, source: str) -> ctypes.c_void_p:
        """What a job before has compiled is there."""
        path = ROOT / "cuda" / f"{source}.cu"
        if "\n" in source:
            path = self.folder / f"given{zlib.crc32(source.encode())}.cu"
            path.write_text(source)
        made = self.folder / f"{path.stem}.cubin"
        if not made.exists():
            include = [f"-I{ROOT / 'include'}", f"-I{ROOT / 'cuda'}"]
            command = [sys.executable, self.env["DYNET_CY_NVCC"], "--cubin", *include, str(path)]
            subprocess.run(command, check=True, cwd=self.folder, env={**os.environ, **self.env})
        module = ctypes.c_void_p()
        assert self.cuda.cuModuleLoad(ctypes.byref(module), str(made).encode()) == 0
        return module

    def launch(
        self, source: str, kernel: str, parameters: list[bytes], grid: tuple[int, int, int] = (1, 1, 1), block: int = 32
    ) -> str:
        """The error of a launch, or ""."""
        kept = [ctypes.create_string_buffer(x, len(x)) for x in parameters]
        pointers = (ctypes.c_void_p * len(kept))(*[ctypes.addressof(x) for x in kept])
        sizes = [ctypes.c_uint(x) for x in (*grid, block, 1, 1, 0)]
        error = self.cuda.cuLaunchKernel(self.function(source, kernel), *sizes, None, pointers, None)
        error = error or self.cuda.cuStreamSynchronize(None)
        text = ctypes.c_char_p()
        self.cuda.cuGetErrorString(error, ctypes.byref(text))
        return (text.value or b"no text").decode() if error else ""


def fused_tanh() -> str:
    """The source of a fused kernel with a single tanh, which a module of the package writes."""
    path = ROOT / "dynet_cy" / "gpu" / "fused_source.py"
    spec = importlib.util.spec_from_file_location("fused_source", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["fused_source"] = importlib.util.module_from_spec(spec)  # dataclasses look it up there
    spec.loader.exec_module(module)
    return str(module.source_of([module.FusedNode("unary", "tanh", (None,))], [0]))


def found(file: str, *jobs: str, **variables: str) -> dict[str, str]:
    """What these jobs of a file find, or all, with these environment variables of the emulation and no others."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EMU_")}
    done = subprocess.run(
        [sys.executable, file, *jobs], stdout=subprocess.PIPE, text=True, check=True, env={**inherited, **variables}
    )
    return json.loads(done.stdout)


def run_jobs(jobs: dict[str, Callable[[Device], str]]) -> None:
    """Run the jobs that are named, or all, as a program; a job that ends its process has found that."""
    errors = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or jobs:
            text = Path(folder) / "error"
            text.write_text("it has ended its process")
            child = os.fork()
            if not child:
                try:
                    text.write_text(jobs[name](Device(Path(folder))))
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            errors[name] = text.read_text().strip()
    print(json.dumps(errors))
