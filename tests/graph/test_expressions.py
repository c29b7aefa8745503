"""Expressions: attributes and methods, formats, and when they are stale."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
from stale import assert_stale

import dynet_cy as dy
from dynet_cy.graph import StaleExpressionError
from dynet_cy.ops.registry import DimensionError


def vector(*values):
    return dy.inputVector(list(values))


@pytest.mark.parametrize(
    "use",
    [
        *[lambda e: e.value(), lambda e: e.npvalue(), lambda e: e.dim(), lambda e: e.backward()],
        *[lambda e: e.gradient(), lambda e: e + 1, lambda e: e[0], lambda e: dy.tanh(e), lambda e: dy.esum([e, e])],
        *[lambda e: dy.pick(e, 0), lambda e: dy.reshape(e, (2,)), lambda e: dy.concatenate([e]), lambda e: len(e)],
        *[lambda e: dy.colwise_add(e, e), lambda e: dy.pick_batch(e, [0]), lambda e: dy.hinge_dim(e, [0])],
        lambda e: e.set([1, 2]),
    ],
)
def test_stale_expressions(use, graph) -> None:
    e = vector(1, 2)
    e.value()
    dy.renew_cg()
    vector(3, 4, 5)
    with pytest.raises(dy.StaleExpressionError):
        use(e)
    assert isinstance(repr(e), str)


def test_renewed(graph) -> None:
    x = dy.ones(3)
    dy.renew_cg()
    assert_stale(x, "stale: its graph has been renewed")
    assert "renewed since" in repr(x)


def test_setting_a_stale_input(graph) -> None:
    x = dy.inputVector([1, 2])
    dy.renew_cg()
    with pytest.raises(StaleExpressionError, match="renewed .*; make it again .*, or keep its npvalue"):
        x.set([3, 4])


def test_closed_graph(graph) -> None:
    with dy.ComputationGraph() as other:
        x = dy.ones(3)
    del other
    gc.collect()
    assert_stale(x, "renewed .* or closed")


def test_other_graph(graph) -> None:
    x = dy.ones(3)
    with dy.ComputationGraph():
        for build in (lambda: dy.tanh(x), lambda: x + dy.ones(3), lambda: dy.ones(3) + x, lambda: dy.esum([x])):
            with pytest.raises(StaleExpressionError, match="another graph"):
                build()
        # Values of an open graph can be read while another graph is current.
        assert x.value() == [1, 1, 1]
    assert dy.tanh(x).dim() == ((3,), 1)


def test_expressions_made_by_hand(graph) -> None:
    assert_stale(dy.Expression() if hasattr(dy, "Expression") else type(dy.tanh(dy.ones(1)))(), "made by hand")


def test_expressions_do_not_pickle(graph) -> None:
    with pytest.raises(TypeError, match="do not pickle"):
        pickle.dumps(dy.ones(3))


A = np.arange(24.0).reshape(4, 3, 2) / 8


def test_shape_and_batch_size(graph) -> None:
    x = dy.inputTensor(A)
    assert (x.shape, x.batch_size) == ((4, 3, 2), 1)
    x = dy.inputTensor(A, batched=True)
    assert (x.shape, x.batch_size) == ((4, 3), 2)
    assert (x.T.shape, x.T.batch_size) == ((3, 4), 2)
    assert x.reshape(2, -1).dim() == ((2, 6), 2)
    assert x.reshape((-1,)).dim() == ((12,), 2)
    assert dy.reshape(x, (-1, 3), 2).dim() == ((4, 3), 2)


def test_item_and_format(graph) -> None:
    x = dy.inputVector([1.23456, 2])
    assert x[0].item() == pytest.approx(1.23456)
    assert f"{x[0]:.3f} {x[1]:g}" == "1.235 2"
    assert f"{x}" == repr(x) == "<expression 0 input {2}>"
    with pytest.raises(ValueError, match=r"has shape \{2\}, not one element"):
        f"{x:.2f}"
    with pytest.raises(ValueError, match="not one element"):
        x.item()


def test_reductions_by_method(graph) -> None:
    x = dy.inputTensor(A)
    for op in ("sum", "mean", "max", "min"):
        for axis in (None, 1, -2, (0, -1)):
            np.testing.assert_allclose(
                getattr(x, op)(axis).npvalue(), np.atleast_1d(getattr(A, op)(axis=axis)), rtol=1e-6
            )
    with pytest.raises(DimensionError, match="sum: there is no axis 3, x has 3"):
        x.sum(3)
    with pytest.raises(DimensionError, match="max: an axis is -4, but x has 3 axes"):
        x.max(-4)


def test_what_repr_says() -> None:
    model = dy.ParameterCollection()
    w = model.add_parameters((4, 3), name="W")
    table = model.add_lookup_parameters((7, 2), name="E")
    assert repr(w) == "<Parameters /W (4, 3)>"
    w.set_updated(False)
    assert repr(w) == "<Parameters /W (4, 3), frozen>"
    assert repr(table) == "<LookupParameters /E (7, 2)>"
    assert repr(model) == "<ParameterCollection / of 2 parameters, 26 numbers>"
    trainer = dy.AdamTrainer(model, alpha=0.01)
    assert repr(trainer) == f"<AdamTrainer of {model!r}, learning_rate=0.01, 0 updates>"
    with dy.ComputationGraph() as graph:
        assert repr(graph) == "<ComputationGraph of 0 nodes>"
        assert repr(dy.tanh(dy.zeros((2, 3), batch_size=4))) == "<expression 1 tanh {2,3} x 4>"


def test_what_notebooks_show() -> None:
    model = dy.ParameterCollection()
    model.add_parameters((4, 3), name="W<b>")
    model.add_lookup_parameters((7, 2), name="E").set_updated(False)
    shown = model._repr_html_()
    assert "<td>W&lt;b&gt;</td><td>4 x 3</td><td>12</td><td>Parameters</td>" in shown
    assert "<td>E</td><td>7 x 2</td><td>14</td><td>LookupParameters, frozen</td>" in shown
    assert "2 parameters, 26 numbers" in shown
    with dy.ComputationGraph() as graph:
        assert graph._repr_svg_() is None
        x = dy.tanh(dy.inputVector([1, 2]))
        assert graph._repr_svg_() == dy.draw(graph=graph).svg
        for _ in range(200):
            x = dy.tanh(x)
        assert "201 nodes" in graph._repr_svg_()  # one box


def test_classes_that_users_see_have_public_names(graph) -> None:
    table = dy.ParameterCollection().add_lookup_parameters((7, 2))
    dy.renew_cg()
    x = dy.inputVector([1, 2])
    seen = [x, table[1], dy.pick(x, 0), x[0], x + 1, x > 1]
    assert [type(e).__name__ for e in seen] == [
        "InputExpression",
        "LookupExpression",
        "PickedExpression",
        "Expression",
        "Expression",
        "Expression",
    ]
    dy.renew_cg(forward_only=True)
    assert type(dy.inputVector([1])).__name__ == "ForwardExpression"
