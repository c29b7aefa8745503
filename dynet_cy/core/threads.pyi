# Written by tools/derive.py

def is_dynet() -> bool:
    """Whether the process runs a program written for DyNet."""

def follow_dynet() -> None:
    """Use DyNet's rules from now on: in arrays of expressions, and for the implicit graph of threads."""
