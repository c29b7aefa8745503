"""`import dynet_config` gives dynet_cy.config; see dynet_cy.compat."""

import sys

import dynet_cy.config

sys.modules[__name__] = dynet_cy.config
