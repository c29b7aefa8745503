"""The executor of graphs on several devices.  It fills the graph's engine when it is imported."""
