# Written by tools/derive.py

from dynet_cy.model.parameters import LookupParameters

def updates_had(x: LookupParameters) -> list[int]:
    """For each row of a table, how many of the updates recorded on its device it has had, as a list."""
