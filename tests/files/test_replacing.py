"""Files that cannot be written: an error that names the file, the old file as it was, nothing left behind.

Every function that writes a file is in `WRITERS`.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import inspect
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

import dynet_cy as dy
from dynet_cy import curves, profiling
from dynet_cy.files.replacing import replacing
from dynet_cy.gpu import compiler
from dynet_cy.gpu.driver import GpuUnavailable
from dynet_cy.onnx import exporting

PACKAGE = Path(inspect.getfile(dy)).parent


# ---- what writes files


def model() -> dy.ParameterCollection:
    made = dy.ParameterCollection()
    made.add_parameters((40, 40), name="W")
    made.add_lookup_parameters((5, 4), name="E")
    return made


def profile() -> profiling.Profile:
    with profiling.measure(timeline=True) as measured:
        for _ in range(20):
            dy.tanh(dy.inputVector([1, 2])).value()
    return measured


def joined(path: Path) -> None:
    part = path.parent.parent / "part.json"
    if not part.exists():
        profile().save_timeline(part)
    profiling.join_timelines(path, part)


def picture(path: Path) -> None:
    pytest.importorskip("matplotlib")
    with curves.Curves(picture=path) as drawn:
        drawn.add(1, loss=1.0)
        drawn.add(2, loss=0.5)


def exported(path: Path) -> None:
    pytest.importorskip("onnx.checker")  # tests/onnx is a package "onnx" too
    w = model().parameters_list()[0]
    dy.onnx.export(lambda x: w * x, {"x": dy.onnx.Floats(40)}, path)


def exported_with_data(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "MOST_BYTES", 1000)
        exported(path)


def dumped(path: Path) -> None:
    dy.renew_cg()
    dy.inputVector(range(500)).value()
    dy.dump_cg(path)


WRITERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "ParameterCollection.save": (lambda path: model().save(path), ""),
    "ParameterCollection.save, append": (lambda path: model().save(path, append=True), ""),
    "Parameters.save": (lambda path: model().parameters_list()[0].save(path), ""),
    "LookupParameters.save": (lambda path: model().lookup_parameters_list()[0].save(path), ""),
    "save": (lambda path: dy.save(path.with_suffix(""), model().parameters_list()), ".data"),
    "save_safetensors": (lambda path: dy.save_safetensors(path, model()), ""),
    "save_checkpoint": (lambda path: dy.parallel.save_checkpoint(path, model()), ""),
    "EarlyStopping": (lambda path: dy.EarlyStopping(model(), path=path).report(0.5), ""),
    "onnx.export": (exported, ".onnx"),
    "onnx.export, two files": (exported_with_data, ".onnx"),
    "Curves": (picture, ".svg"),
    "save_report": (lambda path: profile().save_report(path), ".html"),
    "save_timeline": (lambda path: profile().save_timeline(path), ".json"),
    "join_timelines": (joined, ".json.gz"),
    "Drawing.save": (lambda path: dy.draw(dy.tanh(dy.inputVector([1, 2]))).save(path), ".svg"),
    "dump_cg": (dumped, ""),
}
# Functions of the standard library and others that write files, and the modules that may call them.
OPENERS = {"write_text", "write_bytes", "mkstemp", "mkdtemp", "NamedTemporaryFile", "TemporaryDirectory"}
MAY_OPEN = {
    "files/replacing.py",  # what all others use
    "parallel/resume.py",  # a temporary copy of a checkpoint
    "parallel/job.py",  # logs, new files that grow
    "loggers/lines.py",  # records of a training, files that grow by whole lines
    "loggers/media.py",  # sounds in memory
}


# ---- situations


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Capabilities(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


@contextlib.contextmanager
def permissions_count() -> Iterator[None]:
    """Make this thread obey the permissions of files, which root does not."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    own = (Capabilities * 2)()
    if os.geteuid() != 0:
        yield
        return
    assert libc.capget(header, own) == 0
    before = own[0].effective
    own[0].effective &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, own) == 0
    try:
        yield
    finally:
        own[0].effective = before
        assert libc.capset(header, own) == 0


@contextlib.contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(bits)
    try:
        with permissions_count():
            yield
    finally:
        path.chmod(before)


