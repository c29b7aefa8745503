"""Kernels that only tests run: compiled when tests need them, and kept in build/tests.

They are "scalar", plain C, and "wide", the 16-lane code of AVX-512 on AVX2. The package is built without them.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from dynet_cy.kernels import kernels

ROOT = Path(__file__).resolve().parents[2]
SOURCES = Path(__file__).parent / "native"
HEADERS = [ROOT / "include", ROOT / "dynet_cy" / "kernels" / "native"]
# As in setup.py, but -O1, which takes half as long as -O2.
FLAGS = ["-O1", "-fPIC", "-shared", "-fwrapv", "-DNDEBUG", "-pthread", "-Wno-psabi"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math"]
SANITIZED = "sanitize" in " ".join(kernels.build_flags())


def compiler() -> list[str]:
    """The command of the C compiler, empty if there is none."""
    for words in (os.environ.get("CC", ""), sysconfig.get_config_var("CC") or "", "cc", "gcc", "clang"):
        command = shlex.split(words)
        if command and shutil.which(command[0]):
            return command
    return []


def names() -> list[str]:
    """The tables that this machine can compile and run; no "wide" if AVX-512 runs the same code.

    With sanitizers, "wide" is compiled in three minutes: they see its source with eight lanes.
    """
    if not compiler():
        return []
    found = kernels.tables()
    wide = "avx2" in found and "avx512" not in found and not SANITIZED
    return ["scalar", *(["wide"] if wide else [])]


def _command(source: Path, target: Path) -> list[str]:
    import scipy_openblas32 as blas

    libraries = [f"-L{blas.get_lib_dir()}", f"-l{blas.get_library()}", f"-Wl,-rpath,{blas.get_lib_dir()}", "-lm"]
    includes = [f"-I{folder}" for folder in HEADERS]
    return [*compiler(), *FLAGS, *kernels.build_flags(), *includes, str(source), "-o", str(target), *libraries]


def _library(name: str, folder: Path) -> Path:
    """The path of a table's library, with a hash of everything that goes into it."""
    known = hashlib.sha256(repr([_command(SOURCES / f"{name}.c", folder), platform.platform()]).encode())
    for root in [SOURCES, *HEADERS]:
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".c", ".h", ".inl", ".def")):
            known.update(path.read_bytes())
    return folder / f"{name}-{known.hexdigest()[:16]}.so"


@cache
def _folder() -> Path:
    """Where libraries are kept; in a checkout that cannot be written, a folder for this process."""
    kept = ROOT / "build" / "tests"
    try:
        kept.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=kept).close()
    except OSError:
        kept = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, kept, ignore_errors=True)
    return kept


@cache
def tables() -> dict[str, dict[str, int]]:
    """Kernel addresses by instruction set and name: those of the package, and those for tests."""
    folder = _folder()
    running = []
    for name in names():
        target = _library(name, folder)
        if not target.exists():
            made = target.with_suffix(f".{os.getpid()}")  # other processes may run the same tests
            # The compiler must not run under the sanitizers of this process.
            clean = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
            process = subprocess.Popen(
                _command(SOURCES / f"{name}.c", made), env=clean, stderr=subprocess.PIPE, text=True
            )
            running.append((process, made, target))
    for process, made, target in running:
        _, said = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{' '.join(map(str, process.args))}\n{said}")
        made.replace(target)
    found = kernels.tables()
    for name in names():
        library = ctypes.CDLL(str(_library(name, folder)))
        table = ctypes.addressof(ctypes.c_char.in_dll(library, f"dy_table_{name}"))
        found[name] = kernels.kernels_at(table)
    return found


# Types of arguments and results of kernels; pointers are addresses.
_TYPES = {"void": None, "size_t": ctypes.c_size_t, "float": ctypes.c_float, "int": ctypes.c_int}
_TYPES |= {"uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64}


def signatures() -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
    """The types of the arguments and of the result of each kernel in kernels.def."""
    derive = runpy.run_path(str(ROOT / "tools" / "derive.py"))
    arguments, results = {}, {}
    for row in derive["kernels"]():
        name, words = row.rest.split(",", 1)
        given = [word.rpartition(" ") for word in derive["split"](words.strip()[1:-1])]
        arguments[name.strip()] = tuple(ctypes.c_void_p if "*" in last else _TYPES[kind] for kind, _, last in given)
        results[name.strip()] = _TYPES[row.name]
    return arguments, results
