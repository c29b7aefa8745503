"""Values and gradients of every builder, compared with NumPy in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from arrays import all_close
from rnn_reference import HIDDEN, INPUT, KINDS, arrays, batched, make, random_inputs, random_state, run, value_of

import dynet_cy as dy

pytestmark = pytest.mark.usefixtures("on_each_device")


@pytest.mark.parametrize("start", ["empty", "set", "cells"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_values(kind, layers, batch, start):
    if start == "cells" and KINDS[kind][3] == 1:
        pytest.skip("no cells")
    builder, model = make(dy, kind, layers)
    xs = random_inputs(4, batch)
    vectors = None if start == "empty" else random_state(kind, layers, batch)[: layers if start == "cells" else None]
    expected = run(kind, arrays(model, kind, layers), xs, vectors)

    dy.renew_cg()
    state = builder.initial_state(None if vectors is None else [batched(dy, v) for v in vectors])
    inputs = [batched(dy, x) for x in xs]
    states = state.add_inputs(inputs)
    for after, want in zip(states, expected):
        got = [value_of(e) for e in after.s()]
        assert len(got) == len(want)
        all_close(got, want, rtol=1e-4, atol=2e-6)
        assert len(after.h()) == layers
        for e, w in zip(after.h(), want[-layers:]):
            np.testing.assert_allclose(value_of(e), w, rtol=1e-4, atol=2e-6)
        np.testing.assert_allclose(value_of(after.output()), want[-1], rtol=1e-4, atol=2e-6)
    for e, want in zip(state.transduce(inputs), expected):
        np.testing.assert_allclose(value_of(e), want[-1], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("transduce", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind, layers, transduce):
    builder, model = make(dy, kind, layers)
    xs = random_inputs(3, 2)
    weights = [np.random.default_rng(7 + i).normal(size=(HIDDEN, 2)) for i in range(len(xs))]
    vectors = random_state(kind, layers, 2)
    params = arrays(model, kind, layers)

    def loss():
        after = run(kind, params, xs, vectors)
        return sum(float((w * s[-1]).sum()) for w, s in zip(weights, after))

    dy.renew_cg()
    state = builder.initial_state([batched(dy, v) for v in vectors])
    inputs = [batched(dy, x) for x in xs]
    out = state.transduce(inputs) if transduce else [s.output() for s in state.add_inputs(inputs)]
    total = dy.sum_batches(dy.esum([dy.sum_elems(dy.cmult(batched(dy, w), e)) for w, e in zip(weights, out)]))
    assert total.value() == pytest.approx(loss(), rel=1e-4, abs=1e-5)
    total.backward()

    gradients = [np.array(p.grad_as_array(), np.float64) for p in model.parameters_list()]
    for array, gradient in zip([a for layer in params for a in layer], gradients):
        assert gradient.shape == array.shape
        for index in np.ndindex(array.shape):
            kept, step = array[index], 1e-6
            array[index] = kept + step
            up = loss()
            array[index] = kept - step
            down = loss()
            array[index] = kept
            assert gradient[index] == pytest.approx((up - down) / (2 * step), rel=2e-3, abs=2e-4)


@pytest.mark.parametrize("sizes", [(1, 3), (3, 1)], ids=["state", "inputs"])
@pytest.mark.parametrize("kind", KINDS)
def test_states_and_inputs_of_different_batch_sizes(kind, sizes):
    layers = 2
    builder, model = make(dy, kind, layers)
    of_state, of_inputs = sizes
    xs = random_inputs(3, of_inputs)
    vectors = random_state(kind, layers, of_state)
    expected = run(
        kind,
        arrays(model, kind, layers),
        [np.broadcast_to(x, (INPUT, 3)) for x in xs],
        [np.broadcast_to(v, (HIDDEN, 3)) for v in vectors],
    )
    dy.renew_cg()
    inputs = [batched(dy, x) for x in xs]
    state = builder.initial_state([batched(dy, v) for v in vectors])
    for after, e, want in zip(state.add_inputs(inputs), state.transduce(inputs), expected):
        np.testing.assert_allclose(value_of(after.output()), want[-1], rtol=1e-4, atol=2e-6)
        np.testing.assert_allclose(value_of(e), want[-1], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_size_of_inputs_may_change(kind):
    builder, model = make(dy, kind, 2)
    xs = [*random_inputs(1, 1), *random_inputs(2, 3)]
    expected = run(kind, arrays(model, kind, 2), [np.broadcast_to(x, (INPUT, 3)) for x in xs])
    dy.renew_cg()
    outputs = builder.initial_state().transduce([batched(dy, x) for x in xs])
    np.testing.assert_allclose(value_of(outputs[-1]), expected[-1][-1], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", ["simple", "gru", "vanilla", "vanilla_bias", "coupled", "fast"])
def test_columns_of_a_matrix_are_run_side_by_side(kind):
    builder, model = make(dy, kind, 2)
    xs = random_inputs(2, 5)
    expected = run(kind, arrays(model, kind, 2), xs)
    dy.renew_cg()
    inputs = [dy.reshape(dy.inputVector([float(v) for v in x.ravel(order="F")]), x.shape) for x in xs]
    for after, want in zip(builder.initial_state().add_inputs(inputs), expected):
        assert after.output().dim() == ((HIDDEN, 5), 1)
        np.testing.assert_allclose(after.output().npvalue(), want[-1], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_transduce_takes_any_iterable(kind):
    builder, _ = make(dy, kind, 2)
    dy.renew_cg()
    xs = [batched(dy, x[:, 0]) for x in random_inputs(3, 1)]
    state = builder.initial_state()
    backwards = [s.output().npvalue() for s in state.add_inputs(xs[::-1])]
    np.testing.assert_allclose([e.npvalue() for e in state.transduce(reversed(xs))], backwards, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        [e.npvalue() for e in state.transduce(x for x in xs[::-1])], backwards, rtol=1e-5, atol=1e-6
    )
    assert len(state.add_inputs(reversed(xs))) == 3
    assert state.transduce([]) == []
    assert state.add_inputs([]) == []


def test_weight_noise():
    builder, _ = make(dy, "compact", 1)
    x = random_inputs(1, 1)[0][:, 0]

    def outputs(count):
        values = []
        for _ in range(count):
            dy.renew_cg()
            values.append(builder.initial_state().add_input(batched(dy, x)).output().npvalue())
        return np.array(values)

    exact = outputs(1)[0]
    builder.set_weightnoise(0.01)
    noisy = outputs(300)
    assert (noisy.std(0) > 1e-4).all()
    assert (noisy.std(0) < 0.1).all()
    np.testing.assert_allclose(noisy.mean(0), exact, atol=0.01)
    builder.set_weightnoise(0.0)
    np.testing.assert_array_equal(outputs(1)[0], exact)
    with pytest.raises(ValueError, match=r"CompactVanillaLSTMBuilder\.set_weightnoise: argument std: .* got -1"):
        builder.set_weightnoise(-1.0)


def test_the_page_has_every_builder():
    """docs/rnn.md lists every builder in the tables of parameters and of nodes per input."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "rnn.md").read_text(encoding="utf-8")
    for name in {name for name, *_ in KINDS.values()}:
        assert page.count(f"| `{name}` |") >= 2, name
