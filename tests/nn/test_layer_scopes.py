"""Layers open scopes while something watches; errors and threads leave none open."""

from __future__ import annotations

from typing import Any

import pytest

import dynet_cy as dy
from dynet_cy import nn
from dynet_cy.graph.nodes import nodes
from dynet_cy.graph.origin import open_scopes


class Block(nn.Layer):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.hidden = nn.Linear(3, 3, self.collection)
        self.layers = [nn.Linear(3, 3, self.collection) for _ in range(2)]
        self.reader = dy.BiRNNBuilder(1, 3, 4, self.collection, dy.LSTMBuilder)
        self.squash = nn.Sequential(["tanh"], self.collection)

    def __call__(self, x: dy.Expression, fail: bool = False) -> dy.Expression:
        for layer in self.layers:
            x = layer(x)
        if fail:
            raise KeyError("in the middle")
        return self.squash(self.reader.transduce([self.hidden(x)])[0])


class Smaller(Block):
    """A class that inherits its calls."""


def scopes() -> list[str]:
    return list(dict.fromkeys(node.scope for node in nodes(dy.cg()) if node.scope))


WANTED = ["block/Linear.0", "block/Linear.1", "block/hidden", "block/reader/vanilla-lstm-builder"]


def test_scopes_follow_attributes() -> None:
    block, x = Block(dy.Model()), dy.inputVector([1, 2, 3])
    block(x)
    assert scopes() == []  # nothing watches
    with dy.record_lines():
        y = block(x)
    assert [s for s in scopes() if not s.endswith("reader")][:4] == WANTED
    assert scopes()[-1].startswith("block/squash")
    with dy.name_scope("loss"):
        assert "made in scope loss/hidden>" in repr(block.hidden(x))
    assert "scope" not in repr(block.hidden(x))
    drawing = dy.draw(y, collapse=True).svg
    assert "block" in drawing
    assert "nodes" in drawing


def test_a_class_that_inherits_its_calls() -> None:
    block = Smaller(dy.Model())
    with dy.record_lines():
        block(dy.inputVector([1, 2, 3]))
    assert scopes()[0] == "smaller/Linear.0"


def test_errors_close_the_scopes() -> None:
    block, x = Block(dy.Model()), dy.inputVector([1, 2, 3])
    with dy.name_scope("outside"):
        with pytest.raises(KeyError, match="in the middle"):
            block(x, fail=True)
        assert repr(dy.tanh(x)).endswith("made in scope outside>")
        with pytest.raises(TypeError, match="^Linear: argument x: expected an expression"):
            block(3)
        assert repr(dy.tanh(x)).endswith("made in scope outside>")


def test_profiles_add_up_the_time_of_layers() -> None:
    block = Block(dy.Model())
    with dy.profiling.measure() as profile, dy.name_scope("all"):
        block(dy.inputVector([1, 2, 3])).value()
    assert any(row.scope.startswith("all/block/Linear") for row in profile.scopes)


def test_batched_map_keeps_the_scopes_of_each_call() -> None:
    block = Block(dy.Model())
    with dy.name_scope("map"):
        found = dy.batched_map(
            lambda k: (block(dy.inputVector([k, 2, 3])).npvalue().sum(), repr(dy.zeros(2)))[1], [1, 2]
        )
    assert all("made in scope map" in text and "block" not in text for text in found)


def test_only_classes_have_calls() -> None:
    with pytest.raises(TypeError, match="expected a class, got int"):
        open_scopes(3)
