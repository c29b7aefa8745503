"""The table of sizes of 0: all public functions, rows of the table of ops, fused forms, recurrent networks and layers.

Each call either raises an error that names what is wrong, in every schedule the same, or gives values of the inferred
shapes. A result without elements passes a gradient of zeros to each argument. If the reference of a row can be
computed, the values are compared with it.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import numpy as np
from public import Parameter, Shape, placed, public_functions, samples, shapes_in
from sweep import Call

import dynet_cy as dy
from dynet_cy import nn, rnn, train
from dynet_cy.graph.expressions import set_default_device

sys.path.append(str(Path(__file__).parents[1] / "ops"))

from case import Case, many, one
from table import CASES

Build = Callable[[list[dy.Expression]], Any]

# An error of a call is one of these; any other is a fault.
ERRORS = (ValueError, IndexError, TypeError)

SCHEDULES = {
    "plain": {"autobatching": 0},
    "agenda": {"autobatching": 1},
    "depth": {"autobatching": 2},
    "forward only": {"forward_only": True},
}


# ---- one call ----------------------------------------------------------------


def expressions(result: Any) -> list[dy.Expression]:
    """The expressions that a function has returned."""
    if isinstance(result, dy.Expression):
        return [result]
    if isinstance(result, (list, tuple)):
        return [e for part in result for e in expressions(part)]
    raise AssertionError(f"{type(result).__name__} returned")


def reason(error: Exception) -> str:
    assert str(error), "the error says nothing"
    return str(error)


class Refused(Exception):
    """The function did not accept the arguments: no schedule has anything to do with it."""


def values_of(y: dy.Expression) -> np.ndarray:
    """The values of an expression; an index of it that is a value of the graph may name nothing."""
    try:
        return y.npvalue()
    except IndexError as error:
        raise Refused(reason(error)) from None


def results(build: Build, arrays: Sequence[np.ndarray]) -> tuple[list[dy.Expression], Callable[[], list[np.ndarray]]]:
    """The expressions of several calls in a graph, and a function for the gradients of their arguments.

    The arguments are inputs of two calls, and two times the same parameters, unless they have batches; and once what is
    computed from the first inputs.
    """
    given: list[list[Any]] = [[dy.inputTensor(a, batched=True) for a in arrays] for _ in range(2)]
    model = dy.ParameterCollection()
    if all(a.shape[-1] == 1 for a in arrays):
        given += [[model.parameters_from_numpy(a[..., 0]) for a in arrays]] * 2
    given.append([x * 1 for x in given[0]])
    try:
        ys = [expressions(build(xs)) for xs in given]
    except ERRORS as error:
        raise Refused(reason(error)) from None
    for y in ys[0]:
        values_of(y)  # the others run in another pass

    def slopes() -> list[np.ndarray]:
        found = []
        for x, array in zip((x for xs in given[:3] for x in xs), itertools.cycle(arrays)):
            is_parameter, batch = isinstance(x, dy.Parameters), array.shape[-1:]
            found.append(x.grad_as_array() if is_parameter else x.gradient())
            # An input of one number for each batch element has one axis.
            wanted = array.shape[:-1] if is_parameter else (array.shape[:-1] or (1,)) + (batch if batch > (1,) else ())
            assert found[-1].shape == wanted, f"the gradient has shape {found[-1].shape}, not {wanted}"
        return found

    return [y for some in ys for y in some], slopes


def outcome(
    build: Build, arrays: Sequence[np.ndarray], schedule: str
) -> tuple[list[np.ndarray], list[np.ndarray] | str]:
    """The values of calls, and the gradients of their arguments, or why there are none."""
    dy.reset_random_seed(1)
    dy.renew_cg(**SCHEDULES[schedule])
    ys, slopes = results(build, arrays)
    values = [values_of(y) for y in ys]
    for y, value in zip(ys, values):
        shape, batch = y.dim()
        assert value.shape == (*shape, *([batch] if batch > 1 else [])), f"{y.dim()} has values {value.shape}"
    if schedule == "forward only" or not ys:
        return values, []
    try:
        dy.esum([dy.sum_batches(dy.sum_elems(y)) for y in ys]).backward(full=True)
    except ERRORS as error:
        return values, reason(error)
    found = slopes()
    for slope in found:
        assert slope.size == 0 or any(v.size for v in values) or not slope.any(), "the gradient of nothing is not zero"
    return values, found


def equal(actual: Sequence[np.ndarray], desired: Sequence[np.ndarray], what: str) -> None:
    assert [a.shape for a in actual] == [d.shape for d in desired], what
    a, d = (np.concatenate([x.ravel("F") for x in xs] or [np.zeros(0)]) for xs in (actual, desired))
    if not np.array_equal(a, d):
        np.testing.assert_allclose(a, d, rtol=1e-4, atol=1e-5, err_msg=what)


def check(build: Build, arrays: Sequence[np.ndarray], reference: Callable[[], np.ndarray] | None = None) -> None:
    """A call is refused, or gives the same in all schedules, and what its reference gives."""
    try:
        values, slopes = outcome(build, arrays, "plain")
    except Refused:
        return
    for schedule in list(SCHEDULES)[1:]:
        others, found = outcome(build, arrays, schedule)
        equal(others, values, f"values, {schedule}")
        if isinstance(slopes, str) or isinstance(found, str):
            assert schedule == "forward only" or found == slopes, schedule
        elif schedule != "forward only":
            equal(found, slopes, f"gradients, {schedule}")
    if reference is None:
        return
    try:
        wanted = np.asarray(reference(), np.float64)
    except Exception:
        return
    if not np.isnan(wanted).any() and wanted.size == values[0].size:
        np.testing.assert_allclose(values[0].ravel("F"), wanted.ravel("F"), rtol=1e-4, atol=1e-5, err_msg="reference")


# ---- rows of the table of ops ------------------------------------------------


def with_zeros(shapes: Sequence[tuple[int, ...]], fewer: bool) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The shapes with sizes of 0: for one axis of one argument, and for all axes of some sizes, or of one or all."""
    sizes = sorted({d for shape in shapes for d in shape})
    seen = set()
    for n in {1, len(sizes)} if fewer and sizes else range(1, len(sizes) + 1):
        for zero in itertools.combinations(sizes, n):
            seen.add(tuple(tuple(0 if d in zero else d for d in shape) for shape in shapes))
    for i, shape in enumerate(shapes):
        for k in range(len(shape)):
            seen.add((*shapes[:i], (*shape[:k], 0, *shape[k + 1 :]), *shapes[i + 1 :]))
    yield from sorted(seen)


