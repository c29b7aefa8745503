"""Dropout in builders: what is dropped, with which masks, and when masks are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from rnn_reference import KINDS, batched, make

import dynet_cy as dy

N = 200
SMALL = 1e-3
OPEN, CLOSED = 30.0, -30.0


def probe(kind, layers=1):
    """A builder whose cells return (x or h) * SMALL, almost linearly, so that the output shows what is dropped.

    Also returns a function that makes its matrices pass x ("x") or h ("h").
    """
    name = KINDS[kind][0]
    builder = getattr(dy, name)(layers, N, N, dy.ParameterCollection())
    eye, none = np.eye(N, dtype=np.float32), np.zeros((N, N), np.float32)

    def choose(what):
        through = {"x": (eye, none), "h": (none, eye)}[what]
        for layer in builder.get_parameters():
            if kind == "simple":
                layer[0].set_value(through[0])
                layer[1].set_value(through[1])
            elif kind == "gru":
                values = [none, none, OPEN, none, none, OPEN, *through, 0.0]
                for p, v in zip(layer, values):
                    p.set_value(v if isinstance(v, np.ndarray) else np.full(N, v, np.float32))
            elif kind in ("coupled", "fast"):
                for p in layer:
                    p.set_value(np.zeros(p.shape(), np.float32))
                for bias in (3, 7):
                    layer[bias].set_value(np.full(N, OPEN, np.float32))
                layer[8].set_value(through[0])
                layer[9].set_value(through[1])
            else:
                for p, part in zip(layer, through):
                    p.set_value(np.concatenate([none, none, none, part]))
                layer[2].set_value(np.repeat([OPEN, CLOSED, OPEN, 0.0], N).astype(np.float32))

    choose("x")
    return builder, choose


def ones(batch=1, rows=N):
    return batched(dy, np.full((rows, batch), SMALL))


def scale_of(e):
    """An output in units of SMALL: the mask times 1 / (1 - rate). Shape (batch size, length)."""
    return np.atleast_2d(np.array(e.npvalue()).reshape((N, -1), order="F").T) / SMALL


def assert_mask(values, p):
    kept = values != 0
    np.testing.assert_allclose(values[kept], 1 / (1 - p), rtol=1e-3)
    assert kept.mean() == pytest.approx(1 - p, abs=6 * np.sqrt(p * (1 - p) / values.size))


def start_h(builder, value):
    zeros = [batched(dy, np.zeros(N))] * builder.layers
    h = [batched(dy, np.full(N, value))] * builder.layers
    return builder.initial_state(zeros + h if builder.num_h0_components == 2 * builder.layers else h)


MASKED = ["simple", "vanilla", "compact"]


@pytest.mark.parametrize("kind", MASKED)
def test_one_mask_on_inputs(kind):
    builder, _ = probe(kind)
    builder.set_dropouts(0.25, 0.0)
    dy.renew_cg()
    x = ones()
    masks = [scale_of(e) for e in builder.initial_state().transduce([x, x, x])]
    assert_mask(masks[0], 0.25)
    np.testing.assert_array_equal(masks[1], masks[0])
    np.testing.assert_array_equal(masks[2], masks[0])
    # The masks belong to the graph: another sequence has the same masks.
    np.testing.assert_array_equal(scale_of(builder.initial_state().add_input(x).output()), masks[0])
    dy.renew_cg()
    assert (scale_of(builder.initial_state().add_input(ones()).output()) != masks[0]).any()


@pytest.mark.parametrize("kind", MASKED)
def test_one_mask_on_hidden_vectors(kind):
    builder, choose = probe(kind)
    choose("h")
    builder.set_dropouts(0.0, 0.4)
    dy.renew_cg()
    state = start_h(builder, SMALL)
    x = ones()
    mask = scale_of(state.add_input(x).output())
    assert_mask(mask, 0.4)
    second = scale_of(state.add_input(x).add_input(x).output())
    np.testing.assert_allclose(second, mask**2, rtol=2e-3)


@pytest.mark.parametrize("kind", [*MASKED, "coupled"])
def test_layers_have_masks_of_their_own(kind):
    builder, _ = probe(kind, layers=2)
    builder.set_dropout(0.5)
    dy.renew_cg()
    state = builder.initial_state().add_input(ones())
    first, both = (scale_of(e) for e in state.h())
    assert_mask(first, 0.5)
    assert (both[first == 0] == 0).all()
    np.testing.assert_allclose(both[both != 0], 4, rtol=1e-3)
    assert 0.5 * (first != 0).sum() == pytest.approx((both != 0).sum(), abs=30)


@pytest.mark.parametrize("kind", ["simple", "vanilla", "coupled"])
def test_masks_are_shared_in_a_batch(kind):
    builder, _ = probe(kind)
    builder.set_dropout(0.5)
    dy.renew_cg()
    masks = scale_of(builder.initial_state().add_input(ones(4)).output())
    assert masks.shape == (4, N)
    assert_mask(masks[0], 0.5)
    for mask in masks[1:]:
        np.testing.assert_array_equal(mask, masks[0])


@pytest.mark.parametrize("kind", MASKED)
def test_masks_for_each_element_of_a_batch(kind):
    builder, choose = probe(kind)
    builder.set_dropouts(0.5, 0.0)
    dy.renew_cg()
    state = builder.initial_state()
    builder.set_dropout_masks(4)
    first, second = (scale_of(e) for e in state.transduce([ones(4), ones(4)]))
    assert_mask(first, 0.5)
    np.testing.assert_array_equal(first, second)
    for i in range(3):
        assert (first[i] != first[i + 1]).any()
    builder.set_dropout_masks(batch_size=4)
    assert (scale_of(state.add_input(ones(4)).output()) != first).any()
    builder.set_dropout_masks(3)
    assert scale_of(state.add_input(ones()).output()).shape == (3, N)


def test_compact_draws_masks_for_the_batch():
    builder, _ = probe("compact")
    builder.set_dropout(0.5)
    dy.renew_cg()
    masks = scale_of(builder.initial_state().add_input(ones(4)).output())
    assert_mask(masks, 0.5)
    assert (masks[0] != masks[1]).any()


def made(kind, layers):
    if kind == "gru_reset_after":
        return dy.GRUBuilder(layers, 3, 4, dy.ParameterCollection(), reset_after=True)
    return make(dy, kind, layers)[0]


def test_compact_has_masks_for_minibatches_of_several_sizes():
    builder, _ = probe("compact")
    builder.set_dropout(0.5)
    dy.renew_cg()
    found = {}
    for batch in (4, 1, 3, 4, 1):
        masks = scale_of(builder.initial_state().transduce([ones(batch)] * 2)[-1])
        assert masks.shape == (batch, N)
        np.testing.assert_array_equal(found.setdefault(batch, masks), masks)


@pytest.mark.parametrize("kind", ["simple", "vanilla", "compact", "coupled", "gru", "gru_reset_after"])
def test_masks_for_each_sentence_of_an_automatic_minibatch(kind):
    """States keep the masks that they began with, whatever comes in between."""
    builder = made(kind, 2)
    builder.set_dropout(0.5)

    def run(i):
        xs = [ones(1, builder.input_dim)] * 3
        state = builder.initial_state()
        builder.set_dropout_masks()
        first = [state.add_inputs(xs)[-1].output() for _ in range(2)]
        first[0].value()  # the other sentences run meanwhile
        return [e.npvalue() for e in (*first, state.add_inputs(xs)[-1].output())]

    found = dy.batched_map(run, range(8))
    for own in found:
        for again in own[1:]:
            np.testing.assert_array_equal(again, own[0])
    assert len({own[0].tobytes() for own in found}) > 2  # two masks of a few numbers may be equal


@pytest.mark.parametrize("kind", ["gru", "gru_reset_after"])
def test_masks_of_gru_stay(kind):
    """One on x and one on the h of products, without rescaling the state itself."""
    builder = made(kind, 1)
    builder.set_dropout(0.5)
    dy.renew_cg()
    state = builder.initial_state()
    builder.set_dropout_masks(2)
    mask_x, mask_h = (m.npvalue() for m in builder._binding.masks.of(builder._rates, 2, None)[0])
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=builder.input_dim) for _ in range(3)]
    found = state.transduce([dy.inputVector(x) for x in xs])[-1].npvalue()
    p = [w.as_array().astype(float) for w in builder.get_parameters()[0]]
    for b in range(2):
        h = np.zeros(builder.hidden_dim)
        for x in xs:
            x, m = x * mask_x[:, b], h * mask_h[:, b]
            z, r = (1 / (1 + np.exp(-(p[k] @ x + p[k + 1] @ m + p[k + 2]))) for k in (0, 3))
            left = p[7] @ (r * m) if kind == "gru" else r * (p[7] @ m + p[9])
            h = (1 - z) * h + z * np.tanh(p[6] @ x + left + p[8])
        np.testing.assert_allclose(found[:, b], h, rtol=1e-4, atol=1e-6)


def test_masks_of_birnn():
    rnn = dy.BiRNNBuilder(2, 3, 8, dy.ParameterCollection(), dy.LSTMBuilder)
    rnn.set_dropout(0.5)
    dy.renew_cg()
    xs = [dy.ones(3)] * 2
    found = []
    for _ in range(2):
        rnn.set_dropout_masks()
        found += [np.stack([e.npvalue() for e in rnn.transduce(xs)]) for _ in range(2)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[2], found[3])
    assert (found[0] != found[2]).any()
    rnn.set_dropout_masks(3)
    assert rnn.transduce([dy.ones(3, batch_size=3)])[0].dim() == ((8,), 3)


def test_coupled_masks():
    builder, choose = probe("coupled")
    choose("h")
    builder.set_dropout(0.25)
    dy.renew_cg()
    h_mask = scale_of(start_h(builder, SMALL).add_input(ones()).output())
    assert_mask(h_mask, 0.25)

    # The output gate of zeros is 1/2; its peephole, a large multiple of the identity, opens it where c is kept.
    layer = builder.get_parameters()[0]
    for p in layer:
        p.set_value(np.zeros(p.shape(), np.float32))
    layer[3].set_value(np.full(N, OPEN, np.float32))
    layer[10].set_value(np.full(N, SMALL, np.float32))
    layer[6].set_value(np.eye(N, dtype=np.float32) * OPEN / SMALL)
    dy.renew_cg()
    state = builder.initial_state().add_input(ones())
    once = scale_of(state.output())
    kept = once > 0.75
    np.testing.assert_allclose(once[kept], 1, rtol=1e-3)
    np.testing.assert_allclose(once[~kept], 0.5, rtol=1e-3)
    assert kept.mean() == pytest.approx(0.75, abs=0.2)
    np.testing.assert_array_equal(scale_of(state.add_input(ones()).output()) > 0.75, kept)


def test_gru_drops_out_inputs_and_output_anew_at_every_step():
    builder, choose = probe("gru", layers=2)
    builder.set_dropout(0.5)
    dy.renew_cg()
    state = builder.initial_state().add_input(ones())
    first, both = (scale_of(e) for e in state.h())
    out = scale_of(state.output())
    assert_mask(first, 0.5)
    assert (both[first == 0] == 0).all()
    np.testing.assert_allclose(both[both != 0], 4, rtol=1e-3)
    assert (out[both == 0] == 0).all()
    np.testing.assert_allclose(out[out != 0], 8, rtol=1e-3)
    assert 0 < (out != 0).sum() < (both != 0).sum() < (first != 0).sum()
    np.testing.assert_array_equal(scale_of(state.s()[0]), first)
    again = builder.initial_state().add_input(ones())
    assert (scale_of(again.h()[0]) != first).any()
    steps = [scale_of(e) for e in builder.initial_state().transduce([ones()] * 2)]
    assert (steps[0] != steps[1]).any()

    # Hidden vectors are passed between steps without dropout.
    choose("h")
    dy.renew_cg()
    state = start_h(builder, SMALL).add_input(ones())
    for e in state.h():
        np.testing.assert_allclose(scale_of(e), 1, rtol=1e-3)


def test_fast_lstm_ignores_dropout():
    builder, _ = probe("fast")
    builder.set_dropout(0.5)
    dy.renew_cg()
    np.testing.assert_allclose(scale_of(builder.initial_state().add_input(ones()).output()), 1, rtol=1e-3)


@pytest.mark.parametrize("kind", [*MASKED, "gru", "coupled"])
def test_disabled(kind):
    builder, _ = probe(kind)
    for off in (lambda: None, builder.disable_dropout, lambda: builder.set_dropout(0.0)):
        off()
        dy.renew_cg()
        np.testing.assert_allclose(scale_of(builder.initial_state().add_input(ones()).output()), 1, rtol=1e-3)
        builder.set_dropout(0.5)


@pytest.mark.parametrize("kind", [*MASKED, "coupled"])
def test_everything_dropped(kind):
    builder, _ = probe(kind)
    builder.set_dropout(1.0)
    dy.renew_cg()
    np.testing.assert_array_equal(scale_of(builder.initial_state().add_input(ones()).output()), np.zeros((1, N)))


@pytest.mark.parametrize("kind", MASKED)
def test_changed_rates_draw_new_masks(kind):
    builder, _ = probe(kind)
    builder.set_dropouts(0.5, 0.0)
    dy.renew_cg()
    state = builder.initial_state()
    assert_mask(scale_of(state.add_input(ones()).output()), 0.5)
    builder.set_dropouts(0.2, 0.0)
    assert_mask(scale_of(state.add_input(ones()).output()), 0.2)
    builder.disable_dropout()
    np.testing.assert_allclose(scale_of(state.add_input(ones()).output()), 1, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_runs_in_all_shapes(kind):
    """All combinations of rates, batch sizes and masks give values of the right shape."""
    builder, _ = make(dy, kind, 2)
    n_in, n_out = builder.input_dim, builder.hidden_dim
    rates = [(0.5, 0.0), (0.0, 0.5), (0.5, 0.5)] if hasattr(builder, "set_dropouts") else [(0.5,)]
    for pair in rates:
        for masks in (None, 1, 3) if kind != "fast" else (None,):
            for batch in (1, 3):
                (builder.set_dropouts if len(pair) == 2 else builder.set_dropout)(*pair)
                dy.renew_cg()
                state = builder.initial_state()
                if masks:
                    builder.set_dropout_masks(masks)
                xs = [ones(batch, n_in)] * 2
                size = max(batch, masks or 1)
                for e in (state.transduce(xs)[-1], state.add_inputs(xs)[-1].output()):
                    assert e.dim() == ((n_out,), size)
                    assert np.isfinite(e.npvalue()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_errors(kind):
    builder, _ = make(dy, kind, 1)
    name = type(builder).__name__
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(
            ValueError, match=rf"{name}\.set_dropout: argument f: expected a probability .* got {value}"
        ):
            builder.set_dropout(value)
    builder.set_dropout(f=0.5)
    if not hasattr(builder, "set_dropouts"):
        return
    second = "d_h" if kind == "simple" else "d_r"
    with pytest.raises(ValueError, match=rf"{name}\.set_dropouts: argument {second}: expected a probability"):
        builder.set_dropouts(0.5, 2)
    with pytest.raises(ValueError, match=rf"{name}\.set_dropouts: argument d: expected a probability"):
        builder.set_dropouts(**{"d": -1, second: 0.5})
    dy.renew_cg()
    with pytest.raises(ValueError, match=rf"{name}\.set_dropout_masks: call initial_state first"):
        builder.set_dropout_masks(2)
    builder.initial_state()
    with pytest.raises(ValueError, match=rf"{name}\.set_dropout_masks: argument batch_size: expected at least 1"):
        builder.set_dropout_masks(0)
