"""Functions that are made of ops: they batch and run wherever these do."""

from dynet_cy.functions import choices, contraction, losses, norms, sequences, shapes
from dynet_cy.functions.choices import *  # noqa: F403 - the __all__ of each module is the list
from dynet_cy.functions.contraction import *  # noqa: F403
from dynet_cy.functions.losses import *  # noqa: F403
from dynet_cy.functions.norms import *  # noqa: F403
from dynet_cy.functions.sequences import *  # noqa: F403
from dynet_cy.functions.shapes import *  # noqa: F403

__all__ = sorted(name for module in (choices, contraction, losses, norms, sequences, shapes) for name in module.__all__)
