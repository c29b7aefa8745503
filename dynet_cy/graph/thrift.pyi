# Written by tools/derive.py

def set_ratio(ratio: float) -> float:
    """Set how many bytes passes are assumed to take for each byte of their values at first: for tests."""
