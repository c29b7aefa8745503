from typing import Any, Callable

operators: dict[str, Callable[..., Any]]
results: dict[int, str]
carriers: dict[int, bool]

def give_attributes(cls: type, attributes: dict[str, Any]) -> None: ...
def set_place(cls: type, place: str) -> None: ...
