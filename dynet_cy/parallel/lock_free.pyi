from typing import final

from dynet_cy.parallel.shared import SharedCommunicator
from dynet_cy.train import Trainer
from dynet_cy.train.interfaces import Reducer

ON_HOST: str

@final
class LockFreeReducer(Reducer): ...

def lock_free(communicator: SharedCommunicator, trainer: Trainer) -> LockFreeReducer: ...
