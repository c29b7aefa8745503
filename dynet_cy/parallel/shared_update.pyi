from typing import final

from dynet_cy.parallel.collective import CollectiveReducer
from dynet_cy.parallel.shared import SharedCommunicator
from dynet_cy.train import Trainer

ADDED_ON_DEVICE: str

@final
class SharedReducer(CollectiveReducer): ...

def shared(communicator: SharedCommunicator, trainer: Trainer, reduction: str) -> SharedReducer: ...
