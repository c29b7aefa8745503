from typing import Any, final

from dynet_cy.model import ParameterCollection
from dynet_cy.parallel.steps import AllreduceStepper
from dynet_cy.train.trainers import Trainer

DEFAULT_BUCKET: int

class Overlap:
    early: bool
    started_early: int
    n_buckets: int
    def __init__(self, collection: ParameterCollection, communicator: Any, bucket_bytes: int = ...) -> None: ...
    def close(self) -> None: ...
    def make_sums(self) -> None: ...

@final
class OverlapStepper(AllreduceStepper): ...

def overlap_stepper(communicator: Any, trainer: Trainer, reduction: str, bucket_bytes: int = ...) -> OverlapStepper: ...
