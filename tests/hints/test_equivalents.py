"""What errors say where a program uses names of other libraries, and the table that they and the page come from."""

from __future__ import annotations

import builtins
import copy
import inspect
import operator
import pickle
import re
import sys
from operator import attrgetter, itemgetter, methodcaller
from pathlib import Path
from types import new_class
from typing import Any, Callable

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.files.places import PRIVATE
from dynet_cy.hints.equivalents import TABLES, Elsewhere, ElsewhereInModule, Row

ROWS = [row for rows in TABLES.values() for row in rows]
PLACES = ("nn", "x", "trainer", "model", "state", "layer", "builder", "birnn")
OPERATORS = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.pow: "**",
    operator.matmul: "@",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


def owners() -> dict[str, Any]:
    model = dy.ParameterCollection()
    x = dy.inputVector([1, 2])
    state = dy.SimpleRNNBuilder(1, 2, 2, model).initial_state()
    return {
        "nn": dy.nn,
        "x": x,
        "trainer": dy.SimpleSGDTrainer(model),
        "model": model,
        "state": state,
        "layer": dy.nn.Linear(2, 2, model),
        "builder": dy.LSTMBuilder(1, 2, 2, model),
        "birnn": dy.BiRNNBuilder(1, 2, 2, model, dy.LSTMBuilder),
    }


@pytest.mark.parametrize("place", PLACES)
def test_every_name_leads_on(place: str) -> None:
    """No name of the table exists, and each error says what to write."""
    owner = owners()[place]
    for row in ROWS:
        for name in getattr(row, "layer" if place in ("builder", "birnn") else place).split():
            assert not hasattr(owner, name), f"{name} is there: take it out of the table"
            with pytest.raises(AttributeError) as error:
                getattr(owner, name)
            assert str(error.value).endswith(f"has no attribute {name!r}; write " + advice_of(row, name))


def advice_of(row: Row, name: str) -> str:
    return (row.says or row.ours).replace("{}", name)


def test_names_of_the_package_lead_on() -> None:
    """They are attributes, as a `__getattr__` of a module slows all others; what a program does with them fails."""
    for row in ROWS:
        for name in row.dy.split():
            there = getattr(dy, name)
            assert isinstance(there, ElsewhereInModule), f"{name} is there: take it out of the table"
            assert repr(there) == f"<not here; write {advice_of(row, name)}>"
            says = f"module 'dynet_cy' has no attribute {name!r}; write {advice_of(row, name)}"
            for use in (methodcaller("__call__", 1), attrgetter("Adam"), itemgetter(0), lambda n: new_class("T", (n,))):
                with pytest.raises(AttributeError) as error:
                    use(there)
                assert str(error.value) == says
    named = {name for row in ROWS for name in row.dy.split()}
    assert not named & {*dir(dy), *dy.__all__}
    assert {*dy.__all__, "nn", "data"} <= {*dir(dy)}
    assert "__getattr__" not in vars(dy)


def test_the_package_holds_nothing_by_accident() -> None:
    """Code and annotations in the package mean Python's builtins; variables of loops are not names of it."""
    held = {name: value for name, value in vars(dy).items() if not (name.startswith("__") and name.endswith("__"))}
    assert not [name for name, x in held.items() if hasattr(builtins, name) and isinstance(x, Elsewhere)]
    imported = {n for n, x in held.items() if n.startswith("_") and n not in PRIVATE and n != "_RNNBuilder"}
    assert not [n for n in imported if not (inspect.ismodule(held[n]) or callable(held[n]))]
    assert not [n for n, x in held.items() if type(x) is Elsewhere]
    public = {*dy.__all__, *(row for rows in ROWS for row in rows.dy.split())}
    others = {n for n, x in held.items() if n not in public and not n.startswith("_")}
    assert all(inspect.ismodule(held[n]) for n in others), others


