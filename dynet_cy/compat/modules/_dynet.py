"""DyNet's module `_dynet`, with what dynet_cy has; see dynet_cy.compat."""

import dynet_cy.compat
from dynet_cy.compat.names import namespace

dynet_cy.compat.follow_once()
globals().update(namespace(__name__))
