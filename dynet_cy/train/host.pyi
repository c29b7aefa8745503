from typing import final

from typing_extensions import Self

from dynet_cy.memory.storage import Change
from dynet_cy.train.interfaces import Backend
from dynet_cy.train.python_trainer import PythonTrainer

@final
class HostUpdate(Change): ...

@final
class HostAxpby(Change): ...

class HostBackend(Backend): ...

@final
class StepChange(Change): ...

class PythonBackend(HostBackend):
    def __new__(cls, trainer: PythonTrainer) -> Self: ...
