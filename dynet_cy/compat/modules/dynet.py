"""`import dynet` gives dynet_cy; see dynet_cy.compat."""

import sys

import dynet_cy

sys.modules[__name__] = dynet_cy
