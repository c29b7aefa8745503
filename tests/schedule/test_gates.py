"""Sums of products of activations that run as one op: the gates of recurrent cells."""

from __future__ import annotations

from typing import Callable

import numpy as np
import pytest
from sum_programs import Program, Value

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.graph.nodes import nodes


def counts() -> tuple[int, int]:
    """The sums that were changed, and the nodes that they have absorbed."""
    found = engine.stats("schedule.rewrite.gates")
    return found["changed"], found["absorbed"]


@pytest.fixture(autouse=True)
def counting():
    """Reset the counts, and switch gates on again after the test."""
    engine.stats("schedule.rewrite.gates", reset=True)
    yield
    engine.tune("schedule.rewrite.gates.on", True)
    dy.renew_cg()


M = 40  # the scheduler leaves vectors shorter than 32 alone

Form = Callable[[Program, list[Value]], Value]


def act(q: Program, kind: str, x: Value) -> Value:
    return getattr(q, kind)(x) if kind else x


def product(q: Program, f: str, a: Value, g: str, b: Value) -> Value:
    return q.cmult(act(q, f, a), act(q, g, b))


def lstm(q: Program, x: list[Value]) -> Value:
    return q.plus(product(q, "logistic", x[0], "", x[1]), product(q, "logistic", x[2], "tanh", x[3]))


def tree(q: Program, x: list[Value]) -> Value:
    c = product(q, "logistic", x[0], "tanh", x[1])
    c = q.plus(c, product(q, "logistic", x[2], "", x[3]))
    return q.plus(c, product(q, "", x[4], "logistic", x[5]))


def to_the_right(q: Program, x: list[Value]) -> Value:
    s = q.plus(product(q, "logistic", x[0], "", x[1]), x[2])
    return q.plus(product(q, "rectify", x[3], "tanh", x[4]), s)


def six_products(q: Program, x: list[Value]) -> Value:
    """More products than one op takes."""
    s = product(q, "tanh", x[0], "", x[1])
    for k in range(1, 6):
        s = q.plus(s, product(q, "logistic", x[k], "", x[k - 1]))
    return s


def squares(q: Program, x: list[Value]) -> Value:
    """Both factors are one node: it is used twice, so it stays."""
    t = q.tanh(x[0])
    return q.plus(q.cmult(t, t), q.cmult(x[1], x[1]))


def one_leaf(q: Program, x: list[Value]) -> Value:
    """One argument, used again and again: its gradient has many terms."""
    return q.plus(q.plus(x[0], product(q, "logistic", x[0], "tanh", x[0])), product(q, "", x[0], "rectify", x[0]))


def two_sums(q: Program, x: list[Value]) -> Value:
    """A sum of two sums: they are not merged, because adding in another order would change the bits."""
    return q.plus(lstm(q, x), q.plus(product(q, "tanh", x[4], "", x[5]), product(q, "logistic", x[5], "", x[4])))


# For each cell of a form: the number of sums that become one op, and of nodes that it absorbs.
FORMS: dict[str, tuple[Form, tuple[int, int]]] = {
    "lstm": (lstm, (1, 5)),
    "tree": (tree, (1, 8)),
    "to the right": (to_the_right, (1, 6)),
    "six products": (six_products, (2, 15)),
    "squares": (squares, (1, 2)),
    "one leaf": (one_leaf, (1, 6)),
    "two sums": (two_sums, (2, 9)),
}


def program(seed: int, form: Form, n: int = M, cells: int = 9, batch: int = 1) -> Program:
    """Cells of one form; arguments of later cells are results of earlier ones."""
    q = Program(seed)
    w = q.parameter(n, 4)
    q.outputs = []
    for k in range(cells):
        x = [q.times(w, q.input(4, batch=batch)) for _ in range(6)]
        if k > 2:
            x[3] = q.outputs[k - 3]
        q.outputs.append(form(q, x))
    return q


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_of_all_nodes(strategy: int, form: str, batch: int) -> None:
    """With new and cached plans; absorbed nodes too, which have no value until it is requested."""
    make, (sums, parts) = FORMS[form]
    for full in (False, True, True):
        dy.renew_cg(autobatching=strategy)
        engine.stats("schedule.rewrite.gates", reset=True)
        q = program(7, make, batch=batch)
        q.loss(q.outputs).backward(full=full)
        assert counts() == ((9 * sums, 9 * parts) if strategy else (0, 0))
        q.check_gradients(of_nodes=full)
        q.check()
        q.check_gradients(of_nodes=full)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bits_as_single_ops(form: str) -> None:
    """Gradients too, unless one has more than two contributions, which may be added in another order."""
    found = []
    for on in (True, False):
        engine.tune("schedule.rewrite.gates.on", on)
        dy.renew_cg()
        q = program(3, FORMS[form][0])
        loss = q.loss(q.outputs)
        found.append([loss.npvalue(), *(x.e.npvalue() for x in q.outputs)])
        loss.backward(full=True)
        if form not in ("one leaf", "six products"):
            found[-1] += [x.e.gradient() for x in q.outputs]
            found[-1] += [p.grad_as_array() for p, _ in q.params]
    for a, b in zip(*found):
        np.testing.assert_array_equal(a, b)


