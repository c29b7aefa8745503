# Written by tools/derive.py
from collections.abc import Callable
from typing import NamedTuple

from dynet_cy.graph.origin import Origin

class BatchLifetime(NamedTuple):
    """A batch of a plan: what it runs, and how long its values and gradients live."""

    number: int
    op: str
    nodes: int
    shape: tuple[int, ...]
    form: str
    device: str
    reads: list[int]
    reads_back: list[int]
    bytes: int
    value: str
    why: tuple[str, ...]
    last: int | None
    read: int | None
    stretch: tuple[int, int] | None
    again: int
    donated: int | None
    gradient: int | None
    over: str | int | None
    free: int | None
    origin: Origin | None
    scope: str

class RecordedPlan(NamedTuple):
    """A plan as it ran."""

    batches: list[BatchLifetime]
    passes: list[int]
    target: int | None
    transient: int
    values: int
    gradients: int
    scratch: int
    peak: int | None
    peak_back: bool

def record(number: int, then: Callable[[], object] | None = None) -> None:
    """Record the plan of a backward pass, the first of which has the number 1, and then call a function."""

def stop() -> None:
    """Record no plan any more."""

def recorded_plan() -> RecordedPlan | None:
    """The plan, a RecordedPlan; None if that pass has not run."""

def passes_seen() -> int:
    """How many backward passes have run since `record`."""
