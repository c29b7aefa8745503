# Written by tools/derive.py
from collections.abc import Callable
from contextlib import AbstractContextManager, ContextDecorator
from typing import NamedTuple

class Origin(NamedTuple):
    """A line of a program."""

    file: str
    line: int
    function: str

def shown_file(file: str) -> str:
    """The name of a file as messages show it: relative to the working directory if it is in there."""

class name_scope(ContextDecorator):
    """Label the nodes made in a block with the name of a part of the network."""

    name: str
    def __init__(self, name: str) -> None: ...
    def __enter__(self) -> name_scope: ...
    def __exit__(self, *error: BaseException | None) -> None: ...

def origin(number: int) -> Origin | None:
    """The Origin with a number; None for 0, which means none."""

def count() -> int:
    """How many lines have a number."""

def is_recording() -> bool:
    """Whether lines of new nodes are recorded."""

def switch(on: bool) -> None:
    """Switch recording on or off; it stops when it has been switched off as often as on."""

def record_lines() -> AbstractContextManager[None]:
    """While the block runs, record which line of the program makes each node, in all threads."""

def watch_reads(watch: Callable[[object, Origin | None], object]) -> AbstractContextManager[None]:
    """While the block runs, call a function with each expression before its value is read, in all threads."""

def open_scopes(cls: type) -> None:
    """Let the calls of the instances of a class, which has a method `__call__`, open scopes."""
