from typing import NamedTuple

from dynet_cy.graph.origin import Origin

class AnomalyError(ValueError):
    op: str | None
    number: int | None
    backward: bool | None
    argument: str | None
    origin: Origin | None

def switch(on: bool) -> None: ...
def is_checking() -> bool: ...

class Counts(NamedTuple):
    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float
    again: bool

class LineCounts(NamedTuple):
    origin: Origin | None
    scope: str
    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float
    again: bool

class RequestCounts(NamedTuple):
    origin: Origin | None
    passes: int
    values: int
    nodes: int
    seconds: float
    waited: int
    graphs: int
    of_map: bool

def counts() -> list[Counts]: ...
def request_counts() -> list[RequestCounts]: ...
def line_counts() -> list[LineCounts]: ...
def reset() -> None: ...
def set_level(level: int) -> None: ...
def level() -> int: ...
