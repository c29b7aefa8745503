"""Writes encoders in Hugging Face's layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from dynet_cy.files.replacing import write_file


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a safetensors file as PyTorch's programs expect it."""
    whole = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    write_file(path, save(whole, {"format": "pt"}))


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write settings."""
    write_file(path, (json.dumps(values, indent=2, sort_keys=True) + "\n").encode())
