"""Shared by all layers: the structs of tensors, settings, locks, signals, devices, and names of other libraries."""
