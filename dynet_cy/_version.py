"""The version of the package, written here only."""

__version__ = "0.1.0"
