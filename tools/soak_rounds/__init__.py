"""The rounds of tools/soak.py, by subject."""
