from typing import final

from typing_extensions import Self

from dynet_cy.memory.changes import Change
from dynet_cy.train.host import HostBackend
from dynet_cy.train.python_trainer import PythonTrainer

@final
class StepChange(Change): ...

class PythonBackend(HostBackend):
    def __new__(cls, trainer: PythonTrainer) -> Self: ...
