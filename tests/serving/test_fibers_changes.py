"""batched_map: items that change what is computed while others wait: what plain `map` gives, or an error."""

from __future__ import annotations

import doctest
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import all_close
from test_docstrings import examples, known, restored_settings

import dynet_cy as dy

pytestmark = pytest.mark.fibers

REFUSED = (
    "in an item of batched_map|have begun, and may have used the value|the caller is not one of its items"
    "|a timeline is being measured already"
)


# ---- each item changes its own nodes -----------------------------------------------------


def table() -> dy.LookupParameters:
    return dy.ParameterCollection().lookup_parameters_from_numpy(np.arange(12.0).reshape(6, 2) / 8)


ROWS = table()


def of_input(i: int) -> tuple[dy.Expression, Callable[[int], Any]]:
    x = dy.inputVector([i, 1])
    return dy.tanh(x * 0.25), lambda k: x.set([k, i])


def of_scalar(i: int) -> tuple[dy.Expression, Callable[[int], Any]]:
    x = dy.scalarInput(i)
    return dy.square(x), x.set


def of_batch(i: int) -> tuple[dy.Expression, Callable[[int], Any]]:
    x = dy.inputTensor(np.full((2, 3), i), batched=True)
    return x * 2 + 1, lambda k: x.set(np.arange(6).reshape(2, 3) + k)


def of_lookup(i: int) -> tuple[dy.Expression, Callable[[int], Any]]:
    x = dy.lookup(ROWS, i % 6)
    return dy.exp(x), lambda k: x.set(k % 6)


def of_lookup_batch(i: int) -> tuple[dy.Expression, Callable[[int], Any]]:
    x = dy.lookup_batch(ROWS, [i % 6, 0])
    return dy.exp(x), lambda k: x.set([0, k % 6])


def of_pick(i: int) -> tuple[dy.Expression, Callable[[int], Any]]:
    x = dy.pick(dy.inputVector(np.arange(9) * (i + 1)), i)
    return x * 0.5, lambda k: x.set_index(k % 9)


def of_pick_batch(i: int) -> tuple[dy.Expression, Callable[[int], Any]]:
    x = dy.pick_batch(dy.inputTensor(np.arange(18).reshape(9, 2), batched=True), [i, 1])
    return x * 0.5, lambda k: x.set_index([k % 9, i])


def of_recalculation(method: str) -> Callable[[int], tuple[dy.Expression, Callable[[int], Any]]]:
    def make(i: int) -> tuple[dy.Expression, Callable[[int], Any]]:
        x = dy.inputVector([i])
        y = dy.tanh(x)
        calls = {"forward of a list": dy.forward, "values": dy.values, "npvalues": dy.npvalues}
        if method in calls:
            return y, lambda k: calls[method]([y, x + k], recalculate=True)
        return y, lambda k: getattr(y, method)(recalculate=True)

    return make


RECALCULATING = ["value", "npvalue", "vec_value", "scalar_value", "tensor_value", "forward"]
CHANGES = {
    **{f.__name__: f for f in (of_input, of_scalar, of_batch, of_lookup, of_lookup_batch, of_pick, of_pick_batch)},
    **{m: of_recalculation(m) for m in [*RECALCULATING, "forward of a list", "values", "npvalues"]},
}


def program(make: Callable[[int], tuple[dy.Expression, Callable[[int], Any]]]) -> Callable[[int], list[Any]]:
    def item(i: int) -> list[Any]:
        y, change = make(i)
        seen = [np.asarray(y.value())]
        for k in range(i % 3 + 1):  # not all as often
            change(k)
            seen += [np.asarray(y.value()), np.asarray((y + 1).value())]
            change(k + 1)
            seen += map(np.asarray, dy.values([y + 2, y]))
        return seen

    return item


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected):
        all_close(a, b, rtol=1e-6)


@pytest.mark.parametrize("autobatching", [0, 1, 2])
@pytest.mark.parametrize("width", [None, 1, 3])
@pytest.mark.parametrize("change", list(CHANGES))
def test_items_change_what_they_have_made(change: str, width: int | None, autobatching: int) -> None:
    item = program(CHANGES[change])
    dy.renew_cg(autobatching=autobatching)
    expected = list(map(item, range(7)))
    dy.renew_cg(autobatching=autobatching)
    assert_equal(dy.batched_map(item, range(7), width=width), expected)


