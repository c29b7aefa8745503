"""The settings in a `config.json`, each checked where it is read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dynet_cy.files.reading import FileName, opened
from dynet_cy.files.textfile import ModelFileError

_LARGEST = 1 << 31


def read_json(path: FileName, what: str) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: the file
        what: the kind of file, with an article, for errors

    Raises:
        ModelFileError: not JSON, or not an object
        OSError: the file cannot be read
    """
    with opened(path, what) as file:
        data = file.read()
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"not {what}: {error}", os.fspath(path)) from error
    if not isinstance(found, dict):
        raise ModelFileError(f"not {what}: it holds a {type(found).__name__}", os.fspath(path))
    return found


class Config:
    """Settings by name.

    Args:
        values: the settings
        source: where they stand, for errors
        numbers: how many numbers the files with tensors hold
    """

    def __init__(self, values: Mapping[str, Any], source: str = "config.json", numbers: float = math.inf) -> None:
        self.values = dict(values)
        self.source = source
        self.numbers = numbers

    def wrong(self, key: str, expected: str) -> ModelFileError:
        """The error of a setting."""
        if key not in self.values:
            return ModelFileError(f"{key} is missing, {expected} is expected", self.source)
        return ModelFileError(f"{key} is {self.values[key]!r:.80}, {expected} is expected", self.source)

    def get(self, key: str, default: Any = None) -> Any:
        """A setting; null counts as missing."""
        found = self.values.get(key)
        return default if found is None else found

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number, from `least` to 2^31."""
        found = self.get(key, default)
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found < _LARGEST:
            raise self.wrong(key, f"a whole number from {least} on")
        return found

    def check_room(self, key: str, *sizes: int) -> None:
        """Refuse settings that ask for a larger part of the model than the files hold, before it is created."""
        if math.prod(sizes) > self.numbers:
            shape = " times ".join(map(str, sizes))
            raise ModelFileError(
                f"{key} is {self.values.get(key)!r:.80}, for {shape} numbers, but the files hold {self.numbers:,}",
                self.source,
            )

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        return self._real(key, default, lambda x: 0 < x < math.inf, "a number above 0")

    def rate(self, key: str, default: float | None = None) -> float:
        """A probability below 1."""
        return self._real(key, default, lambda x: 0 <= x < 1, "a probability below 1")

    def _real(self, key: str, default: float | None, holds: Callable[[float], bool], expected: str) -> float:
        found = self.get(key, default)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not holds(found):
            raise self.wrong(key, expected)
        return float(found)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        found = self.get(key, default)
        if not isinstance(found, bool):
            raise self.wrong(key, "true or false")
        return found

    def choice(self, key: str, choices: Collection[str], default: str | None = None) -> str:
        """One of some words."""
        found = self.get(key, default)
        if not isinstance(found, str) or found not in choices:
            raise self.wrong(key, f"one of {', '.join(choices)}")
        return found

    def only(self, key: str, expected: Any) -> None:
        """Refuse another value than the one that is implemented; a missing setting has it."""
        if self.get(key, expected) != expected:
            raise self.wrong(key, f"only {expected!r}")