def row(case: Case, sizes: tuple[int, ...]) -> Callable[[], None]:
    def call() -> None:
        arrays = case.sample(np.random.default_rng(1), sizes)
        check(lambda xs: case.build(dy, xs), arrays, lambda: case.expected(arrays))

    return call


def rows(cases: Iterable[Case], fewer: bool) -> Iterator[Call]:
    """Calls of all cases with sizes of 0: of the first and the last batch sizes, or of the last only."""
    for case in cases:
        batches = case.batch_sizes()
        for shapes in with_zeros(case.shapes, fewer):
            empty = replace(case, shapes=shapes)
            for sizes in dict.fromkeys(batches[-1:] if fewer else [batches[0], batches[-1]]):
                yield f"{case.id} of {shapes}, batches {sizes}", row(empty, sizes)


# ---- fused forms ----------------------------------------------------------------
# Sums of products and gates, which plans replace by one op.

FUSED = [
    many("sum-1", [(4, 3), (3,), (4,)], lambda dy, W, x, b: W * x + b, lambda W, x, b: W @ x + b),
    many("sum-2", [(4, 3), (3, 2), (4,)], lambda dy, W, x, b: b + W * x, lambda W, x, b: W @ x + b[:, None]),
    many(
        "sum-3",
        [(4, 3), (3,), (4, 5), (5,), (4,)],
        lambda dy, W, x, V, y, b: dy.tanh(W * x + V * y + b),
        lambda W, x, V, y, b: np.tanh(W @ x + V @ y + b),
    ),
    many(
        "gates-1",
        [(4, 3), (4, 3), (3,)],
        lambda dy, W, V, x: dy.cmult(dy.logistic(W * x), dy.tanh(V * x)),
        lambda W, V, x: np.tanh(V @ x) / (1 + np.exp(-W @ x)),
    ),
    many(
        "gates-2",
        [(12, 3), (3,), (4,)],
        lambda dy, W, x, c: (
            lambda g: dy.cmult(dy.logistic(g[: len(c)]), c) + dy.cmult(dy.logistic(g[: len(c)]), dy.tanh(g[: len(c)]))
        )(W * x),
        lambda W, x, c: (lambda g: (c + np.tanh(g)) / (1 + np.exp(-g)))((W @ x)[: len(c)]),
    ),
    many("squares", [(4, 3), (3, 5)], lambda dy, A, B: (A * B) * (B.T * A.T), lambda A, B: (A @ B) @ (A @ B).T),
    one("elements", (4, 3), lambda dy, x: dy.tanh(x * 2 + 1) * dy.ones(3), lambda x: np.tanh(2 * x + 1).sum(1)),
    one(
        "parts",
        (6, 3),
        lambda dy, x: dy.concatenate([x[:2], x[2:2], x[1:]]),
        lambda x: np.vstack([x[:2], x[2:2], x[1:]]),
    ),
    many(
        "sentences",
        [(4, 3), (4, 5), (4, 4)],
        lambda dy, A, B, W: dy.concatenate_cols([dy.softmax(W * A), dy.softmax(W * B)]),
        lambda A, B, W: (lambda e: e / e.sum(0))(np.exp(W @ np.hstack([A, B]))),
    ),
]