@pytest.mark.parametrize("change", list(CHANGES))
def test_items_of_nested_maps_change_what_they_have_made(change: str) -> None:
    inner = program(CHANGES[change])

    def outer(run: Callable[..., Any]) -> Callable[[int], Any]:
        def item(i: int) -> list[Any]:
            y, change_it = CHANGES[change](i)
            seen = [np.asarray(y.value())]
            change_it(i + 1)
            seen += [np.asarray(y.value())]
            for part in run(inner, range(3)):
                seen += part
            change_it(i + 2)  # no other item has begun that shares it
            return [*seen, np.asarray(y.value())]

        return item

    dy.renew_cg()
    expected = list(map(outer(lambda f, xs: list(map(f, xs))), range(4)))
    dy.renew_cg()
    assert_equal(dy.batched_map(outer(dy.batched_map), range(4)), expected)


def test_items_that_set_together_are_computed_together() -> None:
    def item(i: int) -> float:
        x = dy.scalarInput(i)
        y = dy.tanh(x)
        for k in range(5):
            y.value()
            x.set(i + k)
        return y.value()

    dy.renew_cg(autobatching=1)
    dy.batched_map(item, range(20))
    assert dy.cg().n_batches() == 1


def test_gradients_after_a_map_that_set_inputs() -> None:
    w = dy.ParameterCollection().parameters_from_numpy(np.array([0.5, -1.0]))

    def item(i: int) -> dy.Expression:
        x = dy.inputVector([i, 1])
        y = dy.square(dy.dot_product(w, x))
        y.value()
        x.set([1, i])
        if i % 2:
            y.value()
        return y

    gradients = []
    for run in (map, dy.batched_map):
        dy.renew_cg()
        loss = dy.esum(list(run(item, range(5))))
        loss.backward(full=True)
        gradients.append(w.gradient())
    np.testing.assert_allclose(*gradients, rtol=1e-6)


def test_an_item_that_ends_others_drops_their_values() -> None:
    """A call that is ended sets inputs in its `finally`, while woken calls have not read their values yet."""

    def item(i: int) -> float:
        x = dy.scalarInput(i)
        y = dy.tanh(x)
        try:
            y.value()
            if i == 1:
                return sum(dy.batched_map(inner, range(3)))
            return y.value()
        finally:
            x.set(5)

    def inner(k: int) -> float:
        x = dy.scalarInput(k)
        try:
            value = (x * 2).value()
            if k == 1:
                raise ValueError("inner")
            return value
        finally:
            x.set(7)

    dy.renew_cg()
    results = dy.batched_map(item, range(4), return_exceptions=True)
    assert isinstance(results[1], ValueError)
    np.testing.assert_allclose([results[i] for i in (0, 2, 3)], np.tanh([0, 2, 3]), rtol=1e-6)


# ---- items that change what they share -----------------------------------------------------


def shared_input() -> tuple[dy.Expression, Callable[[int], Any]]:
    x = dy.inputVector([3, 1])
    return dy.tanh(x * 0.25), lambda k: x.set([k, 1])


def shared_lookup() -> tuple[dy.Expression, Callable[[int], Any]]:
    x = dy.lookup(ROWS, 1)
    return dy.exp(x), lambda k: x.set(k % 6)


def shared_pick() -> tuple[dy.Expression, Callable[[int], Any]]:
    x = dy.pick(dy.inputVector(np.arange(9)), 2)
    return x * 0.5, lambda k: x.set_index(k % 9)