@pytest.mark.parametrize("array", [np.ones((3, 3), np.float32), np.ones(3), np.float64(2), np.float32(2), np.int64(2)])
def test_operators_of_arrays_are_those_of_expressions(array: Any) -> None:
    """Also where NumPy is called for them: by `operator`, `sum` and compiled code, which no frame of Python shows."""
    y = dy.inputVector([1, 2, 3])
    for function, symbol in OPERATORS.items():
        if (function is operator.matmul and np.ndim(array) < 2) or (function is operator.mul and np.ndim(array) == 1):
            continue
        here, there = eval(f"array {symbol} y", {"array": array, "y": y}), function(array, y)
        np.testing.assert_array_equal(here.npvalue(), there.npvalue())
    assert (sum([y, y], array).npvalue() == (array + y + y).npvalue()).all()
    for not_there in (operator.floordiv, operator.mod):
        with pytest.raises(TypeError):
            not_there(array, y)
    if np.ndim(array):
        assert operator.eq(array, y) is (array == y) is False
        assert operator.ne(array, y) is (array != y) is True
        assert y in [array, y]
        assert array not in [y]
        for add in (lambda: np.add(array, y), lambda: np.add(y, array), lambda: np.add.outer(array, y)):
            with pytest.raises(TypeError, match="np.add: there is no such function .*; write the operators"):
                add()
        for add in (lambda: operator.iadd(array, y), lambda: exec("array += y", {"array": array, "y": y})):
            with pytest.raises(TypeError, match="np.add: the result is .*write `array = array [+] x`"):
                add()


def test_products_of_arrays_and_products_of_elements_are_told_apart() -> None:
    square, y = np.ones((2, 2)), dy.inputTensor(np.eye(2))
    for _ in range(3):
        for product in (square * y, operator.mul(square, y)):
            assert "matmul" in repr(product)
        with pytest.raises(TypeError, match="np.multiply"):
            np.multiply(square, y)


def test_names_are_in_one_row() -> None:
    for place in Row._fields[2:-1]:
        names = [name for row in ROWS for name in getattr(row, place).split()]
        assert sorted(names) == sorted(set(names)), place


def test_functions_of_the_table_exist() -> None:
    """What errors name by the function of the same name is one."""
    for row in ROWS:
        if row.says.startswith("`dy.{}(x"):
            assert all(hasattr(dy, name) for name in (row.x + row.numpy).split())
        if row.says == "`dy.{}Trainer`":
            assert all(hasattr(dy, f"{name}Trainer") for name in row.dy.split() if name != "RMSprop")