# ---- public functions -------------------------------------------------------------


SHAPES = [Shape(s) for s in [(0,), (1,), (2,), (0, 2), (2, 0), (0, 0), (2, 2), (1, 0), (0, 2, 2), (2, 0, 2), (2, 2, 0)]]
SHAPES.append(Shape((2, 2, 2, 0)))
LISTS = [[], [0], [1], [0, 0], [0, 1], [1, 1], [2, 0], [0, 1, 0]]
ARRAYS = [np.zeros(s) for s in [(0,), (2,), (0, 2), (2, 0), (2, 2)]]
STRINGS = {
    "approximate": ["none", "tanh"],
    "gradient_mode": ["zero_gradient", "straight_through_gradient"],
    "reduction": ["none", "sum", "mean"],
    "order": ["F", "C"],
    "device": [""],
    "spec": ["ij->ji", "ij,jk->ik", "i,i->", "i->ij", "ii->i"],
}
POOLS = {
    **dict.fromkeys(("Expression", "Parameters", "Operand"), SHAPES),
    "Iterable[Expression]": [
        [],
        *[[a] for a in SHAPES],
        *[[a, b] for a in SHAPES[:7] for b in SHAPES[:7]],
        *[[Shape((0,)), a, b] for a in SHAPES[:7] for b in SHAPES[:7]],
        *[[a, b, c] for a in SHAPES[1:3] for b in SHAPES[1:7] for c in SHAPES[:7]],
    ],
    **dict.fromkeys(("int", "_Int"), [0, 1, 2, -1]),
    **dict.fromkeys(("float", "Number", "_Number"), [0.0, 0.5, 2.0]),
    "bool": [False, True],
    "npt.ArrayLike": ARRAYS,
    **dict.fromkeys(("Axis", "Tags", "Integers", "_Ints", "_Shape", "Iterable[int]"), LISTS),
    **dict.fromkeys(("Sequence[int]", "Sequence[_Ints]", "Sequence[float]"), LISTS),
    "Sequence[Sequence[int]]": [[a, b] for a in LISTS for b in LISTS],
    "Sequence[Expression]": [[], [Shape((0,))], [Shape((1,)), Shape((1,))]],
    "None": [None],
}
NOT_SWEPT = {"custom_op": "makes an op, not an expression: test_custom_op_of_nothing"}
OPERATORS = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "pow", "matmul", "lt", "le", "gt", "ge")
}


