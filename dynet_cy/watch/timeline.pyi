from contextlib import AbstractContextManager
from typing import NamedTuple

from dynet_cy.graph.origin import Origin

KINDS: tuple[str, ...]

class Span(NamedTuple):
    """An activity with its start and end."""

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

def recorded_spans() -> tuple[list[Span], int]:
    """The spans recorded since `switch`, as a list of Span in the order of their ends, and how many did not fit."""

def switch(on: bool) -> None:
    """Start recording spans, with an empty list, or stop."""

def span(name: str) -> AbstractContextManager[None]:
    """Record the block as a span of that name, if a timeline is being measured."""
