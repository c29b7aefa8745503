"""Checks for every layer: values and gradients equal a float64 reference, for every schedule and batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dynet_cy as dy

Array = Any
Reference = Callable[..., Array]


def parameters(layer: dy.nn.Layer) -> list[Any]:
    collection = layer.param_collection()
    return [*collection.parameters_list(), *collection.lookup_parameters_list()]


def randomized(layer: Any, seed: int = 0, deviation: float = 0.5) -> Any:
    """The layer, with random values for all of its parameters."""
    rng = np.random.default_rng(seed)
    for p in parameters(layer):
        values = rng.normal(0.1, deviation, p.as_array().shape).astype(np.float32)
        (p.set_value if isinstance(p, dy.Parameters) else p.init_from_array)(values)
    return layer


def arrays(layer: dy.nn.Layer) -> dict[str, Array]:
    """The parameters in float64, by name below the collection of the layer."""
    prefix = layer.param_collection().name()
    return {p.name()[len(prefix) :]: p.as_array().astype(np.float64) for p in parameters(layer)}


def check_layer(
    layer: Any,
    reference: Reference,
    inputs: Sequence[tuple[Array, ...]],
    call: Callable[..., dy.Expression] | None = None,
    tolerance: float = 1e-5,
    minibatch: bool = True,
) -> None:
    """Compare a layer with `reference(arrays(layer), *inputs)`.

    Args:
        inputs: for each example, the arrays that the layer is called with
        call: what to do with the expressions, if not `layer(*expressions)`
        minibatch: whether the layer is also called with a batch of copies of the first example
    """
    call = call or layer
    wanted = [reference(arrays(layer), *example) for example in inputs]
    rng = np.random.default_rng(5)
    factors = [rng.normal(size=y.shape) for y in wanted]
    slopes = None
    for strategy in (0, 1, 2):
        dy.renew_cg(autobatching=strategy)
        layer.param_collection().zero_gradients()
        leaves = [[dy.inputTensor(x.astype(np.float32)) for x in example] for example in inputs]
        found = [call(*example) for example in leaves]
        loss = dy.esum([dy.sum_elems(dy.cmult(y, dy.inputTensor(f))) for y, f in zip(found, factors)])
        loss.value()
        for y, want in zip(found, wanted):
            np.testing.assert_allclose(y.npvalue().reshape(want.shape), want, rtol=tolerance, atol=tolerance)
        loss.backward(full=True)
        got = [np.array(p.grad_as_array()) for p in parameters(layer)]
        got += [x.gradient() for example in leaves for x in example]
        if slopes is None:
            slopes = reference_slopes(layer, reference, inputs, factors)
        for a, b in zip(got, slopes):
            np.testing.assert_allclose(a.reshape(b.shape), b, rtol=1e-3, atol=2e-4 * (1 + np.abs(b).max()))
    if minibatch:
        check_minibatch(call, [inputs[0], tuple(x[..., ::-1].copy() for x in inputs[0])], tolerance)


def check_minibatch(
    call: Callable[..., dy.Expression], examples: Sequence[tuple[Array, ...]], tolerance: float
) -> None:
    """Compare a batch of examples of one shape with each example alone."""
    dy.renew_cg()
    alone = [call(*(dy.inputTensor(x.astype(np.float32)) for x in example)).npvalue() for example in examples]
    dy.renew_cg()
    stacked = [np.stack(xs, -1).astype(np.float32) for xs in zip(*examples)]
    together = call(*(dy.inputTensor(x, batched=True) for x in stacked))
    assert together.dim()[1] == len(examples)
    np.testing.assert_allclose(together.npvalue(), np.stack(alone, -1), rtol=tolerance, atol=tolerance)


def reference_slopes(
    layer: Any, reference: Reference, inputs: Sequence[tuple[Array, ...]], factors: Sequence[Array]
) -> list[Array]:
    """Gradients of the parameters and then of the inputs, by central differences in float64."""
    held = arrays(layer)
    examples = [(tuple(np.array(x, dtype=np.float64) for x in example), f) for example, f in zip(inputs, factors)]
    # A parameter changes the results of all examples, an input those of its own.
    moved = [(x, examples) for x in held.values()] + [(x, [one]) for one in examples for x in one[0]]
    found = []
    for x, changed in moved:
        slope = np.zeros_like(x)
        for at in np.ndindex(*x.shape):
            old, losses = x[at], []
            for step in (1e-6, -1e-6):
                x[at] = old + step
                losses.append(sum(float((reference(held, *example) * f).sum()) for example, f in changed))
            slope[at] = (losses[0] - losses[1]) / 2e-6
            x[at] = old
        found.append(slope)
    return found


def sentences(dim: int, lengths: Sequence[int] = (3, 1, 4), seed: int = 1) -> list[tuple[Array]]:
    """Random sentences: matrices with a column for each word."""
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(dim, n)).astype(np.float32),) for n in lengths]
