"""Kernels of convolution and pooling, run on the CPU and compared with plain loops."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from test_kernels_emulated import each_order, module, poisoned, pytestmark, size  # noqa: F401 - skips too

# Image, window, stride, padding, channels; some windows skip pixels, some overlap, some reach beyond the image.
GEOMETRIES = [
    ((7, 6), (3, 2), (1, 1), (0, 0), 2),
    ((9, 8), (2, 2), (3, 2), (0, 0), 1),
    ((6, 5), (3, 3), (2, 1), (1, 1), 3),
    ((40, 9), (5, 5), (1, 1), (2, 2), 1),
]
DILATED = [
    ((9, 8), (3, 2), (1, 1), (0, 0), 2, (2, 3)),
    ((12, 7), (2, 3), (2, 1), (1, 2), 1, (3, 2)),
]
each_geometry = pytest.mark.parametrize("geometry", GEOMETRIES)


class Window:
    def __init__(self, image, size, stride, pad, channels, dilation=(1, 1)) -> None:
        self.image, self.size, self.stride, self.pad, self.channels = image, size, stride, pad, channels
        self.dilation = dilation
        reach = [(size[d] - 1) * dilation[d] + 1 for d in range(2)]
        self.out = [(image[d] + 2 * pad[d] - reach[d]) // stride[d] + 1 for d in range(2)]

    def packed(self) -> bytes:
        return struct.pack(
            "13I", *self.image, *self.out, *self.size, *self.stride, *self.pad, self.channels, *self.dilation
        )

    def pooling(self) -> bytes:
        """As dy_pooling, not adaptive."""
        return struct.pack("12I", *self.image, *self.out, *self.size, *self.stride, *self.pad, self.channels, 0)

    def places(self, column: int, row: int) -> list[tuple[int, int, int]]:
        """The pixels in the window of an output: position in the window, column and row."""
        found = []
        for j in range(self.size[1]):
            for i in range(self.size[0]):
                c = column * self.stride[1] + j * self.dilation[1] - self.pad[1]
                r = row * self.stride[0] + i * self.dilation[0] - self.pad[0]
                if 0 <= c < self.image[1] and 0 <= r < self.image[0]:
                    found.append((j * self.size[0] + i, c, r))
        return found


def images(w: Window, n: int, seed: int = 0) -> np.ndarray:
    """Random images, slowest axis first: image, channel, column, row."""
    shape = (n, w.channels, w.image[1], w.image[0])
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@each_order
@pytest.mark.parametrize("geometry", GEOMETRIES + DILATED)
def test_patches(order: str, geometry) -> None:
    """Patches, and their transpose, which sums into each image or into one image for all."""
    conv, w = module("conv"), Window(*geometry)
    x = images(w, 3)
    work = poisoned(w.channels, w.size[1] * w.size[0], 3, w.out[1], w.out[0])
    desired = np.zeros_like(work)
    total = np.zeros(x.shape)
    for o in range(w.out[1]):
        for t in range(w.out[0]):
            for k, c, r in w.places(o, t):
                desired[:, k, :, o, t] = x[:, :, c, r].T
                total[:, :, c, r] += x[:, :, c, r]
    conv.launch("patches", (2, 3), 64, [size(3), w.packed(), x, size(x[0].size), work], order=order)
    np.testing.assert_array_equal(work, desired)
    dx = images(w, 3, seed=1)
    before = dx.copy()
    conv.launch(
        "add_patches", (2, 3), 64, [size(3), w.packed(), work, size(3), dx, size(x[0].size), np.int32(1)], order=order
    )
    np.testing.assert_allclose(dx, before + total, rtol=1e-5, atol=1e-5)
    one = poisoned(1, *x.shape[1:])
    conv.launch(
        "add_patches", (2, 3), 64, [size(3), w.packed(), work, size(1), one, size(x[0].size), np.int32(0)], order=order
    )
    np.testing.assert_allclose(one[0], total.sum(0), rtol=1e-5, atol=1e-4)


@each_order
@each_geometry
def test_max_pooling(order: str, geometry) -> None:
    """The first of equal maxima gets the gradient; NaN counts as the greatest."""
    pooling, w = module("pooling"), Window(*geometry)
    x = np.round(images(w, 2))
    x[1, 0, 1, 2] = np.nan
    x[0, 0, :3, :3] = -np.inf
    y, where = poisoned(2, w.channels, w.out[1], w.out[0]), np.zeros((2, w.channels, w.out[1], w.out[0]), np.uint32)
    dy = np.random.default_rng(2).standard_normal(y.shape).astype(np.float32)
    desired, gradient = poisoned(*y.shape), np.zeros(x.shape)
    for b, channel, o, t in np.ndindex(*y.shape):
        places = [(c, r) for _, c, r in w.places(o, t)]
        at = places[int(np.argmax([x[b, channel, c, r] for c, r in places]))]
        desired[b, channel, o, t] = x[b, channel, at[0], at[1]]
        gradient[b, channel, at[0], at[1]] += dy[b, channel, o, t]
    pooling.launch("greatest_forward", (1, 3), 64, [size(2), w.pooling(), x, size(x[0].size), where, y], order=order)
    np.testing.assert_array_equal(y, desired)
    for elements, wanted in ((2, gradient), (1, gradient.sum(0, keepdims=True))):
        dx = poisoned(*wanted.shape)
        arguments = [size(2), w.pooling(), where, dy, size(elements), dx, np.int32(0)]
        pooling.launch("greatest_backward", (1, 3), 64, arguments, order=order)
        np.testing.assert_allclose(dx, wanted, rtol=1e-5, atol=1e-6)


@each_order
@pytest.mark.parametrize(
    ("inner", "length", "k", "block"),
    [(1, 5, 5, 32), (3, 100, 7, 32), (2, 70, 1, 128), (1, 700, 350, 128), (1, 33, 32, 32)],
)
@pytest.mark.parametrize("ignores", [0, 1])
def test_k_greatest(ignores: int, order: str, inner: int, length: int, k: int, block: int) -> None:
    """The k greatest keep their order; the first of equals wins, NaN is greatest or least; gradients of two results add
    up."""
    conv, outer = module("conv"), 2
    x = np.round(2 * np.random.default_rng(0).standard_normal((2, outer, length, inner))).astype(np.float32)
    x[0, 1, 3:5, 0] = np.nan
    x[1, 0, ::2] = -0.0
    x[1, 1, :, 0] = np.where(np.arange(length) % 3, -np.inf, np.inf)
    y = poisoned(2, outer, k, inner)
    where = np.zeros(y.shape, np.uint32)
    order_of = np.lexsort((-x, np.isnan(x) if ignores else ~np.isnan(x)), axis=2)  # stable
    desired = np.sort(order_of[:, :, :k], axis=2)
    arguments = [size(2 * outer * inner), size(inner), size(length), size(outer), size(k), np.int32(ignores)]
    arguments += [x, size(x[0].size), where, y]
    conv.launch("kmax_forward", 3, block, arguments, order=order)
    np.testing.assert_array_equal(where, desired)
    np.testing.assert_array_equal(y, np.take_along_axis(x, desired, 2))
    dy, dx = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32), np.zeros(x[0].shape, np.float32)
    gradient = np.zeros(x.shape)
    np.put_along_axis(gradient, desired, dy, 2)
    arguments = [size(outer * inner), size(inner), size(length), size(outer), size(k), size(2), where, dy, dx]
    conv.launch("kmax_backward", 3, 32, arguments, order=order)
    np.testing.assert_allclose(dx, gradient.sum(0), rtol=1e-6)


@each_order
@pytest.mark.parametrize(("rows", "columns", "terms"), [(1, 1, 1), (3, 9, 4), (5, 2, 7)])
def test_sums_of_neighbours(order: str, rows: int, columns: int, terms: int) -> None:
    conv, rng = module("conv"), np.random.default_rng(0)
    x = rng.standard_normal((2, columns + terms - 1, rows)).astype(np.float32)
    y, dy, dx = (
        poisoned(2, columns, rows),
        rng.standard_normal((2, columns, rows)).astype(np.float32),
        poisoned(*x.shape),
    )
    shape = [size(2), size(rows), size(columns), size(terms)]
    conv.launch("ngram_forward", 2, 32, [*shape, x, size(x[0].size), y], order=order)
    np.testing.assert_allclose(y, sum(x[:, k : k + columns] for k in range(terms)), rtol=1e-5, atol=1e-6)
    conv.launch("ngram_backward", 2, 32, [*shape, dy, size(2), dx, np.int32(0)], order=order)
    desired = np.zeros(x.shape)
    for k in range(terms):
        desired[:, k : k + columns] += dy
    np.testing.assert_allclose(dx, desired, rtol=1e-5, atol=1e-6)
