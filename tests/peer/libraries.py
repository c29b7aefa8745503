"""DyNet and dynet_cy side by side: the same inputs for both, and their results."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import dynet_cy

dynet = pytest.importorskip("dynet")

# The precision of float32 is 6e-8. DyNet's tanh and logistic are rational approximations with errors up to 4e-6.
VALUE_TOL, GRADIENT_TOL = 5e-6, 1e-5

counts = {
    "rows and batch sizes compared": 0,
    "the same by keyword": 0,
    "of both, different on purpose": 0,
    "errors compared": 0,
}


def public_functions() -> list[str]:
    """Functions that have the same name in both libraries."""
    names = [n for n in dynet_cy.__all__ if not n.startswith("_") and hasattr(dynet, n)]
    return sorted(n for n in names if not isinstance(getattr(dynet_cy, n), type))


# Arguments that DyNet does not have, by function.
OURS = {
    *("conv2d.dilation", "conv2d.groups", "conv2d_bias.dilation", "conv2d_bias.groups"),
    *("conv2d.padding", "conv2d_bias.padding", "maxpooling2d.padding"),
    *("layer_norm.axis", "layer_norm.eps"),
    *("log_softmax.d", "log_softmax.mask", "softmax.mask"),
    *("renew_cg.forward_only", "renew_cg.mem"),
    "reshape.order",
}
# Our functions whose formula is DyNet's only with these arguments, or in programs of DyNet.
DYNET_FORMULA = {"layer_norm": {"eps": 0}}


class Library:
    """A library that records which functions are called and keeps their results.

    Expressions of DyNet only point to the numbers of their inputs: without keeping these, it would read freed memory.

    Attributes:
        named: whether all arguments are passed by our keywords, with our defaults.
    """

    def __init__(self, module: Any, named: bool = False) -> None:
        self.module, self.named, self.kept = module, named, []
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        if isinstance(value, type) or not callable(value):
            return value
        self.called.add(name)

        def call(*args: Any, **keywords: Any) -> Any:
            if self.module is dynet_cy:
                keywords = {**DYNET_FORMULA.get(name, {}), **keywords}
            if self.named:
                args, keywords = (), self.by_name(name, args, keywords)
            result = value(*args, **keywords)
            self.kept.append((result, args, keywords))
            return result

        return call

    def by_name(self, name: str, args: tuple, keywords: dict[str, Any]) -> dict[str, Any]:
        """All arguments by our names, with our defaults except tuples, which are lists in DyNet."""
        signature = inspect.signature(getattr(dynet_cy, name))
        given = signature.bind(*args, **keywords).arguments
        defaults = {n: p.default for n, p in signature.parameters.items() if p.default is not p.empty}
        both = {n: v for n, v in defaults.items() if f"{name}.{n}" not in OURS}
        return {**{n: v for n, v in both.items() if not isinstance(v, tuple)}, **given}


def both(named: bool = False) -> tuple[Library, Library]:
    """DyNet, and dynet_cy."""
    return Library(dynet, named), Library(dynet_cy, named)


def argument(library: Library, x: np.ndarray) -> Any:
    """An input; the last axis of x is the batch."""
    if x.ndim == 1:  # scalars of shape (), which inputTensor of DyNet cannot make
        flat = library.inputVector([float(v) for v in x])
        return library.reshape(flat, (), len(x)) * 1.0
    return library.inputTensor(x, batched=True) if x.shape[-1] > 1 else library.inputTensor(x[..., 0])


def loss_of(library: Library, y: Any, seed: int = 5) -> Any:
    """A scalar: the sum of the elements of y, each with its own weight."""
    shape, size = y.dim()
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, (*shape, size)).astype(np.float32)
    return library.sum_batches(library.sum_elems(library.cmult(y, argument(library, weights))))


def evaluate(library: Library, build: Callable, samples: Sequence[np.ndarray]) -> dict[str, Any]:
    """All observable results of an expression of inputs."""
    library.renew_cg()
    library.kept.clear()
    saved, library.named = library.named, False
    xs = [argument(library, x) for x in samples]
    library.named = saved
    y = build(library, xs)
    library.named = False
    found = {"dim": y.dim(), "value": y.value(), "npvalue": y.npvalue(), "vec_value": y.vec_value()}
    loss = loss_of(library, y)
    loss.forward()
    loss.backward(full=True)
    library.named = saved
    return {**found, "gradients": [x.gradient() for x in xs]}


def same_numbers(a: Any, b: Any, tol: float) -> bool:
    """Equal up to tol, relative to the greatest magnitude in a."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        return False
    finite = np.isfinite(a)
    scale = max(1.0, float(np.abs(a[finite]).max(initial=0)))
    return bool(np.allclose(b, a, rtol=0, atol=tol * scale, equal_nan=True))


def kind_of(value: Any) -> Any:
    """The type and shape that a program sees."""
    if isinstance(value, list):
        return "list", len(value), type(value[0]) if value else None
    return type(value), np.shape(value)


def differences(theirs: dict[str, Any], ours: dict[str, Any], tol: float = VALUE_TOL) -> set[str]:
    """The differences between two results of `evaluate`."""
    found = set()
    if theirs["dim"] != ours["dim"]:
        found.add("dim")
    if any(kind_of(theirs[k]) != kind_of(ours[k]) for k in ("value", "npvalue", "vec_value")):
        found.add("type")
    if not all(same_numbers(theirs[k], ours[k], tol) for k in ("value", "npvalue", "vec_value")):
        found.add("value")
    pairs = list(zip(theirs["gradients"], ours["gradients"]))
    if any(a.shape != b.shape for a, b in pairs):
        found.add("gradient shape")
    return found | {
        f"gradient {k}" for k, (a, b) in enumerate(pairs) if not same_numbers(a, b, max(2 * tol, GRADIENT_TOL))
    }


def assert_alike(theirs: Any, ours: Any, where: str, tol: float = VALUE_TOL) -> None:
    """Equal in type, shape and, up to tol, values."""
    if isinstance(theirs, dict):
        assert list(theirs) == list(ours), where
        for key in theirs:
            assert_alike(theirs[key], ours[key], f"{where}: {key}", tol)
    elif isinstance(theirs, (list, tuple)):
        assert type(theirs) is type(ours), f"{where}: {theirs!r} and {ours!r}"
        assert len(theirs) == len(ours), f"{where}: {theirs!r} and {ours!r}"
        for i, (a, b) in enumerate(zip(theirs, ours)):
            assert_alike(a, b, f"{where}[{i}]", tol)
    elif isinstance(theirs, (np.ndarray, float)):
        assert np.shape(theirs) == np.shape(ours), where
        assert isinstance(ours, type(theirs)), f"{where}: {type(theirs)} and {type(ours)}"
        assert same_numbers(theirs, ours, tol), f"{where}: {theirs!r} and {ours!r}"
    else:
        assert type(theirs) is type(ours), f"{where}: {theirs!r} and {ours!r}"
        assert theirs == ours, where


class Alike:
    """A collection of functions that run in both libraries and must return the same."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[[Any], dict[str, Any]]] = {}

    def __call__(self, function: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
        self.functions[function.__name__] = function
        return function

    def check(self, name: str) -> None:
        theirs, ours = both()
        assert_alike(self.functions[name](theirs), self.functions[name](ours), name)
