"""What all layers share: the structs of tensors, settings, locks and signals."""
