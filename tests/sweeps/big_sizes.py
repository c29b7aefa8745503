"""The table of big sizes and indices: shapes are inferred and arguments checked, and nothing is computed.

Big arguments are results of ops that never run. With a size N along an axis, shapes of results are those of small N,
extrapolated, or the call raises an error that names the limit. Numbers beyond the limit are errors too.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
from public import Parameter, Shape, alternatives, placed, public_functions, samples, shapes_in
from sweep import Call

import dynet_cy as dy

LIMIT = 2**31 - 1
SMALL = (19, 31)  # as the limit, 7 more than multiples of 12: numbers of windows grow by equal steps
MOST_ELEMENTS = 2**44
MOST_BYTES = 3 << 30  # that the process may take: a call that computes something big is refused them
ERRORS = (ValueError, IndexError, TypeError, MemoryError)
NAMES_LIMIT = re.compile(r"2\^31|2147483647|65535|2\^44|too large|elements|memory|allocate")


class Size:
    """A size or an index that grows with N."""

    def __init__(self, times: int = 1, plus: int = 0) -> None:
        self.times, self.plus = times, plus

    def __repr__(self) -> str:
        return f"{self.times} N + {self.plus}"

    def of(self, n: int) -> int:
        return self.times * n + self.plus


N, LAST = Size(), Size(1, -1)
SHAPES = [Shape(s) for s in [(N,), (N, 2), (2, N), (2,), (2, 2), (1, N), (N, 1), (2, 2, N), (N, 2, 2), (N, N)]]
SHAPES.append(Shape(("batch", 2)))
LISTS = [[0], [1], [0, 0], [LAST], [0, LAST], [LAST, LAST], [N], [N, 2], [2, N], [1, 0], [1, 1]]
STRINGS = {
    "approximate": ["none", "tanh"],
    "gradient_mode": ["zero_gradient", "straight_through_gradient"],
    "reduction": ["none", "sum", "mean"],
    "order": ["F", "C"],
    "device": [""],
    "spec": ["ij->ji", "ij,jk->ik", "i,i->", "i,j->ij", "ii->i"],
}
POOLS: dict[str, list[Any]] = {
    **dict.fromkeys(("Expression", "Operand"), SHAPES),
    "Parameters": [Shape((2,))],
    "Iterable[Expression]": [
        *[[a] for a in SHAPES],
        *[[a, b] for a in SHAPES for b in SHAPES[:7]],
        *[[a, b, c] for a in SHAPES[:5] for b in SHAPES[:5] for c in SHAPES[:5]],
    ],
    **dict.fromkeys(("int", "_Int"), [0, 1, 2, N, LAST, Size(1, -2)]),
    **dict.fromkeys(("float", "Number", "_Number"), [0.5, 2.0]),
    "bool": [False, True],
    "npt.ArrayLike": [np.zeros(2), np.ones((2, 2))],
    **dict.fromkeys(("Axis", "Tags", "Integers", "_Ints", "_Shape", "Iterable[int]"), LISTS),
    **dict.fromkeys(("Sequence[int]", "Sequence[_Ints]", "Sequence[float]"), LISTS),
    "Sequence[Sequence[int]]": [[a, b] for a in LISTS for b in LISTS],
    "Sequence[Expression]": [[Shape((1,))], [Shape((1,)), Shape((2,))]],
    "None": [None],
}
NOT_SWEPT = {"custom_op": "makes an op, not an expression"}
MOST_CALLS = 150  # of one function


# ---- sizes that grow ------------------------------------------------------------


def with_size(value: Any, n: int) -> Any:
    """The value with N in the place of sizes."""
    if isinstance(value, Size):
        return value.of(n)
    if isinstance(value, (list, Shape)):
        return type(value)(with_size(v, n) for v in value)
    return value


def lazy(shape: Shape) -> dy.Expression:
    """An expression of a shape that is not computed; ("batch", ...) has N batch elements."""
    return dy.random_uniform(tuple(shape), 0.25, 0.75)


def argument(shape: Shape, n: int) -> dy.Expression:
    if shape[:1] == ("batch",):
        return dy.reshape(lazy(Shape((*shape[1:], n))), shape[1:], batch_size=n)
    return lazy(with_size(shape, n))


def dims(result: Any) -> list[tuple[int, ...]]:
    """The shapes that a function returns, each with the batch size."""
    if isinstance(result, dy.Expression):
        shape, batch = result.dim()
        return [(*shape, batch)]
    assert isinstance(result, (list, tuple)), f"{type(result).__name__} returned"
    return [d for part in result for d in dims(part)]


def invoke(function: Callable, ps: list[Parameter], values: tuple[Any, ...], n: int) -> tuple[Any, int]:
    """The result of a function with these values, and the number of nodes that it has made."""
    dy.renew_cg()
    xs = iter([argument(s, n) for v in values for s in shapes_in(v)])
    before = len(dy.cg().op_names())
    positional, by_name = [], {}
    for p, value in zip(ps, values):
        value = placed(with_size(value, n) if not shapes_in(value) else value, xs)
        if p.type == "Parameters":
            value = dy.ParameterCollection().add_parameters(2)
        if p.name.startswith("*"):
            positional.append(value)
        else:
            by_name[p.name] = value
    result = function(*by_name.values(), *positional) if positional else function(**by_name)
    return result, len(dy.cg().op_names()) - before


def grown(function: Callable, ps: list[Parameter], values: tuple[Any, ...]) -> Callable[[], None]:
    def call() -> None:
        small, nodes = [], []
        for n in SMALL:
            try:
                result, made = invoke(function, ps, values, n)
                small.append(dims(result))
                nodes.append(made)
            except ERRORS:
                small.append([])
        if not all(small) or nodes[0] != nodes[1] or list(map(len, small[0])) != list(map(len, small[1])):
            return  # refused, or it makes the more nodes the larger N is
        at, step = (LIMIT - SMALL[0]) // (SMALL[1] - SMALL[0]), SMALL[1] - SMALL[0]
        wanted = [tuple(a + (b - a) * at for a, b in zip(*pair)) for pair in zip(*small)]
        assert step * at + SMALL[0] == LIMIT
        try:
            found = dims(invoke(function, ps, values, LIMIT)[0])
        except ERRORS as error:
            assert_says(str(error), f"shapes {wanted}")
            return
        assert found == wanted, f"shapes {found}, not {wanted}"

    return call


def assert_says(text: str, what: str) -> None:
    """An error names the number that is wrong, or the limit."""
    assert what in text or NAMES_LIMIT.search(text), f"{what}, but the error is: {text}"


# ---- numbers beyond the limit -------------------------------------------------------

NUMBERS = [2**31, 2**31 + 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**64, 2**64 + 1, -(2**31) - 1, -(2**63) - 1, -(2**64)]


def replaced(value: Any, number: int) -> Iterator[Any]:
    """The value with the number in the place of one whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        yield number
    if isinstance(value, list):
        for i, part in enumerate(value):
            for other in replaced(part, number):
                yield [*value[:i], other, *value[i + 1 :]]