def function_call(name: str, function: Callable, ps: list[Parameter], values: Sequence[Any]) -> Call:
    """The call of a function with these values for its first parameters."""
    shapes = [s for v in values for s in shapes_in(v)]
    batch = 1 if zlib.crc32(repr(values).encode()) % 2 else 3
    arrays = [np.random.default_rng(1).uniform(0.25, 0.75, (*s, batch)) for s in shapes]

    def build(xs: list[dy.Expression]) -> Any:
        given = iter(xs)
        positional, by_name = [], {}
        for p, value in zip(ps, values):
            value = placed(value, given)
            if p.type == "Parameters" and not isinstance(value, dy.Parameters):
                value = dy.ParameterCollection().parameters_from_numpy(np.ones(value.dim()[0]))
            if p.name.startswith("*"):
                positional.append(value)
            else:
                by_name[p.name] = value
        return function(*positional, **by_name) if not positional else function(*by_name.values(), *positional)

    text = ", ".join(f"{p.name}={v!r}" for p, v in zip(ps, values))
    return f"{name}({text}), batch {batch}", lambda: check(build, arrays)


def functions(most: int) -> Iterator[Call]:
    """At most so many calls of each function."""
    for name, ps in public_functions().items():
        if name not in NOT_SWEPT:
            function = getattr(dy, name)
            yield from (function_call(name, function, ps, v) for v in samples(name, ps, POOLS, STRINGS, most))
    two = [Parameter(x, "Expression", Parameter.empty, False) for x in ("x", "y")]
    for name, function in OPERATORS.items():
        call = lambda x, y, f=function: f(x, y)  # noqa: E731 - built-in functions take no names
        yield from (function_call(name, call, two, v) for v in samples(name, two, POOLS, STRINGS, most))


OF_NETWORKS = dict.fromkeys(("layers", "num_layers", "heads", "N", "width", "size"), (1,))
OF_NETWORKS["rnn_builder_factory"] = (dy.VanillaLSTMBuilder,)
NOT_NETWORKS = {
    "RNNState",
    "StackedRNNState",
    "TreeState",
    "DecoderState",
    "KeysValues",
    "Layer",
    "LayerList",
    "Sequential",
}


# ---- custom ops, recurrent networks, layers, trainers, files ----------------------


def custom_op() -> None:
    """Custom ops of nothing, whose Python functions need not run."""
    double = dy.custom_op("double", lambda x: x * 2, lambda x, y, dy: dy * 2)
    for shape in [(0,), (2, 0), (2,)]:
        check(lambda xs: double(xs[0]), [np.ones((*shape, 1))])


def accepted(make: Callable[[], Any]) -> Any:
    """The result of a function; None if it refuses its arguments with an error that says why."""
    try:
        return make()
    except ERRORS as error:
        reason(error)
        return None


def outputs(network: Any, x: dy.Expression) -> Any:
    """The outputs of a network or a layer for some inputs of one shape."""
    if hasattr(network, "initial_state"):
        return network.initial_state().transduce([x, x])
    if hasattr(network, "transduce"):
        return network.transduce([x, x])
    if hasattr(network, "add_input"):
        leaf = network.add_input(x)
        return [leaf.h, network.add_input(x, [leaf]).h]
    needed = [p for p in inspect.signature(network.__call__).parameters.values() if p.default is p.empty]
    return network(*[x] * len([p for p in needed if p.kind is not p.VAR_KEYWORD]))


