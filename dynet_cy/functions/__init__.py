"""Functions that are made of ops: they batch and run wherever these do."""

from dynet_cy.functions import norms
from dynet_cy.functions.norms import *  # noqa: F403 - the __all__ of each module is the list

__all__ = sorted([*norms.__all__])
