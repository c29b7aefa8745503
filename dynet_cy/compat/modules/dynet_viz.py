"""DyNet's module `dynet_viz`, with what dynet_cy has; see dynet_cy.compat."""

import dynet_cy.compat  # first: options that ask for a GPU are read differently then
from dynet_cy.compat.names import namespace

globals().update(namespace(__name__))