@pytest.mark.parametrize(
    ("use", "error", "says"),
    [
        (lambda: x().exp(), AttributeError, "Expression' object has no attribute 'exp'; write `dy.exp(x)`"),
        (lambda: x().detach(), AttributeError, "write `dy.nobackprop(x)`"),
        (lambda: x().ndim, AttributeError, "write `x.shape`"),
        (lambda: np.tanh(x()), TypeError, "np.tanh: there is no such function of expressions; write `dy.tanh(x)`"),
        (lambda: np.multiply(x(), x()), TypeError, "np.multiply: .*write `dy.cmult\\(x, y\\)`"),
        (lambda: np.isfinite(x()), TypeError, "write `x.npvalue()` for the numbers"),
        (lambda: dy.nn.ReLU, AttributeError, "module 'dynet_cy.nn' has no attribute 'ReLU'; write"),
        (lambda: trainer().step(), AttributeError, "write `trainer.update()`"),
        (lambda: trainer().zero_grad(), AttributeError, "write nothing, as `trainer.update\\(\\)` clears"),
        (lambda: trainer(lr=0.1), TypeError, "AdamTrainer: there is no argument lr; write `learning_rate`"),
        (lambda: trainer(betas=(0.9, 0.98)), TypeError, "write .*beta_1=b1, beta_2=b2"),
        (lambda: dy.nn.Activation("swish"), ValueError, "write `silu`"),
        (lambda: linear().zero_grad(), AttributeError, "'Linear' object has no attribute 'zero_grad'; write nothing"),
        (lambda: dy.nn.Linear(3, 2), TypeError, "Linear: argument model is missing: the ParameterCollection"),
        (
            lambda: dy.nn.Linear(in_features=3),
            TypeError,
            "Linear: there is no argument in_features; write `input_dim=`",
        ),
        (lambda: dy.nn.Sequential(linear(), linear()), TypeError, "Sequential: argument layers: expected a list, such"),
        (
            lambda: dy.LSTMBuilder(input_size=3),
            TypeError,
            "VanillaLSTMBuilder: there is no argument input_size; write `in",
        ),
        (
            lambda: dy.softmax(x(), dim=0),
            TypeError,
            "softmax: there is no argument dim; write `d=`; it takes (x, d=0, mask",
        ),
        (
            lambda: dy.cross_entropy(x(), 0, dim=0),
            TypeError,
            "cross_entropy: there is no argument dim; write `axis=`; it takes (x, targets, axis=0",
        ),
        (lambda: dy.sum_elems(x(), axis=0), TypeError, "sum_elems: there is no argument axis; it takes (x)"),
        (
            lambda: x().mean(dim=0),
            TypeError,
            "mean: there is no argument dim; write `axis=`; it takes (x, axis, keepdims)",
        ),
        pytest.param(
            lambda: x().backward(retain_graph=True),
            TypeError,
            "backward: there is no argument retain_graph; write nothing",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11), reason="methods called with keywords are bound first up to Python 3.10"
            ),
        ),
        (lambda: dy.dropout(x()), TypeError, "dropout: argument p is missing: the probability"),
        (lambda: dy.nn.Dropout(), TypeError, "Dropout: argument rate is missing: the probability"),
        (lambda: dy.conv1d(x()), TypeError, "conv1d: argument f is missing; it takes (x, f,"),
        (
            lambda: dy.data.batches([1], batch_size=2),
            TypeError,
            "batches: there is no argument batch_size; write `size=`",
        ),
        (lambda: dy.data.batches([1], 1, collate_fn=list), TypeError, "no argument collate_fn; write `collate=`"),
        (lambda: dy.data.batches([1], 1, num_workers=2), TypeError, "no argument num_workers; write `processes=`"),
        (lambda: dy.data.Vocabulary(min_freq=2), TypeError, "no argument min_freq; write `min_count=`"),
        (lambda: dy.StepSchedule(3, gamma=0.5), TypeError, "no argument gamma; write `by=`"),
        (lambda: dy.Server(len, batch_size=4), TypeError, "no argument batch_size; write `width=`"),
        (lambda: dy.ParameterCollection().parameters(), AttributeError, "`dy.AdamTrainer(pc)`"),
        (lambda: dy.AdamTrainer(linear().parameters()), TypeError, "got list; write the collection or the layer that"),
        (lambda: dy.AdamTrainer(iter([1])), TypeError, "got list_iterator; write the collection or the layer that"),
        (lambda: dy.pretrained.Bert.from_pretrained, AttributeError, "write `dy.pretrained.load(folder, pc)`"),
        (lambda: linear().save_pretrained("f"), AttributeError, "write `save(folder)` of a model that"),
        (lambda: dy.pretrained.load("f"), TypeError, "load: argument model is missing: the ParameterCollection"),
        (lambda: dy.pretrained.load("f", num_labels=2), TypeError, "no argument num_labels; write `labels=`"),
        (lambda: bert().generate([1]), AttributeError, "write `generate` of a decoder"),
        (lambda: bert().tokenize("a", padding=True), TypeError, "no argument padding; write nothing: texts of any"),
        (lambda: bert().tokenize("a", truncation=True), TypeError, "no argument truncation; write `longest=`"),
        (lambda: bert()(input_ids=[1]), TypeError, "no argument input_ids; write it without a name"),
        (
            lambda: dy.pretrained.Bert("folder", dy.Model()),
            ValueError,
            "got 'folder'; dy.pretrained.load(folder, model)",
        ),
        (lambda: dy.best_tree(x()), TypeError, "got an Expression: use its npvalue()"),
        (lambda: np.concatenate([x(), [1.0]]), TypeError, "np.concatenate: there is no such function of expressions"),
        (lambda: np.dot(x(), x()), TypeError, "np.dot: there is no such function of expressions; write `x @ y`"),
        (lambda: np.linalg.norm(x()), TypeError, "write `dy.norm(x)`"),
    ],
)
def test_words_that_users_type(use: Callable[[], object], error: type[Exception], says: str) -> None:
    pattern = says if "\\" in says or ".*" in says else says.replace("(", "\\(").replace(")", "\\)")
    with pytest.raises(error, match=pattern):
        use()


