"""Gradients as expressions of the graph, which can be used and differentiated again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union, overload

import numpy as np
import numpy.typing as npt

from dynet_cy.derivatives import rules
from dynet_cy.derivatives.steps import Contribution, Placed, Step, fit, total
from dynet_cy.functions.arguments import expression as checked
from dynet_cy.functions.arguments import tensor
from dynet_cy.graph import cg
from dynet_cy.graph.expressions import ComputationGraph, Expression
from dynet_cy.graph.nodes import contents, device, expression, graph_node, number, path, trained_rows
from dynet_cy.model import LookupParameters
from dynet_cy.ops.elementwise import esum
from dynet_cy.ops.inputs import inputTensor, zeros
from dynet_cy.ops.linalg import dot_product
from dynet_cy.ops.reduce import sum_batches
from dynet_cy.ops.registry import DimensionError, describe
from dynet_cy.ops.select import scatter_cols
from dynet_cy.ops.shape import reshape

Vector = Union[Expression, "npt.ArrayLike"]


@overload
def gradients(loss: Expression, expressions: Expression) -> Expression: ...


@overload
def gradients(loss: Expression, expressions: Sequence[Expression]) -> list[Expression]: ...


def gradients(loss: Expression, expressions: Expression | Sequence[Expression]) -> Expression | list[Expression]:
    """The gradients of a loss as expressions, which can be part of another loss, and be differentiated again.

    This adds nodes to the graph, which are computed, batched and differentiated as all others; it computes nothing.
    Nothing is added to the gradients of parameters, which `backward` does.

    Most operations have a second order, and then all higher ones; those that have none raise an error with their name.
    The gradient of dropout has the same mask.  Selections (`pick`, `lookup`) are followed as they are now: the gradient
    does not follow an index that is set later.

    Args:
        loss: a scalar; with several batch elements, the gradient of their sum is taken.
        expressions: an expression, a parameter or a lookup table of the same graph, or a list of them.  A table has the
            shape of its expression, with the rows last, and its gradient too; constants of parameters
            (`const_parameter`) count as other expressions.

    Returns:
        An expression of the shape of each, in a list if a list is given; zeros if the loss does not depend on it.

    Raises:
        NotImplementedError: an operation between them has no second order.
        RuntimeError: the graph was renewed with ``forward_only=True``.
        StaleExpressionError: the graph of an expression was renewed.
        TypeError: an argument is no expression.
        ValueError: the loss is not a scalar, or an expression belongs to another graph.

    Example:
        >>> x = dy.inputVector([1, 2])
        >>> slope = dy.gradients(dy.sum_elems(dy.cube(x)), x)
        >>> slope.npvalue()
        array([ 3., 12.])
        >>> dy.gradients(dy.sum_elems(slope), x).npvalue()
        array([ 6., 12.])
    """
    scalar(loss, "gradients")
    one = isinstance(expressions, Expression)
    given = [expressions] if isinstance(expressions, Expression) else listed(expressions, "gradients", "expressions")
    ends = [checked(x, "gradients", f"expressions[{i}]") for i, x in enumerate(given)]
    rows = {number(x): trained_rows(x, loss) for x in ends if isinstance(x, LookupParameters)}
    walk = Walk(cg())
    shape, batch = loss.dim()
    one_each = inputTensor(np.ones((*shape, batch), np.float32), batched=True, device=device(loss))
    found = walk.back(loss, one_each, [*ends, *(row for of_table in rows.values() for row in of_table)])
    results = []
    for x in ends:
        parts = [found.get(number(x)), *(at_rows(x, row, found) for row in rows.get(number(x), ()))]
        slope = total(parts, x.dim())
        results.append(zeros(*x.dim()) if slope is None else slope)
    return results[0] if one else results


@overload
def hessian_vector_product(loss: Expression, expressions: Expression, vectors: Vector) -> Expression: ...


@overload
def hessian_vector_product(
    loss: Expression, expressions: Sequence[Expression], vectors: Sequence[Vector]
) -> list[Expression]: ...


def hessian_vector_product(
    loss: Expression, expressions: Expression | Sequence[Expression], vectors: Any
) -> Expression | list[Expression]:
    """The product of the Hessian of a loss, the matrix of its second derivatives, with a vector.

    The gradient of the product of gradient and vector (Pearlmutter, "Fast exact multiplication by the Hessian", Neural
    Computation 1994): the matrix itself is never made.

    Args:
        loss: a scalar; see `gradients`.
        expressions: an expression, a parameter or a lookup table, or a list of them, which are the coordinates of the
            vector together.
        vectors: the part of the vector that belongs to it, or a list of such parts: expressions, or arrays, of the
            shape of the expression (the batch is the last axis if it has one).

    Returns:
        An expression of the shape of each, in a list if a list is given.

    Raises:
        DimensionError: a vector has another shape than its expression.
        NotImplementedError: an operation has no second order.
        TypeError: an argument is no expression.
        ValueError: the loss is not a scalar, or there are more or fewer vectors than expressions.

    Example:
        >>> w = model.parameters_from_numpy(np.array([1.0, 2.0, 3.0]))
        >>> dy.hessian_vector_product(dy.sum_elems(dy.cube(w)), w, [1, 0, 1]).npvalue()
        array([ 6.,  0., 18.])
    """
    one = isinstance(expressions, Expression)
    function = "hessian_vector_product"
    ends = [expressions] if isinstance(expressions, Expression) else listed(expressions, function, "expressions")
    parts = [vectors] if one else listed(vectors, function, "vectors")
    if len(parts) != len(ends):
        raise ValueError(f"{function}: {len(parts)} vectors given for {len(ends)} expressions")
    slopes = gradients(loss, ends)
    terms = [sum_batches(dot_product(slope, part_like(x, v))) for x, slope, v in zip(ends, slopes, parts)]
    found = gradients(esum(terms), ends) if terms else []
    return found[0] if one else found


def listed(values: Any, function: str, name: str) -> list[Any]:
    if not hasattr(values, "__iter__") or isinstance(values, (str, bytes)):
        raise TypeError(f"{function}: {name} must be a list of them, or one Expression, not {type(values).__name__}")
    return list(values)


def part_like(x: Expression, v: Any) -> Expression:
    """The part of a vector that belongs to x."""
    shape, batch = x.dim()
    part = v if isinstance(v, Expression) else tensor(v, "hessian_vector_product", "a vector", device(x))
    own = part.dim()[0]
    if own[:-1] == shape and own[-1:] == (batch,):  # an array with the batch as its last axis, or one number
        part = reshape(part, shape, batch)
    if part.dim()[0] != shape or part.batch_size not in (1, batch):
        raise DimensionError(f"hessian_vector_product: the vector of an expression of shape {shape} has another shape")
    return part


def scalar(loss: Expression, function: str) -> None:
    shape = checked(loss, function, "loss").dim()[0]
    if math.prod(shape) != 1:
        raise ValueError(f"{function}: the loss has shape {shape}, not one element")


def at_rows(table: Expression, rows: Expression, found: dict[int, Expression]) -> Contribution:
    """The gradient of rows of a table as a part of the gradient of the table, which is zero elsewhere."""
    dy = found.get(number(rows))
    if dy is None:
        return None
    n = math.prod(table.dim()[0][:-1])
    args = graph_node(cg(), number(rows)).args
    if args:  # their numbers are values of the graph
        indices = expression(cg(), args[0])
        count = math.prod(indices.dim()[0]) * indices.batch_size
        return reshape(
            scatter_cols(reshape(dy, (n, count)), reshape(indices, (count,)), table.dim()[0][-1]), table.dim()[0]
        )
    numbers = np.array(contents(cg(), number(rows)).items)
    return Placed(dy, lambda: (numbers[:, None] * n + np.arange(n)).ravel())


def has_gradient(op: str) -> bool:
    """Whether gradients pass an operation; those of other packages have no description."""
    try:
        return describe(op)["gradient"] is True
    except KeyError:
        return True


class Walk:
    """A walk from a loss back to its arguments.

    Attributes:
        graph: the graph.
        shared: see `Step`.
    """

    def __init__(self, graph: ComputationGraph) -> None:
        self.graph = graph
        self.shared: dict[Any, Expression] = {}

    def back(self, y: Expression, dy: Expression, ends: Sequence[Expression], first: int = 0) -> dict[int, Expression]:
        """The gradients of some expressions.

        Args:
            y, dy: an expression, and its gradient.
            ends: the expressions.
            first: the number of the first node that is followed.

        Returns:
            The gradient of each by its number, if y depends on it.
        """
        kept = {number(x) for x in ends}
        given: dict[int, list[Contribution]] = {number(y): [dy]}
        found: dict[int, Expression] = {}
        for node in path(y, ends, first):
            arrived = total(given.pop(node.number, []), (node.shape, node.batch_size))
            if arrived is None:
                continue
            if node.number in kept:
                found[node.number] = arrived
            step = Step(self.graph, node, arrived, self.shared)
            for i, contribution in zip(node.live, self.contributions(step)):
                if contribution is not None:
                    given.setdefault(node.args[i], []).append(contribution)
        for end in kept & given.keys():
            arrived = total(given[end], expression(self.graph, end).dim())
            if arrived is not None:
                found[end] = arrived
        return found

    def contributions(self, step: Step) -> Sequence[Contribution]:
        """The contribution of a step to the gradient of each live argument."""
        node = step.node
        if node.op in rules.RULES:
            return rules.RULES[node.op](step)
        if node.op in rules.COMPOSITIONS:
            return self.through(step)
        if has_gradient(node.op):
            why = rules.NO_SECOND_ORDER.get(node.op, "it has only `backward`; docs/training.md lists such operations")
            made_at = graph_node(self.graph, node.number).origin
            where = f" (made at {made_at})" if made_at else ""
            raise NotImplementedError(f"gradients: {node.op} has no second order{where}: {why}")
        return [None for _ in node.live]

    def through(self, step: Step) -> Sequence[Contribution]:
        """The contributions of a step, by the operations that compose it."""
        first = len(self.graph)
        y = rules.COMPOSITIONS[step.node.op](step, step.xs)
        live = {step.node.args[i] for i in step.node.live}
        found = self.back(y, fit(step.dy, y.dim()), [expression(self.graph, i) for i in sorted(live)], first)
        # An argument that is there twice has one gradient, from both places.
        return [found.pop(step.node.args[i], None) for i in step.node.live]
