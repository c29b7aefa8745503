# Written by tools/derive.py

def set_limit(limit_bytes: int) -> None:
    """Limit the memory of all arenas together."""

def limit() -> int:
    """The limit in bytes; 0 if there is none."""

def used_bytes() -> int:
    """Bytes held by open arenas and arrays: those in use, and those kept for reuse."""

def give_back() -> None:
    """Make all graphs that are not running free the memory that they keep for reuse."""

def growth_when_empty(
    sizes: tuple[int, ...], mirrored: bool, more: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]], bool]:
    """Fill an arena, empty it, and let it grow beyond what it holds: for tests."""

def available_bytes() -> int | None:
    """Memory available to programs without swapping; None if the system does not say."""