def bert() -> Any:
    config = {"vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    return dy.pretrained.Bert({**config, "intermediate_size": 4}, dy.Model())


def x() -> dy.Expression:
    return dy.inputVector([1, 2])


def linear() -> dy.nn.Linear:
    return dy.nn.Linear(2, 2, dy.ParameterCollection())


def trainer(**settings: Any) -> dy.Trainer:
    return dy.AdamTrainer(dy.ParameterCollection(), **settings)


def test_errors_of_arguments_are_those_of_the_call() -> None:
    """An error that a function raises itself stays."""
    with pytest.raises(TypeError, match=r"^softmax: x must be an Expression, not int$"):
        dy.softmax(1, d=0)
    with pytest.raises(TypeError, match=r"^softmax: there is no argument axes; it takes \(x, d=0, mask=None\)$"):
        dy.softmax(x(), axes=0)
    with pytest.raises(TypeError, match=r"^softmax: argument x is missing; it takes \(x, d=0, mask=None\)$"):
        dy.softmax()


def test_calls_of_watched_functions_often() -> None:
    settings = {"d": 0}
    for _ in range(100):
        assert dy.softmax(x(), d=0).npvalue().sum() == pytest.approx(1)
        assert dy.softmax(x(), **settings).dim() == ((2,), 1)


def test_numbers_of_expressions_in_numpy() -> None:
    """NumPy's functions that have no counterpart, and those of counterparts by method, work as without the table."""
    e = x()
    assert np.argmax(e) == 1
    assert np.allclose(e, [1, 2])
    assert np.array_equal(e, np.array([1.0, 2.0]))
    assert isinstance(np.sum(e), dy.Expression)
    assert np.mean(e).value() == 1.5


def test_other_names_are_plain_errors() -> None:
    with pytest.raises(AttributeError, match="^module 'dynet_cy' has no attribute 'foo'$"):
        dy.foo  # noqa: B018 # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'foo'$"):
        x().foo  # noqa: B018 # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="foo"):
        trainer(foo=1)


def test_names_of_today() -> None:
    assert dy.relu is dy.rectify
    assert dy.sigmoid is dy.logistic
    values = np.array([-1.0, 2.0])
    for name, function in (("relu", dy.rectify), ("sigmoid", dy.logistic)):
        layer = dy.nn.Activation(name)
        assert np.array_equal(layer(dy.inputTensor(values)).npvalue(), function(dy.inputTensor(values)).npvalue())


@pytest.mark.parametrize("kind", [dy.AdamTrainer, dy.AdamWTrainer, dy.AmsgradTrainer])
def test_learning_rate_of_adam(kind: Any) -> None:
    model = dy.ParameterCollection()
    assert kind(model, learning_rate=0.25).learning_rate == 0.25
    assert kind(model, alpha=0.25).learning_rate == 0.25
    assert kind(model).learning_rate == 0.001


def test_derived_trainers_have_arguments_of_their_own() -> None:
    class Own(dy.SimpleSGDTrainer):
        def __init__(self, m: dy.ParameterCollection, lr: float) -> None:
            super().__init__(m, lr)

    class Passing(dy.SimpleSGDTrainer):
        def __init__(self, m: dy.ParameterCollection, **settings: float) -> None:
            super().__init__(m, settings["lr"])

    assert Own(dy.ParameterCollection(), lr=0.5).learning_rate == 0.5
    assert Passing(dy.ParameterCollection(), lr=0.5).learning_rate == 0.5


def test_classes_derived_from_ours_may_use_the_names() -> None:
    class Model(dy.ParameterCollection):
        def fit(self) -> int:
            return 1

    assert Model().fit() == 1
    model = dy.ParameterCollection()
    model.fit = 2
    assert model.fit == 2


def test_copies_pickles_and_numpy_do_not_see_the_names() -> None:
    model = dy.ParameterCollection()
    w = model.add_parameters(2, init=1.0)
    optimizer = dy.AdamTrainer(model)
    copied, _ = pickle.loads(pickle.dumps((model, optimizer)))
    assert np.array_equal(copied.parameters_list()[0].npvalue(), w.npvalue())
    assert copy.copy(optimizer).learning_rate == optimizer.learning_rate
    e = x()
    assert (np.ndim(e), np.shape(e), np.size(e)) == (1, (2,), 2)
    assert np.asarray(e).tolist() == [1.0, 2.0]
    assert (np.array([1.0, 2.0]) * 2 + e).npvalue().tolist() == [3.0, 6.0]
    assert np.float64(2) * dy.scalarInput(3) is not None
    assert (np.float32(2) * e).npvalue().tolist() == [2.0, 4.0]


def test_what_is_not_there_names_what_is() -> None:
    """The page of what is not there recommends nothing that is not there either."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "not-there.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`dy\.([\w.]+)", page))
    assert len(names) > 15
    for name in names:
        attrgetter(name)(dy)
    for subject in ("second-order", "hooks on activations", "float64", "Windows", "torch.compile"):
        assert subject in page


def test_completion_leaves_them_out() -> None:
    assert {"value", "npvalue", "T"} <= set(dir(x()))
    assert not {"exp", "detach"} & set(dir(x()))

    class Own(dy.ParameterCollection):
        def fit(self) -> int:
            return 1

    assert "fit" in dir(Own())


def test_equality_with_numbers_of_numpy() -> None:
    e = x()
    assert (np.array([1.0]) == e) is False
    assert np.array([1.0]) != e
    assert e in [1, e]
