"""BiRNNBuilder: wiring, parameters, dropout, errors."""

from __future__ import annotations

import numpy as np
import pytest
from rnn_reference import batched, random_inputs

import dynet_cy as dy

pytestmark = pytest.mark.usefixtures("on_each_device")

FACTORIES = [
    "SimpleRNNBuilder",
    "GRUBuilder",
    "VanillaLSTMBuilder",
    "CompactVanillaLSTMBuilder",
    "CoupledLSTMBuilder",
    "FastLSTMBuilder",
]


def values(es):
    return np.array([e.npvalue() for e in es])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("factory", FACTORIES)
def test_wiring(factory, layers, batch):
    builder = dy.BiRNNBuilder(layers, 4, 6, dy.ParameterCollection(), getattr(dy, factory))
    assert len(builder.builder_layers) == layers
    dy.renew_cg()
    xs = [batched(dy, x if batch > 1 else x[:, 0]) for x in random_inputs(5, batch)]
    inputs = xs
    for forward, backward in builder.builder_layers:
        f = [s.output() for s in forward.initial_state().add_inputs(inputs)]
        b = [s.output() for s in backward.initial_state().add_inputs(inputs[::-1])][::-1]
        inputs = [dy.concatenate([p, q]) for p, q in zip(f, b)]
    outputs = builder.transduce(xs)
    assert [e.dim() for e in outputs] == [((6,), batch)] * 5
    np.testing.assert_allclose(values(outputs), values(inputs), rtol=1e-4, atol=1e-6)
    pairs = builder.add_inputs(xs)
    np.testing.assert_allclose(values(s.output() for s, _ in pairs), values(f), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values(s.output() for _, s in pairs), values(b), rtol=1e-4, atol=1e-6)
    assert pairs[0][0].b() is builder.builder_layers[-1][0]
    assert pairs[0][1].b() is builder.builder_layers[-1][1]
    assert pairs[1][0].prev() is pairs[0][0]
    assert pairs[0][1].prev() is pairs[1][1]


def test_iterables():
    builder = dy.BiRNNBuilder(2, 4, 6, dy.ParameterCollection(), dy.LSTMBuilder)
    dy.renew_cg()
    xs = [batched(dy, x[:, 0]) for x in random_inputs(3, 1)]
    np.testing.assert_allclose(values(builder.transduce(x for x in xs)), values(builder.transduce(xs)), rtol=1e-6)
    assert len(builder.add_inputs(tuple(xs))) == 3
    assert builder.transduce([]) == []
    assert builder.add_inputs([]) == []


def test_parameters():
    model = dy.ParameterCollection()
    builder = dy.BiRNNBuilder(2, 4, 6, model, dy.GRUBuilder)
    expected = []
    for i, n in enumerate((4, 4, 6, 6)):
        collection = "/birnn/gru-builder" + (f"_{i}" if i else "")
        for j in range(3):
            expected += [
                (f"{collection}/_{3 * j}", (3, n)),
                (f"{collection}/_{3 * j + 1}", (3, 3)),
                (f"{collection}/_{3 * j + 2}", (3,)),
            ]
    assert [(p.name(), p.shape()) for p in model.parameters_list()] == expected
    assert builder.param_collection().name() == "/birnn/"
    assert builder.spec == (2, 4, 6, dy.GRUBuilder, None)
    assert builder.whoami() == "BiRNNBuilder"
    copy = dy.BiRNNBuilder.from_spec(builder.spec, dy.ParameterCollection())
    assert [(p.name(), p.shape()) for p in copy.param_collection().parameters_list()] == expected


def test_factory_function():
    calls = []

    def factory(layers, input_dim, hidden_dim, model):
        calls.append((layers, input_dim, hidden_dim, model.name()))
        return dy.VanillaLSTMBuilder(layers, input_dim, hidden_dim, model, ln_lstm=True)

    model = dy.ParameterCollection()
    builder = dy.BiRNNBuilder(2, 4, 6, model, rnn_builder_factory=factory)
    assert calls == [(1, 4, 3, "/birnn/")] * 2 + [(1, 6, 3, "/birnn/")] * 2
    names = [p.name() for p in model.parameters_list()]
    assert names[:9] == [f"/birnn/vanilla-lstm-builder/_{i}" for i in range(3)] + [f"/birnn/_{i}" for i in range(6)]
    assert builder.builder_layers[0][0].ln_lstm


def test_given_layers():
    first = dy.BiRNNBuilder(2, 4, 6, dy.ParameterCollection(), dy.GRUBuilder)
    second = dy.BiRNNBuilder(None, None, None, dy.ParameterCollection(), None, first.builder_layers)
    dy.renew_cg()
    xs = [batched(dy, x[:, 0]) for x in random_inputs(3, 1)]
    np.testing.assert_array_equal(values(first.transduce(xs)), values(second.transduce(xs)))


def test_dropout():
    builder = dy.BiRNNBuilder(2, 4, 40, dy.ParameterCollection(), dy.VanillaLSTMBuilder)
    x = random_inputs(1, 1)[0][:, 0]

    def output():
        dy.renew_cg()
        return values(builder.transduce([batched(dy, x)] * 3))

    exact = output()
    np.testing.assert_array_equal(output(), exact)
    builder.set_dropout(0.5)
    assert np.abs(output() - output()).max() > 1e-3
    builder.disable_dropout()
    np.testing.assert_array_equal(output(), exact)
    with pytest.raises(ValueError, match=r"VanillaLSTMBuilder\.set_dropout"):
        builder.set_dropout(2)


def test_errors():
    model = dy.ParameterCollection()
    with pytest.raises(ValueError, match="BiRNNBuilder: argument hidden_dim: expected an even number, got 5"):
        dy.BiRNNBuilder(1, 4, 5, model, dy.GRUBuilder)
    with pytest.raises(ValueError, match="BiRNNBuilder: argument num_layers: expected at least 1, got 0"):
        dy.BiRNNBuilder(0, 4, 6, model, dy.GRUBuilder)
    with pytest.raises(
        TypeError, match="BiRNNBuilder: argument rnn_builder_factory: expected a builder class, got None"
    ):
        dy.BiRNNBuilder(1, 4, 6, model, None)
    with pytest.raises(
        TypeError, match="BiRNNBuilder: argument model: expected a ParameterCollection or a layer, got NoneType"
    ):
        dy.BiRNNBuilder(1, 4, 6, None, dy.GRUBuilder)
    assert model.parameters_list() == []
