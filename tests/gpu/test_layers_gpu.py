"""Layers of dy.nn on the device, compared with the CPU: outputs, gradients and running statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import all_close
from layer_reference import LAYERS, OTHERS, Row
from layer_reference import D as ROWS

import dynet_cy as dy
from dynet_cy import nn
from dynet_cy.graph.expressions import set_default_device

pytestmark = pytest.mark.usefixtures("on_the_cpu_again")

D, HEADS, HIDDEN = 8, 2, 12
Run = Callable[[list[dy.Expression]], list[dy.Expression]]


def each(cls: Any, *spec: Any, **options: Any) -> Callable[[dy.ParameterCollection], Run]:
    """A layer that is called with each sentence."""

    def make(model: dy.ParameterCollection) -> Run:
        layer = cls.from_spec(spec, model)
        return lambda xs: [layer(x, **options) for x in xs]

    return make


def row(cls: Any, *spec: Any) -> Callable[[dy.ParameterCollection], Run]:
    """A layer with a row in layer_reference.py, which is called with that many rows of each sentence."""

    def make(model: dy.ParameterCollection) -> Run:
        run = each(cls, *spec)(model)
        return lambda xs: run([x[:ROWS] for x in xs])

    return make


def decoder(model: dy.ParameterCollection) -> Run:
    layer = nn.TransformerDecoder(1, D, HEADS, HIDDEN, model, positions="rotary")
    return lambda xs: [layer(x, memory) for x, memory in zip(xs, xs[1:])]


def steps(model: dy.ParameterCollection) -> Run:
    layer = nn.TransformerEncoder(2, D, HEADS, HIDDEN, model, 0.0, "gelu", True, "relative")

    def run(xs: list[dy.Expression]) -> list[dy.Expression]:
        state, found = None, []
        for i in range(3):
            y, state = layer.step(dy.pick(xs[0], i, 1), state)
            found.append(y)
        return found

    return run


def pairs(model: dy.ParameterCollection) -> Run:
    pointer = nn.PointerAttention(D, D, 5, model)
    biaffine = nn.BiaffineAttention(D, D, model, 3)
    return lambda xs: [biaffine(xs[0], xs[1]), pointer(xs[0], dy.pick(xs[1], 0, 1))]


def images(model: dy.ParameterCollection) -> Run:
    norm = nn.BatchNorm(2, model, -1)
    return lambda xs: [norm(dy.reshape(xs[0], (D // 2, xs[0].dim()[0][1], 2)))]


def given(other: Row) -> Callable[[dy.ParameterCollection], Run]:
    """A layer with a row that has inputs of its own."""

    def make(model: dy.ParameterCollection) -> Run:
        run = each(*other.layer)(model)
        return lambda xs: run([dy.inputTensor(x) for (x,) in other.inputs])

    return make


PROGRAMS = {
    **{name: row(*layer) for name, (layer, _) in LAYERS.items()},
    **{name: given(other) for name, other in OTHERS.items()},
    "encoder": each(nn.TransformerEncoder, 2, D, HEADS, HIDDEN, 0.0, "rectify", True, "rotary", causal=True),
    "decoder": decoder,
    "steps": steps,
    "pairs": pairs,
    "images": images,
}


def computed(make: Callable[[dy.ParameterCollection], Run], device: int, strategy: int) -> list[np.ndarray]:
    set_default_device(device)
    dy.reset_random_seed(3)
    model = dy.ParameterCollection()
    words = nn.Embedding(9, D, model, padding=0)
    run = make(model)
    rng = np.random.default_rng(4)
    stored = [*model.parameters_list(), *model.lookup_parameters_list()]
    for p in stored:
        values = rng.normal(0.1, 0.4, p.as_array().shape)
        (p.set_value if isinstance(p, dy.Parameters) else p.init_from_array)(values)
    dy.renew_cg(autobatching=strategy)
    outputs = run([words(ids) for ids in ([1, 4, 7], [2, 5], [3, 0, 8, 6])])
    loss = dy.esum([dy.sum_elems(dy.square(y - 0.3)) for y in outputs])
    found = dy.npvalues([*outputs, loss])
    loss.backward()
    return [*found, *(np.array(p.grad_as_array()) for p in stored), *(np.array(p.as_array()) for p in stored)]


@pytest.mark.parametrize("strategy", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_like_the_cpu(name: str, strategy: int) -> None:
    all_close(computed(PROGRAMS[name], 1, strategy), computed(PROGRAMS[name], 0, strategy), rtol=1e-3, atol=1e-4)
