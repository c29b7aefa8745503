"""Tables of names: what Hugging Face calls the layers of an architecture.

A table has an entry for each layer with parameters, from its path of attributes to the name of the module, such as
`"layers.*.attention.query": "encoder.layer.*.attention.self.query"`. A star stands for a number, and the numbers of
both sides are the same, in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["Table", "module_name", "tensor_name"]

Table = Mapping[str, str]

_LEAVES = {"W": "weight", "g": "weight", "table": "weight", "b": "bias"}
_OLDER = {"weight": "gamma", "bias": "beta"}


def module_name(table: Table, path: str) -> str | None:
    """The name of the module at a path of attributes; None if the table has none."""
    numbers = re.findall(r"(?<=\.)\d+(?=\.|$)", path)
    found = table.get(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path))
    if found is None:
        return None
    for number in numbers:
        found = found.replace("*", number, 1)
    return found


def tensor_name(table: Table, parameter: str) -> str | None:
    """The name of the tensor of a parameter, such as `layers.0.inner.W`; None if the table has none."""
    path, _, leaf = parameter.rpartition(".")
    module = module_name(table, path)
    if module is None:
        return None
    return f"{module}.{_LEAVES.get(leaf, leaf)}" if module else leaf


def older_name(name: str) -> str:
    """The name of the tensor of a norm in files that were converted from TensorFlow."""
    module, _, leaf = name.rpartition(".")
    return f"{module}.{_OLDER.get(leaf, leaf)}"
