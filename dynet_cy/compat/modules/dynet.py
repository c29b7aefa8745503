"""`import dynet` gives dynet_cy; see dynet_cy.compat."""

import sys

import dynet_cy
import dynet_cy.compat

dynet_cy.compat.follow_once()
sys.modules[__name__] = dynet_cy
