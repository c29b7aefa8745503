# Written by tools/derive.py
from typing import final

from dynet_cy.train.interfaces import Backend
from dynet_cy.train.trainer import Trainer

class DeviceBackend(Backend):
    """See above."""

@final
class DevicePart:
    """The part of an update on one device."""

class DevicesBackend(Backend):
    """See above."""

def refuse_devices(trainer: Trainer, reason: str | None) -> None:
    """Raise an error if a way of training needs the parameters in the memory of the host, and they are not there."""
