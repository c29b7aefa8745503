"""Softmax layers and the pruned LSTM, compared with DyNet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy

pytestmark = pytest.mark.peer
dynet = pytest.importorskip("dynet")

CLUSTERS = "A cat\nA dog\nB red\nB blue\nB green\nC only\n"
WORDS = {"cat": 0, "dog": 1, "red": 2, "blue": 3, "green": 4, "only": 5}


def fill(builders: list[Any], rng: np.random.Generator) -> None:
    """Set all builders to the same random values."""
    lists = [b.param_collection().parameters_list() for b in builders]
    assert len({len(found) for found in lists}) == 1
    for same in zip(*lists):
        assert len({p.name() for p in same}) == len({p.shape() for p in same}) == 1
        value = rng.normal(size=same[0].shape())
        for p in same:
            p.set_value(value)


def gradients(builder: Any) -> list[np.ndarray]:
    return [p.grad_as_array() for p in builder.param_collection().parameters_list()]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["standard", "factored"])
def test_softmax(tmp_path: Path, rng: np.random.Generator, kind: str, bias: bool) -> None:
    file = tmp_path / "clusters"
    file.write_text(CLUSTERS, encoding="utf-8")
    builders: list[Any] = []
    models = [module.ParameterCollection() for module in (dy, dynet)]  # DyNet's must be kept alive
    for module, model in zip((dy, dynet), models):
        if kind == "standard":
            builders.append(module.StandardSoftmaxBuilder(4, 6, model, bias))
        else:
            builders.append(module.ClassFactoredSoftmaxBuilder(4, str(file), WORDS, model, bias))
    fill(builders, rng)
    xs = rng.normal(size=(4, 3))
    found = []
    for module, builder in zip((dy, dynet), builders):
        module.renew_cg()
        x = module.inputVector(list(xs[:, 0]))
        batch = module.inputTensor(xs, batched=True)
        losses = [builder.neg_log_softmax(x, c) for c in range(6)]
        several = builder.neg_log_softmax_batch(batch, [5, 0, 3])
        values = [e.npvalue() for e in [*losses, several]]
        if kind == "standard":
            values += [builder.full_log_distribution(x).npvalue(), builder.full_logits(batch).npvalue()]
        else:
            values += [builder.class_log_distribution(x).npvalue(), builder.class_logits(x).npvalue()]
            values += [builder.subclass_log_distribution(x, 1).npvalue(), builder.subclass_logits(x, 1).npvalue()]
        loss = module.sum_batches(several) + losses[2]
        loss.forward()
        loss.backward()
        found.append((values, gradients(builder)))
    for have, want in zip(*(values for values, _ in found)):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)
    for have, want in zip(*(grads for _, grads in found)):
        np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
def test_sparse_lstm(rng: np.random.Generator, layers: int) -> None:
    models = [module.ParameterCollection() for module in (dy, dynet)]  # DyNet's must be kept alive
    builders = [module.SparseLSTMBuilder(layers, 2, 3, model) for module, model in zip((dy, dynet), models)]
    assert builders[0].spec == builders[1].spec
    shapes = [[p.name() for layer in b.get_parameters() for p in layer] for b in builders]
    assert shapes[0] == shapes[1]
    for weights in zip(*([p for layer in b.get_parameters() for p in layer[:3]] for b in builders)):
        value = rng.normal(size=weights[0].shape())
        for p in weights:
            p.set_value(value)
    for sparsity in (0.0, 0.5, 0.75):  # gradients add up
        found = []
        for module, builder in zip((dy, dynet), builders):
            builder.set_sparsity(sparsity)
            module.renew_cg()
            state = builder.initial_state()
            for x in ([1.0, 2.0], [0.5, -1.0]):
                state = state.add_input(module.inputVector(x))
            loss = module.sum_elems(state.output())
            value = loss.value()
            loss.backward()
            weights = [p for layer in builder.get_parameters() for p in layer[:3]]
            found.append((value, [p.grad_as_array() for p in weights]))
        assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
        for have, want in zip(found[0][1], found[1][1]):
            np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-5)
