"""Programs whose nodes plans rewrite: sums of products (sum_programs.py), and the gates of recurrent cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from sum_programs import ORDERS, Program, Value, program_of, recurrent

import dynet_cy as dy
from dynet_cy.core import engine

M = 40  # the scheduler leaves vectors shorter than 32 alone

Form = Callable[[list[Value]], Value]


def act(kind: str, x: Value) -> Value:
    return getattr(dy, kind)(x) if kind else x


def product(f: str, a: Value, g: str, b: Value) -> Value:
    return dy.cmult(act(f, a), act(g, b))


def lstm(x: list[Value]) -> Value:
    return product("logistic", x[0], "", x[1]) + product("logistic", x[2], "tanh", x[3])


def tree(x: list[Value]) -> Value:
    c = product("logistic", x[0], "tanh", x[1]) + product("logistic", x[2], "", x[3])
    return c + product("", x[4], "logistic", x[5])


def to_the_right(x: list[Value]) -> Value:
    return product("rectify", x[3], "tanh", x[4]) + (product("logistic", x[0], "", x[1]) + x[2])


def six_products(x: list[Value]) -> Value:
    """More products than one op takes."""
    s = product("tanh", x[0], "", x[1])
    for k in range(1, 6):
        s = s + product("logistic", x[k], "", x[k - 1])
    return s


def squares(x: list[Value]) -> Value:
    """Both factors are one node: it is used twice, so it stays."""
    t = dy.tanh(x[0])
    return dy.cmult(t, t) + dy.cmult(x[1], x[1])


def one_leaf(x: list[Value]) -> Value:
    """One argument, used again and again: its gradient has many terms."""
    return x[0] + product("logistic", x[0], "tanh", x[0]) + product("", x[0], "rectify", x[0])


def two_sums(x: list[Value]) -> Value:
    """A sum of two sums: they are not merged, because adding in another order would change the bits."""
    return lstm(x) + (product("tanh", x[4], "", x[5]) + product("logistic", x[5], "", x[4]))


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


@program_of
def program(seed: int, form: Form, n: int = M, cells: int = 9, batch: int = 1) -> Program:
    """Cells of one form; arguments of later cells are results of earlier ones."""
    q = Program(seed)
    w = q.parameter(n, 4)
    for k in range(cells):
        x = [w * q.input(4, batch=batch) for _ in range(6)]
        if k > 2:
            x[3] = q.outputs[k - 3]
        q.outputs.append(form(x))
    return q


class Rewritten(NamedTuple):
    """A program that is rewritten.

    Attributes:
        of: what plans rewrite, "sums" or "gates".
        make: the program for a seed and a batch size.
        counts: the sums that are changed and the nodes that they absorb, without autobatching and with it; or None.
        exact: gradients have the bits of single ops too: none has more contributions, in another order.
    """

    of: str
    make: Callable[[int, int], Program]
    counts: tuple[tuple[int, int] | None, tuple[int, int] | None] = (None, None)
    exact: bool = False


PROGRAMS = {
    **{f"sum {order}": Rewritten("sums", lambda k, n, order=order: recurrent(k, order, batch=n)) for order in ORDERS},
    **{
        f"gates {name}": Rewritten(
            "gates",
            lambda k, n, form=form: program(k, form, batch=n),
            ((0, 0), (9 * sums, 9 * parts)),
            name not in ("one leaf", "six products"),
        )
        for name, (form, (sums, parts)) in FORMS.items()
    },
}


def counts(of: str) -> tuple[int, int]:
    """The sums that were changed since the last reset, and the nodes that they have absorbed."""
    found = engine.stats(f"schedule.rewrite.{of}")
    return found["changed"], found["absorbed"]


@pytest.fixture
def counting() -> Iterator[None]:
    """Reset the counts, and switch rewriting on again after the test."""
    engine.stats("schedule.rewrite", reset=True)
    with engine.tuned({"schedule.rewrite.sums.on": True, "schedule.rewrite.gates.on": True}):
        yield
    dy.renew_cg()
