"""Builders compared with DyNet's: parameters, model files, names.

Their numbers are compared with the formulas in NumPy in tests/rnn, and with DyNet's in random programs.
"""

from __future__ import annotations

import numpy as np
import pytest

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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if hasattr(dynet_cy, KINDS[kind][0])])
def test_public_names(kind):
    name = KINDS[kind][0]
    missing = {n for n in dir(getattr(dynet, name)) if not n.startswith("_")} - set(dir(make(dynet_cy, kind, 1)[0]))
    assert not missing
