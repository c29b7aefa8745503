"""Schedules: which nodes run, in what order, and which of them together."""
