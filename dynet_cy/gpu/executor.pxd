"""The GPU executor.  It fills the graph's engine when it is imported and has no other face."""
