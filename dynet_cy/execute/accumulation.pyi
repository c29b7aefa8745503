# Written by tools/derive.py

def counts() -> int:
    """The number of gradients that passes have copied, so that they could be undone, since `reset`."""

def reset() -> None:
    """Count from zero again."""