def test_one_op_for_a_cell() -> None:
    q = program(5, tree, cells=1)
    q.outputs[0].e.forward()
    made = [n.op for n in nodes(dy.cg()) if n.computed and n.op not in ("input", "parameter", "matmul")]
    assert made == ["gates"]


def test_cells_that_follow_each_other_run_in_pieces() -> None:
    """One backward call computes the gradients of all arguments of a piece."""
    engine.stats("execute.walk.pieces", reset=True)
    q = program(5, lstm, cells=3)
    q.loss(q.outputs).backward()
    assert engine.stats("execute.walk.pieces")["batches"] >= 1


def test_a_narrow_graph() -> None:
    """Nodes of a narrow graph run one by one."""
    q = Program(11)
    h = q.tanh(q.times(q.parameter(M, 4), q.input(4)))
    for _ in range(12):
        h = q.plus(h, product(q, "logistic", h, "tanh", h))
    q.loss([h]).backward(full=True)
    assert counts()[0] == 12
    q.check_gradients()
    q.check()


@pytest.mark.parametrize("asked", ["before", "later", "gradient only"])
def test_an_activation_that_is_asked_for(asked: str) -> None:
    """Requested with the loss, it is computed as a target; requested later, it is computed then."""
    q = program(13, lstm, cells=4)
    gate = next(x for x in q.nodes if "logistic" in repr(x.e))
    loss = q.loss(q.outputs)
    if asked == "before":
        dy.forward([gate.e, loss])
        assert counts()[1] < 4 * 5
    loss.backward(full=True)
    if asked == "later":
        np.testing.assert_allclose(gate.e.npvalue(), gate.v[..., 0], rtol=1e-5, atol=1e-6)
    q.check_gradients()


def test_a_part_that_is_used_later() -> None:
    q = program(17, lstm, cells=4)
    gate = next(x for x in q.nodes if "logistic" in repr(x.e))
    q.outputs[0].e.forward()
    assert counts()[1] >= 5  # other nodes may be computed early
    late = q.tanh(gate)
    q.loss([late, *q.outputs]).backward(full=True)
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
        assert counts() == (0, 0)
    (dy.cmult(dy.tanh(x), y) + w).forward()  # the product is absorbed, the parameter that is added is not,
    (dy.cmult(shared, y) + shared).forward()  # nor is a factor with another user
    assert counts() == (2, 2)


def test_checks_and_graphs_that_only_go_forward() -> None:
    for settings in ({"check_validity": True}, {"immediate_compute": True}, {"forward_only": True}):
        dy.renew_cg(**settings)
        q = program(19, tree)
        q.loss(q.outputs).forward()
        q.check()
        assert counts() == (0, 0)
    dy.renew_cg()
    with dy.detect_anomaly():
        q = program(19, tree)
        q.loss(q.outputs).backward()
        q.check_gradients(of_nodes=False)
    assert counts() == (0, 0)


def test_checkpoints() -> None:
    """Nodes made before the last checkpoint are not changed; nodes changed before it stay changed."""
    a, b = dy.inputVector([0.5] * M), dy.inputVector([0.25] * M)
    before = dy.cmult(dy.tanh(a), b)
    dy.cg_checkpoint()
    before.forward()
    assert counts() == (0, 0)
    (before + dy.cmult(dy.logistic(a), b)).forward()
    assert counts() == (1, 2)
    dy.cg_revert()
    again = before + dy.cmult(dy.tanh(a), b)
    for _ in range(3):
        assert again.npvalue(recalculate=True) == pytest.approx(np.full(M, 0.5 * np.tanh(0.5)), rel=1e-5)


def test_kept_plans_do_the_same_to_the_last_bit() -> None:
    found = []
    for _ in range(4):
        dy.renew_cg()
        q = program(23, tree, cells=20)
        q.loss(q.outputs).backward(full=True)
        found.append([x.e.gradient() for x in q.nodes] + [p.grad_as_array() for p, _ in q.params])
    for other in found[1:]:
        for a, b in zip(found[0], other):
            np.testing.assert_array_equal(a, b)


def test_several_passes() -> None:
    q = program(29, lstm)
    for x in q.outputs[:4]:
        x.e.forward()
    q.loss(q.outputs).backward(full=True)
    q.check_gradients()
    q.check()


def test_products_of_activations_are_found_where_they_are_wanted() -> None:
    """A plan without any does not look for sums; one that has some does, also with other products in its sums."""
    dy.renew_cg(autobatching=1)
    x = [dy.inputVector(np.full(M, 0.5)) for _ in range(4)]
    plain = [dy.cmult(x[0], x[1]) + dy.cmult(x[2], x[3]) for _ in range(2)]
    gate = dy.cmult(x[0], x[1]) + dy.cmult(dy.tanh(x[2]), x[3])
    dy.forward(plain[:1])
    assert counts() == (0, 0)
    dy.forward([gate, plain[1]])
    assert counts() == (2, 5)
    np.testing.assert_allclose(plain[1].npvalue(), 0.5, rtol=1e-6)
    np.testing.assert_allclose(gate.npvalue(), 0.25 + 0.5 * np.tanh(0.5), rtol=1e-6)
