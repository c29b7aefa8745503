# Written by tools/derive.py

def share_implicit_graph() -> None:
    """Make the implicit graph of this thread that of all threads; `follow_dynet` comes before this."""

def may_be_garbage() -> bool:
    """Whether there are graphs that were made since `note_referred_to`, besides the implicit one of this thread."""

def note_referred_to() -> None:
    """After a garbage collection: the program refers to the graphs that are left."""
