"""Memory: arenas for graphs, flat storage for parameters."""
