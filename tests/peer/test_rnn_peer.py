"""Builders compared with DyNet's: values, gradients, parameters, model files, dropout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from in_compat import results_in_compat

import dynet_cy

dynet = pytest.importorskip("dynet")

pytestmark = pytest.mark.peer

INPUT, HIDDEN = 4, 3
LSTMS = {
    "vanilla": ("VanillaLSTMBuilder", ()),
    "vanilla_bias": ("VanillaLSTMBuilder", (False, 0.25)),
    "vanilla_norm": ("VanillaLSTMBuilder", (True,)),
    "vanilla_norm_bias": ("VanillaLSTMBuilder", (True, 2.0)),
    "compact": ("CompactVanillaLSTMBuilder", ()),
    "coupled": ("CoupledLSTMBuilder", ()),
    "fast": ("FastLSTMBuilder", ()),
}
KINDS = {"simple": ("SimpleRNNBuilder", ()), "gru": ("GRUBuilder", ()), **LSTMS}


def make(module, kind, layers, input_dim=INPUT, hidden_dim=HIDDEN, seed=0):
    name, options = KINDS[kind]
    model = module.ParameterCollection()
    builder = getattr(module, name)(layers, input_dim, hidden_dim, model, *options)
    rng = np.random.default_rng(seed)
    for p in model.parameters_list():
        p.set_value(rng.normal(0.1, 0.6, p.shape()).astype(np.float32))
    return builder, model


class Inputs:
    """Makes inputs and keeps them: otherwise DyNet reads freed memory, as it does without a builder's collection."""

    def __init__(self, module, seed=3):
        self.module, self.rng, self.flat = module, np.random.default_rng(seed), []

    def __call__(self, length, batch):
        flat = self.module.inputVector([float(v) for v in self.rng.normal(0, 1, length * batch).astype(np.float32)])
        e = self.module.reshape(flat, (length,), batch_size=batch) if batch > 1 else flat
        self.flat.append(flat)
        return e


def run(module, kind, layers, batch, start, way):
    """All results of a run: values of states and outputs, loss, gradients of parameters and inputs."""
    builder, model = make(module, kind, layers)
    module.renew_cg()
    new = Inputs(module)
    count = {"empty": 0, "set": 2 * layers if kind in LSTMS else layers, "cells": layers}[start]
    vectors = [new(HIDDEN, batch) for _ in range(count)]
    xs = [new(INPUT, batch) for _ in range(4)]
    state = builder.initial_state(vectors or None)
    if way == "transduce":
        seen = out = state.transduce(xs)
    else:
        states = state.add_inputs(xs)
        out = [s.output() for s in states]
        seen = [e for s in states for e in (*s.s(), *s.h(), s.output())]
    weights = Inputs(module, 4)
    terms = [module.sum_elems(module.cmult(weights(HIDDEN, batch), e)) for e in out]
    loss = module.sum_batches(module.esum(terms))
    values = [np.array(e.npvalue()) for e in seen]
    value = loss.value()
    loss.backward(full=True)
    gradients = [np.array(p.grad_as_array()) for p in model.parameters_list()]
    of_inputs = [np.array(e.gradient()) for e in new.flat]
    return values, value, gradients, of_inputs


def run_ours(*call):
    return run(dynet_cy, *call)


WAYS, STARTS, BATCHES, LAYERS = ["add_inputs", "transduce"], ["empty", "set", "cells"], [1, 3], [1, 2, 3]


