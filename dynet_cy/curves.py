"""Training curves: the name from which programs import `Curves`, which is one of `dynet_cy.loggers`."""

from dynet_cy.loggers.curves import Curves

__all__ = ["Curves"]
