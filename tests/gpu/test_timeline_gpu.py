"""Timelines and scopes of graphs that run on a GPU, and on several devices."""

from __future__ import annotations

import pytest

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.graph.expressions import set_default_device


@pytest.mark.parametrize("where", ["GPU:0", "both"])
def test_spans(where: str, device: str, on_the_cpu_again) -> None:
    set_default_device(1)
    model = dy.ParameterCollection()
    w = model.add_parameters((40, 40))
    trainer = dy.SimpleSGDTrainer(model)

    def step() -> None:
        dy.renew_cg()
        with dy.name_scope("encoder"):
            hs = [dy.tanh(w * dy.inputVector([1.0] * 40)) for _ in range(4)]
        losses = [dy.squared_norm(dy.to_device(h, "CPU") if where == "both" else h) for h in hs]
        dy.esum(losses).backward()
        trainer.update()

    if where == "GPU:0":
        step()
    with profiling.measure(timeline=True) as profile:
        step()
    dy.renew_cg()
    kinds = [span.kind for span in profile.timeline]
    for kind in ("making nodes", "scheduling", "forward pass", "backward pass", "update"):
        assert kinds.count(kind) == 1, kind
    (tanh,) = (span for span in profile.timeline if span.op == "tanh" and span.kind == "forward")
    assert (tanh.nodes, tanh.shape, tanh.scope) == (4, "{40}", "encoder")
    assert {"encoder"} <= {row.scope for row in profile.scopes}
