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
