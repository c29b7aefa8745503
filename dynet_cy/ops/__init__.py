"""Ops: the registry, and one module for each family of ops."""
