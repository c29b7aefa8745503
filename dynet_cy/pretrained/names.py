"""Tables of names: Hugging Face's names for the layers of an architecture.

A table has an entry for each layer with parameters, from its path of attributes to the name of the module, such as
`"layers.*.attention.query": "encoder.layer.*.attention.self.query"`. A star stands for a number, and the numbers of
both sides are the same, in the same order; a number stands for itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

Table = Mapping[str, str]

_LEAVES = {"W": "weight", "g": "weight", "table": "weight", "b": "bias", "mean": "running_mean", "var": "running_var"}
_OLDER = {"weight": "gamma", "bias": "beta"}


def projections(there: str, *names: str, here: str = "layers.*.attention") -> dict[str, str]:
    """The entries of the linear layers of attention: for queries, keys, values and results."""
    return {f"{here}.{path}": f"{there}.{name}" for path, name in zip(("query", "key", "value", "output"), names)}


def module_name(table: Table, path: str) -> str | None:
    """The name of the module at a path of attributes; None if the table has none."""
    parts = re.split(r"(?<=\.)(\d+)(?=\.|$)", path)  # each second one is a number
    numbers = parts[1::2]
    for literal in itertools.product((False, True), repeat=len(numbers)):
        parts[1::2] = [number if kept else "*" for number, kept in zip(numbers, literal)]
        found = table.get("".join(parts))
        if found is not None:
            for number, kept in zip(numbers, literal):
                found = found if kept else found.replace("*", number, 1)
            return found
    return None


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
