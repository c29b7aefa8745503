"""Plain structs shared by all layers."""
