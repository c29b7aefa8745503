from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dynet_cy as dy

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


@pytest.fixture
def model() -> dy.ParameterCollection:
    dy.reset_random_seed(1)
    return dy.ParameterCollection()
