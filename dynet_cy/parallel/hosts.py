"""Shared memory among the processes of one host that MPI has started.

Unlike workers of the launcher, they do not inherit a descriptor. The first of them makes the memory, which has no name,
and passes its descriptor to the others through a socket that has no name in the file system either. So no file remains,
however the processes end.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any

from dynet_cy.parallel.board import Board, anonymous_memory
from dynet_cy.parallel.communicator import ParallelError
from dynet_cy.parallel.shared import SharedCommunicator

__all__ = ["share"]

PATIENCE = 60.0  # seconds to wait for the processes of the same host to ask for the descriptor


def share(local: Any, mode: str) -> SharedCommunicator:
    """The communicator of the processes of a communicator, which must be on one host.

    Raises:
        ParallelError: the descriptor cannot be passed on.
    """
    if local.rank == 0:
        fd = anonymous_memory()
        board = Board(fd, local.size, 0, os.getppid(), create=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.settimeout(PATIENCE)
            address = f"\0dynet_cy-{secrets.token_hex(16)}"
            listener.bind(address)
            listener.listen(local.size)
            local.bcast(address)
            try:
                for _ in range(local.size - 1):
                    connection, _ = listener.accept()
                    with connection:
                        socket.send_fds(connection, [b"-"], [fd])
            except OSError as error:
                raise ParallelError(
                    f"a process of this host has not come for the shared memory ({error}); if processes of different "
                    "hosts have taken each other for neighbours, give each host a name of its own in DYNET_CY_HOST"
                ) from error
    else:
        address = local.bcast(None)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE)
            try:
                connection.connect(address)
                _, (fd,), _, _ = socket.recv_fds(connection, 1, 1)
            except (OSError, ValueError) as error:
                raise ParallelError(
                    f"cannot get the shared memory from a process of the same host ({error}); give each host, or each "
                    "container, a name of its own in DYNET_CY_HOST"
                ) from error
        board = Board(fd, local.size, local.rank, os.getppid())
    return SharedCommunicator(board, mode)
