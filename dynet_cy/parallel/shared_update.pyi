from typing import final

from typing_extensions import Buffer

from dynet_cy.memory.storage import Storage
from dynet_cy.parallel.collective import CollectiveReducer
from dynet_cy.parallel.shared import SharedCommunicator
from dynet_cy.train import Trainer
from dynet_cy.train.interfaces import Reducer

class SharedModel:
    storage: Storage
    plane_bytes: int
    region: Buffer
    def __init__(
        self, communicator: SharedCommunicator, storage: Storage, n_bytes: int, parts: int, with_children: bool
    ) -> None: ...
    def plane(self, part: int) -> Buffer: ...

ADDED_ON_DEVICE: str

@final
class SharedReducer(CollectiveReducer): ...

def shared(communicator: SharedCommunicator, trainer: Trainer, reduction: str) -> SharedReducer: ...

ON_HOST: str

@final
class LockFreeReducer(Reducer): ...

def lock_free(communicator: SharedCommunicator, trainer: Trainer) -> LockFreeReducer: ...
