"""Convolutions of many images, divided among threads: right, with the same bits on any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine

pytestmark = pytest.mark.usefixtures("usual_threads")

# Number of images, their side, channels in and out, side of the filter. They use patches and Winograd's method, with
# more than one block of images and with a remainder.
SIZES = [(64, 14, 32, 64, 5), (67, 28, 1, 32, 5), (261, 9, 16, 24, 3), (97, 16, 16, 16, 4)]


def drawn(size: tuple[int, int, int, int, int]) -> list[np.ndarray]:
    """Images, filters, bias, and the gradient of the result."""
    count, side, inputs, outputs, window = size
    rng = np.random.default_rng(size)
    made = side - window + 1
    shapes = [(side, side, inputs, count), (window, window, inputs, outputs), (outputs,), (made, made, outputs, count)]
    return [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


def convolved(size: tuple[int, int, int, int, int]) -> list[np.ndarray]:
    """Result, gradients of images, filters and bias; and the transposed convolution of the result's gradient."""
    images, filters, bias, slopes = drawn(size)
    collection = dy.ParameterCollection()
    f, b = collection.parameters_from_numpy(filters), collection.parameters_from_numpy(bias)
    dy.renew_cg()
    x = dy.inputTensor(images, batched=True) * 1.0
    dys = dy.inputTensor(slopes, batched=True)
    y = dy.conv2d_bias(x, f, b, [1, 1])
    dy.sum_batches(dy.sum_elems(dy.cmult(y, dys))).backward(full=True)
    turned = dy.conv_transpose2d(dys, f, [1, 1])
    return [y.npvalue(), x.gradient(), f.grad_as_array(), b.grad_as_array(), turned.npvalue()]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_same_bits_on_any_number_of_threads(size: tuple[int, int, int, int, int]) -> None:
    config.set(threads=1)
    before = engine.stats("kernels.pool")["jobs"]
    desired = [a.tobytes() for a in convolved(size)]
    assert engine.stats("kernels.pool")["jobs"] == before
    for threads in (2, 3, 8):
        config.set(threads=threads)
        before = engine.stats("kernels.pool")["jobs"]
        assert [a.tobytes() for a in convolved(size)] == desired
        assert engine.stats("kernels.pool")["jobs"] >= before + 4, (
            "forward, two gradients and the transpose are large enough to be divided"
        )


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_all_parts_are_there(size: tuple[int, int, int, int, int]) -> None:
    images, filters, bias, slopes = (a.astype(np.float64) for a in drawn(size))
    window = size[-1]
    windows = np.lib.stride_tricks.sliding_window_view(images, (window, window), axis=(0, 1))
    result = np.einsum("ijcbpq,pqco->ijob", windows, filters, optimize=True) + bias[:, None]
    of_filters = np.einsum("ijcbpq,ijob->pqco", windows, slopes, optimize=True)
    margin = window - 1
    wide = np.pad(slopes, ((margin, margin), (margin, margin), (0, 0), (0, 0)))
    around = np.lib.stride_tricks.sliding_window_view(wide, (window, window), axis=(0, 1))
    of_images = np.einsum("ijobpq,pqco->ijcb", around, filters[::-1, ::-1], optimize=True)
    wanted = [result, of_images, of_filters, slopes.sum((0, 1, 3)), of_images]
    config.set(threads=2)
    for got, want in zip(convolved(size), wanted):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())
