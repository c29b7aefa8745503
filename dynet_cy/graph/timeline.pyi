from contextlib import AbstractContextManager
from typing import NamedTuple

from dynet_cy.graph.origin import Origin

KINDS: tuple[str, ...]

class Span(NamedTuple):
    kind: str
    begin: float
    end: float
    thread: int
    op: str
    nodes: int
    bytes: int
    shape: str
    arguments: tuple[str, ...]
    other_shapes: int
    origins: tuple[Origin | None, ...]
    more_lines: int
    scope: str
    values: int
    gradients: int
    scratch: int
    held: int

def recorded_spans() -> tuple[list[Span], int]: ...
def switch(on: bool) -> None: ...
def span(name: str) -> AbstractContextManager[None]: ...
