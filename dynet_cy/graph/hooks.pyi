from typing import Any, Callable

operators: dict[str, Callable[..., Any]]
