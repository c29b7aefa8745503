from collections.abc import Callable
from typing import Any

from dynet_cy.model import ParameterCollection

class Overlap:
    early: bool
    started_early: int
    n_buckets: int
    def __init__(
        self, collection: ParameterCollection, exchange: Any, bucket_bytes: int = ...
    ) -> None: ...
    def close(self) -> None: ...
    def finish(self) -> None: ...
