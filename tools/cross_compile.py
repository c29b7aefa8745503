"""Compiles and links all C of the extension modules for other platforms.

    pip install ziglang                                         # a C compiler with the C libraries of all targets
    python tools/cross_compile.py                               # all targets
    python tools/cross_compile.py aarch64-macos --only kernels  # one target, modules with "kernels" in their name

Sources, include paths, macros and warnings are those of setup.py.  The headers of Python and NumPy are those of the
running interpreter, which must be a 64-bit one, as all targets are.  Each module is linked against the C library of
the target: a symbol that is in neither it, nor Python, nor OpenBLAS is a failure.  Nothing is run.

Prints the compiler's message for each file or module that fails, and a line for each target.  The exit status is 0 if
nothing failed.  `-v` also prints a line for each file that compiles.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("aarch64-linux-gnu", "aarch64-linux-musl", "x86_64-linux-musl", "aarch64-macos", "x86_64-macos")
ZIG = [sys.executable, "-m", "ziglang", "cc"]
UNDEFINED = re.compile(r"undefined symbol: (\S+)")
ELSEWHERE = re.compile(r"_{0,2}Py|_?scipy_")  # symbols that Python and OpenBLAS have


class Build:
    """The files that setup.py would compile, and their flags.

    Args:
        only: leave out modules whose names do not contain this text.
    """

    def __init__(self, only: str) -> None:
        from distutils.core import run_setup  # setuptools replaces it with its own

        os.chdir(ROOT)
        os.environ["DYNET_CY_WERROR"] = "1"
        self.command = run_setup("setup.py", stop_after="init").get_command_obj("build_ext")
        self.command.ensure_finalized()
        self.command.derive()
        self.command.run_cython()
        self.modules = [e for e in self.command.extensions if only in e.name]
        for module in self.modules:
            self.command.set_flags(module)

    def flags(self, module, source: str) -> list[str]:
        """The compiler's arguments for a source of a module."""
        includes = [*module.include_dirs, sysconfig.get_path("include")]
        warnings = ["-w"] if self.command.is_generated(source) else self.command.warnings(source)
        return [
            *(f"-I{path}" for path in includes),
            *(f"-D{name}={value}" for name, value in module.define_macros),
            *module.extra_compile_args,
            *warnings,
        ]


def zig(target: str, arguments: Sequence[str]) -> tuple[bool, str]:
    """Run the compiler; return whether it succeeded, and its messages."""
    done = subprocess.run([*ZIG, "-target", target, *arguments], capture_output=True, text=True, check=False)
    return not done.returncode, done.stderr.strip()


def unresolved(said: str) -> list[str] | None:
    """The undefined symbols that no library will provide; None if the linker failed for another reason."""
    missing = UNDEFINED.findall(said)
    return sorted({name for name in missing if not ELSEWHERE.match(name)}) if missing else None


class Check:
    """The modules of a build for one target.

    Args:
        build: what to compile.
        target: Zig's name of the target.
        optimize: the level of optimisation.
        verbose: whether to print files that compile.
    """

    def __init__(self, build: Build, target: str, optimize: str, verbose: bool) -> None:
        self.build, self.target, self.optimize, self.verbose = build, target, optimize, verbose
        self.files = 0
        self.failures: list[str] = []

    def run(self, jobs: int) -> bool:
        """Compile and link everything; return whether all of it succeeded."""
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(lambda module: self.module(module, Path(folder) / module.name), self.build.modules):
                pass
        print(f"{self.target}: {self.files} files compiled, {len(self.failures)} failures", flush=True)
        return not self.failures

    def module(self, module, folder: Path) -> None:
        """Compile the sources of a module, then link it."""
        folder.mkdir()
        objects = [str(folder / f"{number}.o") for number in range(len(module.sources))]
        compiled = [self.compile(module, source, to) for source, to in zip(module.sources, objects)]
        if not all(compiled):
            return
        done, said = zig(self.target, ["-shared", *objects, "-Wl,-z,defs", "-lm", "-o", str(folder / "module.so")])
        missing = [] if done else unresolved(said)
        if missing:
            self.fail(f"linking {module.name}", "missing " + ", ".join(missing))
        elif missing is None:
            self.fail(f"linking {module.name}", said)

    def compile(self, module, source: str, to: str) -> bool:
        arguments = [*self.build.flags(module, source), "-fPIC", self.optimize, "-c", source, "-o", to]
        done, said = zig(self.target, arguments)
        if not done:
            self.fail(source, said)
            return False
        self.files += 1
        if self.verbose:
            print(f"{self.target}: {source}", flush=True)
        return True

    def fail(self, what: str, why: str) -> None:
        self.failures.append(what)
        print(f"{self.target}: {what}: FAILED\n{why}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all of them")
    parser.add_argument("--only", default="", metavar="TEXT", help="only modules with this text in their names")
    parser.add_argument("--optimize", default="-O0", metavar="LEVEL", help="optimisation level; default: -O0")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once; default: all cores")
    parser.add_argument("-v", "--verbose", action="store_true", help="also print files that compile")
    options = parser.parse_args()
    build = Build(options.only)
    checks = [Check(build, target, options.optimize, options.verbose) for target in options.targets or TARGETS]
    passed = [check.run(options.jobs) for check in checks]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
