"""Data for the examples."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_data import write_digits


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A folder with small digits in files named and formatted as MNIST's."""
    return write_digits(tmp_path)
