"""Parameters, lookup tables and collections as programs use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from libraries import Alike, Library

pytestmark = pytest.mark.peer
alike = Alike()

W = np.arange(6.0).reshape(2, 3) / 4
E = np.arange(12.0).reshape(4, 3) / 8


def model_of(dy: Library) -> tuple[Any, Any, Any]:
    model = dy.ParameterCollection()
    return model, model.add_parameters((2, 3), init=W, name="W"), model.add_lookup_parameters((4, 3), init=E, name="E")


@alike
def parameters_as_expressions(dy: Library) -> dict[str, Any]:
    model, w, e = model_of(dy)
    dy.renew_cg()
    seen = {"w": [w.dim(), w.npvalue(), w.value(), w.vec_value()], "table": [e.dim(), e.npvalue()]}
    seen["double"] = (w * 2).npvalue()
    seen["row"] = [w[1].dim(), w[1].npvalue()]
    seen["lookup"] = [e[2].dim(), e[2].value(), e[2].npvalue()]
    seen["batch"] = [e.batch([3, 0, 3]).dim(), e.batch([3, 0, 3]).npvalue(), e.batch([1]).dim()]
    seen["functions"] = [dy.lookup(e, 1).value(), dy.lookup_batch(e, [1, 2]).npvalue()]
    seen["expr"] = [w.expr().npvalue(), e.expr().npvalue()]
    return seen


@alike
def names_and_shapes(dy: Library) -> dict[str, Any]:
    model, w, e = model_of(dy)
    sub = model.add_subcollection("sub")
    others = [
        model.add_parameters(3),
        model.add_parameters((3,), name="W"),
        sub.add_parameters((2, 2, 2)),
        sub.add_lookup_parameters((5, 2, 3)),
    ]
    deep = sub.add_subcollection().add_parameters((1,), name="b")
    return {
        "names": [p.name() for p in (w, e, *others, deep)],
        "shapes": [p.shape() for p in (w, e, *others, deep)],
        "dims": [p.dim() for p in (w, e, *others, deep)],
        "collections": [model.name(), sub.name(), model.add_subcollection("sub").name()],
        "listed": [[p.name() for p in c.parameters_list()] for c in (model, sub)],
        "tables": [[p.name() for p in c.lookup_parameters_list()] for c in (model, sub)],
        "count": [model.parameter_count(), sub.parameter_count()],
        "length": len(e),
        "updated": [w.is_updated(), e.is_updated()],
    }


@alike
def values_in_place(dy: Library) -> dict[str, Any]:
    model, w, e = model_of(dy)
    seen = {"start": [w.as_array(), e.as_array(), e.row_as_array(2), e.rows_as_array([3, 1])]}
    w.set_value(W + 1)
    seen["set"] = w.as_array()
    w.set_value([[1, 2, 3], [4, 5, 6]])
    seen["list"] = w.as_array()
    w.scale(0.5)
    e.scale(2.0)
    seen["scaled"] = [w.as_array(), e.as_array()]
    w.clip_inplace(1.0, 2.0)
    seen["clipped"] = w.as_array()
    e.init_row(1, [7, 8, 9])
    e.init_row(2, np.array([1.0, 2.0, 3.0]))
    seen["rows"] = e.as_array()
    e.init_from_array(E * 3)
    seen["table"] = e.as_array()
    w.zero()
    e.zero()
    seen["zero"] = [w.as_array(), e.as_array()]
    return seen


@alike
def values_that_arrays_give(dy: Library) -> dict[str, Any]:
    model = dy.ParameterCollection()
    made = [
        model.parameters_from_numpy(a) for a in (W, W.T, np.arange(3), np.float32(W), np.asfortranarray(W), W[:, ::2])
    ]
    made += [model.add_parameters((2, 3), init=x) for x in (1, 0.5, True)]
    made += [model.add_parameters((3, 3), init="identity"), model.add_lookup_parameters((3, 2), init=2.0)]
    made += [model.add_parameters(2, init=dy.ConstInitializer(3)), model.lookup_parameters_from_numpy(E)]
    return {"values": [p.as_array() for p in made], "shapes": [p.shape() for p in made]}


def trained(dy: Library, build: Any) -> tuple[Any, Any, Any]:
    model, w, e = model_of(dy)
    dy.renew_cg()
    loss = build(dy, w, e)
    loss.forward()
    loss.backward()
    return model, w, e


USES = {
    "parameter": lambda dy, w, e: dy.sum_elems(dy.square(w)),
    "twice": lambda dy, w, e: dy.sum_elems(dy.cmult(w, w) + w),
    "dy.parameter": lambda dy, w, e: dy.sum_elems(dy.square(dy.parameter(w))),
    "dy.parameter of two": lambda dy, w, e: dy.sum_elems(dy.parameter(w, w)[1]),
    "dy.const_parameter": lambda dy, w, e: dy.sum_elems(dy.cmult(w, dy.const_parameter(w))),
    "expr": lambda dy, w, e: dy.sum_elems(dy.cmult(w, w.expr())),
    "expr with update": lambda dy, w, e: dy.sum_elems(dy.cmult(w, w.expr(update=True))),
    "rows": lambda dy, w, e: dy.dot_product(e[1], e[3]) + dy.sum_elems(e[1]),
    "batch": lambda dy, w, e: dy.sum_batches(dy.sum_elems(dy.square(e.batch([1, 1, 2])))),
    "lookup without update": lambda dy, w, e: dy.dot_product(e[1], dy.lookup(e, 1, update=False)),
    "batch without update": lambda dy, w, e: dy.dot_product(
        e[1], dy.sum_batches(dy.lookup_batch(e, [1, 2], update=False))
    ),
    "lookup": lambda dy, w, e: dy.sum_elems(dy.square(dy.lookup(e, 2, True))),
    "lookup_batch": lambda dy, w, e: dy.sum_batches(dy.sum_elems(dy.square(dy.lookup_batch(e, [0, 3, 0])))),
    "whole table": lambda dy, w, e: dy.sum_elems(dy.square(e.expr())),
    "product": lambda dy, w, e: dy.sum_elems(dy.tanh(w * e[2])),
}


@alike
def gradients(dy: Library) -> dict[str, Any]:
    seen = {}
    for name, build in USES.items():
        model, w, e = trained(dy, build)
        seen[name] = [w.grad_as_array(), e.grad_as_array(), e.row_grad_as_array(1), e.rows_grad_as_array([3, 1])]
    w.scale_gradient(0.5)
    e.scale_gradient(2.0)
    seen["scaled"] = [w.grad_as_array(), e.grad_as_array()]
    return seen


@alike
def parameters_that_are_not_updated(dy: Library) -> dict[str, Any]:
    model, w, e = trained(dy, USES["product"])
    seen = {"length": len(model.parameters_list())}
    for now in (False, True):
        w.set_updated(now)
        e.set_updated(now)
        seen[str(now)] = [w.is_updated(), e.is_updated()]
    return seen


@alike
def models_across_graphs(dy: Library) -> dict[str, Any]:
    """A graph uses the values that parameters have when it is made."""
    model, w, e = model_of(dy)
    seen = []
    for step in range(3):
        dy.renew_cg()
        seen.append((w * e[step]).value())
        w.set_value(W * (step + 2))
        e.init_row(step + 1, [step, 1, 2])
    return {"values": seen}


@pytest.mark.parametrize("name", alike.functions)
def test_alike(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    alike.check(name)
    capfd.readouterr()  # DyNet's notes on deprecated calls
