# Written by tools/derive.py
from typing import final

from typing_extensions import Self

from dynet_cy.graph.expressions import Expression

@final
class Clipping:
    """The record of the updates of one trainer on a device."""
    def __new__(cls, device: int) -> Self: ...
    def wait(self, polls: bool = True) -> None:
        """Wait until all updates are done, so that the record is up to date."""
    def check(self) -> None:
        """Check whether a finished update was left out."""
    def left_out(self) -> int:
        """The number of updates that were left out since the last call, as far as errors have reported them."""
    def clips(self) -> int:
        """The number of updates that were clipped since the last call."""
    def dropped(self) -> int:
        """The number of updates that were dropped since the last call, according to the host's latest information."""
    def coming(self) -> int:
        """The number of updates that the device may have dropped without `dropped` having counted them yet."""
    def catch_up(self) -> None:
        """Wait if too many updates are in progress."""
    @property
    def norm(self) -> float:
        """The norm of the last update or, after updates were left out, of the first of these."""

def settle_others(stored: list[Expression], own: Clipping | None = None) -> None:
    """Wait for updates of these parameters by other trainers, and raise an error if they were left out."""

def staging_bytes(number: int) -> int:
    """Bytes of page-locked memory that copies to a device go through."""
