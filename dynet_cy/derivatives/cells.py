"""Derivatives of cells of recurrent networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from dynet_cy.derivatives.products import of_factor, of_matrix, of_sum, product
from dynet_cy.derivatives.steps import Contribution, Step, flat
from dynet_cy.derivatives.table import each, rule
from dynet_cy.functions.shapes import pad
from dynet_cy.graph.expressions import Expression
from dynet_cy.ops.elementwise import cmult, tanh
from dynet_cy.ops.inputs import inputTensor, zeros
from dynet_cy.ops.select import pick_range
from dynet_cy.ops.shape import concatenate

# ---- gates: activations of sums of products


def slope(step: Step, blocks: int, logistic: int, squashed: int) -> Expression:
    """The derivative of gates: y - y^2 for blocks of rows that are logistic, 1 - y^2 for those that are tanh.

    Args:
        step: gates y.
        blocks: the number of blocks.
        logistic, squashed: how many of the first are logistic, and how many after those tanh; the others are logistic.
    """
    y = step.y
    square = cmult(y, y)
    if squashed == 0:
        return y - square
    if squashed == blocks:
        return 1 - square
    rows, axes = step.node.shape[0], len(step.node.shape)
    name = ("tanh", rows, axes, blocks, logistic, squashed)
    part = np.zeros((blocks, rows // blocks, *[1] * (axes - 1)), np.float32)
    part[logistic : logistic + squashed] = 1
    constants = part.reshape(rows, *part.shape[2:])
    of_tanh = step.once(name, lambda: inputTensor(constants))
    others = step.once((*name, "not"), lambda: inputTensor(1 - constants))
    return cmult(y, others) + of_tanh - square


@rule("gated_affine")
def gated_affine(step: Step) -> list[Contribution]:
    return of_sum(step, cmult(step.dy, slope(step, step.word(0), step.word(1), step.word(2))))


@rule("vanilla_lstm_gates", "vanilla_lstm_gates_projected")
def lstm_gates(step: Step) -> list[Contribution]:
    """Arguments: b, Wh, h, and then Wx before each x; Wx has a block of columns for each x."""
    dy = cmult(step.dy, slope(step, 4, 3, 1))
    if len(step.node.args) <= 5:
        return of_sum(step, dy)
    xs = [flat(x) for x in step.xs[4::2]]
    ends = [0, *itertools.accumulate(x.dim()[0][0] for x in xs)]

    def contribution(i: int) -> Contribution:
        if i < 3:
            return product(step, i, 1, dy) if i else dy
        if i % 2:  # all blocks at once
            return of_matrix(step.x(3), concatenate(xs), dy) if i == 3 else None
        k = (i - 4) // 2
        return of_factor(pick_range(step.transposed(3), ends[k], ends[k + 1]), 1, dy)

    return [contribution(i) for i in step.node.live]


# ---- cells


def gate(step: Step, i: int, k: int, size: int) -> Expression:
    """Block number k of argument i, the gates."""
    number = step.node.args[i]
    return step.once(("gate", number, k), lambda: pick_range(flat(step.x(i)), k * size, (k + 1) * size))


def assembled(step: Step, size: int, n: int, parts: Mapping[int, Expression]) -> Expression:
    """n blocks of `size` rows: the given ones, and zeros."""
    empty = step.once(("zeros", size), lambda: zeros(size))
    return concatenate([parts.get(k, empty) for k in range(n)])


@each("vanilla_lstm_c")
def lstm_c(step: Step, i: int) -> Contribution:
    """y = f c + i g"""
    size, dy = step.node.shape[0], flat(step.dy)
    if i == 0:
        return cmult(dy, gate(step, 1, 1, size))
    given = {0: gate(step, 1, 3, size), 1: flat(step.x(0)), 3: gate(step, 1, 0, size)}
    return assembled(step, size, 4, {k: cmult(dy, other) for k, other in given.items()})


@each("tree_lstm_c")
def tree_lstm_c(step: Step, i: int) -> Contribution:
    """y = i u + f1 c1 + f2 c2 + ..., with the gates i, o, u, f1, f2, ..."""
    size, dy = step.node.shape[0], flat(step.dy)
    if i:
        return cmult(dy, gate(step, 0, 2 + i, size))
    given = {0: gate(step, 0, 2, size), 2: gate(step, 0, 0, size)}
    given.update(enumerate(map(flat, step.xs[1:]), 3))
    return assembled(step, size, 3 + step.word(0), {k: cmult(dy, other) for k, other in given.items()})


@each("vanilla_lstm_h")
def lstm_h(step: Step, i: int) -> Contribution:
    return output(step, i, 2)


@each("tree_lstm_h")
def tree_lstm_h(step: Step, i: int) -> Contribution:
    return output(step, i, 1)


def output(step: Step, i: int, place: int) -> Contribution:
    """y = o tanh(c), where o is the block number `place` of the gates"""
    size, dy = step.node.shape[0], flat(step.dy)
    squashed = step.once(("tanh of", step.node.args[0]), lambda: tanh(flat(step.x(0))))
    if i == 0:
        return cmult(cmult(dy, gate(step, 1, place, size)), 1 - cmult(squashed, squashed))
    blocks = math.prod(step.x(1).dim()[0]) // size
    return assembled(step, size, blocks, {place: cmult(dy, squashed)})


@each("gru_h")
def gru_h(step: Step, i: int) -> Contribution:
    """y = h + z (g - h)"""
    h, z, g = step.xs
    return (step.dy - cmult(step.dy, z), cmult(step.dy, g - h), cmult(step.dy, z))[i]


@each("dropout_mask")
def dropout_mask(step: Step, i: int) -> Contribution:
    """y = x m, with the part of a mask m from an offset on"""
    dy, start, n = flat(step.dy), step.word(0), step.node.shape[0]
    if i == 0:
        return cmult(dy, pick_range(flat(step.x(1)), start, start + n))
    size = math.prod(step.x(1).dim()[0])
    return pad(cmult(dy, flat(step.x(0))), [(start, size - start - n)])
