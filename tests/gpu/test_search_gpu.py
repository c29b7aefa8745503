"""Searches and decoders on the device: the same outputs as on the CPU, with one wait a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.decoding import greedy, search
from dynet_cy.graph.expressions import set_default_device

pytestmark = pytest.mark.usefixtures("on_the_cpu_again")

COUNT, LONGEST = 9, 5


def outputs(device: int) -> tuple[list[Any], list[int]]:
    """Outputs of two searches and of two decoders for three sentences, and how often each has waited."""
    set_default_device(device)
    rng = np.random.default_rng(1)
    model = dy.ParameterCollection()
    table = model.lookup_parameters_from_numpy(rng.normal(size=(COUNT, 4)))
    rnn = dy.LSTMBuilder(1, 4, 6, model)
    for parameter in rnn.get_parameters()[0]:
        parameter.set_value(rng.normal(size=parameter.shape()))
    w = model.parameters_from_numpy(rng.normal(size=(COUNT, 6)))

    def step(state: Any, tokens: Any) -> tuple[Any, dy.Expression]:
        state = state.add_input(dy.lookup_batch(table, tokens))
        return state, w * state.output()

    def search_all() -> list[Any]:
        found = dy.beam_search(step, rnn.initial_state(), 3, LONGEST, None, begin=[1, 2, 3], logits=True, forbidden=[4])
        return [own.tokens for own in found]

    def search_at_once() -> list[Any]:
        options = {"begin": [1, 2, 3], "logits": True, "n_best": 2, "length_penalty": 0.5, "every": LONGEST}
        found = dy.beam_search(step, rnn.initial_state(), 3, LONGEST, 0, **options)
        return [[own.tokens for own in of_one] for of_one in found]

    def decode_all() -> list[Any]:
        return dy.decode(step, rnn.initial_state(), None, LONGEST, begin=[1, 2, 3], no_repeat_ngram=1)

    def decode_at_once() -> list[Any]:
        return dy.decode(step, rnn.initial_state(), None, LONGEST, begin=[1, 2, 3], every=LONGEST)

    found, waits = [], []
    for function in (search_all, search_at_once, decode_all, decode_at_once):
        dy.renew_cg(forward_only=True)
        before = engine.stats("gpu.0")["waits"] if device else 0
        found.append(function())
        waits.append(engine.stats("gpu.0")["waits"] - before if device else 0)
    return found, waits


def test_outputs_of_the_cpu_with_a_wait_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FEW", 0)
    monkeypatch.setattr(greedy, "FEW", 0)
    (found, waits), (expected, _) = outputs(1), outputs(0)
    assert found == expected
    assert waits == [LONGEST, 1, LONGEST, 1]
