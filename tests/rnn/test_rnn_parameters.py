"""Parameters of builders: names, shapes, order, initial values; specs; invalid sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rnn_reference import HIDDEN, INPUT, KINDS, make

import dynet_cy as dy

X, H = 40, 60


def expected_layout(name, norm=False):
    """For two layers: the names below the collection, the shapes, and "glorot" or a constant as initial value."""
    local, outer, out = 0, 0, []
    collection = {
        "SimpleRNNBuilder": "simple-rnn-builder",
        "GRUBuilder": "gru-builder",
        "VanillaLSTMBuilder": "vanilla-lstm-builder",
        "CompactVanillaLSTMBuilder": "compact-vanilla-lstm-builder",
        "CoupledLSTMBuilder": "lstm-builder",
        "FastLSTMBuilder": "fast-lstm-builder",
    }[name]
    for x in (X, H):
        peephole = (H, 1) if name == "FastLSTMBuilder" else (H, H)
        shapes = {
            "SimpleRNNBuilder": [(H, x), (H, H), (H,)],
            "GRUBuilder": [(H, x), (H, H), (H,)] * 3,
            "VanillaLSTMBuilder": [(4 * H, x), (4 * H, H), (4 * H,)],
            "CompactVanillaLSTMBuilder": [(4 * H, x), (4 * H, H), (4 * H,)],
        }.get(name, [(H, x), (H, H), peephole, (H,)] * 2 + [(H, x), (H, H), (H,)])
        for shape in shapes:
            out.append((f"/{collection}/_{local}", shape, 0.0 if len(shape) == 1 else "glorot"))
            local += 1
        if norm:
            for n in (4 * H, 4 * H, H):
                for value in (1.0, 0.0):
                    out.append((f"/_{outer}", (n,), value))
                    outer += 1
    return out


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "vanilla_bias"])
def test_layout(kind):
    name, options, _, _ = KINDS[kind]
    model = dy.ParameterCollection()
    builder = getattr(dy, name)(2, X, H, model, **options)
    layout = expected_layout(name, "ln_lstm" in options)
    assert [(p.name(), p.shape()) for p in model.parameters_list()] == [entry[:2] for entry in layout]
    for p, (_, shape, init) in zip(model.parameters_list(), layout):
        values = p.as_array()
        if init == "glorot":
            bound = math.sqrt(6 / sum(shape))
            assert np.abs(values).max() <= bound * 1.0001
            if values.size > 1000:
                assert np.abs(values).max() > 0.98 * bound
                assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.05)
                assert values.mean() == pytest.approx(0, abs=0.05 * bound)
        else:
            np.testing.assert_array_equal(values, np.full(shape, init, np.float32))

    own = [p.name() for p in model.parameters_list() if p.name().count("/") == 2]
    assert [p.name() for layer in builder.get_parameters() for p in layer] == own
    assert [p.name() for p in builder.param_collection().parameters_list()] == own
    assert builder.param_collection().name() == own[0][: own[0].rindex("/") + 1]
    second = getattr(dy, name)(1, X, H, model, **options)
    assert second.param_collection().name() == builder.param_collection().name()[:-1] + "_1/"


def test_lstm_builder_is_the_vanilla_one():
    assert dy.LSTMBuilder is dy.VanillaLSTMBuilder


def test_inner_collection():
    model = dy.ParameterCollection()
    model.add_parameters((1,))
    inner = model.add_subcollection("enc")
    dy.VanillaLSTMBuilder(1, 2, 3, inner, True)
    names = [p.name() for p in model.parameters_list()]
    assert names == ["/_0"] + [f"/enc/vanilla-lstm-builder/_{i}" for i in range(3)] + [f"/enc/_{i}" for i in range(6)]


@pytest.mark.parametrize("kind", KINDS)
def test_specs(kind):
    builder, _ = make(dy, kind, 2)
    options = KINDS[kind][1]
    spec = (2, INPUT, HIDDEN)
    if kind.startswith("vanilla"):
        spec += (options.get("ln_lstm", False), options.get("forget_bias", 1.0))
    assert builder.spec == spec
    assert builder.whoami() == type(builder).__name__
    model = dy.ParameterCollection()
    copy = type(builder).from_spec(spec, model)
    assert type(copy) is type(builder)
    assert copy.spec == spec
    assert len(model.parameters_list()) == 2 * KINDS[kind][2]


@pytest.mark.parametrize("kind", KINDS)
def test_expressions_of_parameters(kind):
    builder, _ = make(dy, kind, 2)
    message = rf"{type(builder).__name__}\.get_parameter_expressions: .* call initial_state first"
    dy.renew_cg()
    with pytest.raises(ValueError, match=message):
        builder.get_parameter_expressions()
    builder.initial_state()
    for layer, es in zip(builder.get_parameters(), builder.get_parameter_expressions()):
        assert [e.dim()[0] for e in es] == [p.shape() for p in layer]
        for p, e in zip(layer, es):
            np.testing.assert_array_equal(np.reshape(e.npvalue(), p.shape()), p.as_array())
    dy.renew_cg()
    with pytest.raises(ValueError, match=message):
        builder.get_parameter_expressions()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_copied_holds_no_graph(kind):
    builder, _ = make(dy, kind, 1)
    dy.renew_cg()
    builder.initial_state()
    state = builder.__getstate__()
    assert "_binding" not in state
    assert state["spec"] == builder.spec


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_sizes(kind):
    name, options, _, _ = KINDS[kind]
    builder_class = getattr(dy, name)
    model = dy.ParameterCollection()
    for argument, sizes in (
        ("layers", (0, 2, 3)),
        ("layers", (-1, 2, 3)),
        ("input_dim", (1, 0, 3)),
        ("hidden_dim", (1, 2, -3)),
    ):
        with pytest.raises(ValueError, match=f"{name}: argument {argument}: expected at least 1, got"):
            builder_class(*sizes, model, **options)
    for value in ("2", 2.5, None):
        with pytest.raises(TypeError, match=f"{name}: argument hidden_dim: expected an integer, got"):
            builder_class(1, 2, value, model, **options)
    with pytest.raises(
        TypeError, match=f"{name}: argument model: expected a ParameterCollection or a layer, got NoneType"
    ):
        builder_class(1, 2, 3, None, **options)
    assert model.parameters_list() == []
    builder = builder_class(layers=np.int64(1), input_dim=2, hidden_dim=6 / 2, model=model, **options)
    assert builder.spec[:3] == (1, 2, 3)