def network(cls: type, arguments: dict[str, Any]) -> Callable[[], None]:
    def call() -> None:
        model = dy.ParameterCollection()
        layer = accepted(lambda: cls(**arguments, model=model))
        if layer is None:
            return
        trainer = dy.AdamTrainer(model)
        before = [p.as_array() for p in model.parameters_list()]
        found: dict[str, list[np.ndarray]] = {}
        for schedule in ("plain", "agenda"):
            for shape in [(0,), (2,), (0, 3), (2, 3), (2, 0), (0, 0), (3, 0, 2), (3, 3, 0)]:
                dy.renew_cg(**SCHEDULES[schedule])
                ys = accepted(lambda shape=shape: expressions(outputs(layer, dy.inputTensor(np.ones(shape)))))
                if ys is None:
                    continue
                found.setdefault(schedule, []).extend(y.npvalue() for y in ys)
                dy.esum([dy.sum_elems(y) for y in ys]).backward()
                trainer.update()
                for p, value in zip(model.parameters_list(), before):
                    p.set_value(value)
        equal(found.get("agenda", []), found.get("plain", []), "values")

    return call


def networks() -> Iterator[Call]:
    for module in (rnn, nn):
        for name in module.__all__:
            cls = getattr(module, name)
            try:
                ps = inspect.signature(cls).parameters
            except ValueError:  # made by its builder only
                continue
            if "model" in ps and not name.startswith("_") and name not in NOT_NETWORKS:
                needed = [p.name for p in ps.values() if p.default is p.empty and p.name != "model"]
                for values in itertools.product(*[OF_NETWORKS.get(p, (0, 2)) for p in needed]):
                    arguments = dict(zip(needed, values))
                    yield f"{name}({arguments})", network(cls, arguments)


def trainer(cls: type) -> Callable[[], None]:
    def call() -> None:
        model = dy.ParameterCollection()
        W, b = model.add_parameters((0, 3)), model.add_parameters(2, init=1.0)
        E = model.add_lookup_parameters((4, 0))
        made = cls(model)
        for _ in range(3):
            dy.renew_cg()
            nothing = W * dy.ones(3) + dy.esum([E[1], E[3]])
            (dy.sum_elems(nothing) + dy.squared_norm(b)).backward()
            made.update()
        assert W.as_array().shape == (0, 3)
        assert E.as_array().shape == (4, 0)
        assert (b.as_array() < 1).all()

    return call


def files() -> None:
    with tempfile.TemporaryDirectory() as folder:
        models = [dy.ParameterCollection() for _ in range(2)]
        for i, model in enumerate(models):
            model.add_parameters((0, 3))
            model.add_parameters(2, init=float(i))
            model.add_lookup_parameters((4, 0))
        models[0].save(f"{folder}/text")
        dy.save_safetensors(f"{folder}/tensors", models[0])
        models[1].populate(f"{folder}/text")
        assert not models[1].parameters_list()[1].as_array().any()
        dy.load_safetensors(f"{folder}/tensors", models[1])


def others() -> Iterator[Call]:
    yield "custom op", custom_op
    yield from networks()
    for name in train.__all__:
        if issubclass(getattr(train, name), dy.Trainer) and name not in ("Trainer", "PythonTrainer"):
            yield name, trainer(getattr(train, name))
    yield "files", files


def calls(part: str, device: int = 0) -> Iterator[Call]:
    """The table.

    Args:
        part: "rows", "fused", "functions" or "others".
        device: number of the default device. Only the kernels of others than the CPU are new: there are fewer calls.
    """
    set_default_device(device)
    fewer = device > 0
    if fewer:
        del SCHEDULES["depth"], SCHEDULES["forward only"]
    if part in ("rows", "fused"):
        yield from rows(CASES if part == "rows" else FUSED, fewer)
    else:
        yield from functions(30 if fewer else 100) if part == "functions" else others()
