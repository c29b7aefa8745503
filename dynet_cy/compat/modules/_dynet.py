"""`import _dynet` gives dynet_cy; see dynet_cy.compat."""

import sys

import dynet_cy
import dynet_cy.compat

dynet_cy.compat.begin()
sys.modules[__name__] = dynet_cy
