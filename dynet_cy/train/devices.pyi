from typing import final

from dynet_cy.train.interfaces import Backend
from dynet_cy.train.trainer import Trainer

@final
class Part: ...

class DevicesBackend(Backend): ...

def refuse_devices(trainer: Trainer, reason: str | None) -> None: ...
