from dynet_cy.graph.origin import Origin

class AnomalyError(ValueError):
    op: str | None
    number: int | None
    backward: bool | None
    argument: str | None
    origin: Origin | None

def switch(on: bool) -> None: ...
def is_checking() -> bool: ...
