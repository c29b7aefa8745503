"""Sums of products over named axes."""

from __future__ import annotations

import math
import string

import numpy as np

from dynet_cy.functions.arguments import along, known_arguments, shape_of, tensor
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops import products as batched
from dynet_cy.ops.elementwise import cmult
from dynet_cy.ops.inputs import inputTensor
from dynet_cy.ops.reduce import sum_dim
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.shape import reshape, transpose

__all__ = ["einsum"]


@known_arguments
def einsum(spec: str, *xs: Expression) -> Expression:
    """Sums of products along named axes (Einstein's convention), as in NumPy.

    Two tensors at a time, from left to right, are reduced to one matrix product for each position along the axes that
    both keep.

    Args:
        spec: a letter for each axis of each expression, and of the result after ``->``; without ``->``, the result has
            the letters that occur once, in alphabetical order.  A letter that occurs twice in one expression selects
            its diagonal; ``...`` stands for any number of further axes, which all expressions with ``...`` share.
        xs: expressions, or arrays.

    Returns:
        An expression, of shape ``{1}`` if no axis is left.

    Raises:
        DimensionError: axes of one letter differ in length, or the number of letters is not that of axes.
        ValueError: the spec cannot be parsed, or is for another number of expressions.

    Example:
        >>> A, B = dy.inputTensor([[1, 2], [3, 4]]), dy.inputTensor([[0, 1], [1, 0]])
        >>> dy.einsum("ij,jk->ik", A, B).npvalue()             # a product
        array([[2., 1.],
               [4., 3.]])
        >>> dy.einsum("ii->", A).value()                       # a trace
        5.0
        >>> keys, queries = dy.ones((8, 2, 5)), dy.ones((8, 2, 7))
        >>> dy.einsum("dhn,dhm->nmh", keys, queries).shape     # scores of attention, for each head h
        (5, 7, 2)
    """
    if not isinstance(spec, str):
        raise TypeError(f"einsum: spec must be a string, not {type(spec).__name__}")
    operands = [tensor(x, "einsum", f"xs[{i}]") for i, x in enumerate(xs)]
    letters, out = parsed(spelled_out(spec.replace(" ", ""), [len(shape_of(e)) for e in operands]), len(xs))
    terms = []
    sizes: dict[str, int] = {}
    for i, (names, e) in enumerate(zip(letters, operands)):
        own = shape_of(e)
        if len(names) != len(own):
            raise DimensionError(f"einsum: {names!r} has {len(names)} letters but xs[{i}] has shape {own}")
        for name, n in zip(names, own):
            if sizes.setdefault(name, n) != n:
                raise DimensionError(f"einsum: axis {name} has {sizes[name]} elements, but {n} in xs[{i}]")
        terms.append(diagonal(e, names))
    x, names = terms[0]
    for i, (y, others) in enumerate(terms[1:], 1):
        later = set(out).union(*(n for _, n in terms[i + 1 :]))
        x, names = product(summed(x, names, later | set(others)), summed(y, others, later | set(names)), later)
    x, names = summed(x, names, set(out))
    return arranged(x, names, out) if out else x


def spelled_out(spec: str, axes: list[int]) -> str:
    """The spec with letters instead of ``...``."""
    if "..." not in spec:
        return spec
    left, arrow, out = spec.partition("->")
    counts = {n - len(names) + 3 for names, n in zip(left.split(","), axes) if "..." in names}
    if len(counts) > 1 or min(counts, default=0) < 0:
        raise DimensionError(f"einsum: the ... of {spec!r} stands for {sorted(counts)} axes")
    if arrow and "..." not in out:
        raise ValueError(f"einsum: the result of {spec!r} must have ... too")
    unused = [c for c in string.ascii_letters if c not in spec]
    more = "".join(unused[: counts.pop()]) if counts else ""
    if not arrow:
        out = more + "".join(sorted(c for c in set(left) - set(".,") if left.count(c) == 1))
    return f"{left.replace('...', more)}->{out.replace('...', more)}"


def parsed(spec: str, n: int) -> tuple[list[str], str]:
    """The letters of each expression, and of the result."""
    left, arrow, out = spec.partition("->")
    letters = left.split(",")
    if not arrow:
        out = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    if not all(c.isalpha() for c in "".join(letters) + out):
        raise ValueError(f"einsum: {spec!r} must consist of letters, commas and ->")
    if len(letters) != n:
        raise ValueError(f"einsum: {spec!r} is for {len(letters)} expressions, {n} are given")
    if len(set(out)) < len(out) or not set(out) <= set(left):
        raise ValueError(f"einsum: the result of {spec!r} must have letters of the expressions, each once")
    return letters, out


def diagonal(x: Expression, names: str) -> tuple[Expression, str]:
    """x with one axis for each letter."""
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            first = names.index(name)
            second = names.index(name, first + 1)
            own = shape_of(x)
            one = along(inputTensor(np.eye(own[first], dtype=np.float32)), [first, second], len(own))
            x = sum_dim(cmult(x, one), [second])
            names = names[:second] + names[second + 1 :]
    return x, names


def summed(x: Expression, names: str, wanted: set[str]) -> tuple[Expression, str]:
    """x summed over the axes that are no longer needed."""
    axes = [i for i, name in enumerate(names) if name not in wanted]
    return (sum_dim(x, axes), "".join(n for n in names if n in wanted)) if axes else (x, names)


def arranged(x: Expression, names: str, order: str) -> Expression:
    """x with its axes in another order."""
    return x if names == order else transpose(x, [names.index(name) for name in order])


def product(a: tuple[Expression, str], b: tuple[Expression, str], wanted: set[str]) -> tuple[Expression, str]:
    """The product of two tensors, as one matrix product for each position along the axes that both keep."""
    (x, xs), (y, ys) = a, b
    shared = [n for n in xs if n in ys]
    each = "".join(n for n in shared if n in wanted)
    inner = "".join(n for n in shared if n not in wanted)
    rows = "".join(n for n in xs if n not in ys)
    cols = "".join(n for n in ys if n not in xs)
    sizes = {**dict(zip(xs, shape_of(x) if xs else ())), **dict(zip(ys, shape_of(y) if ys else ()))}

    def count(names: str) -> int:
        return math.prod(sizes[n] for n in names)

    def matrices(x: Expression, names: str, first: str, second: str) -> tuple[Expression, bool]:
        """x as matrices, or as their transposes if this needs no copy."""
        flipped = bool(names) and names == second + first + each and names != first + second + each
        if flipped:
            first, second = second, first
        x = arranged(x, names, first + second + each)
        return reshape(x, (count(first), count(second), *([count(each)] if each else []))), flipped

    left, left_flipped = matrices(x, xs, rows, inner)
    right, right_flipped = matrices(y, ys, inner, cols)
    z = batched.matmul(left, right, left_flipped, right_flipped)
    names = rows + cols + each
    return reshape(z, tuple(sizes[n] for n in names) or (1,)), names
