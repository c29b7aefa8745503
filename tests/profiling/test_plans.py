"""Plans as they ran: the lifetimes of values and gradients, and the table that shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.core import engine
from dynet_cy.profiling import BatchLifetime, PassPlan

W: dy.Parameters


@pytest.fixture(autouse=True)
def lifetimes() -> Iterator[None]:
    """Plans of a few bytes have all lifetimes."""
    global W
    W = dy.ParameterCollection().add_parameters((32, 32))
    dy.renew_cg()
    with engine.tuned({"schedule.transient.small_too": 1, "schedule.transient.least_donated": 1}):
        yield
    dy.renew_cg()


def plan_of(*losses: Callable[[], dy.Expression], number: int = 1) -> PassPlan:
    """The plan of a backward pass of losses in one graph."""
    with profiling.measure(plan=number) as profile:
        for loss in losses:
            loss().backward()
    assert profile.plan is not None
    return profile.plan


def batch_of(plan: PassPlan, op: str) -> BatchLifetime:
    return next(batch for batch in plan.batches if batch.op == op)


def inputs() -> dy.Expression:
    return dy.inputTensor(np.linspace(-1, 1, 32 * 64).reshape(32, 64))


def chain(h: dy.Expression, n: int = 12) -> dy.Expression:
    for _ in range(n):
        h = dy.tanh(W * h)
    return h


def held() -> dy.Expression:
    global kept
    kept = dy.exp(W * inputs())
    return dy.sum_elems(kept)


kept: dy.Expression | None = None


def views() -> dy.Expression:
    """Two halves of each result of a batch, one of which is a view between the other's."""
    found = []
    for row in range(20):
        both = dy.concatenate([W * dy.inputVector(np.linspace(-1, row, 32))] * 4)
        found.append(dy.cmult(dy.pick_range(both, 0, 64), dy.exp(dy.pick_range(both, 64, 128))))
    return dy.sum_elems(dy.esum(found))


def limited() -> dy.Expression:
    dy.renew_cg(mem=2)
    return dy.sum_elems(chain(dy.inputTensor(np.ones((32, 512))), 40))


# By name: the loss, a batch of it by its op, and what its line says of its values and gradients.
CASES: dict[str, tuple[Callable[[], dy.Expression], str, str]] = {
    "transient": (lambda: dy.sum_elems(dy.tanh(W * inputs())), "matmul", "until 1         1' to 0' over 1"),
    "its own backward reads it": (lambda: dy.sum_elems(dy.tanh(W * inputs())), "tanh", "for 1', free 1' 2' to 1'"),
    "another backward reads it": (
        lambda: dy.sum_elems(dy.square(W * inputs() + 1)),
        "shift",
        "for 2', free 1' 2' to 1' over 2",
    ),
    "the loss": (lambda: dy.sum_elems(W * inputs()), "sum", "held    1"),
    "its gradient can be asked for": (held, "exp", "for 1'  2' on"),
    "random": (lambda: dy.sum_elems(dy.dropout(W * inputs(), 0.5)), "dropout", "once    2' to 1'"),
    "view": (views, "pick_range", "views   1      10 KiB in 1"),
    "kept for a view": (views, "concatenate", "viewed"),
    "dropped": (lambda: dy.sum_elems(dy.checkpoint(chain, inputs())), "matmul", "until [0,4] again "),
    "dropped within a limit": (limited, "matmul", "until 1 "),
}


def cells(plan: PassPlan, number: int) -> str:
    """The line of a batch in the table."""
    return next(line for line in plan.text(all=True).splitlines() if line.split()[:1] == [str(number)])


@pytest.mark.parametrize("name", CASES)
def test_lifetimes(name: str) -> None:
    loss, op, said = CASES[name]
    plan = plan_of(loss)
    assert said in cells(plan, batch_of(plan, op).number)
    for batch in plan.batches:
        assert batch.last is None or batch.last > batch.number
        assert batch.read is None or batch.read >= batch.number
        assert batch.free is None or batch.gradient is not None and batch.free <= batch.gradient


def test_what_backward_reads_too_has_a_star() -> None:
    plan = plan_of(lambda: dy.sum_elems(dy.square(W * inputs() + 1)))
    assert [(x.op, x.reads, x.reads_back) for x in plan.batches[1:3]] == [("shift", [0], []), ("square", [1], [1])]
    assert " 0 " in cells(plan, 1)
    assert " 1* " in cells(plan, 2)


