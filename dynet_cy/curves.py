"""Training curves: `Curves`, one of `dynet_cy.loggers`."""

from dynet_cy.loggers.curves import Curves

__all__ = ["Curves"]
