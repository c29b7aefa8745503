"""Products on a GPU in TF32 and in bfloat16, and which settings go together."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.core import engine
from dynet_cy.kernels import kernels

# The bits of a factor, with the one that is not stored.
BITS = {"bf16": 8, "tf32": 11, "float32": 24}


@pytest.fixture(autouse=True)
def afterwards_as_before() -> Iterator[None]:
    yield
    config.set(precision="float32", requested_gpus=0)


def rounded(x: np.ndarray, precision: str) -> np.ndarray:
    """To nearest even, in float64."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(np.ldexp(mantissa, BITS[precision])), exponent - BITS[precision])


def numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(device: str) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Factors, and for one product and for four in one call: the value and the gradients of its factors."""
    a, b = numbers(30, 50, seed=1), numbers(50, 20, seed=2)
    dy.renew_cg()
    w = dy.ParameterCollection().parameters_from_numpy(a, device=device)
    x = dy.inputTensor(b, device=device) * 1
    y = w * x
    one = [y.npvalue()]
    dy.sum_elems(dy.cmult(y, dy.inputTensor(numbers(30, 20, seed=3), device=device))).backward(full=True)
    one += [w.grad_as_array(), x.gradient()]
    dy.renew_cg()
    many_a = dy.inputTensor(np.repeat(a[:, :, None], 4, 2), batched=True, device=device) * 1
    many_b = dy.inputTensor(np.repeat(b[:, :, None], 4, 2), batched=True, device=device) * 1
    four = [(many_a * many_b).npvalue()[:, :, 3]]
    return a, b, one, four


@pytest.mark.parametrize("precision", BITS)
def test_products_round_their_factors(precision: str, on_device: str) -> None:
    config.set(precision=precision)
    assert config.get()["precision"] == precision
    a, b, one, four = product(on_device)
    slope = numbers(30, 20, seed=3)
    if not os.environ.get("DYNET_CY_GPU_EMULATED"):
        # cuBLAS may compute a small product more exactly than it is allowed to, and round in another way.
        for found, x, y in zip([*one, *four], [a, slope, a.T, a], [b, b.T, slope, b]):
            most = 2.0 ** (2 - BITS[precision]) * (np.abs(x) @ np.abs(y))
            assert (np.abs(found - x.astype(np.float64) @ y) <= most).all()
        return
    exact = a.astype(np.float64) @ b
    a, b, slope = rounded(a, precision), rounded(b, precision), rounded(slope, precision)
    all_close([*one, *four], [a @ b, slope @ b.T, a.T @ slope, a @ b], atol=2e-5)
    assert (np.abs(one[0] - exact).max() > 1e-4) == (precision != "float32")


def test_captured_passes_are_not_replayed_in_another_precision(on_device: str) -> None:
    w = dy.ParameterCollection().parameters_from_numpy(np.full((64, 64), 1 + 2**-9), device=on_device)
    found = {}
    for precision in ("float32", "bf16", "tf32", "float32"):
        config.set(precision=precision)
        for _ in range(4):
            dy.renew_cg()
            y = dy.tanh(w * dy.tanh(w * dy.tanh(w * dy.inputVector(np.full(64, 2**-7), device=on_device))) * 2**-6)
            found.setdefault(precision, set()).add(y.npvalue()[0])
    assert [len(found[p]) for p in BITS] == [1, 1, 1]
    if os.environ.get("DYNET_CY_GPU_EMULATED"):  # a device may compute small products more exactly
        assert found["bf16"] != found["float32"]
        assert found["tf32"] != found["bf16"]
    assert engine.stats("gpu.0")["failed_captures"] == 0


@pytest.mark.parametrize(("precision", "products"), [("float32", 1), ("tf32", 2), ("bf16", 2)])
def test_only_products_of_float32_are_joined(precision: str, products: int, on_device: str) -> None:
    """Of others, cuBLAS reads illegal addresses if they are some distance apart."""
    config.set(precision=precision)
    model = dy.ParameterCollection()
    ws = [model.parameters_from_numpy(numbers(80, 90, seed=i), device=on_device) for i in range(2)]
    x = numbers(90, 70, seed=2)
    with dy.ComputationGraph(autobatching=0):
        xs = [dy.inputTensor(x, device=on_device) * k for k in (1, 2)]
        y = dy.concatenate([w * x for w, x in zip(ws, xs)])
        before = engine.stats("gpu.0")["products"]
        found = y.npvalue()
        assert engine.stats("gpu.0")["products"] - before == products
    desired = np.concatenate([w.as_array() @ (x * k) for w, k in zip(ws, (1, 2))])
    np.testing.assert_allclose(found, desired, rtol=0, atol=1 if products > 1 else 1e-3)


def test_a_gpu_has_precisions_that_the_cpu_may_lack(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "bf16_missing", lambda: "a CPU without it")
    for precision in ("tf32", "bf16"):
        config.set(precision=precision, requested_gpus=1)
        assert config.get()["precision"] == precision
        config.set_gpu(False)
        assert config.get()["precision"] == precision


def test_the_cpu_computes_in_float32_with_tf32(device: str) -> None:
    config.set(precision="tf32")
    w = dy.ParameterCollection().parameters_from_numpy(np.full((128, 128), 1 + 2**-20), device="CPU")
    assert (w * dy.inputVector(np.ones(128), device="CPU")).npvalue()[0] == np.float32(128 * (1 + 2**-20))
