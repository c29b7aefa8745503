from typing import Any, final

from dynet_cy.model import ParameterCollection
from dynet_cy.parallel.steps import ExchangeStepper
from dynet_cy.train.trainers import Trainer

DEFAULT_BUCKET: int

class Overlap:
    early: bool
    started_early: int
    n_buckets: int
    def __init__(self, collection: ParameterCollection, exchange: Any, bucket_bytes: int = ...) -> None: ...
    def close(self) -> None: ...
    def make_sums(self) -> None: ...

@final
class OverlapStepper(ExchangeStepper): ...

def overlap_stepper(exchange: Any, trainer: Trainer, reduction: str, bucket_bytes: int = ...) -> OverlapStepper: ...
