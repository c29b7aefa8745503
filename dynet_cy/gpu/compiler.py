"""Compiles kernels for a device, through PyCUDA, and caches the code on disk: those in `cuda/`, and sources that are
written at run time (`fused_source`) or that the program gives (`ops.cuda_source`).

The name of a cached file consists of the module, the architecture, a hash of the source, all headers and the options,
and a hash of the compiler's version. If there is no compiler, a file that any compiler made from the same
sources is used. A file begins with a hash of the rest, so that damage is detected and the file is made again. Files
are moved into place when they are complete, so that several processes may write the same file at the same time.

Environment variables: `DYNET_CY_NVCC` is the compiler (default: `nvcc` in the path, then below `CUDA_ROOT`,
`CUDA_HOME`, `/usr/local/cuda`), `DYNET_CY_CUDA_CACHE` the folder (default: `dynet_cy/cubins` below `XDG_CACHE_HOME` or
`~/.cache`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from dynet_cy.files.replacing import write_file
from dynet_cy.gpu.driver import GpuError, GpuUnavailable

__all__ = ["OPTIONS", "cubin", "module_names", "nvcc", "source_folders", "text_cubin"]

# Products and sums are contracted only where a source says so. Otherwise numbers would depend on whether a sum is
# computed in the launch of the product: in a fused kernel, or where a gradient has its own memory instead of being
# added at once.
OPTIONS = ["-O3", "-std=c++17", "-fmad=false"]
_DIGEST = hashlib.sha256().digest_size


def source_folders() -> tuple[Path, Path]:
    """The folders `cuda/` and `include/`: in the installed package, or beside it in the source tree."""
    package = Path(__file__).resolve().parent.parent
    for root in (package, package.parent):
        if (root / "cuda" / "common.cuh").exists():
            return root / "cuda", root / "include"
    raise GpuUnavailable(f"the sources of the kernels are neither in {package} nor beside it")


def module_names() -> list[str]:
    """The modules of kernels: the stems of the files `cuda/*.cu`."""
    return sorted(p.stem for p in source_folders()[0].glob("*.cu"))


def nvcc() -> str | None:
    """The path of the compiler, or None."""
    setting = os.environ.get("DYNET_CY_NVCC")
    if setting:
        return setting
    found = shutil.which("nvcc")
    roots = [os.environ.get("CUDA_ROOT"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    candidates = [Path(root) / "bin" / "nvcc" for root in roots if root]
    return found or next((str(p) for p in candidates if p.exists()), None)


_versions: dict[str, str] = {}  # by compiler
_source_hashes: dict[str, str] = {}  # by module; "": of headers


def _version(compiler: str) -> str:
    """A hash of the compiler's version message."""
    if compiler in _versions:
        return _versions[compiler]
    try:
        said = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as e:
        raise GpuUnavailable(f"the compiler of kernels, {compiler}, does not run: {e}") from None
    _versions[compiler] = hashlib.sha256(said.encode()).hexdigest()[:16]
    return _versions[compiler]


def _source_hash(name: str) -> str:
    """A hash of everything that the code of a module depends on."""
    if name in _source_hashes:
        return _source_hashes[name]
    cuda, _ = source_folders()
    digest = hashlib.sha256(" ".join(OPTIONS).encode())
    source = cuda / f"{name}.cu"
    included = [cuda / x for x in re.findall(r'#include "(\w+\.cu)"', source.read_text(encoding="utf-8"))]
    for path in [source, *included]:
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    digest.update(_headers().encode())
    _source_hashes[name] = digest.hexdigest()[:32]
    return _source_hashes[name]


def _headers() -> str:
    """A hash of all headers."""
    if "" in _source_hashes:
        return _source_hashes[""]
    cuda, include = source_folders()
    digest = hashlib.sha256()
    headers = [*cuda.glob("*.cuh"), *(include / "dynet_cy").glob("*.def"), *(include / "dynet_cy").glob("*.h")]
    for path in sorted(headers):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    _source_hashes[""] = digest.hexdigest()
    return _source_hashes[""]


def _cache_folder() -> Path:
    """The folder of cached files. A user without a home, as in some containers, has one that cannot be made."""
    setting = os.environ.get("DYNET_CY_CUDA_CACHE")
    if setting:
        return Path(setting)
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        caches = Path(os.devnull)
    return caches / "dynet_cy" / "cubins"


def _read(path: Path) -> bytes | None:
    """The code in a cached file, or None if there is no such file or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    code = content[_DIGEST:]
    return code if code and hashlib.sha256(code).digest() == content[:_DIGEST] else None


def _write(path: Path, code: bytes) -> None:
    """Cache code in a file. If the folder cannot be written, the code is compiled again next time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, hashlib.sha256(code).digest() + code)


def _compile(source: str, what: str, architecture: str, compiler: str) -> bytes:
    import pycuda.compiler
    import pycuda.driver

    cuda, include = source_folders()
    try:
        return bytes(
            pycuda.compiler.compile(
                source,
                nvcc=compiler,
                options=OPTIONS,
                arch=architecture,
                no_extern_c=True,
                include_dirs=[str(cuda), str(include)],
                cache_dir=False,
                target="cubin",
            )
        )
    except pycuda.driver.CompileError as e:
        raise GpuError(f"the kernels {what} do not compile for {architecture}:\n{e.stderr or e}") from None


def cubin(name: str, architecture: str) -> bytes:
    """The kernels of `cuda/<name>.cu` as code for an architecture, such as "sm_90".

    Raises:
        GpuUnavailable: there is no compiler, and no cached file.
        GpuError: the compiler reports errors.
    """
    source = source_folders()[0] / f"{name}.cu"
    stem = f"{name}-{architecture}-{_source_hash(name)}"
    return _cached(stem, lambda: source.read_text(encoding="utf-8"), f"in cuda/{name}.cu", architecture)


def text_cubin(source: str, what: str, architecture: str) -> bytes:
    """The kernels of a text that includes headers of `cuda/`, likewise; `what` they are is for errors.

    Raises:
        GpuUnavailable: there is no compiler, and no cached file.
        GpuError: the compiler reports errors.
    """
    digest = hashlib.sha256("\0".join([*OPTIONS, _headers(), source]).encode())
    stem = f"text-{architecture}-{digest.hexdigest()[:32]}"
    return _cached(stem, lambda: source, what, architecture)


def _cached(stem: str, source: Callable[[], str], what: str, architecture: str) -> bytes:
    """The code in the cached file whose name begins with `stem`; it is made if there is none."""
    folder = _cache_folder()
    compiler = nvcc()
    if compiler is None:
        for path in sorted(folder.glob(f"{stem}-*.cubin"), reverse=True):
            code = _read(path)
            if code is not None:
                return code
        raise GpuUnavailable(
            "kernels must be compiled and there is no nvcc: install the CUDA toolkit, or set DYNET_CY_NVCC"
        )
    path = folder / f"{stem}-{_version(compiler)}.cubin"
    code = _read(path)
    if code is None:
        code = _compile(source(), what, architecture, compiler)
        _write(path, code)
    return code