def beyond(function: Callable, ps: list[Parameter], values: tuple[Any, ...], number: int) -> Callable[[], None]:
    def call() -> None:
        try:
            result, _ = invoke(function, ps, values, 2)
        except ERRORS as error:
            assert_says(str(error), str(number))
            return
        raise AssertionError(f"accepted: {dims(result)}")

    return call


SMALL_POOLS = {
    **POOLS,
    **dict.fromkeys(("Expression", "Operand"), [Shape((2,)), Shape((2, 2)), Shape((2, 2, 2))]),
    "Iterable[Expression]": [[Shape((2,))], [Shape((2,)), Shape((2, 2)), Shape((2,))]],
    **dict.fromkeys(("int", "_Int"), [0, 1]),
    **dict.fromkeys(("Axis", "Tags", "Integers", "_Ints", "_Shape", "Iterable[int]"), [[0], [1, 0], [2, 2]]),
    **dict.fromkeys(("Sequence[int]", "Sequence[_Ints]", "Sequence[float]"), [[0], [1, 1], [0, 0]]),
    "Sequence[Sequence[int]]": [[[0, 1], [0, 1]]],
    "npt.ArrayLike": [np.zeros(2)],
}
WHOLE = ("int", "_Int", "Axis", "Tags", "Integers", "_Ints", "_Shape", "Iterable[int]")
ANY_NUMBER = {
    "cross_entropy.ignore_index": "a class that does not occur",
    "split.sizes": "parts that are longer than x",
    "sum_dim.n": "without effect",
}


def accepted(function: Callable, ps: list[Parameter], values: tuple[Any, ...]) -> bool:
    try:
        invoke(function, ps, values, 2)
    except (*ERRORS, StopIteration):
        return False
    return True


def numbers_of(name: str, function: Callable, ps: list[Parameter]) -> Iterator[Call]:
    """For each parameter that takes whole numbers: calls that are accepted, with other numbers there."""
    done = set()
    for values in samples(name, ps, SMALL_POOLS, STRINGS, 400):
        for i, p in enumerate(ps):
            whole = any(kind in WHOLE or kind.startswith("Sequence[") for kind in alternatives(p.type))
            if not whole or p.name in done or f"{name}.{p.name}" in ANY_NUMBER or not list(replaced(values[i], 0)):
                continue
            if accepted(function, ps, values):
                done.add(p.name)
                for number in NUMBERS:
                    for other in replaced(values[i], number):
                        given = (*values[:i], other, *values[i + 1 :])
                        yield text_of(name, ps, given), beyond(function, ps, given, number)


def text_of(name: str, ps: list[Parameter], values: tuple[Any, ...]) -> str:
    return f"{name}({', '.join(f'{p.name}={v!r}' for p, v in zip(ps, values))})"


def calls(part: str) -> Iterator[Call]:
    """The table.

    Args:
        part: "sizes" or "numbers".
    """
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    for name, ps in public_functions().items():
        function = getattr(dy, name)
        if name in NOT_SWEPT:
            continue
        if part == "numbers":
            yield from numbers_of(name, function, ps)
            continue
        for values in samples(name, ps, POOLS, STRINGS, MOST_CALLS):
            if "N" in repr(values) or "batch" in repr(values):
                yield text_of(name, ps, values), grown(function, ps, values)
