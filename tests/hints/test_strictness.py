"""Strict mode: what PyTorch and NumPy read otherwise is an error that names both readings."""

from __future__ import annotations

import warnings
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from own_process import run_python

import dynet_cy as dy
from dynet_cy import config
from dynet_cy.hints.readings import READINGS, by_name


def numbers(*shape: int) -> dy.Expression:
    return dy.inputTensor(np.arange(1.0, 1 + np.prod(shape)).reshape(shape))


def batch() -> dy.Expression:
    """A batch of four vectors of three elements."""
    return dy.inputTensor(np.arange(12.0).reshape(3, 4), batched=True)


def trainer(threshold: float | None = None) -> dy.Trainer:
    """A trainer of a model with gradients."""
    dy.renew_cg()
    pc = dy.ParameterCollection()
    dy.squared_norm(pc.add_parameters(2, init=1.0)).backward()
    made = dy.SimpleSGDTrainer(pc)
    if threshold is not None:
        made.set_clip_threshold(threshold)
    return made


# Uses with two readings, and what to write for each.
AMBIGUOUS: dict[str, tuple[str, list[str]]] = {
    "square * square": ("A * A", ["A @ A", "dy.cmult(A, A)"]),
    "matrix * vector": ("A * v", ["A @ v", "dy.cmult(A, v[None])"]),
    "array * square": ("np.ones((3, 3)) * A", ["np.ones((3, 3)) @ A"]),
    "square + vector": ("A + v", ["A + v[:, None]", "A + v[None]"]),
    "vector - square": ("v - A", ["v[:, None] - A"]),
    "square / vector": ("A / v", ["A / v[None]"]),
    "square ** vector": ("A ** v", ["A ** v[None]"]),
    "square > vector": ("A > v", ["A > v[None]"]),
    "square @ cube": ("T @ T", ["dy.matmul(T, T)", "dy.einsum('hmk,hkn->hmn', T, T)"]),
    "cmult": ("dy.cmult(A, v)", ["dy.cmult(A, v[None])"]),
    "where": ("dy.where(A > 0, A, v)", ["dy.where(A > 0, A, v[None])"]),
    "bmax": ("dy.bmax(A, v)", ["dy.bmax(A, v[:, None])"]),
    "x.reshape": ("B.reshape(3, 2)", ["B.reshape(3, 2, order='F')", "B.reshape((3, -1), order='C')"]),
    "flattened": ("B.reshape(-1)", ["B.reshape(-1, order='C')"]),
    "dy.reshape": ("dy.reshape(B, (3, 2))", ["dy.reshape(B, (3, 2), order='C')"]),
    "sizes of reshape": ("dy.reshape(B, 3, 2)", ["dy.reshape(B, (3,), batch_size=2, order='F')"]),
    "zeros": ("dy.zeros(3, 4)", ["dy.zeros((3, 4))", "dy.zeros(3, batch_size=4)"]),
    "random_normal": ("dy.random_normal(3, 4)", ["dy.random_normal((3, 4))", "dy.random_normal((3,), 4)"]),
    "add_parameters": ("pc.add_parameters(3, 4)", ["pc.add_parameters((3, 4))", "pc.add_parameters(3, init=4)"]),
    "add_lookup_parameters": ("pc.add_lookup_parameters(3, 4)", ["pc.add_lookup_parameters((3, 4))"]),
    "softmax": ("dy.softmax(A)", ["dy.softmax(A, d=1)", "dy.softmax(A, 0)", "dy.softmax(v)"]),
    "log_softmax": ("dy.log_softmax(A)", ["dy.log_softmax(A, d=1)"]),
    "sort": ("dy.sort(A)", ["dy.sort(A, d=1)"]),
    "normalize": ("dy.normalize(A)", ["dy.normalize(A, axis=0)"]),
    "cross_entropy": ("dy.cross_entropy(A, [0, 1, 2])", ["dy.cross_entropy(A, [0, 1, 2], axis=1)"]),
    "layer_norm": ("dy.layer_norm(A, v, v)", ["dy.layer_norm(A, v, v, axis=0)"]),
    "an element of a batch": ("batch()[0]", ["dy.pick(batch(), 0)", "dy.pick_batch_elem(batch(), 0)"]),
    "size of a batch": ("len(batch())", ["batch().batch_size", "batch().shape[0]"]),
    "items of a batch": ("list(batch())", []),
    "mean of a batch": ("batch().mean()", ["dy.mean_elems(batch())", "dy.mean_batches(batch())"]),
    "sum along an axis of a batch": ("batch().sum(0)", ["dy.sum_dim(batch(), [0])"]),
    "backward of a batch": ("dy.sum_elems(batch()).backward()", ["dy.sum_batches(dy.sum_elems(batch())).backward()"]),
    "value of a vector": ("v.value()", ["v.npvalue()", "v.vec_value()"]),
    "value of a matrix": ("A.value()", ["A.npvalue()", "A.npvalue().ravel(order='F')"]),
    "vec_value": ("A.vec_value()", []),
    "if x": ("1 if v else 2", ["1 if v is not None else 2"]),
    "x == y": ("v == v", ["v is v", "dy.equal(v, v)"]),
    "x != 1": ("v != 1", ["dy.not_equal(v, 1)"]),
    "np.sum": ("np.sum([dy.squared_norm(W), dy.squared_norm(W)])", ["dy.esum([dy.squared_norm(W)])"]),
    "split": ("dy.split(v, 1)", ["dy.split(v, [1, 2])"]),
    "dot_product": ("dy.dot_product(A, A)", ["dy.dot_product(v, v)"]),
    "pad": ("dy.pad(A, (1, 2))", ["dy.pad(A, [(0, 0), (1, 2)])"]),
    "kl_divergence": ("dy.kl_divergence(dy.log(v), dy.log(v))", ["dy.kl_divergence(log_p=dy.log(v), log_q=dy.log(v))"]),
    "trainer": ("trainer().update()", ["trainer(0).update()", "trainer(5).update_subset([0], [])"]),
    "huber_distance": ("dy.huber_distance(v, v)", ["dy.huber_distance(v, v, c=1)"]),
}  # fmt: skip

