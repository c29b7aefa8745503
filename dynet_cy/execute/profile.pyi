from typing import NamedTuple

from dynet_cy.graph.origin import Origin

class Counts(NamedTuple):
    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float

class LineCounts(NamedTuple):
    origin: Origin
    op: str
    backward: bool
    nodes: int
    calls: int
    seconds: float

def counts() -> list[Counts]: ...
def line_counts() -> list[LineCounts]: ...
def reset() -> None: ...
def set_level(level: int) -> None: ...
def level() -> int: ...
