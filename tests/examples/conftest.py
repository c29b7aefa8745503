"""Data for the examples."""

from __future__ import annotations

import gzip
import random
import struct
from pathlib import Path

import pytest


def write_idx(path: Path, shape: tuple[int, ...], values: bytes) -> None:
    data = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Make digits of 12x8 pixels: digit d lights up row d.  The training files are gzipped, the others plain."""
    rng = random.Random(3)
    for part, ending, count in [("train", ".gz", 200), ("t10k", "", 40)]:
        labels = bytes(i % 10 for i in range(count))
        pixels = bytearray()
        for label in labels:
            for row in range(12):
                pixels += bytes(rng.randrange(180, 256) if row == label else rng.randrange(60) for _ in range(8))
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{ending}", (count, 12, 8), bytes(pixels))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{ending}", (count,), labels)
    return tmp_path
