"""Schedules: the order of nodes, and the batches in which they run."""
