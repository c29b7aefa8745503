"""Images of handwritten digits: the files of MNIST, or the smaller ones that scikit-learn has."""

from __future__ import annotations

import importlib
import os
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from dynet_cy.files.reading import FileName, not_whole, unpacked

Digit = tuple[npt.NDArray[np.float32], int]


def read_idx(path: FileName) -> npt.NDArray[np.uint8]:
    """Read an array of bytes in the format of MNIST: big-endian sizes, then the bytes.

    Args:
        path: name of the file, plain or gzipped. If there is no file of this name, but one with ".gz", that
            one is read.

    Raises:
        OSError: the file cannot be read
        ValueError: it is not such a file, or is cut off

    Example:
        >>> from pathlib import Path
        >>> _ = Path("labels").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        >>> dy.data.read_idx("labels").tolist()
        [7, 2, 1]
    """
    name = os.fspath(path)
    if not os.path.exists(name) and os.path.exists(f"{name}.gz"):
        name += ".gz"
    with unpacked(name, "a file in the format IDX") as file:
        try:
            data = file.read()
        except not_whole() as error:
            raise ValueError(f"{name}: not a whole gzip file: {error}") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise ValueError(f"{name}: not an IDX file of bytes (it begins with {data[:4].hex(' ')})")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape))
    if values.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{name}: {values.size} values after the header, which says {shape}")
    return values.reshape(shape)


def read_digits(folder: FileName | None = None) -> tuple[list[Digit], list[Digit]]:
    """Read digits for training and testing: grey images and their labels.

    Args:
        folder: has the four files of MNIST, plain or gzipped: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``,
            ``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``. None: the 1,797 digits of 8x8 pixels that
            scikit-learn has, which must be installed; every fifth is for testing.

    Returns:
        Both lists; an image is an array (rows, columns) of float32 from 0 to 1, a label is 0 to 9.

    Raises:
        ImportError: there is no folder, and scikit-learn is not installed
        OSError: a file cannot be read
        ValueError: a file is not one of MNIST; the message names it

    Example:
        >>> training, test = dy.data.read_digits()  # doctest: +SKIP
        >>> len(training), training[0][0].shape  # doctest: +SKIP
        (1437, (8, 8))
    """
    if folder is None:
        try:
            datasets: Any = importlib.import_module("sklearn.datasets")
        except ImportError:
            raise ImportError("read_digits: give the folder of MNIST's files, or pip install scikit-learn") from None
        found = datasets.load_digits()
        digits = _digits(found.images.astype(np.float32) / 16, found.target)
        return [digit for i, digit in enumerate(digits) if i % 5], digits[::5]
    parts = []
    for part in ("train", "t10k"):
        images = read_idx(os.path.join(folder, f"{part}-images-idx3-ubyte"))
        labels = read_idx(os.path.join(folder, f"{part}-labels-idx1-ubyte"))
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise ValueError(f"{os.fspath(folder)}: {part} has images {images.shape} but labels {labels.shape}")
        if labels.size and labels.max() > 9:
            raise ValueError(f"{os.fspath(folder)}: {part} has the label {labels.max()}, digits go up to 9")
        parts.append(_digits(images.astype(np.float32) / np.float32(255), labels))
    return parts[0], parts[1]


def _digits(images: npt.NDArray[np.float32], labels: npt.NDArray[Any]) -> list[Digit]:
    return list(zip(images, labels.tolist()))
