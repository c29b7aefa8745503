# Written by tools/derive.py
from typing import final

from typing_extensions import Buffer

from dynet_cy.memory.storage import Storage
from dynet_cy.parallel.collective import CollectiveReducer
from dynet_cy.parallel.shared import SharedCommunicator
from dynet_cy.train.interfaces import Reducer
from dynet_cy.train.trainer import Trainer

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
