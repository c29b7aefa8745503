"""What all layers share: the structs of tensors, settings, locks, signals, devices, and names of other libraries."""
