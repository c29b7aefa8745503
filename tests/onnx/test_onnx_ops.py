"""Every op gives the same values in a file, or export says that it cannot be exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import check
from table import CASES, Case

import dynet_cy as dy
from dynet_cy.graph.nodes import nodes
from dynet_cy.onnx.converters import CONVERTERS
from dynet_cy.ops.registry import describe


def ops_of(case: Case) -> frozenset[str]:
    if case.id not in _OPS_OF:
        _OPS_OF[case.id] = _ops_of(case)
    return _OPS_OF[case.id]


_OPS_OF: dict[str, frozenset[str]] = {}


def _ops_of(case: Case) -> frozenset[str]:
    with dy.ComputationGraph() as graph:
        sizes = case.batch_sizes()[0]
        case.build(dy, [dy.inputTensor(x, batched=True) for x in case.sample(np.random.default_rng(1), sizes)])
        return frozenset(node.op for node in nodes(graph))


# Tested in test_onnx_files.py.
ELSEWHERE = {"parameter", "lookup", "lookup_at", "to_device"}


def test_every_converter_is_tested() -> None:
    tested = frozenset().union(*(ops_of(case) for case in CASES))
    assert set(CONVERTERS) & {op["name"] for op in describe()} - tested <= ELSEWHERE


# Arguments that must be parameters in a file.
WEIGHTS = {"conv2d": {1}, "conv2d_bias": {1, 2}, "conv_transpose2d": {1}, "filter1d_narrow": {1}}


def uses(case: Case):
    """Pairs of batch sizes and of the arguments that are parameters."""
    weights = set().union(*(WEIGHTS.get(op, ()) for op in ops_of(case)))
    for sizes in case.batch_sizes():
        if weights:
            if all(sizes[i] == 1 for i in weights):
                yield sizes, tuple(weights)
            continue
        yield sizes, ()
        if len(sizes) > 1:
            for i, shape in enumerate(case.shapes):
                if sizes[i] == 1 and shape:
                    yield sizes, (i,)


class Use:
    """A case as a function of one example, with these batch sizes; some of its arguments are parameters."""

    def __init__(self, case: Case, sizes: tuple[int, ...], parameters: tuple[int, ...]) -> None:
        self.case, self.sizes = case, sizes
        self.name = f"{case.id} {sizes} {parameters}"
        random = np.random.default_rng(3)
        self.draws = [case.sample(random, sizes) for _ in range(3)]
        self.kept = {i: dy.ParameterCollection().parameters_from_numpy(self.draws[0][i][..., 0]) for i in parameters}
        self.given = [i for i in range(len(sizes)) if i not in self.kept]
        self.inputs = {
            f"{self.name} x{i}": dy.onnx.Floats((*case.shapes[i], *([sizes[i]] if sizes[i] > 1 else [])))
            for i in self.given
        }

    def __call__(self, xs: list[dy.Expression]) -> dy.Expression:
        rest = iter(xs)
        arguments = []
        for i, (shape, size) in enumerate(zip(self.case.shapes, self.sizes)):
            x = self.kept[i] if i in self.kept else next(rest)
            arguments.append(dy.reshape(x, shape, batch_size=size) if size > 1 else x)
        return self.case.build(dy, arguments)

    def example(self, k: int) -> list[np.ndarray]:
        return [x if self.sizes[i] > 1 else x[..., 0] for i, x in enumerate(self.draws[k]) if i in self.given]


def can_be_exported(case: Case) -> bool:
    return ops_of(case) <= set(CONVERTERS) and all(len(s) < 7 for s in case.shapes)


# One file for all uses of an op, because loading a file takes much longer than running it.
GROUPS: dict[str, list[Case]] = {}
for case in CASES:
    if can_be_exported(case):
        GROUPS.setdefault(case.id.split("-")[0].split("#")[0], []).append(case)


@pytest.mark.parametrize("batch", ["batch", None])
@pytest.mark.parametrize("group", list(GROUPS))
def test_values(group: str, batch: str | None, tmp_path: Path) -> None:
    found = [Use(case, *use) for case in GROUPS[group] for use in uses(case)]
    found = [use for use in found if use.given]

    def function(*xs: dy.Expression) -> dict[str, dy.Expression]:
        rest = iter(xs)
        return {use.name: use([next(rest) for _ in use.given]) for use in found}

    inputs = {name: x for use in found for name, x in use.inputs.items()}
    examples = [[x for use in found for x in use.example(k)] for k in range(3 if batch else 1)]
    check(function, inputs, tmp_path / "model.onnx", [examples], batch=batch)


NAMED = {op: case for case in CASES for op in sorted(ops_of(case) - set(CONVERTERS))}


@pytest.mark.parametrize("op", list(NAMED))
def test_others_are_named(op: str, tmp_path: Path) -> None:
    case = NAMED[op]
    use = Use(case, case.batch_sizes()[0], ())
    with pytest.raises(dy.onnx.ExportError, match=f"^export: {op} "):
        dy.onnx.export(lambda *xs: use(xs), use.inputs or {"x": dy.onnx.Floats((1,))}, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
