#!/usr/bin/env python3
"""Make a libcuda.so.1 for machines that have no NVIDIA driver: a stub, or one that runs on the CPU.

    python make_driver.py OUTDIR [CUDA_INCLUDE_DIR]
    python make_driver.py --emulated OUTDIR [CUDA_INCLUDE_DIR]

The stub defines every function that cuda.h declares; each returns CUDA_ERROR_STUB_LIBRARY (34), so that
``pycuda.driver.init()`` raises an exception. PyCUDA's extension is linked with it. It has the SONAME of the driver, so
the extension depends on libcuda.so.1 and uses the real one if there is one. An empty library would not do, because the
linker would drop it as unneeded, and Python binds all symbols at import.

The emulated driver is emu/emu_driver.cpp, with stubs for functions that it lacks; OUTDIR/libcublas.so.13 is a link to
it.

Never put OUTDIR on LD_LIBRARY_PATH on a machine that has a GPU.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"
HEADERS = ("cuda.h", "cudaProfiler.h", "cudaGL.h")
WEAK = "__attribute__((weak)) "


def names(header: Path) -> set[str]:
    """The functions that a header declares, including the names that macros give them."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(errors="replace"), flags=re.S)
    found = set(re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    # "#define cuMemAlloc cuMemAlloc_v2", "#define cuMemcpy __CUDA_API_PTDS(cuMemcpy)": both the old and the new name.
    macro = r"#\s*define\s+(cu[A-Z]\w*)\s+(?:__CUDA_API_PT[DS][SZ]\()?(cu[A-Z]\w*)"
    return found.union(*re.findall(macro, text))


def make(out: Path, include: Path, emulated: bool) -> int:
    """Write the library; returns the number of functions that the headers declare."""
    out.mkdir(parents=True, exist_ok=True)
    functions = set().union(*(names(include / h) for h in HEADERS if (include / h).exists()))
    if not functions:
        raise SystemExit(f"{include} has no cuda.h: give the folder of the CUDA headers")
    lines = [
        WEAK + 'int cuGetErrorString(int e, const char **s){*s="no NVIDIA driver (stub libcuda)";return 0;}',
        WEAK + 'int cuGetErrorName(int e, const char **s){*s="CUDA_ERROR_STUB_LIBRARY";return 0;}',
        WEAK + "int cuDriverGetVersion(int *v){*v=0;return 0;}",
    ]
    own = {"cuGetErrorString", "cuGetErrorName", "cuDriverGetVersion"}
    lines += [f"{WEAK}int {name}(void){{return 34;}}" for name in sorted(functions - own)]
    source = out / "libcuda_stub.c"
    source.write_text("\n".join(lines) + "\n")
    library = out / "libcuda.so.1"
    shared = ["-shared", "-fPIC", "-O2", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
    links = [out / "libcuda.so"]
    cc, cxx = os.environ.get("CC", "gcc").split(), os.environ.get("CXX", "g++").split()
    if emulated:
        stub = out / "libcuda_stub.o"
        subprocess.check_call([*cc, "-c", "-fPIC", "-o", str(stub), str(source)])
        driver = str(HERE / "emu" / "emu_driver.cpp")
        subprocess.check_call([*cxx, "-std=c++17", "-Wall", "-I", str(INCLUDE), *shared, driver, str(stub), "-ldl"])
        links.append(out / "libcublas.so.13")
    else:
        subprocess.check_call([*cc, *shared, str(source)])
    for link in links:
        link.unlink(missing_ok=True)
        link.symlink_to("libcuda.so.1")
    return len(functions)


def main() -> None:
    arguments = [a for a in sys.argv[1:] if a != "--emulated"]
    if not arguments:
        raise SystemExit(__doc__)
    include = (
        Path(arguments[1]) if len(arguments) > 1 else Path(os.environ.get("CUDA_ROOT", "/usr/local/cuda")) / "include"
    )
    count = make(Path(arguments[0]), include, "--emulated" in sys.argv)
    print(f"{count} functions in {arguments[0]}/libcuda.so.1")


if __name__ == "__main__":
    main()
