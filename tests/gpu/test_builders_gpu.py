"""Builders, softmax layers and initializers on the device, compared with the CPU.

A program makes its parameters and returns a function from inputs to outputs. It is trained for a few updates on each
device, with and without batching: all outputs, gradients and parameters must agree. The formulas of builders, with all
ways to begin and to go on, are compared with NumPy on each device in tests/rnn, at sizes below that of a warp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import all_equal
from rnn_reference import KINDS

import dynet_cy as dy
from dynet_cy.graph.expressions import set_default_device

INPUT, HIDDEN, ROWS = 6, 36, 9  # HIDDEN: more than a warp
Inputs = list[dy.Expression]
Run = Callable[[Inputs], Inputs]  # from vectors of any batch size to outputs of any shapes
Make = Callable[[dy.ParameterCollection], Run]


pytestmark = pytest.mark.usefixtures("on_the_cpu_again")


# ---- running programs ----------------------------------------------------------------


def fill(model: dy.ParameterCollection, rng: np.random.Generator) -> None:
    for p in model.parameters_list():
        p.set_value(rng.normal(0.05, 0.4, p.shape()))
    for table in model.lookup_parameters_list():
        table.init_from_array(rng.normal(0, 1, table.shape()))


def inputs_from(table: dy.LookupParameters, step: int, batch: int) -> Inputs:
    if batch == 1:
        return [table[(step + 2 * i) % ROWS] for i in range(4)]
    return [dy.lookup_batch(table, [(step + 2 * i + 3 * k) % ROWS for k in range(batch)]) for i in range(4)]


def trained(make: Make, device: int, strategy: int, batch: int) -> list[np.ndarray]:
    """Outputs and gradients of two updates, and the final parameters."""
    set_default_device(device)
    dy.reset_random_seed(11)
    model = dy.ParameterCollection()
    table = model.add_lookup_parameters((ROWS, INPUT))
    run = make(model)
    fill(model, np.random.default_rng(4))
    trainer = dy.MomentumSGDTrainer(model, 0.05)
    found = []
    for step in range(2):
        dy.renew_cg(autobatching=strategy)
        outputs = run(inputs_from(table, step, batch))
        loss = dy.esum([dy.sum_batches(dy.sum_elems(dy.square(y - 0.3))) for y in outputs]) / len(outputs)
        found += dy.npvalues([*outputs, loss])
        loss.backward()
        found += [p.grad_as_array() for p in [*model.parameters_list(), *model.lookup_parameters_list()]]
        trainer.update()
    return found + [p.as_array() for p in [*model.parameters_list(), *model.lookup_parameters_list()]]


def assert_as_on_the_cpu(make: Make, batch: int = 1) -> None:
    for strategy in (0, 1):
        desired = trained(make, 0, strategy, batch)
        found = trained(make, 1, strategy, batch)
        assert len(found) == len(desired)
        for a, b in zip(found, desired):
            assert np.isfinite(b).all()
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4 * max(1e-2, np.abs(b).max()))


# ---- recurrent networks --------------------------------------------------------------


def build(kind: str, model: dy.ParameterCollection, layers: int = 2, inputs: int = INPUT) -> Any:
    name, options = KINDS[kind][:2]
    return getattr(dy, name)(layers, inputs, HIDDEN, model, **options)


def transduce(builder: Any, model: dy.ParameterCollection) -> Run:
    """Run sequences of several lengths."""
    return lambda xs: [y for n in (4, 2, 3) for y in builder.initial_state().transduce(xs[:n])]


def dropout(builder: Any, model: dy.ParameterCollection) -> Run:
    def run(xs: Inputs) -> Inputs:
        builder.set_dropout(0.4)
        found = [*builder.initial_state().transduce(xs), *builder.initial_state().add_input(xs[0]).s()]
        builder.disable_dropout()
        return [*found, *builder.initial_state().transduce(xs)]

    return run


@pytest.mark.parametrize(("way", "batch"), [(transduce, 1), (transduce, 3), (dropout, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_networks(kind: str, way: Callable, batch: int) -> None:
    assert_as_on_the_cpu(lambda model: way(build(kind, model), model), batch)


# ---- reverting, saving, changing the device --------------------------------------------------


# ---- softmax layers ------------------------------------------------------------------


# ---- initializers --------------------------------------------------------------------


class Ramp(dy.PyInitializer):
    """A custom initializer."""

    def fill(self, out: np.ndarray, rng: Any, lookup: bool = False) -> None:
        out[...] = np.arange(out.size).reshape(out.shape) + rng.uniform(1)[0]


INITIALIZERS: dict[str, Any] = {
    "number": 0.5,
    "array": np.arange(16.0).reshape(4, 4),
    **{name: name for name in ("glorot", "uniform", "normal", "identity", "saxe", "he")},
    "NormalInitializer": dy.NormalInitializer(1, 2),
    "UniformInitializer": dy.UniformInitializer(0.3),
    "ConstInitializer": dy.ConstInitializer(2),
    "GlorotInitializer": dy.GlorotInitializer(gain=0.5),
    "SaxeInitializer": dy.SaxeInitializer(2),
    "IdentityInitializer": dy.IdentityInitializer(),
    "NumpyInitializer": dy.NumpyInitializer(np.eye(4)),
    "own": Ramp(),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers(name: str) -> None:
    """Initial values of parameters and tables equal the CPU's, read as arrays and in a graph."""

    def made(device: int) -> list[np.ndarray]:
        set_default_device(device)
        dy.reset_random_seed(8)
        model = dy.ParameterCollection()
        p = model.add_parameters((4, 4), init=INITIALIZERS[name])
        found = [p.as_array()]
        if name not in ("identity", "IdentityInitializer", "saxe", "SaxeInitializer"):
            table = model.add_lookup_parameters((4, 4), init=INITIALIZERS[name])
            found += [table.as_array(), table.row_as_array(3)]
        dy.renew_cg()
        return [*found, (p * 1).npvalue(), model.add_parameters(300, init=dy.NormalInitializer()).as_array()]

    all_equal(made(1), made(0))
