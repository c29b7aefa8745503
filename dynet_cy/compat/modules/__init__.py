"""A folder for `sys.path`: modules with DyNet's names, each of which puts one of dynet_cy in its place."""
