from typing import Any, Callable

operators: dict[str, Callable[..., Any]]
results: dict[int, str]

def give_attributes(cls: type, attributes: dict[str, Any]) -> None: ...
