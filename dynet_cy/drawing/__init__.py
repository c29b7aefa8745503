"""Graphs as pictures and as text."""
