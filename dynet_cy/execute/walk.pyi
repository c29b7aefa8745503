# Written by tools/derive.py

def piece_counts() -> tuple[int, int]:
    """The number of batches that ran forward in pieces, and the number of tiles, since `reset_pieces`."""

def reset_pieces() -> None:
    """Count from zero again."""

def view_counts() -> tuple[int, int]:
    """The number of values that were views, and of those that were copied before backward, since `reset_views`."""

def reset_views() -> None:
    """Count from zero again."""

def set_most_along(elements: int) -> int:
    """Run batches whose tensors are longer than this along an axis node by node: for tests."""
