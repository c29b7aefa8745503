"""Graphs as pictures and as text."""

from typing import TYPE_CHECKING

from dynet_cy.core.later import later

if TYPE_CHECKING:
    from dynet_cy.drawing import picture
else:
    picture = later("dynet_cy.drawing.picture")
