"""Data for the examples, and their modules."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from made_data import write_digits, write_treebank
from programs import EXAMPLES

import dynet_cy as dy


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A folder with small digits in files named and formatted as MNIST's."""
    return write_digits(tmp_path)


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with gzipped training sentences, and others."""
    folder = tmp_path_factory.mktemp("treebank")
    write_treebank(folder / "train.conllu.gz", 60, seed=1)
    write_treebank(folder / "dev.conllu", 12, seed=2)
    return folder


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    """Import a module of the examples, to call its functions."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def load(name: str) -> ModuleType:
        module = importlib.import_module(name)
        monkeypatch.setattr(module, "dy", dy, raising=False)
        return module

    return load
