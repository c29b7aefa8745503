# Written by tools/derive.py

def counts() -> int:
    """The number of nodes that were computed again since `reset`."""

def reset() -> None:
    """Count from zero again."""
