"""Gradients as expressions, of every row of the table of ops: values, second order, minibatches, schedules."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from table import CASES, Case, first_rows

import dynet_cy as dy
from dynet_cy.derivatives.rules import COMPOSITIONS, NO_SECOND_ORDER, RULES
from dynet_cy.graph.expressions import set_autobatching
from dynet_cy.graph.nodes import nodes

ROOT = Path(__file__).resolve().parent.parent.parent
WITH_GRADIENT = [case for case in CASES if case.grad is not False]

# Leaves and ops that no row of the table can reach, with the tests that do.
ELSEWHERE = {
    "to_device": "test_gradients.py",
    "gates": "test_gradients.py",
    "lookup_at": "tests/model/test_lookup_at.py",
}


def ops_of(case: Case) -> set[str]:
    """The operations through which the result of a case depends on its arguments."""
    with dy.ComputationGraph() as graph:
        sizes = case.batch_sizes()[0]
        xs = [dy.inputTensor(x, batched=True) for x in case.sample(np.random.default_rng(1), sizes)]
        case.build(dy, xs)
        return {node.op for node in nodes(graph)}


def weighted(y: dy.Expression, weights: np.ndarray) -> dy.Expression:
    """A scalar: the sum of the elements of y, each with its own weight."""
    return dy.sum_batches(dy.dot_product(y, dy.inputTensor(weights, batched=True)))


class Use:
    """A case with arguments: a loss, its gradients, and the product of the Hessian with a vector.

    Attributes:
        case: the case.
        samples, weights, vectors: the arguments, the weights of the loss and the vectors.
    """

    def __init__(self, case: Case, sizes: tuple[int, ...], rng: np.random.Generator) -> None:
        self.case = case
        self.samples = case.sample(rng, sizes)
        with dy.ComputationGraph():
            shape, size = case.build(dy, [dy.inputTensor(x, batched=True) for x in self.samples]).dim()
        self.weights = rng.uniform(0.5, 1.5, (*shape, size)).astype(np.float32)
        self.vectors = [
            rng.uniform(-1, 1, x.shape).astype(np.float32) * case.has_gradient(i) for i, x in enumerate(self.samples)
        ]

    def made(self) -> tuple[dy.Expression, list[dy.Expression]]:
        """The loss, and the arguments as expressions."""
        xs = [dy.inputTensor(x, batched=True) for x in self.samples]
        return weighted(self.case.build(dy, xs), self.weights), xs

    def arrays(self, found: list[dy.Expression]) -> list[np.ndarray]:
        values = dy.npvalues(found)
        return [value.reshape(x.shape, order="F") for value, x in zip(values, self.samples)]

    def expected_loss(self, steps: list[np.ndarray]) -> float:
        xs = [x.astype(np.float64) + step for x, step in zip(self.samples, steps)]
        return float((self.case.expected(xs).reshape(self.weights.shape, order="F") * self.weights).sum())

    def expected_curvature(self, others: list[np.ndarray], h: float = 2e-3) -> float | None:
        """The product of the Hessian of the reference with the vectors and others, by differences in float64 whose
        error is of order h^4; None near a kink."""

        def at(a: float, b: float) -> float:
            return self.expected_loss([a * u + b * v for u, v in zip(others, self.vectors)])

        def difference(h: float) -> float:
            return (at(h, h) - at(h, -h) - at(-h, h) + at(-h, -h)) / (4 * h * h)

        with np.errstate(all="ignore"):
            wide, narrow, *rest = (difference(h / n) for n in (1, 2, 3, 5))
        if not np.isfinite(wide) or any(abs(wide - d) > 1e-2 * (1 + abs(wide)) for d in (narrow, *rest)):
            return None
        return (4 * narrow - wide) / 3


def can(case: Case) -> bool:
    """Whether all operations of a case have a second order."""
    try:
        with dy.ComputationGraph():
            loss, xs = Use(case, case.batch_sizes()[0], np.random.default_rng(1)).made()
            dy.gradients(loss, xs)
    except NotImplementedError:
        return False
    return True


ABLE = [case for case in WITH_GRADIENT if can(case)]
# Only the first rows of ops run with all batch sizes and schedules: what is special about others depends on neither.
FIRST = first_rows(ABLE)
UNABLE = [case for case in WITH_GRADIENT if case not in ABLE]


@pytest.mark.parametrize("case", ABLE, ids=lambda c: c.id)
def test_second_order(case: Case, rng: np.random.Generator, graph: dy.ComputationGraph) -> None:
    for sizes in case.batch_sizes()[: None if case.id in FIRST else 2]:
        use = Use(case, sizes, rng)
        for _ in range(20):
            others = [rng.uniform(-1, 1, x.shape) * case.has_gradient(i) for i, x in enumerate(use.samples)]
            expected = use.expected_curvature(others)
            if expected is not None:
                break
            use = Use(case, sizes, rng)
        else:
            pytest.fail("no point without a kink was found")
        dy.renew_cg()
        loss, xs = use.made()
        slopes = dy.gradients(loss, xs)
        product = dy.esum([weighted(slope, v) for slope, v in zip(slopes, use.vectors)])
        first, second = use.arrays(slopes), use.arrays(dy.gradients(product, xs))
        for slope, x in zip(slopes, xs):
            assert slope.dim() == x.dim()
        terms = [h * u for h, u in zip(second, others)]
        scale = 1 + sum(np.abs(term).sum() for term in terms)
        assert abs(sum(term.sum() for term in terms) - expected) <= max(case.tol, 1e-5) * scale

        product.backward(full=True)  # the same by backward
        for h, x in zip(second, xs):
            desired = x.gradient().reshape(h.shape, order="F")
            np.testing.assert_allclose(h, desired, rtol=1e-4, atol=1e-4 * max(1, np.abs(desired).max(initial=0)))
        loss.backward(full=True)
        for g, x in zip(first, xs):
            desired = x.gradient().reshape(g.shape, order="F")
            np.testing.assert_allclose(g, desired, rtol=3e-5, atol=3e-5 * max(1, np.abs(desired).max(initial=0)))


def mixed(case: Case, strategy: int) -> list[np.ndarray]:
    """Products with the Hessian in several instances of a case, of different batch sizes, in one graph."""
    rng = np.random.default_rng(1)
    set_autobatching(strategy)
    try:
        dy.renew_cg()
        found = []
        for instance in range(4):
            use = Use(case, case.batch_sizes()[instance % len(case.batch_sizes())], rng)
            loss, xs = use.made()
            found += dy.hessian_vector_product(loss, xs, [dy.inputTensor(v, batched=True) for v in use.vectors])
        return dy.npvalues(found)
    finally:
        set_autobatching(1)
        dy.renew_cg()


@pytest.mark.parametrize("case", [case for case in ABLE if case.id in FIRST], ids=lambda c: c.id)
def test_autobatched(case: Case) -> None:
    plain = mixed(case, 0)
    for strategy in (1, 2):
        for actual, desired in zip(mixed(case, strategy), plain):
            np.testing.assert_allclose(actual, desired, rtol=1e-4, atol=1e-4 * max(1, np.abs(desired).max(initial=0)))


@pytest.mark.parametrize("case", UNABLE, ids=lambda c: c.id)
def test_others_are_named(case: Case, graph: dy.ComputationGraph) -> None:
    loss, xs = Use(case, case.batch_sizes()[0], np.random.default_rng(1)).made()
    with pytest.raises(NotImplementedError) as error:
        dy.gradients(loss, xs)
    op = re.match(r"gradients: (\w+) has no second order: \w", str(error.value))
    assert op is not None
    assert op[1] in {node.op for node in nodes(graph)} - RULES.keys() - COMPOSITIONS.keys()


def test_every_rule_is_tested() -> None:
    tested = set().union(*(ops_of(case) for case in ABLE))
    assert (RULES.keys() | COMPOSITIONS.keys()) - tested - ELSEWHERE.keys() == set()


def test_ops_without_a_rule_are_listed(tmp_path: Path) -> None:
    """Every op has a rule, has no gradient, or is named with a reason or in docs/training.md."""
    # In another process, without the ops that other tests register.
    program = (
        "import json, dynet_cy\n"
        "from dynet_cy.ops.registry import describe\n"
        "print(json.dumps([op['name'] for op in describe() if op['gradient'] is True and op['args']]))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=True)
    ops = set(json.loads(done.stdout))
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(\w+)`", page.partition("derived: first-order")[2].partition("end of first-order")[0]))
    assert set(NO_SECOND_ORDER).isdisjoint(RULES.keys() | COMPOSITIONS.keys())
    assert ops - RULES.keys() - COMPOSITIONS.keys() == set(NO_SECOND_ORDER) | listed
    assert all(f"`{op}`" in page for op in NO_SECOND_ORDER)
