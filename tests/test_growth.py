"""Work grows with what there is to do, and not with its square: instructions at n and at 8 n."""

from __future__ import annotations

import shutil

import pytest
from instructions import counted

N = 60
OTHER = {
    **dict.fromkeys(("layers", "builders", "files"), 24),  # they take many instructions each
    "signatures that depend on each other": N * 2,
}

# Ops of n arguments.
LISTS = {
    **{
        name: f"dy.{name}(vectors(n))"
        for name in ("concatenate", "concatenate_cols", "esum", "average", "emax", "logsumexp")
    },
    "concatenate_to_batch": "dy.sum_batches(dy.concatenate_to_batch(vectors(n)))",
    "affine_transform": "dy.affine_transform(inputs(1) + [y for pair in zip(matrices(n), inputs(n)) for y in pair])",
    "vanilla_lstm_gates_concat": "dy.vanilla_lstm_gates_concat(vectors(n), vectors(1)[0], *map(wide, (2 * n, 2, 1)))",
    "tree_lstm_c": "dy.tree_lstm_c(dy.ones(2 * (3 + n)), vectors(n))",
}
# Each case is the body of a function of n; what is before "count" is not counted.
CASES = {
    "nodes": """
        x = dy.inputVector([1.0, 2.0])
        for _ in range(n): x = dy.tanh(x)
        loss = dy.sum_elems(x)
        count(loss.backward)""",
    "signatures": """
        x = dy.inputVector([1.0, 2.0])
        loss = dy.esum([dy.squared_norm(x * (1 + i / 1e6)) for i in range(n)])
        count(loss.value)""",
    "signatures that depend on each other": """
        xs = [dy.tanh(dy.tanh(p * dy.tanh(p * x)) * 2.0) for p, x in zip(matrices(n), inputs(n))]
        loss = dy.squared_norm(dy.esum(xs))
        count(loss.value)""",
    "gradients of many terms": """
        x = dy.inputVector([1.0, 2.0])
        loss = dy.esum([dy.squared_norm(x * (1 + i / 1e6)) for i in range(n)])
        count(lambda: dy.gradients(loss, [x])[0].value())""",
    "parameters": """
        loss = dy.squared_norm(dy.esum(vectors(n)))
        count(loss.backward)""",
    "matrices": """
        loss = dy.squared_norm(dy.esum([p * x for p, x in zip(matrices(n), inputs(n))]))
        count(loss.backward)""",
    "parameters in a checkpoint": """
        ps = vectors(n)
        loss = dy.checkpoint(lambda x: dy.squared_norm(dy.esum([dy.tanh(p) for p in ps]) + x), inputs(1)[0])
        count(loss.backward)""",
    "tables": """
        loss = dy.squared_norm(dy.esum([t[1] for t in [model.add_lookup_parameters((2, 2)) for _ in range(n)]]))
        trainer = dy.AdamTrainer(model)
        count(lambda: (loss.backward(), trainer.update()))""",
    "making parameters": """
        count(lambda: vectors(n))""",
    "removing parameters": """
        ps = vectors(n)
        count(lambda: [model.remove(p) for p in ps])""",
    "removing collections": """
        parts = [model.add_subcollection("part") for _ in range(n)]
        for part in parts: part.add_parameters(1)
        count(lambda: [model.remove(part) for part in parts])""",
    "parameters by name": """
        for i in range(n): model.add_parameters(1, name=f"p{i}")
        count(lambda: [(model[f"p{i}"], f"p{i}" in model) for i in range(n)])""",
    "names that are taken": """
        count(lambda: [model.add_parameters(1, name="W") for _ in range(n)])""",
    "collections": """
        parts = [model.add_subcollection() for _ in range(n)]
        count(lambda: [(part.add_parameters(1), part.parameters_list()) for part in parts])""",
    "layers": """
        count(lambda: [dy.nn.Linear(2, 2, model) for _ in range(n)])""",
    "builders": """
        count(lambda: [dy.LSTMBuilder(1, 2, 2, model) for _ in range(n)])""",
    "pickles": """
        ps = vectors(n)
        count(lambda: pickle.loads(pickle.dumps(ps)))""",
    "files": """
        vectors(n)
        count(lambda: (model.save("model"), model.populate("model")))""",
    "graphs": """
        count(lambda: [dy.ComputationGraph() for _ in range(n)])""",
    "items of a map": """
        p = model.add_parameters(2)
        def work(i):
            x = dy.squared_norm(p * float(i))
            return dy.tanh(x * x.value())
        count(lambda: dy.batched_map(work, list(range(n))))""",
    "requests": """
        xs = [dy.tanh(x) for x in inputs(n)]
        count(lambda: [x.value() for x in xs])""",
    "values in one request": """
        xs = [dy.tanh(x) for x in inputs(n)]
        count(lambda: dy.npvalues(xs))""",
    "inputs that are set": """
        xs = inputs(n)
        loss = dy.squared_norm(dy.esum(xs))
        loss.value()
        count(lambda: ([x.set([2.0, 1.0]) for x in xs], loss.value()))""",
    **{
        f"arguments of {name}": f"""
        loss = dy.squared_norm({op})
        count(loss.backward)"""
        for name, op in LISTS.items()
    },
}

PROGRAM = """
import gc, pickle
import dynet_cy as dy
gc.disable()                # which looks at all objects, from time to time

def inputs(n): return [dy.inputVector([1.0, 2.0]) for _ in range(n)]
def vectors(n): return [model.add_parameters(2) for _ in range(n)]
def wide(n): return dy.ones((8, n) if n > 1 else 8)
def matrices(n): return [model.add_parameters((2, 2)) for _ in range(n)]

cases = {{}}
{cases}
counted, count = count, lambda function: function()
for case in cases.values(): case(20)        # whatever is done once
count = counted
for name, case in cases.items():
    for n in (1, 8): case(n * {other}.get(name, {n}))
"""

CASE = """
def case(n):
    global model
    model = dy.ParameterCollection()
    dy.renew_cg(autobatching=1)
{body}
cases[{name!r}] = case
"""


@pytest.fixture(scope="module")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int]]:
    """Of each case for n and for 8 n; one process counts all, since valgrind takes long to begin."""
    bodies = {name: "\n".join(line[4:] for line in body.strip("\n").split("\n")) for name, body in CASES.items()}
    code = "".join(CASE.format(body=body, name=name) for name, body in bodies.items())
    found = counted(tmp_path_factory.mktemp("counted"), PROGRAM.format(cases=code, other=OTHER, n=N))
    return dict(zip(CASES, zip(found[::2], found[1::2])))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
@pytest.mark.parametrize("case", CASES)
def test_instructions_grow_with_what_there_is(case: str, instructions: dict[str, tuple[int, int]]) -> None:
    few, many = instructions[case]
    n = OTHER.get(case, N)
    assert many < 10 * few, f"{few} instructions for {n}, {many} for {8 * n}: {many / few:.1f} times"
