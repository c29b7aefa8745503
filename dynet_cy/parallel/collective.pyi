# Written by tools/derive.py
from typing import Any, final

from dynet_cy.model.collection import ParameterCollection
from dynet_cy.parallel.communicator import Communicator
from dynet_cy.train.interfaces import Reducer
from dynet_cy.train.trainer import Trainer

ADDED_ON_DEVICE: str

class AllDone(Exception):
    """No rank has any more updates to make."""

class CollectiveReducer(Reducer):
    """Ranks that agree on each update before they make it."""

    @property
    def communicator(self) -> Communicator: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def active(self) -> bool: ...
    @property
    def sent(self) -> dict[str, int]: ...
    def set_number(self, number: int) -> None:
        """Set the number of this trainer among those that have been wrapped, from 1: ranks must update the same one."""
    def shadow(self, trainer: Trainer) -> bool:
        """Take part in one update of the others, without gradients."""
    def traffic(self) -> dict[str, int]:
        """The amounts of data that updates have moved between ranks so far."""

class AllreduceReducer(CollectiveReducer):
    """See above."""

def adopt(communicator: Communicator, trainer: Trainer) -> None:
    """Copy the parameters and the state of the rule from rank 0."""

def allreduce(communicator: Communicator, trainer: Trainer, reduction: str) -> AllreduceReducer:
    """The reducer of a trainer over any communicator."""

DEFAULT_BUCKET: int

class Overlap:
    """Sums the gradients of the parameters of a collection, but not of its lookup tables."""

    early: bool
    @property
    def started_early(self) -> int: ...
    def __init__(
        self, collection: ParameterCollection, communicator: Any, bucket_bytes: int = DEFAULT_BUCKET
    ) -> None: ...
    def close(self) -> None:
        """Stop listening to backward passes."""
    @property
    def n_buckets(self) -> int: ...
    def make_sums(self) -> None:
        """Replace the gradients on all ranks by their sums over all ranks."""

@final
class OverlapReducer(AllreduceReducer):
    """Updates over a communicator that can sum gradients while backward runs."""

def overlapped(
    communicator: Any, trainer: Trainer, reduction: str, bucket_bytes: int = DEFAULT_BUCKET
) -> OverlapReducer:
    """The reducer of a trainer whose gradients are summed while backward runs."""
