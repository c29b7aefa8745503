"""Sums of products of activations that run as one op: the gates of recurrent cells."""

from __future__ import annotations

import numpy as np
import pytest
from rewritten import M, counting, counts, lstm, product, program, tree  # noqa: F401
from sum_programs import Program, program_of

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.nodes import nodes

pytestmark = pytest.mark.usefixtures("counting")


def test_one_op_for_a_cell() -> None:
    q = program(5, tree, cells=1)
    q.outputs[0].forward()
    made = [n.op for n in nodes(dy.cg()) if n.computed and n.op not in ("input", "parameter", "matmul")]
    assert made == ["gates"]


def test_cells_that_follow_each_other_run_in_pieces() -> None:
    """One backward call computes the gradients of all arguments of a piece."""
    engine.stats("execute.walk.pieces", reset=True)
    q = program(5, lstm, cells=3)
    q.loss().backward()
    assert engine.stats("execute.walk.pieces")["batches"] >= 1


def test_a_narrow_graph() -> None:
    """Nodes of a narrow graph run one by one."""

    @program_of
    def narrow() -> Program:
        q = Program(11)
        h = dy.tanh(q.parameter(M, 4) * q.input(4))
        for _ in range(12):
            h = h + product("logistic", h, "tanh", h)
        q.outputs.append(h)
        return q

    q = narrow()
    q.loss().backward(full=True)
    assert counts("gates")[0] == 12
    q.check_gradients()
    q.check()


def gate_of(q: Program) -> dy.Expression:
    return next(x for x in q.nodes.values() if "logistic" in repr(x))


@pytest.mark.parametrize("asked", ["before", "later", "gradient only"])
def test_an_activation_that_is_asked_for(asked: str) -> None:
    """Requested with the loss, it is computed as a target; requested later, it is computed then."""
    q = program(13, lstm, cells=4)
    loss = q.loss()
    if asked == "before":
        dy.forward([gate_of(q), loss])
        assert counts("gates")[1] < 4 * 5
    loss.backward(full=True)
    if asked == "later":
        q.check()
    q.check_gradients()


def test_a_part_that_is_used_later() -> None:
    @program_of
    def used_later() -> Program:
        q = program(17, lstm, cells=4)
        q.outputs[0].forward()
        q.outputs.append(dy.tanh(gate_of(q)))
        return q

    q = used_later()
    assert counts("gates")[1] >= 5  # other nodes may be computed early
    q.loss().backward(full=True)
    q.check_gradients()
    q.check()


def test_what_stays() -> None:
    """No gates: broadcasting, parameters as factors, functions with constants, other users, short and long vectors."""
    model = dy.ParameterCollection()
    w = model.add_parameters(M)
    x, y, one = dy.inputVector([0.5] * M), dy.inputVector([0.25] * M), dy.inputVector([2])
    leaky = dy.leaky_relu(x, 0.1)
    shared = dy.tanh(x)
    for made in (
        lambda: dy.cmult(dy.tanh(x), one),
        lambda: dy.cmult(dy.tanh(x), w),
        lambda: dy.cmult(dy.tanh(w), y),
        lambda: dy.cmult(leaky, y),
        lambda: dy.cmult(dy.sin(x), y),
        lambda: dy.cmult(dy.tanh(dy.inputVector([1] * 31)), dy.inputVector([1] * 31)),
        lambda: dy.cmult(dy.tanh(dy.inputVector([1] * 4097)), dy.inputVector([1] * 4097)),
    ):
        e = made()
        dy.sum_elems(e).forward()
        assert counts("gates") == (0, 0)
    (dy.cmult(dy.tanh(x), y) + w).forward()  # the product is absorbed, the parameter that is added is not,
    (dy.cmult(shared, y) + shared).forward()  # nor is a factor with another user
    assert counts("gates") == (2, 2)


def test_checkpoints() -> None:
    """Nodes made before the last checkpoint are not changed; nodes changed before it stay changed."""
    a, b = dy.inputVector([0.5] * M), dy.inputVector([0.25] * M)
    before = dy.cmult(dy.tanh(a), b)
    dy.cg_checkpoint()
    before.forward()
    assert counts("gates") == (0, 0)
    (before + dy.cmult(dy.logistic(a), b)).forward()
    assert counts("gates") == (1, 2)
    dy.cg_revert()
    again = before + dy.cmult(dy.tanh(a), b)
    for _ in range(3):
        assert again.npvalue(recalculate=True) == pytest.approx(np.full(M, 0.5 * np.tanh(0.5)), rel=1e-5)


def test_products_of_activations_are_found_where_they_are_wanted() -> None:
    """A plan without any does not look for sums; one that has some does, also with other products in its sums."""
    dy.renew_cg(autobatching=1)
    x = [dy.inputVector(np.full(M, 0.5)) for _ in range(4)]
    plain = [dy.cmult(x[0], x[1]) + dy.cmult(x[2], x[3]) for _ in range(2)]
    gate = dy.cmult(x[0], x[1]) + dy.cmult(dy.tanh(x[2]), x[3])
    dy.forward(plain[:1])
    assert counts("gates") == (0, 0)
    dy.forward([gate, plain[1]])
    assert counts("gates") == (2, 5)
    np.testing.assert_allclose(plain[1].npvalue(), 0.5, rtol=1e-6)
    np.testing.assert_allclose(gate.npvalue(), 0.25 + 0.5 * np.tanh(0.5), rtol=1e-6)
