# Written by tools/derive.py

def open_scopes(cls: type) -> None:
    """Let the calls of the instances of a class, which has a method `__call__`, open scopes."""