def of_parameter(name: str) -> Callable[[], tuple[dy.Expression, Callable[[int], Any]]]:
    def make() -> tuple[dy.Expression, Callable[[int], Any]]:
        model = dy.ParameterCollection()
        w = model.parameters_from_numpy(np.array([1.0, 2.0]))
        rows = model.lookup_parameters_from_numpy(np.arange(6.0).reshape(3, 2))
        trainer = dy.SimpleSGDTrainer(model, learning_rate=0.5)

        def with_gradient(_: int) -> None:
            with dy.ComputationGraph():
                dy.squared_norm(w + rows[0]).backward()
            trainer.update()

        def with_file(save: Callable[..., Any], load: Callable[[str], Any]) -> Callable[[int], Any]:
            def change(k: int) -> None:
                with tempfile.TemporaryDirectory() as folder, dy.ComputationGraph():
                    other = dy.ParameterCollection()
                    other.parameters_from_numpy(np.array([k, 3.0]))
                    other.lookup_parameters_from_numpy(np.full((3, 2), k / 2))
                    save(other, str(Path(folder, "file")))
                    load(str(Path(folder, "file")))

            return change

        changes: dict[str, Callable[[int], Any]] = {
            "set_value": lambda k: w.set_value([k, 1]),
            "zero": lambda k: w.zero(),
            "scale": lambda k: w.scale(0.5),
            "clip_inplace": lambda k: w.clip_inplace(-1, k),
            "init_row": lambda k: rows.init_row(0, [k, 2]),
            "init_from_array": lambda k: rows.init_from_array(np.full((3, 2), k)),
            "update": with_gradient,
            "populate": with_file(dy.ParameterCollection.save, model.populate),
            "populate_by_name": with_file(dy.ParameterCollection.save, model.populate_by_name),
            "load_safetensors": with_file(
                lambda other, file: dy.save_safetensors(file, other), lambda file: dy.load_safetensors(file, model)
            ),
        }
        return LazySum(w, rows), changes[name]

    return make


class LazySum:
    """Reads the parameters anew, as programs do that make new nodes."""

    def __init__(self, w: dy.Parameters, rows: dy.LookupParameters) -> None:
        self.w, self.rows = w, rows

    def value(self) -> Any:
        return (dy.lookup(self.rows, 0, update=False) + self.w * 2).value()


PARAMETER_CHANGES = [
    *["set_value", "zero", "scale", "clip_inplace", "init_row", "init_from_array", "update"],
    *["populate", "populate_by_name", "load_safetensors"],
]
SHARED = {
    **{f.__name__: f for f in (shared_input, shared_lookup, shared_pick)},
    **{name: of_parameter(name) for name in PARAMETER_CHANGES},
}
ORDERS = ["change, read", "read, change, read", "own, change, read", "change, read, change, read", "read, read, change"]


def sharing(y: Any, change: Callable[[int], Any], order: str) -> Callable[[int], list[Any]]:
    def item(i: int) -> list[Any]:
        own, seen = dy.inputVector([i, i]), []
        for step in order.split(", "):
            if step == "change":
                change(i + 1)
            else:
                seen.append(np.asarray((own * 2 if step == "own" else y).value()))
        return seen

    return item


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("what", list(SHARED))
def test_items_change_what_they_share(what: str, order: str) -> None:
    results = []
    for run in (map, dy.batched_map):
        dy.renew_cg()
        item = sharing(*SHARED[what](), order)
        if order.startswith("change") or run is map:
            results.append(list(run(item, range(4))))
        else:
            with pytest.raises(RuntimeError, match="items of batched_map.*have begun.*width=1"):
                run(item, range(4))
    assert_equal(results[0], results[-1])
    dy.renew_cg()
    assert_equal(results[0], dy.batched_map(sharing(*SHARED[what](), order), range(4), width=1))


@pytest.mark.parametrize("what", list(SHARED))
def test_an_iterable_changes_what_items_share(what: str) -> None:
    def items(change: Callable[[int], Any]) -> Iterator[int]:
        for i in range(4):
            change(i + 1)
            yield i

    results = []
    for run in (map, lambda f, xs: dy.batched_map(f, xs, width=1)):
        dy.renew_cg()
        y, change = SHARED[what]()
        results.append(list(run(sharing(y, lambda _: None, "read, own, read"), items(change))))
    assert_equal(*results)
    dy.renew_cg()
    y, change = SHARED[what]()
    assert_equal(results[0], dy.batched_map(sharing(y, lambda _: None, "read, own, read"), items(change)))


@pytest.mark.parametrize("what", PARAMETER_CHANGES)
def test_calls_of_a_server_do_not_change_parameters(what: str) -> None:
    y, change = SHARED[what]()
    with dy.Server(sharing(y, change, "read, change")) as server:
        with pytest.raises(RuntimeError, match="calls of a Server"):
            server(1)
        change(2)  # the program itself may


