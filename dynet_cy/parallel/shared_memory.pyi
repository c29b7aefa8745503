# Written by tools/derive.py
from typing import final

from typing_extensions import Buffer, Self

from dynet_cy.memory.storage import Storage
from dynet_cy.parallel.collective import CollectiveReducer
from dynet_cy.parallel.shared import SharedCommunicator
from dynet_cy.train.interfaces import Reducer
from dynet_cy.train.trainer import Trainer

def anonymous_memory() -> int:
    """A descriptor of shared memory without a name, of size 0 so far."""

class Board:
    """The shared memory of the processes of one machine."""

    @property
    def fd(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def parent(self) -> int: ...
    def __new__(cls, fd: int, size: int, rank: int = -1, parent: int = 0, create: bool = False) -> Self: ...
    def leave(self) -> None:
        """Note that an exception has ended a collective call of this process: all later ones are errors."""
    def barrier(self, what: str = "barrier") -> None:
        """Wait for all processes."""
    def gather(self, data: bytes, what: str = "gather") -> list[bytes]:
        """The bytes of all processes."""
    def region(self, size: int, with_children: bool = False) -> Buffer:
        """A part of the memory, filled with zeros, that all processes map; collective."""
    def note_file(self, name: str) -> None:
        """Tell the launcher which temporary file is being written, to be removed should this process die."""
    def note_raised(self) -> None:
        """Tell the launcher that the program of this process has ended with an exception; does nothing in a child."""
    def file_of(self, rank: int) -> str | None:
        """The temporary file that a process is writing, or None."""
    def has_raised(self, rank: int) -> bool:
        """Whether the program of a process has ended with an exception."""
    def ended(self, rank: int) -> str | None:
        """Note that a process has ended."""
    def waiting(self) -> tuple[float, str, list[int]] | None:
        """The processes that have not arrived."""

class SharedModel:
    """The memory that ranks share for one root collection, whatever its trainers."""

    storage: Storage
    plane_bytes: int
    region: Buffer
    def __init__(
        self, communicator: SharedCommunicator, storage: Storage, n_bytes: int, parts: int, with_children: bool
    ) -> None: ...
    def plane(self, part: int) -> Buffer:
        """The memory of one range."""

@final
class SharedReducer(CollectiveReducer):
    """Synchronous updates in shared memory."""

def shared(communicator: SharedCommunicator, trainer: Trainer, reduction: str) -> SharedReducer:
    """The reducer for synchronous updates by processes on one machine."""

ON_HOST: str

@final
class LockFreeReducer(Reducer):
    """Updates of one copy of the parameters by all ranks, without locks."""

def lock_free(communicator: SharedCommunicator, trainer: Trainer) -> LockFreeReducer:
    """Updates of one copy of parameters and state by all processes of a machine, without locks."""
