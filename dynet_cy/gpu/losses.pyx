"""Distances and losses between two expressions."""