def test_models_that_items_make_are_theirs() -> None:
    def train(i: int) -> float:
        dy.scalarInput(1).value()
        dy.tanh(dy.scalarInput(1)).value()
        with dy.ComputationGraph():
            model = dy.ParameterCollection()
            w = model.parameters_from_numpy(np.array([1.0 + i / 4]))
            dy.squared_norm(w).backward()
            dy.SimpleSGDTrainer(model, learning_rate=0.25).update()
        dy.tanh(dy.scalarInput(1)).value()
        w.scale(2)
        return float(w.as_array()[0])

    dy.renew_cg()
    assert dy.batched_map(train, range(3)) == [1, 1.25, 1.5]


# ---- every public name ----------------------------------------------------------------------


def run_example(parsed: doctest.DocTest, known: dict[str, Any]) -> list[Any] | str:
    """Run the statements of an example; the numbers that it shows, or the error, which is REFUSED if items may not."""
    shown: list[Any] = []
    for one in parsed.examples:
        try:
            try:
                code = compile(one.source, "<example>", "eval")
            except SyntaxError:
                exec(compile(one.source, "<example>", "exec"), known)
            else:
                shown.append(eval(code, known))
        except Exception as error:
            if one.exc_msg is None:
                refused = isinstance(error, RuntimeError) and re.search(REFUSED, str(error))
                return REFUSED if refused else f"{type(error).__name__}: {error}"
    return [np.asarray(x) for x in shown if isinstance(x, (float, np.ndarray)) or is_floats(x)]


def is_floats(x: Any) -> bool:
    return isinstance(x, list) and bool(x) and all(isinstance(y, float) for y in x)


def item_with(parsed: doctest.DocTest, shared: dy.ParameterCollection | None) -> Callable[[int], list[Any]]:
    def item(i: int) -> list[Any]:
        x = dy.inputVector([i, 1])
        y = dy.tanh(x * 2)
        own = [np.asarray(y.value())]
        model = shared or dy.ParameterCollection()
        shown = run_example(parsed, {**known(), "model": model})
        own.append(np.asarray((y + 1).value()))
        x.set([i, 2])
        own += [np.asarray(y.value()), np.asarray((y * 2).value())]
        return [own, shown]

    return item


# An example without a model has none to share; those of data read files, and compute nothing.
IN_ITEMS = [
    pytest.param(*example.values, share, id=f"{example.id}-{'shared' if share else 'own'}", marks=example.marks)
    for example in examples()
    if not example.id.startswith("data.")
    for share in (False, True)
    if not share or "model" in example.values[1]
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "text", "share"), IN_ITEMS)
def test_example_in_items(name: str, text: str, share: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of all public names, in items that wait for values before and after them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program"])
    parsed = doctest.DocTestParser().get_doctest(text, {}, name, None, None)

    def run(how: Callable[..., Any], seed: int) -> list[Any]:
        with dy.ComputationGraph():
            dy.reset_random_seed(seed)
            return list(how(item_with(parsed, dy.ParameterCollection() if share else None), range(2)))

    with restored_settings():
        found = run(dy.batched_map, 1)
        try:
            plain, other = run(map, 1), run(map, 2)
        except dy.StaleExpressionError:  # the example renews the graph
            plain = other = []
    for i, (own, shown) in enumerate(found):
        before, after = np.tanh([2 * i, 2]), np.tanh([2 * i, 4])
        all_close(own, [before, before + 1, after, 2 * after], rtol=1e-5)
        assert plain or not isinstance(shown, str) or shown == REFUSED
    for (_, a), (_, b), (_, c) in zip(plain, other, found):
        if isinstance(c, str):
            assert c == REFUSED or isinstance(a, str)
        elif not isinstance(a, str) and not isinstance(b, str):
            for x, y, z in zip(a, b, c):
                if np.array_equal(x, y) and "dy.cg()" not in text:  # neither random numbers nor numbers of nodes
                    np.testing.assert_allclose(z, x, rtol=1e-5, atol=1e-6)
