"""Graphs and expressions as programs use them: methods, types of values, checkpoints, deprecated inputs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from libraries import Alike, Library, dynet

import dynet_cy

pytestmark = pytest.mark.peer
alike = Alike()


def numbers(dy: Library, shape: tuple[int, ...], size: int = 1) -> Any:
    """The numbers 0, 1, 2, ... in a given shape."""
    n = int(np.prod(shape)) * size
    flat = dy.inputVector([float(i) for i in range(n)])
    return dy.reshape(flat, shape, batch_size=size)


SHAPES = [(), (1,), (3,), (1, 1), (3, 1), (1, 3), (2, 3), (1, 1, 1), (2, 3, 2), (2, 1, 1), (3, 2, 1)]


@alike
def forms_of_a_value(dy: Library) -> dict[str, Any]:
    seen = {}
    for shape in SHAPES:
        for size in (1, 3):
            dy.renew_cg()
            e = numbers(dy, shape, size)
            seen[f"{shape} x {size}"] = [e.dim(), e.value(), e.npvalue(), e.vec_value(), e.forward()]
            if np.prod(shape) * size == 1:  # DyNet ends the process if there are more elements
                seen[f"scalar_value {shape}"] = e.scalar_value()
    return seen


@alike
def recalculation(dy: Library) -> dict[str, Any]:
    dy.renew_cg()
    x = dy.vecInput(3)
    x.set([1, 2, 3])
    y = x * 2
    seen = {"first": y.value()}
    x.set([4, 5, 6])
    seen["kept"] = y.value()
    seen["anew"] = y.value(recalculate=True)
    for name in ("npvalue", "vec_value"):
        x.set([7, 8, 9] if name == "npvalue" else [1, 0, 1])
        seen[name] = getattr(y, name)(recalculate=True)
    s = dy.scalarInput(2.0)
    t = s * s
    seen["scalar"] = [t.scalar_value(), t.value()]
    s.set(3.0)
    seen["scalar anew"] = t.scalar_value(recalculate=True)
    return seen


@alike
def values_of_many(dy: Library) -> dict[str, Any]:
    dy.renew_cg()
    es = [numbers(dy, (2,)), numbers(dy, (2, 2)), numbers(dy, (1,)), numbers(dy, (2,), 2)]
    seen = {"values": dy.values(es), "npvalues": dy.npvalues(es), "forward": dy.forward(es)}
    seen["recalculated"] = dy.values(es, recalculate=True)
    seen["arrays"] = dy.npvalues(es, recalculate=True)
    return seen


@alike
def gradients_of_expressions(dy: Library) -> dict[str, Any]:
    dy.renew_cg()
    x = dy.inputTensor(np.arange(6.0).reshape(2, 3))
    y = dy.tanh(x * 0.3)
    loss = dy.sum_elems(y)
    loss.forward()
    loss.backward(full=True)
    return {"x": x.gradient(), "y": y.gradient(), "loss": loss.gradient()}


@alike
def backward_of_a_batch(dy: Library) -> dict[str, Any]:
    collection = dy.ParameterCollection()
    p = collection.add_parameters((3,), init=np.array([0.5, -1, 2]))
    dy.renew_cg()
    x = dy.inputTensor(np.arange(6.0).reshape(3, 2), batched=True)
    each = dy.dot_product(p, x)
    loss = dy.sum_batches(each)
    seen = {"each": each.value(), "loss": loss.value()}
    loss.backward()
    seen["gradient"] = p.grad_as_array()
    loss.backward()
    seen["twice"] = p.grad_as_array()
    return seen


@alike
def checkpoints(dy: Library) -> dict[str, Any]:
    dy.renew_cg()
    x = numbers(dy, (3,))
    seen = {"before": (x * 2).value()}
    dy.cg_checkpoint()
    seen["inside"] = (x * 3).value()
    dy.cg_checkpoint()
    seen["deeper"] = (x * 4).value()
    dy.cg_revert()
    seen["one back"] = (x * 5).value()
    dy.cg_revert()
    seen["two back"] = (x * 6).value()
    return seen


@alike
def versions(dy: Library) -> dict[str, Any]:
    dy.renew_cg()
    before = dy.cg_version()
    same = dy.cg_version() == before
    graph = dy.cg()
    dy.renew_cg()
    return {
        "same": same,
        "changes": dy.cg_version() != before,
        "class": type(graph).__name__,
        "int": type(before).__name__,
    }


@alike
def options_of_renew_cg(dy: Library) -> dict[str, Any]:
    seen = {}
    for options in (
        {},
        {"immediate_compute": True},
        {"check_validity": True},
        {"immediate_compute": True, "check_validity": True},
    ):
        dy.renew_cg(**options)
        seen[str(options)] = (numbers(dy, (3,)) * 2).value()
    dy.renew_cg()
    return seen


@alike
def inputs_that_are_set_again(dy: Library) -> dict[str, Any]:
    dy.renew_cg()
    seen = {}
    for name, x, new in (
        ("scalarInput", dy.scalarInput(1), 5),
        ("inputVector", dy.inputVector([1, 2]), [3, 4]),
        ("vecInput", dy.vecInput(2), [3, 4]),
    ):
        seen[name] = [x.dim(), x.value()]
        x.set(new)
        seen[f"{name} set"] = x.value(recalculate=True)
    return seen


@alike
def one_hot_vectors(dy: Library) -> dict[str, Any]:
    dy.renew_cg()
    one, many = dy.one_hot(4, 2), dy.one_hot(4, [0, 3, 1])
    return {"one": [one.dim(), one.value()], "batch": [many.dim(), many.npvalue()]}


@alike
def arithmetic_without_numpy(dy: Library) -> dict[str, Any]:
    dy.renew_cg()
    x = numbers(dy, (3,)) + 1
    seen = {"x": x.value(), "plus": (x + 1).value(), "minus": (x - 1).value(), "times": (x * 3).value()}
    seen.update({"half": (x / 2).value(), "negative": (-x).value(), "both": (x + x - x).value()})
    seen["plus bool"] = (x + True).value()
    return seen


@alike
def elements(dy: Library) -> dict[str, Any]:
    dy.renew_cg()
    x, m = numbers(dy, (4,)), numbers(dy, (4, 3))
    es = {"x[1]": x[1], "x[-1]": x[-1], "x[1:3]": x[1:3], "x[:2]": x[:2], "x[2:]": x[2:], "x[::2]": x[::2]}
    es |= {"m[1]": m[1], "m[-2]": m[-2], "m[1:3]": m[1:3], "m[1:3,0:2]": m[1:3, 0:2], "m[:,1:2]": m[:, 1:2]}
    return {k: [e.dim(), e.npvalue()] for k, e in es.items()}


@alike
def attributes(dy: Library) -> dict[str, Any]:
    dy.renew_cg()
    x = numbers(dy, (3,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # our expressions warn that they are always true
        truth, equal, other = bool(x), x == x, x == numbers(dy, (3,))
    return {
        "truth": truth,
        "hashable": isinstance(hash(x), int),
        "equal to itself": equal,
        "equal to another": other,
        "iteration": [e.value() for e in x],
    }


@pytest.mark.parametrize("name", alike.functions)
def test_alike(name: str) -> None:
    alike.check(name)


# Members of DyNet's classes that ours do not have, with the line that documents it.
ABSENT = {
    "Expression": set(),
    "RNNState": set(),
    "StackedRNNState": set(),
    "SimpleSGDTrainer": set(),
}


@pytest.mark.parametrize("name", ABSENT)
def test_methods_of_classes(name: str) -> None:
    theirs = {n for n in dir(getattr(dynet, name)) if not n.startswith("_")}
    assert theirs - set(dir(getattr(dynet_cy, name))) == ABSENT[name]
