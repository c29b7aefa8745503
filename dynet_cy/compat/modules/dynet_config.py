"""DyNet's module `dynet_config`, with what dynet_cy has; see dynet_cy.compat."""

from dynet_cy.compat.names import namespace

globals().update(namespace(__name__))
