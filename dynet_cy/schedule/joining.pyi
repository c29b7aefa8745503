# Written by tools/derive.py

def counts() -> tuple[int, int]:
    """The number of joined calls planned since `reset`, and the number of batches in them."""

def reset() -> None:
    """Count from zero again."""

def set_least_size(elements: int) -> int:
    """Join only batches that multiply by a matrix of at least this many elements: for tests."""
