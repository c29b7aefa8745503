"""Long sums of float32 terms on the device, as in tests/ops/test_long_sums.py."""

from __future__ import annotations

import numpy as np
import pytest
import test_long_sums as sums
import test_long_sums_of_ops as of_ops

import dynet_cy as dy

pytestmark = pytest.mark.usefixtures("on_device")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["number", "column", "between", "batch"])
@pytest.mark.parametrize("name", ["add", "mul-second"])
def test_gradients_of_what_is_broadcast(name: str, part: str) -> None:
    sums.test_gradients_of_what_is_broadcast(name, part)


# An emulated device takes many seconds for a million blocks. Sums in float32 would be off by more, of fewer terms too.
SHARED = [
    *((name, 30_000, 1e-6) for name in ("squared_distance", "binary_log_loss", "dot_product")),
    *((name, 50_000, 5e-7) for name in ("layer_norm-bias", "layer_norm-gain")),
    ("hinge", sums.N, 1e-5),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n", "rtol"), SHARED)
def test_gradients_of_shared_arguments(name: str, n: int, rtol: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "N", n)
    sums.check_shared_arguments(name, rtol)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sum", "sum-columns", "sum_batches", "squared_distance", "normalize", "softmax"])
def test_values(name: str) -> None:
    of_ops.test_values(name)


@pytest.mark.parametrize("function", [dy.esum, dy.average])
def test_sums_of_lists(function) -> None:
    """More arguments than one kernel takes, which are not adjacent."""
    n, term = 10_000, np.float32(0.1)
    dy.renew_cg()
    x = dy.inputVector([term] * 3) * 1
    expected = float(term) * (n if function is dy.esum else 1)
    np.testing.assert_allclose(function([x] * n).npvalue(), expected, rtol=1e-5)


# Few enough for the kernel that finds all equal rows, and more, for which there is another. Sums in float32 would be
# off by 3e-5 and 6e-4.
INDICES = [(name, n) for name in sums.PLACES for n in (8_000, 100_000)]


@pytest.mark.parametrize(("name", "n"), INDICES)
def test_equal_indices(name: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "N", n)
    sums.check_equal_indices(name, rtol=1e-5)


def test_rows_by_index() -> None:
    sums.test_rows_by_index()


@pytest.mark.parametrize("name", ["scatter_rows", "scatter_cols"])
def test_many_slices_at_one_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "N", 20_000)
    sums.test_a_million_slices_at_one_place(name)
