def set_least(bytes: int) -> int:
    """Look for fleeting values only in plans of at least this many bytes: for tests and measurements."""

def set_least_spent(bytes: int) -> int:
    """Let backward use the memory of values for gradients only if a batch has at least this many bytes: for tests and measurements."""

def drop_small(on: bool) -> bool:
    """Set whether values are fleeting however little memory they take: for tests."""
