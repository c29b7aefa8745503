"""Bounds and moments of initial values equal DyNet's, for parameters and lookup tables of many shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dynet_cy.model import initializers as own

pytestmark = pytest.mark.peer
dynet = pytest.importorskip("dynet")


class Source:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(2)

    def uniform(self, n: int) -> np.ndarray:
        return self.rng.random(n, dtype=np.float32)

    def normal(self, n: int) -> np.ndarray:
        return self.rng.standard_normal(n, dtype=np.float32)


SHAPES = [(20000,), (200, 100), (20, 1000), (30, 20, 40), (5, 3, 40, 50), (4, 4, 4, 8, 20)]
SPELLINGS: list[tuple[str, dict[str, Any]]] = [
    ("default", {}),
    ("glorot", {"init": "glorot"}),
    ("he", {"init": "he"}),
    ("uniform", {"init": "uniform", "scale": 0.3}),
    ("normal", {"init": "normal", "mean": 2, "std": 0.5}),
]
OBJECTS: list[tuple[str, dict[str, Any]]] = [
    ("NormalInitializer", {"mean": 1, "var": 4}),
    ("UniformInitializer", {"scale": 0.5}),
    ("GlorotInitializer", {"gain": 2.0}),
    ("GlorotInitializer", {"is_lookup": True}),
]


def compare(shape: tuple[int, ...], lookup: bool, theirs: dict[str, Any], ours: own.PyInitializer) -> None:
    model = dynet.ParameterCollection()
    want = (model.add_lookup_parameters if lookup else model.add_parameters)(shape, **theirs).as_array()
    out = np.empty((*shape[1:], shape[0]) if lookup else shape, dtype=np.float32, order="F")
    ours.fill(out, Source(), lookup)
    width = want.std()
    assert out.std() == pytest.approx(width, rel=0.03)
    assert out.mean() == pytest.approx(want.mean(), abs=0.05 * width)
    normal = isinstance(ours, own.NormalInitializer)
    assert np.abs(out).max() == pytest.approx(np.abs(want).max(), rel=0.5 if normal else 0.005)


@pytest.mark.parametrize("lookup", [False, True], ids=["parameters", "lookup"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("name", "arguments"), SPELLINGS, ids=[name for name, _ in SPELLINGS])
def test_spellings(name: str, arguments: dict[str, Any], shape: tuple[int, ...], lookup: bool) -> None:
    if name == "he" and lookup and len(shape) == 1:
        pytest.skip("an error in both")
    compare(
        shape, lookup, arguments, own.as_initializer(arguments.get("init"), shape, lookup=lookup, **rest(arguments))
    )


def rest(arguments: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in arguments.items() if k != "init"}


@pytest.mark.parametrize("lookup", [False, True], ids=["parameters", "lookup"])
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
@pytest.mark.parametrize(("name", "arguments"), OBJECTS)
def test_objects(name: str, arguments: dict[str, Any], shape: tuple[int, ...], lookup: bool) -> None:
    theirs = {"init": getattr(dynet, name)(**arguments)}
    compare(shape, lookup, theirs, getattr(own, name)(**arguments))


def test_file(tmp_path: Any) -> None:
    path = tmp_path / "numbers"
    path.write_text("1 2 3\n4 5 6\n")
    for shape, lookup in (((2, 3), False), ((2, 3), True), ((6,), False)):
        model = dynet.ParameterCollection()
        init = dynet.FromFileInitializer(str(path).encode())
        want = (model.add_lookup_parameters if lookup else model.add_parameters)(shape, init=init).as_array()
        out = np.empty((*shape[1:], shape[0]) if lookup else shape, dtype=np.float32, order="F")
        own.FromFileInitializer(str(path).encode()).fill(out, Source(), lookup)
        np.testing.assert_array_equal(np.moveaxis(out, -1, 0) if lookup else out, want)