@pytest.fixture(scope="module")
def in_compat():
    """Norms, whose formula is DyNet's only in programs of DyNet."""
    calls = list(itertools.product(["vanilla_norm", "vanilla_norm_bias"], LAYERS, BATCHES, STARTS, WAYS))
    return dict(zip(calls, results_in_compat("test_rnn_peer", "run_ours", calls)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(in_compat, kind, layers, batch, start, way):
    if start == "cells" and kind not in LSTMS:
        pytest.skip("no cells")
    if start == "cells" and kind == "compact" and batch > 1:
        pytest.skip("DyNet fails: its zero h has no batch")
    expected = run(dynet, kind, layers, batch, start, way)
    call = kind, layers, batch, start, way
    got = in_compat[call] if call in in_compat else run_ours(*call)
    for e, g in zip(expected[0], got[0]):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=2e-6)
    assert got[1] == pytest.approx(expected[1], rel=1e-4, abs=1e-5)
    for part in (2, 3):
        assert len(expected[part]) == len(got[part])
        for e, g in zip(expected[part], got[part]):
            if kind.startswith("vanilla_norm") and start == "cells" and np.isnan(e).any():
                continue  # DyNet divides by the standard deviation of zeros
            np.testing.assert_allclose(g, e, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters(kind):
    layouts = []
    for module in (dynet, dynet_cy):
        builder, model = make(module, kind, 3)
        layouts.append(
            (
                [(p.name(), p.shape()) for p in model.parameters_list()],
                [[p.name() for p in layer] for layer in builder.get_parameters()],
                builder.param_collection().name(),
                builder.whoami(),
                None if kind == "fast" else builder.spec,
            )
        )
    assert layouts[0] == layouts[1]


@pytest.mark.parametrize("factory", sorted({name for name, _ in KINDS.values()}))
def test_bidirectional(factory):
    outputs = []
    for module in (dynet, dynet_cy):
        model = module.ParameterCollection()
        model.add_parameters((2,))
        builder = module.BiRNNBuilder(2, INPUT, 2 * HIDDEN, model, getattr(module, factory))
        rng = np.random.default_rng(0)
        for p in model.parameters_list():
            p.set_value(rng.normal(0.1, 0.6, p.shape()).astype(np.float32))
        module.renew_cg()
        new = Inputs(module)
        xs = [new(INPUT, 3) for _ in range(5)]
        pairs = builder.add_inputs(xs)
        values = [np.array(e.npvalue()) for e in builder.transduce(xs)]
        values += [np.array(e.npvalue()) for pair in pairs for state in pair for e in state.s()]
        outputs.append(([(p.name(), p.shape()) for p in model.parameters_list()], values))
    assert outputs[0][0] == outputs[1][0]
    for e, g in zip(outputs[0][1], outputs[1][1]):
        np.testing.assert_allclose(g, e, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_initial_values(kind):
    name, options = KINDS[kind]
    values = []
    for module in (dynet, dynet_cy):
        model = module.ParameterCollection()
        getattr(module, name)(2, 40, 60, model, *options)
        values.append([p.as_array() for p in model.parameters_list()])
    for e, g in zip(*values):
        if e.ndim == 1:
            np.testing.assert_array_equal(g, e)
        elif e.size > 1000:
            assert np.abs(g).max() == pytest.approx(np.abs(e).max(), rel=0.01)
            assert g.std() == pytest.approx(e.std(), rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_model_files_load_both_ways(kind, tmp_path):
    path = str(tmp_path / "model")
    for writer, reader in ((dynet, dynet_cy), (dynet_cy, dynet)):
        _, model = make(writer, kind, 2, seed=1)
        model.save(path)
        _, other = make(reader, kind, 2, seed=2)
        other.populate(path)
        for p, q in zip(model.parameters_list(), other.parameters_list()):
            np.testing.assert_allclose(q.as_array(), p.as_array(), rtol=1e-6)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_distribution_under_dropout(kind, batch):
    """Over many graphs: mean and deviation of outputs, and of the difference between two sequences of one graph."""
    seen = []
    for module in (dynet, dynet_cy):
        builder, model = make(module, kind, 2)
        builder.set_dropout(0.4)
        draws = []
        for _ in range(1500):
            module.renew_cg()
            new = Inputs(module)
            xs = [new(INPUT, batch), new(INPUT, batch)]
            state = builder.initial_state()
            last = state.add_inputs(xs)[-1]
            one, two, h = (
                np.array(e.npvalue()).reshape(HIDDEN, batch)
                for e in (last.output(), state.add_inputs(xs)[-1].output(), last.h()[-1])
            )
            draws.append([one, two - one, h])
        seen.append(np.array(draws))
        del model
    for e, g in zip(*(np.moveaxis(part, 0, -1) for part in seen)):
        spread = max(float(e.std(-1).max()), 1e-4)  # without dropout: rounding
        np.testing.assert_allclose(g.mean(-1), e.mean(-1), atol=0.2 * spread)
        np.testing.assert_allclose(g.std(-1), e.std(-1), atol=0.15 * spread)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if hasattr(dynet_cy, KINDS[kind][0])])
def test_public_names(kind):
    name = KINDS[kind][0]
    missing = {n for n in dir(getattr(dynet, name)) if not n.startswith("_")} - set(dir(make(dynet_cy, kind, 1)[0]))
    assert not missing
