"""Handwritten digits: the MNIST files, or the small digits included in scikit-learn."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

Digits = tuple[np.ndarray, np.ndarray]  # images (n, rows, columns) in [0, 1], labels (n,)


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Read one of MNIST's files: big-endian sizes, then a byte for each value."""
    plain, packed = folder / name, folder / f"{name}.gz"
    path = plain if plain.exists() else packed
    try:
        data = path.read_bytes() if path == plain else gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not a whole gzip file: {error}") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{path}: not an IDX file of bytes (it begins with {data[:4].hex(' ')})")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape))
    if values.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path}: {values.size} values after the header, which says {shape}")
    return values.reshape(shape)


def read_mnist(folder: Path, part: str) -> Digits:
    images = read_idx(folder, f"{part}-images-idx3-ubyte")
    labels = read_idx(folder, f"{part}-labels-idx1-ubyte")
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise ValueError(f"{folder}: {part} has images {images.shape} but labels {labels.shape}")
    if labels.size and labels.max() > 9:
        raise ValueError(f"{folder}: {part} has the label {labels.max()}, digits go up to 9")
    return images.astype(np.float32) / 255, labels.astype(np.int64)


def read_sklearn_digits() -> tuple[Digits, Digits]:
    """Return scikit-learn's 1,797 real digits of 8x8 pixels; every fifth is for testing."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError("no data: pip install scikit-learn, or give the MNIST files with --data DIR") from None
    digits = load_digits()
    images, labels = digits.images.astype(np.float32) / 16, digits.target.astype(np.int64)
    test = np.arange(len(labels)) % 5 == 0
    return (images[~test], labels[~test]), (images[test], labels[test])


def read_digits(folder: Path | None, limit: int | None = None) -> tuple[Digits, Digits]:
    """Return the digits for training and for testing: MNIST's in a folder, or scikit-learn's."""
    if folder:
        training, test = read_mnist(folder, "train"), read_mnist(folder, "t10k")
    else:
        training, test = read_sklearn_digits()
    return (training[0][:limit], training[1][:limit]), (test[0][:limit], test[1][:limit])
