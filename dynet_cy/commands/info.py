"""Print the details needed in a bug report: versions, CPU, OpenBLAS, threads, memory, GPUs, settings."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator

from dynet_cy import config
from dynet_cy._version import __version__
from dynet_cy.core.devices import HAVE_CUDA, available_devices
from dynet_cy.kernels import kernels

_PACKAGES = ("numpy", "scipy-openblas32", "safetensors", "greenlet", "mpi4py", "pycuda")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command has no arguments."""


def run(args: argparse.Namespace) -> None:
    """Print `facts`, one per line."""
    found = list(facts())
    width = max(len(name) for name, _ in found)
    for name, value in found:
        print(f"{name:{width}}  {value}")


def facts() -> Iterator[tuple[str, str]]:
    """Names and values to print."""
    yield "dynet_cy", f"{__version__} in {os.path.dirname(os.path.dirname(__file__))}"
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}"
    yield "system", platform.platform()
    yield "CPU", f"{_cpu()}; {_cores()}"
    yield "kernels", kernels.isa()
    yield "bfloat16", kernels.bf16_missing() or "can be asked for, with --dynet-precision bf16"
    yield "OpenBLAS", kernels.openblas_config()
    yield "memory", _memory()
    yield "GPUs", _gpus()
    for name in _PACKAGES:
        yield name, _version(name)
    yield "settings", ", ".join(f"{name}={value}" for name, value in config.get().items())
    chosen = sorted(name for name in os.environ if name.startswith(("DYNET_CY_", "OMP_", "OPENBLAS_")))
    yield "environment", ", ".join(f"{name}={os.environ[name]}" for name in chosen) or "nothing that matters here"


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cores() -> str:
    count = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    return f"{usable} of {count} cores for this process" if usable != count else f"{count} cores"


def _memory() -> str:
    parts = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        parts.append(f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB in the machine")
    try:
        import resource
    except ImportError:
        pass
    else:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            parts.append(f"addresses limited to {limit / 2**30:.1f} GiB")
    return ", ".join(parts) or "unknown"


def _gpus() -> str:
    if not HAVE_CUDA:
        return "none: PyCUDA is not installed"
    try:
        found = [name for name in available_devices() if name != "CPU"]
    except RuntimeError as error:
        return f"none: {error}"
    return ", ".join(found) or "none"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