# Uses with one reading.
PLAIN = (
    "2 * A", "A * 2", "A * dy.ones(1)", "B @ v", "B + dy.ones(2)", "A + A[:1]", "A + 1", "A + np.ones((3, 3))", "v * 2",
    "A[0]", "len(A)", "A.sum(0)", "A.mean()", "v.reshape(3, 1)", "dy.zeros(3)", "dy.cross_entropy(B, [0, 1, 1])",
    "dy.squared_norm(v).value()", "dy.squared_norm(v).backward()", "v.vec_value()", "v in [v]", "v == None",
    "1 if dy.squared_norm(v) > 1 else 2", "np.asarray(v)", "sum([v, v])", "dy.split(dy.ones(4), 2)",
    "dy.nn.Linear(3, 3, pc)(A)", "dy.nn.TransformerEncoder(1, 3, 1, 4, pc)(A)",
    "dy.LSTMBuilder(1, 3, 3, pc).initial_state().transduce([v, v])", "dy.einsum('ij,jk->ik', A, A)",
)  # fmt: skip


@pytest.fixture
def names() -> dict[str, Any]:
    dy.renew_cg()
    pc = dy.ParameterCollection()
    tensors = {
        "A": numbers(3, 3),
        "B": numbers(2, 3),
        "T": numbers(3, 3, 3),
        "v": numbers(3),
        "W": pc.add_parameters(3),
    }
    return {**tensors, "pc": pc, "dy": dy, "np": np, "batch": batch, "trainer": trainer}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_two_readings(names: dict[str, Any], case: str) -> None:
    use, instead = AMBIGUOUS[case]
    with dy.strict():
        with pytest.raises(dy.AmbiguityError, match=r"(?s)in PyTorch and NumPy: .*; here: .*; write .*\(strict mode\)"):
            eval(use, names)
        for other in instead:
            eval(other, names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some are likely mistakes in any program
        eval(use, names)


@pytest.mark.parametrize("use", PLAIN)
def test_one_reading(names: dict[str, Any], use: str) -> None:
    with dy.strict():
        eval(use, names)


def test_every_rule_raises() -> None:
    """Each operator, function and method of the table is one that strict mode looks at."""
    classes = (dy.Expression, dy.ParameterCollection, dy.Trainer)
    place = {"": vars(dy), **{owner.__name__: vars(owner) for owner in classes}}
    before = {name: value for name, value in vars(dy).items() if name in by_name()}
    for name in by_name():
        owner, _, attribute = name.rpartition(".")
        assert not attribute.isidentifier() or owner == "np" or attribute in place[owner], name
    with dy.strict():
        assert all(getattr(dy, name) is not value for name, value in before.items())
    assert all(getattr(dy, name) is value for name, value in before.items())


def test_an_error_names_the_shapes(names: dict[str, Any]) -> None:
    with dy.strict(), pytest.raises(dy.AmbiguityError) as error:
        eval("A + v", names)
    assert str(error.value) == (
        "`+`: in PyTorch and NumPy: adds the vector to each row (shapes align at the last axis); here: adds it to each "
        "column (shapes align at the first axis); write `b[:, None]` for each column, `b[None]` for each row "
        "(strict mode)\n    x  {3,3}\n    y  {3}"
    )


def test_settings_and_blocks_nest(names: dict[str, Any]) -> None:
    value = dy.Expression.value
    config.set(strict=True)
    config.set(strict=True)
    assert config.get()["strict"] is True
    with dy.strict():
        pass
    with pytest.raises(dy.AmbiguityError):
        eval("A * A", names)
    config.set(strict=False)
    assert config.get()["strict"] is False
    eval("A * A", names)
    assert dy.Expression.value is value


def test_an_error_in_the_block_ends_it(names: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError), dy.strict():
        raise ZeroDivisionError
    eval("A * A", names)


def test_wrong_arguments_raise_as_ever() -> None:
    with dy.strict():
        with pytest.raises(TypeError, match="softmax"):
            dy.softmax()  # type: ignore[call-arg]
        with pytest.raises(dy.DimensionError, match="reshape"):
            dy.reshape(numbers(4), (3,), order="C")


def test_other_threads_are_strict_too() -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            numbers(2, 2) * numbers(2, 2)
        except dy.AmbiguityError as error:
            raised.append(error)

    with dy.strict():
        thread = Thread(target=work)
        thread.start()
        thread.join()
    assert len(raised) == 1


@pytest.mark.parametrize(("options", "variables"), [(["--dynet-strict"], {}), ([], {"DYNET_CY_STRICT": "1"})])
def test_whole_program(tmp_path: Path, options: list[str], variables: dict[str, str]) -> None:
    """An option holds from the import on, for functions that are imported by name too."""
    code = """
from dynet_cy import AmbiguityError, config, ones, softmax
try:
    softmax(ones((2, 2)))
except AmbiguityError:
    print("ambiguous")
config.set(strict=False)
print(softmax(ones((2, 2))).shape)
"""
    assert run_python(tmp_path, code, *options, **variables).stdout == "ambiguous\n(2, 2)\n"
    assert run_python(tmp_path, code, DYNET_CY_STRICT="0").stdout == "(2, 2)\n"


@pytest.mark.parametrize("shape", [(6,), (2, 3), (3, 2), (2, 1, 3)])
@pytest.mark.parametrize("new", [(6,), (3, 2), (-1, 3), (2, -1), (1, 6), 6, -1])
@pytest.mark.parametrize("order", ["F", "C"])
def test_reshape_by_rows(shape: tuple[int, ...], new: Any, order: str) -> None:
    array = np.arange(6.0).reshape(shape)
    expected = array.reshape(new, order=order)  # type: ignore[call-overload]
    x = dy.inputTensor(array)
    assert np.array_equal(dy.reshape(x, new, order=order).npvalue(), expected)
    assert np.array_equal(x.reshape(new, order=order).npvalue(), expected)  # type: ignore[arg-type]


def test_reshape_by_rows_of_a_batch() -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    x = dy.inputTensor(array, batched=True).reshape(3, 2, order="C")
    for b in range(4):
        assert np.array_equal(x.npvalue()[..., b], array[..., b].reshape(3, 2))


def test_reshape_has_two_orders() -> None:
    with pytest.raises(ValueError, match='order must be "F" or "C", not \'A\''):
        numbers(2, 3).reshape(6, order="A")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there is no batch_size"):
        dy.reshape(numbers(2, 3), (3,), batch_size=2, order="C")


def test_page_lists_the_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "dynet-cy-for-pytorch-users.md").read_text(encoding="utf-8")
    for row in READINGS:
        assert f"| {row.place} | {row.there} | {row.here} | {row.write} |" in page
