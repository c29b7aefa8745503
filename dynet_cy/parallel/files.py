"""Files in jobs of several processes: blocks that all ranks leave together, and files of rank 0."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any, Union

from safetensors import SafetensorError, safe_open

from dynet_cy.parallel.communicator import Communicator

__all__ = ["FileName", "everywhere", "together"]

FileName = Union[str, "os.PathLike[str]"]


@contextlib.contextmanager
def together(communicator: Communicator) -> Iterator[None]:
    """A block that all ranks leave together; if one raises, all raise."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    failures = communicator.gather(failure and f"{type(failure).__name__}: {failure}", "checkpoint")
    if failure is not None:
        raise failure
    for rank, text in enumerate(failures):
        if text is not None:
            raise RuntimeError(f"rank {rank} has failed: {text}")


@contextlib.contextmanager
def everywhere(path: FileName, communicator: Communicator) -> Iterator[FileName]:
    """The name of a file with the contents of rank 0's file `path`: the file itself, or a copy."""
    if communicator.size == 1:
        yield path
        return
    identities = communicator.gather(_identity(path), "checkpoint")
    if identities[0] is None or all(identity == identities[0] for identity in identities):
        yield path
        return
    content = b""
    if communicator.rank == 0:
        with open(path, "rb") as file:
            content = file.read()
    content = communicator.gather_bytes(content, "checkpoint")[0]
    if identities[communicator.rank] == identities[0]:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as copied:
        copied.write(content)
        copied.flush()
        yield copied.name


def _identity(path: FileName) -> Any:
    """The identity of a checkpoint file; None if there is no such file."""
    try:
        size = os.stat(path).st_size
        with safe_open(os.fspath(path), "numpy") as file:
            return size, file.metadata()
    except (OSError, SafetensorError):
        return None
