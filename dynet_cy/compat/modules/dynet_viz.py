"""`import dynet_viz` gives dynet_cy.viz; see dynet_cy.compat."""

import sys

import dynet_cy.viz

sys.modules[__name__] = dynet_cy.viz
