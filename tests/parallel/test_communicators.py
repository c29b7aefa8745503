"""What communicators sum, and errors instead of memory that is overwritten if sizes do not fit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.parallel import mpi
from dynet_cy.parallel.collective import allreduce
from dynet_cy.parallel.communicator import Communicator, LocalCommunicator
from dynet_cy.parallel.shared import SharedCommunicator
from dynet_cy.parallel.shared_memory import Board, anonymous_memory

SHAPES = ((4,), (90, 100), (3,), (300, 300), (0,), (2, 2))
"""Planes grow piece by piece, so adjacent parameters may be far from each other in memory."""
LENGTHS = [90000, 4 + 9000 + 3 + 0 + 4]
"""Small parameters are summed together."""
NORM = np.sqrt(16 * sum(LENGTHS) + 4 * 4)
"""All summed gradients are 4, except those of the two rows of the table, which are 2."""


class Doubling(LocalCommunicator):
    """As if another rank had the same gradients."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def sum_floats(self, floats: Any) -> None:
        self.lengths.append(len(floats))
        floats *= 2


def step(communicator: Communicator, freeze: bool = False) -> tuple[dy.Trainer, list[dy.Parameters]]:
    """One update of parameters that are all 1."""
    m = dy.ParameterCollection()
    parameters = [m.add_parameters(shape, init=1.0) for shape in SHAPES]
    table = m.add_lookup_parameters((5, 2), init=1.0)
    trainer = dy.SimpleSGDTrainer(m, 0.1)
    trainer.set_clip_threshold(1e6)  # so that the norm is computed
    trainer._reducer = allreduce(communicator, trainer, "sum")
    dy.renew_cg()
    dy.esum([dy.squared_norm(x) for x in (*parameters, table[1], table[3])]).backward()
    if freeze:
        trainer.update_subset([1, 2], [])
    else:
        trainer.update()
    return trainer, parameters


def test_only_gradients_are_summed() -> None:
    communicator = Doubling()
    trainer, parameters = step(communicator)
    assert communicator.lengths == LENGTHS
    assert trainer.gradient_norm == pytest.approx(NORM)
    for x in parameters:
        np.testing.assert_allclose(x.as_array(), 0.6, rtol=1e-6)


def test_only_gradients_are_summed_for_a_norm() -> None:
    """Parameters that are not updated keep their gradients, which count in the norm."""
    communicator = Doubling()
    trainer, parameters = step(communicator, freeze=True)
    assert communicator.lengths == LENGTHS
    assert trainer.gradient_norm == pytest.approx(NORM)
    for k, x in enumerate(parameters):
        np.testing.assert_allclose(x.as_array(), 0.6 if k in (1, 2) else 1.0, rtol=1e-6)
        np.testing.assert_array_equal(x.grad_as_array(), 0.0 if k in (1, 2) else 2.0)


@pytest.fixture(params=["local", "shared"])
def communicator(request: pytest.FixtureRequest) -> Iterator[Communicator]:
    if request.param == "local":
        yield LocalCommunicator()
    else:
        fd = anonymous_memory()
        yield SharedCommunicator(Board(fd, 1, 0, create=True))
        os.close(fd)


def read_only() -> np.ndarray:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("method", ["sum_floats", "broadcast_floats"])
@pytest.mark.parametrize(
    ("floats", "error", "words"),
    [
        (np.zeros(4), TypeError, "a float32 array is needed, not float64"),
        ([1.0], TypeError, "a float32 array is needed, not list"),
        (np.zeros((2, 2), np.float32), ValueError, r"one axis is needed, not one of shape \(2, 2\)"),
        (np.zeros(4, np.float32)[::2], ValueError, r"strides \(8,\)"),
        (read_only(), ValueError, "that is read-only"),
    ],
)
def test_arrays_that_cannot_be_changed(
    communicator: Communicator, method: str, floats: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"{method}: .*{words}"):
        getattr(communicator, method)(floats)


class Short(LocalCommunicator):
    """Loses most of what it sends."""

    def gather_bytes(self, data: bytes, what: str = "gather") -> list[bytes]:
        return [data[:4]]


def test_headers_that_are_too_short() -> None:
    with pytest.raises(dy.parallel.ParallelError, match="rank 0 does not update the 7 parameters and tables of rank 0"):
        step(Short())


class Far(LocalCommunicator):
    """Returns rows that the table does not have."""

    def sum_rows(self, rows: Any, values: Any, n_rows: int) -> Any:
        return rows + n_rows, values


class Narrow(LocalCommunicator):
    """Returns a part of each row."""

    def sum_rows(self, rows: Any, values: Any, n_rows: int) -> Any:
        return rows, values[:, :1]


@pytest.mark.parametrize(("kind", "words"), [(Far, "up to 8 do not fit"), (Narrow, r"sums of shape \(2, 1\)")])
def test_rows_that_do_not_fit(kind: type[Communicator], words: str) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__}.sum_rows: .*{words}.* a table of 5 rows of 2 numbers"):
        step(kind())


class Host:
    """What `share` uses of an MPI communicator of one host: that of the second of two processes."""

    rank, size = 1, 2

    def __init__(self, place: Any) -> None:
        self.place = place

    def bcast(self, place: Any) -> Any:
        return self.place

    def allgather(self, own: str) -> list[str]:
        return ["", own]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_memory_that_the_first_process_of_a_host_has_made() -> None:
    """Another host may have the same process ids and descriptors: the place alone is not trusted."""
    fds = [anonymous_memory(), anonymous_memory()]
    board = Board(fds[0], 2, 0, 0, create=True)
    name, identity = f"/proc/self/fd/{fds[0]}", mpi._identity(fds[0])
    assert mpi.share(Host((name, identity)), "sync").rank == 1
    assert board.size == 2
    for wrong in (name + "0", f"/proc/self/fd/{fds[1]}", "/dev/null"):
        with pytest.raises(dy.parallel.ParallelError, match="a name of its own in DYNET_CY_HOST"):
            mpi.share(Host((wrong, identity)), "sync")
    for fd in fds:
        os.close(fd)
