from typing import NamedTuple

from dynet_cy.graph.origin import Origin

class AnomalyError(ValueError):
    """A value or a gradient is not finite: see `detect_anomaly`."""

    op: str | None
    number: int | None
    backward: bool | None
    argument: str | None
    origin: Origin | None

def switch(on: bool) -> None:
    """Switch the checks on or off."""

def is_checking() -> bool:
    """Whether values and gradients are checked."""

class Counts(NamedTuple):
    """Counts for an operation in one direction."""

    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float
    again: bool

class LineCounts(NamedTuple):
    """Counts for an operation in one direction, made by one line of the program within one scope."""

    origin: Origin | None
    scope: str
    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float
    again: bool

class RequestCounts(NamedTuple):
    """The passes that a line of the program asked for."""

    origin: Origin | None
    passes: int
    values: int
    nodes: int
    seconds: float
    waited: int
    graphs: int
    of_map: bool

def counts() -> list[Counts]:
    """The counts by operation, as a list of Counts, without operations that did not run."""

def request_counts() -> list[RequestCounts]:
    """The passes that each line has asked for, as a list of RequestCounts."""

def line_counts() -> list[LineCounts]:
    """The counts by line, as a list of LineCounts."""

def reset() -> None:
    """Count from zero again."""

def set_level(level: int) -> None:
    """Measure (1), list every batch on stderr too (2), or do neither (0)."""

def level() -> int:
    """The level that `set_level` has set."""
