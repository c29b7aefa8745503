"""Modules that are loaded when one of their names is used."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dynet_cy.core.later import LATER, later

PART = """
import time
first = 1
time.sleep(0.05)
from loaded_later.part import more
last = more.two
"""


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that takes a while to load."""
    folder = tmp_path / "loaded_later"
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "part" / "__init__.py").write_text(PART)
    (folder / "part" / "more.py").write_text("two = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("loaded_later")
    yield later("loaded_later.part")
    LATER.remove("loaded_later.part")
    for name in [name for name in sys.modules if name.startswith("loaded_later")]:
        del sys.modules[name]


def test_first_use(part: ModuleType) -> None:
    assert importlib.import_module("loaded_later.part") is part
    assert "loaded_later.part.more" not in sys.modules
    assert part.last == 2
    assert "loaded_later.part.more" in sys.modules
    assert type(part) is ModuleType
    with pytest.raises(AttributeError, match=r"module 'loaded_later.part' has no attribute 'none'"):
        part.none  # noqa: B018


def test_all_names(part: ModuleType) -> None:
    assert {"first", "last", "more"} <= {*dir(part)}


def test_threads(part: ModuleType) -> None:
    barrier, found = threading.Barrier(4), []

    def use(number: int) -> None:
        barrier.wait()
        found.append(importlib.import_module("loaded_later.part.more").two if number == 0 else part.last)

    threads = [threading.Thread(target=use, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert found == [2, 2, 2, 2]


def test_an_error_leaves_it_for_the_next_use(part: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "loaded_later" / "part" / "more.py"
    file.write_text("raise KeyError('not yet')\n")
    for _ in range(2):
        with pytest.raises(KeyError, match="not yet"):
            part.last  # noqa: B018
    file.write_text("two = 22\n")
    importlib.invalidate_caches()
    assert part.last == 22
