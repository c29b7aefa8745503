"""Build of dynet_cy: every ``dynet_cy/**/*.pyx`` is one extension module.

Metadata is in pyproject.toml. Environment variables read here:

``DYNET_CY_WERROR=1``    warnings of Cython and of the C compiler are errors (CI sets it)
``DYNET_CY_SANITIZE=1``  the address and undefined-behaviour sanitizers; ``=thread``: the thread sanitizer. Kernels are
                         compiled with -O1 then, and Cython's C with -O0, in a quarter of the time of -O1
``DYNET_CY_OPT=-O1``     optimisation level, instead of -O3, -O2 or -O1 by module
``DYNET_CY_JOBS=N``      processes that Cython and the C compiler may use (default: all cores, at most 8)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import shutil
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.modified import newer_group

HERE = Path(__file__).resolve().parent
PACKAGE = "dynet_cy"
CYTHON_DIR = "build/cython"  # where the generated C goes
SHIPPED_TREES = ("include", "cuda")  # top-level folders copied into the package

# Further sources and flags of single extensions.
EXTRA_SOURCES = {
    "dynet_cy.kernels.kernels": [
        f"dynet_cy/kernels/native/{part}.c"
        for part in ("kernels", "names", "baseline", "neon", "avx2", "avx512", "avx512bf16")
    ],
    "dynet_cy.kernels.pool": ["dynet_cy/kernels/native/pool.c"],
}
USES_BLAS = {"dynet_cy.kernels.kernels", "dynet_cy.ops.products"}
# A frame of a fiber stops what unwinds the stack of its thread when the process ends.
UNWINDS = {"dynet_cy.serving.fibers"}
# Square roots and rounding become vector instructions only where they need not report errors, in errno or by a trap.
MATHS = ["-fno-math-errno", "-fno-trapping-math"]

# How the C that Cython writes is optimised, by package or module; elsewhere -O2, which takes 70 % of the time of -O3.
# Some ops have loops over numbers, of which -O3 makes vector instructions, and -O3 makes nodes in 4 ns less. Modules
# that call devices and other processes, keep collections or report, and do nothing for each node or parameter of an
# update, compile with -O1 in 60 % of the time of -O2.
LEVELS = {"graph": "-O3", "kernels": "-O3", "ops": "-O3", "gpu": "-O1", "parallel": "-O1", "watch": "-O1"}
for seldom in ("memory/bridge", "model/collection"):
    LEVELS[seldom] = "-O1"

SANITIZERS = {
    "1": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}

DIRECTIVES = {
    "language_level": 3,
    "binding": False,
    # For builtin functions. Those of classes that are not `cdef` have signatures themselves, which help() would show
    # twice: such classes are `@cython.embedsignature(False)`.
    "embedsignature": True,
    "embedsignature.format": "clinic",
    # Kernels divide as C does: IEEE results, and no exception in code that cannot raise one.
    "cdivision": True,
    # Without the GIL, other locks guard what it would guard: docs/platforms.md.
    "freethreading_compatible": True,
    # Annotations are for stubs (tools/derive.py); they declare and check nothing.
    "annotation_typing": False,
}

WERROR = ["-Wall", "-Wextra", "-Werror"]
# The C that Cython writes is not clean under -Wextra: slots ignore parameters, helpers go unused.
WERROR_GENERATED = [
    "-Wno-unused-parameter",
    "-Wno-unused-function",
    "-Wno-unused-const-variable",
    "-Wno-missing-field-initializers",
    "-Wno-cast-function-type",
]

NEEDS_POSIX = (
    "dynet_cy cannot be built on this system: it needs POSIX threads, mmap and signals. "
    "On Windows, install it in WSL 2, which is Linux (docs/platforms.md)."
)


def switched_on(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def jobs() -> int:
    jobs = os.environ.get("DYNET_CY_JOBS")
    return int(jobs) if jobs else min(os.cpu_count() or 1, 8)


def relative(paths) -> list[str]:
    return sorted(p.relative_to(HERE).as_posix() for p in paths)


def derive() -> None:
    """Write what follows from the rows of ops: nothing where the files are in step, as in a release."""
    runpy.run_path(str(HERE / "tools" / "derive.py"))["main"](check=False)


def extensions() -> list[Extension]:
    derive()  # it may write modules
    found = []
    for source in relative((HERE / PACKAGE).rglob("*.pyx")):
        name = source[: -len(".pyx")].replace("/", ".")
        extra = [s for s in EXTRA_SOURCES.get(name, []) if (HERE / s).exists()]
        found.append(Extension(name, [source, *extra]))
    return found


class BuildExt(build_ext):
    """Runs Cython over modules, and compiles what it has written, side by side."""

    def initialize_options(self):
        super().initialize_options()
        self.parallel = jobs()

    def run(self):
        if not self.extensions:
            return
        self.pyx = {}
        for ext in self.extensions:
            source = ext.sources[0]
            ext.sources[0] = self.generated(source)
            if self.force or self.is_stale(source):
                self.pyx[ext.sources[0]] = source
            self.set_flags(ext)
        super().run()

    @staticmethod
    def generated(source: str) -> str:
        """The path of the C generated from a .pyx."""
        return Path(CYTHON_DIR, source).with_suffix(".c").as_posix()

    @classmethod
    def is_stale(cls, source: str) -> bool:
        """Whether the C of a .pyx is missing, older than its sources, or was made by another Cython.

        `cythonize` would look at the age of Cython's own files too, which pip has just installed for this build: each
        `pip install .` would make and compile all C again.
        """
        import Cython
        from Cython.Build.Dependencies import create_dependency_tree

        made = HERE / cls.generated(source)
        if not made.exists():
            return True
        with made.open(encoding="utf-8") as lines:
            if next(lines, "").strip() != f"/* Generated by Cython {Cython.__version__} */":
                return True
        read = (HERE / path for path in create_dependency_tree().all_dependencies(source))
        return newer_group([source, *(str(path) for path in read if path.is_relative_to(HERE / PACKAGE))], str(made))

    def set_flags(self, ext: Extension):
        ext.include_dirs += ["include", f"{PACKAGE}/kernels/native", *self.package_dirs(ext)]
        if ext.name in USES_BLAS:
            self.link_blas(ext)
        if ext.name == "dynet_cy.kernels.kernels":
            flags = [*self.sanitizer_flags(), os.environ.get("DYNET_CY_OPT", "")]
            ext.define_macros += [("DY_BUILD_FLAGS", f'"{" ".join(flags).strip()}"')]
        # A wheel is compressed itself. Compressed strings would be unpacked at each import, which would load zlib.
        ext.define_macros += [("CYTHON_COMPRESS_STRINGS", "0")]
        ext.extra_compile_args += self.flags()
        if ext.name in UNWINDS:
            ext.extra_compile_args += ["-fexceptions"]
        ext.extra_link_args += ["-pthread", *self.sanitizer_flags()]
        if sys.platform.startswith("linux"):
            ext.libraries += ["m"]
            if not self.stays() and not self.sanitizer_flags():
                ext.extra_link_args += ["-Wl,-s"]  # names of functions that only debuggers read: 8 % of a wheel

    @staticmethod
    def package_dirs(ext: Extension) -> list[str]:
        """The folder of the .pyx, so that `cdef extern from "x.h"` finds a header beside it."""
        return ["/".join(ext.name.split(".")[:-1])]

    @staticmethod
    def sanitizer_flags() -> list[str]:
        if not switched_on("DYNET_CY_SANITIZE"):
            return []
        which = os.environ["DYNET_CY_SANITIZE"]
        if which not in SANITIZERS:
            raise SystemExit(f"DYNET_CY_SANITIZE={which}: it is one of {', '.join(SANITIZERS)}")
        return SANITIZERS[which]

    def flags(self) -> list[str]:
        sanitize = self.sanitizer_flags()
        flags = ["-pthread", *MATHS]
        flags += [*sanitize, "-g1", "-fno-omit-frame-pointer"] if sanitize else ["-g0"]
        # Only inlined functions take vector types as arguments, so their calling convention does not matter.
        flags += ["-Wno-psabi"]
        return flags

    def stays(self) -> bool:
        """Whether modules stay in the source tree."""
        return self.inplace or getattr(self, "editable_mode", False)

    def link_blas(self, ext: Extension):
        import scipy_openblas32

        ext.libraries += [scipy_openblas32.get_library()]
        ext.library_dirs += [scipy_openblas32.get_lib_dir()]
        origin = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
        up = "/".join([".."] * (ext.name.count(".")))
        rpaths = [f"{origin}/{up}/scipy_openblas32/lib"]
        if self.stays():
            # OpenBLAS is in the environment.
            rpaths.append(f"{sysconfig.get_path('platlib')}/scipy_openblas32/lib")
        ext.extra_link_args += [f"-Wl,-rpath,{r}" for r in rpaths]

    def build_extensions(self):
        self.compile_all()
        super().build_extensions()

    def compile_all(self):
        """Compile the sources of all modules in parallel, the slowest first, before linking."""
        tasks = [(ext, source) for ext in self.extensions for source in ext.sources]
        tasks.sort(key=lambda task: self.cost(task[1]), reverse=True)
        begun, compiled = time.monotonic(), 0
        with self.cython_processes() as self.cython, ThreadPoolExecutor(self.parallel) as pool:
            for done in as_completed([pool.submit(self.compile_one, *task) for task in tasks]):
                source = done.result()
                if source:  # `pip install -v` shows these lines
                    compiled += 1
                    seconds = time.monotonic() - begun
                    print(f"dynet_cy: {compiled} of {len(tasks)} compiled, {seconds:.0f} s: {source}", flush=True)
        # The object files exist already, so setuptools has nothing to compile, and links what has changed.
        for ext in self.extensions:
            ext.depends = self.objects(ext.sources)
        self.compiler.compile = lambda sources, output_dir=None, **_: self.objects(sources)

    def cython_processes(self):
        """Processes that run Cython, one for each thread; nothing where it has nothing to do.

        They are forked before the threads start: nothing is imported twice, and they have the options set here.
        """
        if not self.pyx:
            return contextlib.nullcontext()
        import Cython.Build.Dependencies
        import Cython.Compiler.Main

        Cython.Compiler.Options.warning_errors = switched_on("DYNET_CY_WERROR")
        return multiprocessing.get_context("fork").Pool(min(self.parallel, len(self.pyx)))

    def run_cython(self, ext: Extension, made: str):
        from Cython.Build.Dependencies import cythonize_one
        from Cython.Compiler.Main import CompilationOptions

        Path(made).parent.mkdir(parents=True, exist_ok=True)
        options = CompilationOptions(compiler_directives=DIRECTIVES, include_path=["."])
        self.cython.apply(cythonize_one, (self.pyx[made], made), {"options": options, "full_module_name": ext.name})

    def objects(self, sources: list[str]) -> list[str]:
        return self.compiler.object_filenames(sources, output_dir=self.build_temp)

    def compile_one(self, ext: Extension, source: str) -> str:
        """Compile a source, and return what it was made from; "" if there was nothing to do."""
        if source in self.pyx:
            self.run_cython(ext, source)
        (made,) = self.objects([source])
        if not self.force and not newer_group(self.read_for(source, made), made, missing="newer"):
            return ""
        self.compiler.compile(
            [source],
            output_dir=self.build_temp,
            macros=ext.define_macros,
            include_dirs=ext.include_dirs,
            debug=self.debug,
            extra_postargs=["-MMD", *self.level(source), *ext.extra_compile_args, *self.warnings(source)],
        )
        return self.pyx.get(source, source)

    @staticmethod
    def read_for(source: str, made: str) -> list[str]:
        """What the compiler has read of this tree for an object, which it has noted beside it (-MMD)."""
        note = Path(made).with_suffix(".d")
        if not note.exists():
            return [str(note)]  # missing: the object is to be made
        read = note.read_text(encoding="utf-8").replace("\\\n", " ").split()[1:]
        return [source, *(path for path in read if not os.path.isabs(path))]

    @staticmethod
    def is_generated(source: str) -> bool:
        return Path(source).as_posix().startswith(CYTHON_DIR)

    def cost(self, source: str) -> tuple[bool, int]:
        """The sort key of sources: kernels take longest; modules take time in proportion to their size."""
        return not self.is_generated(source), Path(self.pyx.get(source, source)).stat().st_size

    @classmethod
    def level(cls, source: str) -> list[str]:
        generated = cls.is_generated(source)
        if cls.sanitizer_flags():
            usual = "-O0" if generated else "-O1"
        elif generated:
            package, module = Path(source).parent.name, Path(source).stem
            usual = LEVELS.get(f"{package}/{module}") or LEVELS.get(package, "-O2")
        else:
            usual = "-O3"
        return [os.environ.get("DYNET_CY_OPT", usual)]

    @classmethod
    def warnings(cls, source: str) -> list[str]:
        """All warnings for C written by hand, fewer for C written by Cython."""
        if not switched_on("DYNET_CY_WERROR"):
            return []
        return WERROR + (WERROR_GENERATED if cls.is_generated(source) else [])


class BuildPy(build_py):
    """Also copies include/ and cuda/ into the package, where installed code finds them."""

    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            return
        for tree in SHIPPED_TREES:
            shutil.copytree(HERE / tree, Path(self.build_lib) / PACKAGE / tree, dirs_exist_ok=True)

    def get_outputs(self, include_bytecode=1):
        outputs = super().get_outputs(include_bytecode)
        if getattr(self, "editable_mode", False):
            return outputs
        trees = [p for tree in SHIPPED_TREES for p in (HERE / tree).rglob("*") if p.is_file()]
        return outputs + [str(Path(self.build_lib) / PACKAGE / p.relative_to(HERE)) for p in trees]


def main():
    if os.name != "posix":
        raise SystemExit(NEEDS_POSIX)
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExt, "build_py": BuildPy})


if __name__ == "__main__":  # tests import it
    main()
