"""A folder for `sys.path`: modules with DyNet's names, each of which replaces itself with one of dynet_cy."""