@contextlib.contextmanager
def full(most: int = 100) -> Iterator[None]:
    """Let no file grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Callable[[Path], Any], Path]:
    """A function that writes files, and one that it has already written in a folder of its own."""
    write, ending = WRITERS[request.param]
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / f"out{ending}"
    write(path)
    assert path.stat().st_size > 100
    return write, path


def refused(write: Callable[[Path], Any], path: Path, error: type[OSError] = PermissionError) -> None:
    before = content(path.parent)
    with pytest.raises(error) as caught:
        write(path)
    # Of a pair of files, either may be named.
    assert str(path.with_suffix("")) in str(caught.value)
    assert "tmp" not in Path(str(caught.value.filename)).name
    assert content(path.parent) == before


def test_read_only_folder(writer: tuple[Callable[[Path], Any], Path]) -> None:
    write, path = writer
    with mode(path.parent, 0o555):
        refused(write, path)
        refused(write, path.with_name(f"new{path.suffix}"))
    write(path)


def test_read_only_file(writer: tuple[Callable[[Path], Any], Path]) -> None:
    """Write protection of a file counts, although the file is replaced and not written."""
    write, path = writer
    with mode(path, 0o444):
        refused(write, path)
    write(path)


def test_full_disk(writer: tuple[Callable[[Path], Any], Path]) -> None:
    write, path = writer
    before = content(path.parent)
    with full(), pytest.raises(OSError, match="File too large") as caught:
        write(path)
    assert str(path.with_suffix("")) in str(caught.value)
    assert content(path.parent) == before
    write(path)


def test_no_folder(writer: tuple[Callable[[Path], Any], Path]) -> None:
    write, path = writer
    refused(write, path.parent / "none" / path.name, FileNotFoundError)
    refused(write, path / path.name, NotADirectoryError)


def test_every_file_is_replaced_whole() -> None:
    """No module opens a file for writing but `replacing`."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        for call in calls if name not in MAY_OPEN else ():
            function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
            writes = any(isinstance(m, ast.Constant) and set(str(m.value)) & set("wax+") for m in modes)
            if function in OPENERS or (function == "open" and writes):
                found.append(f"{name}:{call.lineno}: {function}")
    assert not found


def test_read_only_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"old")
    with mode(tmp_path, 0o555), pytest.raises(PermissionError, match="beside it, so its folder must be writable"):
        with replacing(tmp_path / "m") as file:
            file.write(b"new")
    assert (tmp_path / "m").read_bytes() == b"old"


def obey_permissions() -> None:
    """In a new process, before its program starts: root cannot ignore permissions any more."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities of Linux")
@pytest.mark.parametrize("folder", ["", "logs"])
def test_launcher_without_logs(tmp_path: Path, folder: str) -> None:
    """The launcher says that it cannot write its logs, and leaves no process."""
    program = tmp_path / "program.py"
    program.write_text("print('started')\nimport time\ntime.sleep(10_000)\n")
    command = [sys.executable, "-m", "dynet_cy.launch", "-n", "2", "--log-dir", str(tmp_path / folder), str(program)]
    with mode(tmp_path, 0o555):
        done = subprocess.run(
            command, preexec_fn=obey_permissions, capture_output=True, text=True, timeout=600, check=False
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("dynet_cy.launch: the processes cannot be started: [Errno 13] Permission denied: ")
    assert str(tmp_path / folder) in line


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path: Path) -> None:
    """A folder that cannot be written, or a disk that is full, is an error; nothing waits."""
    pytest.importorskip("tensorboardX")
    folder = tmp_path / "runs"
    folder.mkdir()
    with mode(folder, 0o555), pytest.raises(PermissionError, match=str(folder)):
        curves.Curves(tensorboard=folder)
    drawn = curves.Curves(tensorboard=folder)
    many = {f"loss {i}": 1.0 for i in range(10_000)}
    with full(3000), pytest.raises(OSError, match=f"File too large: '{folder}'"):
        drawn.add(1, **many)
    drawn.add(2, loss=1.0)
    drawn.close()


def test_early_stopping_whose_file_cannot_be_written(tmp_path: Path) -> None:
    """The best value stays that of the file, so that the same value is better again."""
    stopping = dy.EarlyStopping(model(), path=tmp_path / "best")
    assert stopping.report(0.5)
    with full(), pytest.raises(OSError, match="best"):
        stopping.report(0.7)
    assert (stopping.best, stopping.best_at) == (0.5, 1)
    assert stopping.report(0.7)
    assert (stopping.best, stopping.best_at) == (0.7, 2)


@pytest.mark.parametrize("home", ["read-only", "none"])
def test_kernels_of_a_gpu_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    """Kernels are compiled although they cannot be kept."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DYNET_CY_CUDA_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home if home == "none" else lambda: tmp_path)
    monkeypatch.setattr(compiler, "nvcc", lambda: "nvcc")
    monkeypatch.setattr(compiler, "_version", lambda compiler: "1")
    monkeypatch.setattr(compiler, "_compile", lambda *_: b"code")
    with mode(tmp_path, 0o555):
        assert compiler.cubin(compiler.module_names()[0], "sm_90") == b"code"
        monkeypatch.setattr(compiler, "nvcc", lambda: None)
        with pytest.raises(GpuUnavailable, match="kernels must be compiled and there is no nvcc"):
            compiler.cubin(compiler.module_names()[0], "sm_90")
    assert not list(tmp_path.iterdir())
