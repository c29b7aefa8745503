from typing import final

from typing_extensions import Buffer

from dynet_cy.memory.storage import Storage
from dynet_cy.parallel.shared import SharedCommunicator
from dynet_cy.parallel.steps import CollectiveUpdate
from dynet_cy.train.trainers import Stepper, Trainer

class SharedModel:
    storage: Storage
    plane_bytes: int
    region: Buffer
    def __init__(self, communicator: SharedCommunicator, storage: Storage, parts: int, with_children: bool) -> None: ...
    def plane(self, part: int) -> Buffer: ...

@final
class SharedStepper(CollectiveUpdate): ...

@final
class Hogwild(Stepper): ...

def together(communicator: SharedCommunicator, trainer: Trainer, reduction: str) -> Stepper: ...
def hogwild(communicator: SharedCommunicator, trainer: Trainer) -> Stepper: ...
