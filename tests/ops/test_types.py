"""A wrong type in place of an expression raises a TypeError that names the op, and never crashes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dynet_cy as dy
from dynet_cy.ops import api
from dynet_cy.ops.registry import describe

# Values for the other arguments without a default.
OTHERS = {
    **dict.fromkeys(["d", "r", "k", "v", "s", "e", "p", "stddev", "m", "low", "high", "value", "n"], 1),
    **{name: [1] for name in ["indices", "vs", "cs", "rs", "strides", "range_from", "range_to"]},
    **{name: [1, 1] for name in ["stride", "ksize", "size"]},
    "gradient_mode": "zero_gradient",
    "idx": 1,
}
# By function and argument, where the name of the argument is not enough.
SPECIAL = {("sum_dim", "d"): [0], ("mean_dim", "d"): [0], ("moment_dim", "d"): [0], ("std_dim", "d"): [0]}
SPECIAL |= {
    ("hinge_dim", "v"): [0],
    ("poisson_loss", "x"): 1,
    ("tree_lstm_gates", "children"): 2,
    ("crf_loss", "tags"): [0],
}


def signatures() -> dict[str, list[tuple[str, str, bool]]]:
    """From the stubs: the name and annotation of each argument of each public op, and whether it has a default."""
    found = {}
    for stub in sorted(Path(api.__file__).parent.glob("*.pyi")):
        for f in ast.parse(stub.read_text(encoding="utf-8")).body:
            if not isinstance(f, ast.FunctionDef):
                continue
            required = len(f.args.args) - len(f.args.defaults)
            found[f.name] = [
                (a.arg, ast.unparse(a.annotation), i >= required)
                for i, a in enumerate(f.args.args)
                if a.annotation is not None
            ]
    return {name: found[name] for name in api.__all__ if name in found}


SIGNATURES = signatures()
PLACES = [
    (name, i)
    for name, arguments in SIGNATURES.items()
    for i, (_, annotation, _) in enumerate(arguments)
    if "Expression" in annotation and "int" not in annotation.lower() and not arguments[i][2]  # no index
]


def arguments_of(name: str) -> list:
    """Arguments with the right types."""
    out = []
    for argument, annotation, has_default in SIGNATURES[name]:
        if has_default:
            break
        if "Expression" in annotation and "int" not in annotation.lower():
            out.append([dy.zeros(3)] if "[Expression]" in annotation else dy.zeros(3))
        else:
            out.append(SPECIAL[name, argument] if (name, argument) in SPECIAL else OTHERS[argument])
    return out


def test_every_op_has_a_stub() -> None:
    assert sorted(set(api.__all__) - set(SIGNATURES) - {"cat", "relu", "sigmoid", "zeroes"}) == []
    assert len(PLACES) > 130


@pytest.mark.parametrize("wrong", ["text", None, 3j], ids=["str", "None", "complex"])
@pytest.mark.parametrize(("name", "place"), PLACES, ids=[f"{n}-{SIGNATURES[n][i][0]}" for n, i in PLACES])
def test_wrong_type(name: str, place: int, wrong, graph) -> None:
    arguments = arguments_of(name)
    is_list = isinstance(arguments[place], list)
    for given in [wrong, [wrong]] if is_list else [wrong]:
        arguments[place] = given
        with pytest.raises(TypeError) as raised:
            getattr(dy, name)(*arguments)
        message = str(raised.value)
        op = message.partition(":")[0]
        assert op == name or op in {o["name"] for o in describe()}, message
        if given is wrong or type(wrong) is not str:
            assert type(wrong).__name__ in message


@pytest.mark.parametrize("wrong", ["text", None, 3], ids=["str", "None", "int"])
def test_wrong_table(wrong) -> None:
    for function, rows in [(dy.lookup, 0), (dy.lookup_batch, [0])]:
        with pytest.raises(TypeError, match=f"^{function.__name__}: the table must be LookupParameters"):
            function(wrong, rows)


def test_lookup_batch_of_a_number() -> None:
    collection = dy.ParameterCollection()
    table = collection.add_lookup_parameters((3, 2))
    with pytest.raises(TypeError, match="lookup_batch: a list of indices is needed, not 1"):
        dy.lookup_batch(table, 1)