def test_a_plan_of_several_passes_and_graphs() -> None:
    dy.renew_cg()
    h = dy.tanh(W * inputs())
    h.forward()
    dy.sum_elems(h).backward()
    with profiling.measure(plan=2) as profile:
        for size in (1, 2):
            dy.renew_cg()
            h = dy.tanh(W * inputs() * size)
            h.forward()
            y = dy.sum_elems(dy.exp(h))
            dy.sum_elems(dy.square(y * size)).backward()
    plan = profile.plan
    assert plan is not None
    assert "constant_times" not in plan.text()
    assert [batch.op for batch in plan.batches][:3] == ["matmul", "scale", "tanh"]
    assert plan.passes == [0, 3]
    lines = plan.text().splitlines()
    assert lines[lines.index("---- forward pass 2") + 1].split()[:2] == ["3", "exp"]
    assert plan.target == plan.batches[-1].number
    assert plan.text().splitlines()[-2].startswith("values: 16 KiB kept, 8 KiB of them donated in backward; ")
    assert profiling.profile().plan is None


def test_long_plans_and_wide_columns_are_cut() -> None:
    with dy.name_scope("net"), dy.record_lines():
        plan = plan_of(lambda: dy.sum_elems(chain(inputs(), 40)))
    assert len(plan.batches) == 81
    table, legend, sums = str(plan).split("\n\n")
    assert "... 21 batches more: --all, or PassPlan.text(all=True)" in table.splitlines()
    assert len(table.splitlines()) == 62
    assert len(legend.splitlines()) == 8
    assert sums.startswith("values: ")
    whole = plan.text(all=True)
    assert len(whole.split("\n\n")[0].splitlines()) == 82
    assert "test_plans.py:" in whole
    plan.batches[5] = plan.batches[5]._replace(op="a" * 60, reads=list(range(0, 60, 2)))
    assert max(map(len, str(plan).splitlines())) == 100
    assert "a" * 60 in plan.text(all=True)
    assert str(plan) in plan._repr_html_().replace("&#x27;", "'").replace("&quot;", '"')
    assert repr(plan) == "<PassPlan of 81 nodes in 81 batches>"


def test_what_is_recorded() -> None:
    assert plan_of(lambda: dy.sum_elems(W), number=1).target == 0
    with profiling.measure(plan=3) as profile:
        dy.sum_elems(W).backward()
    assert profile.plan is None
    with pytest.raises(ValueError, match="at least 1, or 0 for none, not -1"), profiling.measure(plan=-1):
        pass
    with profiling.measure(plan=1) as profile:
        dy.renew_cg()
        loss = dy.pick(W[0] * 2, 3)
        loss.backward()
    assert profile.plan is not None


def test_plans_with_lifetimes_are_verified() -> None:
    def verified(loss: Callable[[], dy.Expression], graph: dict[str, int]) -> int:
        engine.stats("schedule.verify", reset=True)
        dy.renew_cg(**graph)
        loss().backward()
        return engine.stats("schedule.verify")["plans"]

    assert verified(lambda: dy.sum_elems(dy.tanh(W * inputs())), {}) == 1
    assert verified(lambda: dy.sum_elems(dy.checkpoint(chain, inputs())), {}) >= 1
    assert verified(lambda: dy.sum_elems(chain(dy.inputTensor(np.ones((32, 512))), 40)), {"mem": 2}) >= 1
    with engine.tuned({"schedule.transient.small_too": 0}):
        assert verified(lambda: dy.sum_elems(dy.tanh(W * inputs())), {}) == 0


def test_a_backward_that_runs_out_of_memory_leaves_no_notes() -> None:
    """The pass runs anew, and keeps less."""
    failures: list[MemoryError] = []

    def backward(g: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        if failures:
            raise failures.pop()
        return g

    op = dy.custom_op("runs_out_of_memory", lambda x: x + 0, backward)

    def loss() -> dy.Expression:
        dy.renew_cg(mem=4)
        return dy.sum_elems(chain(op(chain(dy.inputTensor(np.ones((32, 512))), 30)), 30))

    whole = plan_of(loss)
    failures += [MemoryError(), MemoryError(), MemoryError()]
    plan = plan_of(loss)
    assert not failures
    assert plan.dropped > whole.dropped > 0
    assert plan.values < whole.values
    for batch in plan.batches[:-1]:
        assert batch.gradient is not None
        assert batch.number in plan.batches[batch.gradient].reads
    assert " 0 B at a time" not in plan.text()
