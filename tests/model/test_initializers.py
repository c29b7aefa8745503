"""The initializers: moments and bounds, shapes, and the forms of init=."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynet_cy.model import initializers
from dynet_cy.model.initializers import (
    ConstInitializer,
    FromFileInitializer,
    GlorotInitializer,
    IdentityInitializer,
    InitializerShapeError,
    NormalInitializer,
    NumpyInitializer,
    PyInitializer,
    SaxeInitializer,
    UniformInitializer,
    as_initializer,
)


class Source:
    def __init__(self, seed: int = 1) -> None:
        self.rng = np.random.default_rng(seed)

    def uniform(self, n: int) -> np.ndarray:
        return self.rng.random(n, dtype=np.float32)

    def normal(self, n: int) -> np.ndarray:
        return self.rng.standard_normal(n, dtype=np.float32)


def filled(init: PyInitializer, dim: tuple[int, ...], lookup: bool = False, order: Any = "F") -> np.ndarray:
    out = np.full(dim, np.nan, dtype=np.float32, order=order)
    init.fill(out, Source(), lookup)
    return out


@pytest.mark.parametrize(
    ("dim", "is_lookup", "bound"),
    [
        ((4000,), False, math.sqrt(3 / 4000)),
        ((200, 100), False, math.sqrt(6 / 300)),
        ((30, 30, 20), False, math.sqrt(9 / 80)),
        ((5, 3, 40, 50), False, math.sqrt(6 / (5 * 3 * (40 + 50)))),
        ((4, 4, 4, 4, 20), False, math.sqrt(15 / 36)),
        ((100, 200), True, math.sqrt(3 / 100)),  # a table of 200 vectors
        ((30, 20, 30), True, math.sqrt(6 / 50)),
        ((4, 4, 4, 20, 4), True, math.sqrt(6 / (4 * 4 * (4 + 20)))),
    ],
)
@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_glorot(dim: tuple[int, ...], is_lookup: bool, bound: float, gain: float) -> None:
    init = GlorotInitializer(is_lookup, gain)
    assert init.bound(dim) == pytest.approx(gain * bound)
    out = filled(init, dim)
    assert gain * bound * 0.99 < np.abs(out).max() <= gain * bound * (1 + 1e-6)
    assert out.mean() == pytest.approx(0, abs=5 * gain * bound / math.sqrt(3 * out.size))
    assert out.std() == pytest.approx(gain * bound / math.sqrt(3), rel=0.05)


def test_glorot_without_width() -> None:
    with pytest.raises(InitializerShapeError, match=r"\(5,\)"):
        filled(GlorotInitializer(is_lookup=True), (5,))
    assert filled(GlorotInitializer(), ()).shape == ()
    assert np.isfinite(filled(GlorotInitializer(), ()))
    assert filled(GlorotInitializer(), (0,)).size == 0


def test_normal() -> None:
    out = filled(NormalInitializer(2, 0.25), (300, 400))  # a variance
    assert out.mean() == pytest.approx(2, abs=0.01)
    assert out.std() == pytest.approx(0.5, rel=0.01)
    assert filled(NormalInitializer(), (100, 100)).std() == pytest.approx(1, rel=0.05)
    with pytest.raises(ValueError, match="variance"):
        NormalInitializer(0, -1)


def test_uniform_and_constant() -> None:
    out = filled(UniformInitializer(0.3), (300, 400))
    assert 0.299 < out.max() <= 0.3
    assert -0.3 <= out.min() < -0.299
    assert out.std() == pytest.approx(0.3 / math.sqrt(3), rel=0.01)
    assert (filled(ConstInitializer(3), (2, 3)) == 3).all()


def test_identity() -> None:
    np.testing.assert_array_equal(filled(IdentityInitializer(), (4, 4)), np.eye(4))


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_saxe(scale: float) -> None:
    out = filled(SaxeInitializer(scale), (6, 6)).astype(np.float64)
    np.testing.assert_allclose(out @ out.T, scale**2 * np.eye(6), atol=1e-5)
    signs = [np.linalg.det(self_) for self_ in (_saxe(seed) for seed in range(40))]
    assert min(signs) < 0 < max(signs)  # reflections as well as rotations


def _saxe(seed: int) -> np.ndarray:
    out = np.empty((3, 3), dtype=np.float32, order="F")
    SaxeInitializer().fill(out, Source(seed))
    return out


@pytest.mark.parametrize("init", [SaxeInitializer(), IdentityInitializer()])
@pytest.mark.parametrize("dim", [(2, 3), (3,), (2, 2, 2), ()])
def test_only_square_matrices(init: PyInitializer, dim: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="Attempt to set a tensor that is not a square matrix to"):
        filled(init, dim)


def test_array() -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(filled(NumpyInitializer(array), (2, 3, 4)), array)
    table = filled(NumpyInitializer(array), (3, 4, 2), lookup=True)  # rows of 3 x 4
    np.testing.assert_array_equal(table[..., 1], array[1])
    array[...] = 0  # the initializer has a copy
    assert NumpyInitializer(array).shape == (2, 3, 4)
    with pytest.raises(InitializerShapeError, match=r"array has shape \(2, 3, 4\), the parameter \(4, 3, 2\)"):
        filled(NumpyInitializer(array), (4, 3, 2))
    with pytest.raises(InitializerShapeError, match=r"array has shape \(2, 3, 4\), the parameter \(4, 2, 3\)"):
        filled(NumpyInitializer(array), (2, 3, 4), lookup=True)


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_text("1 2 3\n\n4 5e0 6 7 and so on\n")
    for name in (path, str(path), str(path).encode()):
        np.testing.assert_array_equal(filled(FromFileInitializer(name), (2, 3)), [[1, 3, 5], [2, 4, 6]])
    with pytest.raises(ValueError, match=r"numbers, line 3: .*'and'"):
        filled(FromFileInitializer(path), (2, 4))
    path.write_text("1 2 3\n")
    with pytest.raises(ValueError, match=r"numbers has 3 numbers, but dimensions \(2, 2\) take 4"):
        filled(FromFileInitializer(path), (2, 2))
    with pytest.raises(FileNotFoundError):
        filled(FromFileInitializer(tmp_path / "missing"), (2, 2))


@pytest.mark.parametrize("init", [NormalInitializer(1, 2), UniformInitializer(2), GlorotInitializer()])
def test_neither_memory_order_nor_blocks_matter(init: PyInitializer, monkeypatch: pytest.MonkeyPatch) -> None:
    want = filled(init, (7, 5, 3))
    assert np.isfinite(want).all()
    np.testing.assert_array_equal(filled(init, (7, 5, 3), order="C"), want)
    monkeypatch.setattr(initializers, "_BLOCK", 10)
    np.testing.assert_array_equal(filled(init, (7, 5, 3)), want)


@pytest.mark.parametrize("number", [0, 0.5, True, np.float32(0.5), np.float64(0.5), np.int64(3), np.bool_(True)])
def test_numbers(number: Any) -> None:
    init = as_initializer(number)
    assert isinstance(init, ConstInitializer)
    assert init.c == float(number)


def test_names() -> None:
    assert isinstance(as_initializer(), GlorotInitializer)
    assert not as_initializer("glorot", lookup=True).is_lookup  # type: ignore[attr-defined]
    assert as_initializer("uniform", scale=0.2).scale == 0.2  # type: ignore[attr-defined]
    normal = as_initializer("normal", mean=1, std=3)
    assert (normal.mean, normal.var) == (1, 9)  # type: ignore[attr-defined]
    assert isinstance(as_initializer("identity"), IdentityInitializer)
    assert as_initializer("saxe", scale=2).scale == 2  # type: ignore[attr-defined]
    assert as_initializer("he", (50, 20)).var == 1 / 40  # type: ignore[attr-defined]
    assert as_initializer("he", (50,)).var == 1 / 100  # type: ignore[attr-defined]
    assert as_initializer("he", (50, 20), lookup=True).var == 1 / 40  # type: ignore[attr-defined]
    with pytest.raises(InitializerShapeError, match="he"):
        as_initializer("he", (50,), lookup=True)
    own = UniformInitializer(1)
    assert as_initializer(own) is own
    assert as_initializer(np.ones((2, 3), dtype=int)).shape == (2, 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize("bad", ["Glorot", "zeros", [1, 2], (1, 2), object(), lambda x: x, GlorotInitializer, 1j])
def test_other_things(bad: Any) -> None:
    with pytest.raises(ValueError, match="Didn't recognize initializer"):
        as_initializer(bad)


def test_own_initializer() -> None:
    class Ones(PyInitializer):
        def fill(self, out: np.ndarray, rng: Any, lookup: bool = False) -> None:
            out[...] = 1

    assert as_initializer(ones := Ones()) is ones
    with pytest.raises(TypeError, match="abstract"):
        PyInitializer()  # type: ignore[abstract]
