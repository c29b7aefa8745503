"""Every row of the table of ops on the device: the checks of tests/ops/test_ops.py, and comparison with the CPU."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import test_ieee
import test_offsets
import test_ops
from table import CASES, Case, first_rows

import dynet_cy as dy
from dynet_cy.graph.expressions import set_default_device
from dynet_cy.ops.registry import describe

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"
FIRST = first_rows(CASES)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
each_with_gradient = pytest.mark.parametrize("case", [c for c in CASES if c.grad is not False], ids=lambda c: c.id)


@lru_cache(maxsize=1)
def missing() -> frozenset[str]:
    """The ops that docs/gpu.md lists as not done yet."""
    listed = GUIDE.read_text(encoding="utf-8").partition("derived: unwritten")[2].partition("end of unwritten")[0]
    return frozenset(re.findall(r"`(\w+)`", listed))


def skip_if_missing(case: Case) -> None:
    """Skip a row with ops that are not done yet."""
    set_default_device(0)
    ops = test_ops.ops_of(case)
    set_default_device(1)
    dy.renew_cg()
    if ops & missing():
        pytest.skip(f"not done on GPUs yet: {', '.join(sorted(ops & missing()))}")


@pytest.fixture
def rows(on_device):
    """A function that skips rows that cannot run."""
    return skip_if_missing


def test_the_list_of_missing_ops_is_right(device) -> None:
    """The list in docs/gpu.md has exactly the ops without a GPU op."""
    import dynet_cy.gpu.backend  # noqa: F401 - fills the table
    from dynet_cy.gpu import registry

    done = {op["name"] for op in registry.describe()}
    others = {"input", "parameter", "to_device", "gates"}  # these run nothing, or run on no GPU
    assert {op["name"] for op in describe()} - done - others == missing()
    with_gradient = {op["name"] for op in describe() if op["gradient"] is True}
    assert {op["name"] for op in registry.describe() if not op["gradient"]} & with_gradient == set()


@each_case
def test_value(case: Case, rng, rows) -> None:
    rows(case)
    test_ops.test_value(case, rng, dy.renew_cg())


@each_with_gradient
def test_gradients_are_those_of_the_cpu(case: Case, rng, rows) -> None:
    rows(case)
    for sizes in case.batch_sizes():
        samples = case.sample(rng, sizes)
        weights = test_ops.weights_for(case, samples, rng)
        found = test_ops.gradients(case, samples, weights)
        set_default_device(0)
        desired = test_ops.gradients(case, samples, weights)
        set_default_device(1)
        for actual, wanted in zip(found, desired):
            test_ops.close(actual, wanted, 10 * case.tol)


@pytest.mark.skipif(not test_offsets.EXACT, reason="no type of floats with more digits than float64")
@pytest.mark.parametrize("case", test_offsets.rows(), ids=lambda c: c.id)
def test_values_with_offsets(case: Case, rows) -> None:
    """Values and gradients next to large arguments: exp and log keep their digits on the device too."""
    rows(case)
    for offset in test_offsets.OFFSETS:
        test_offsets.test_offsets(case, offset)


ODD = {name: odd for name, odd in test_ieee.ODD.items() if not np.isfinite(odd)}


# What these make of such numbers depends on the order of their sums or on the algorithm, which are others on a device:
# values too, or gradients only.
OTHER_VALUES = ("crf_", "scaled_dot_product_attention", "conv2d_bias", "conv_transpose2d", "inverse")
OTHER_VALUES += ("vanilla_lstm_gates-weightnoise",)
OTHER_SLOPES = ("norm", "pickneglogsoftmax", "channel_norm", "label_chain", "logsumexp_dim", "logdet", "weight_norm")
COMPARED = [c for c in CASES if c.shapes and not c.id.startswith(OTHER_VALUES)]


@pytest.mark.parametrize("case", COMPARED, ids=lambda c: c.id)
def test_numbers_that_are_not_finite(case: Case, rows) -> None:
    """One of them in each argument, or all of it: the same numbers, infinities and NaN as on the CPU."""
    rows(case)
    samples = case.sample(np.random.default_rng(1), case.batch_sizes()[-1])
    for (name, odd), i, whole in itertools.product(ODD.items(), range(len(samples)), (True, False)):
        changed = [x.copy() for x in samples]
        changed[i].reshape(-1)[: None if whole else 1] = odd
        found = []
        for device in (1, 0):
            set_default_device(device)
            try:
                value, slopes = test_ieee.run(case, changed)
                found.append([value, *(() if case.id.startswith(OTHER_SLOPES) else slopes)])
            except (ValueError, IndexError):
                found.append(None)
        where = f"{name} in {'all' if whole else 'one number'} of argument {i}"
        assert (found[0] is None) == (found[1] is None), where
        for actual, wanted in zip(found[0] or (), found[1] or ()):
            np.testing.assert_allclose(actual, wanted, rtol=10 * case.tol, atol=10 * case.tol, err_msg=where)


@each_with_gradient
def test_gradient_accumulates(case: Case, rng, rows) -> None:
    rows(case)
    test_ops.test_gradient_accumulates(case, rng, dy.renew_cg())


@test_ops.each_of_equal_shapes
def test_same_argument_twice(case: Case, rng, rows) -> None:
    rows(case)
    test_ops.test_same_argument_twice(case, rng, dy.renew_cg())


@each_case
def test_batched_as_on_the_cpu(case: Case, rows) -> None:
    """Many nodes in one graph have the same values and gradients as on the CPU, for each schedule in the first row."""
    rows(case)
    set_default_device(0)
    values, gradients, _ = test_ops.mixed_graph([case], 3, 0)
    set_default_device(1)
    for strategy in (0, 1, 2) if case.id in FIRST else (1,):
        found = test_ops.mixed_graph([case], 3, strategy)
        for actual, desired in zip(found[0], values):
            test_ops.close(actual, desired, case.tol)
        for actual, desired in zip(found[1], gradients):
            test_ops.close(actual, desired, 10 * case.tol)


def test_missing_ops_are_an_error(on_device) -> None:
    """The error for a missing op names the op and the device, and the graph stays usable."""
    names = {op["name"] for op in describe()} & missing()
    case = next((c for c in CASES if test_ops.ops_of(c) & names), None)
    if case is None:
        pytest.skip("no op is missing")
    dy.renew_cg()
    samples = case.sample(np.random.default_rng(0), case.batch_sizes()[0])
    y = case.build(dy, [test_ops.as_input(x) for x in samples])
    with pytest.raises(NotImplementedError, match=r"^\w+: it is not implemented on GPU:0 yet; docs/gpu.md lists"):
        y.npvalue()
    x = dy.inputVector([1.0, 2.0])
    assert dy.tanh(x * 0).value() == [0, 0]


def test_losses_and_weights_of_nan(on_device) -> None:
    x = dy.inputVector([0.5, np.nan, 1.0])
    assert np.isnan(dy.hinge(x, 0).value())
    assert np.isnan(dy.sparsemax(x).npvalue()).all()
