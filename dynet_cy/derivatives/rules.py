"""The table with the rules of all operations, which the other modules fill; loaded with the first gradient."""
# ruff: noqa: F401

import dynet_cy.derivatives.attention
import dynet_cy.derivatives.cells
import dynet_cy.derivatives.chains
import dynet_cy.derivatives.convolutions
import dynet_cy.derivatives.elementwise
import dynet_cy.derivatives.products
import dynet_cy.derivatives.reductions
import dynet_cy.derivatives.selections
from dynet_cy.derivatives.table import COMPOSITIONS, NO_SECOND_ORDER, RULES

__all__ = ["COMPOSITIONS", "NO_SECOND_ORDER", "RULES"]
