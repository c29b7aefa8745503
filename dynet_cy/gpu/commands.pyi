# Written by tools/derive.py

def set_most_collected(n: int) -> int:
    """Set how many bytes of gradients are kept as factors of the gradients of weights: for tests."""
