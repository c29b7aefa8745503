"""Runs jobs with the launcher, and checks that they leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PROGRAMS = Path(__file__).resolve().parent / "programs"
TOKEN = "DYNET_CY_TEST_TOKEN"


@dataclass
class Result:
    """The result of a job."""

    code: int
    out: str
    err: str


def processes_with(token: str) -> list[int]:
    """The processes that have this token in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"{TOKEN}={token}".encode() in environment and state != "Z":
            found.append(int(folder.name))
    return found


def shared_memory() -> set[str]:
    """Names of shared memory that dynet_cy, multiprocessing or an MPI library may have created."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    makers = ("psm_", "mpich", "ucx", "sm_segment", "vader")
    return {name for name in names if "dynet" in name or name.startswith(makers)}


def left_in_shared_memory(before: set[str]) -> set[str]:
    """Names that are new, stay, and belong to no living process: a job beside the tests has its own."""
    left = shared_memory() - before
    until = time.monotonic() + 120
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left &= shared_memory() - mapped_in_shared_memory()
    return left


def mapped_in_shared_memory() -> set[str]:
    """Names of shared memory that a living process has mapped."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found |= set(re.findall(r" /dev/shm/(\S+)", file.read_text()))
    return found


def launch(
    folder: Path,
    program: str | Path,
    *args: object,
    n: int = 2,
    options: Sequence[str] = (),
    during: Callable[[subprocess.Popen[str], str], None] | None = None,
    timeout: float = 600,
    variables: dict[str, str] | None = None,
) -> Result:
    """Run a job in a folder, and check that it leaves no process, shared memory or temporary file behind.

    Args:
        folder: where it runs; its TMPDIR is inside.
        program: a file of `programs`, or a path.
        args: its arguments.
        n: number of processes.
        options: options of the launcher.
        during: called with the process of the launcher and the token in the environment of its workers.
        timeout: seconds after which the test fails; a job that hangs takes longer.
        variables: further environment variables.
    """
    token = secrets.token_hex(8)
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    before = shared_memory()
    with subprocess.Popen(
        [sys.executable, "-m", "dynet_cy.launch", "-n", str(n), *options, str(PROGRAMS / program), *map(str, args)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, TOKEN: token, "TMPDIR": str(temporary), **(variables or {})},
    ) as launcher:
        try:
            if during is not None:
                during(launcher, token)
            out, err = launcher.communicate(timeout=timeout)
        finally:
            launcher.kill()
    until = time.monotonic() + 120
    while processes_with(token) and time.monotonic() < until:
        time.sleep(0.02)
    left = processes_with(token)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes are left\n{out}\n{err}"
    assert not list(temporary.iterdir()), f"files are left\n{out}\n{err}"
    assert not left_in_shared_memory(before)
    return Result(launcher.returncode, out, err)


def arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays in a file."""
    with np.load(path) as file:
        return dict(file)
