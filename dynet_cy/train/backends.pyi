# Written by tools/derive.py
from typing import final

from typing_extensions import Self

from dynet_cy.memory.storage import Change
from dynet_cy.train.interfaces import Backend
from dynet_cy.train.python_trainer import PythonTrainer
from dynet_cy.train.trainer import Trainer

@final
class HostUpdate(Change):
    """An update, piece by piece."""

@final
class HostAxpby(Change):
    """Set numbers in a plane to a target + b source, piece by piece."""

class HostBackend(Backend):
    """See above."""

@final
class StepChange(Change):
    """Adds all steps to the values."""

class PythonBackend(HostBackend):
    """The backend of one update of a `PythonTrainer`."""
    def __new__(cls, trainer: PythonTrainer) -> Self: ...

class DeviceBackend(Backend):
    """See above."""

@final
class DevicePart:
    """The part of an update on one device."""

class DevicesBackend(Backend):
    """See above."""

def refuse_devices(trainer: Trainer, reason: str | None) -> None:
    """Raise an error if a way of training needs the parameters in the memory of the host, and they are not there."""
