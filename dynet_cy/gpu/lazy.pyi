from dynet_cy.model.parameters import LookupParameters

def set_least_lazy(n: int) -> int:
    """Set the least size of tables on a GPU whose updates may be deferred."""

def updates_had(x: LookupParameters) -> list[int]:
    """For each row of a table, how many of the updates recorded on its device it has had, as a list."""
