"""Programs in which a value or a gradient is not finite, on any device.

"# here" marks the line that the error must name; `expected` holds the rest of what the error must say.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest

import dynet_cy as dy

Device = str
Case = Callable[[Device], None]
CASES: list[Case] = []


def case(**expected: object) -> Callable[[Case], Case]:
    """Add a program to the list, with the expected attributes of its error, and `text`, parts of its message."""

    def add(f: Case) -> Case:
        f.expected = expected  # type: ignore[attr-defined]
        CASES.append(f)
        return f

    return add


def line_here(f: Case) -> int:
    """The number of the marked line."""
    lines, first = inspect.getsourcelines(f)
    (offset,) = (i for i, line in enumerate(lines) if "# here" in line)
    return first + offset


def check(error: dy.AnomalyError, f: Case) -> None:
    """Check that the error is the one the program expects."""
    expected = dict(f.expected)  # type: ignore[attr-defined]
    text = str(error)
    for part in expected.pop("text"):
        assert part in text, text
    for name, value in expected.items():
        assert getattr(error, name) == value, (name, text)
    assert error.origin is not None, text
    assert error.origin.file == __file__
    assert error.origin.line == line_here(f), text
    assert error.origin.function == f.__name__
    assert f"made at {error.origin}" in text
    assert "# here" in text, "the line itself is shown"


def weights(device: Device, values: object, name: str) -> dy.Parameters:
    collection = dy.ParameterCollection()
    return collection.add_parameters(np.shape(values), init=np.array(values), name=name, device=device)


@case(
    op="log",
    backward=False,
    argument=None,
    text=[
        "log: a value of expression 1 {3} x 2 is not finite: 1 -inf of 6, the first is element [1] of batch element 1",
        "x  {3} x 2  input: from 0 to 5, 1 zero",
    ],
)
def log_of_zero(device: Device) -> None:
    x = dy.inputTensor(np.array([[1, 4], [2, 0], [3, 5]]), batched=True, device=device)
    y = dy.log(x)  # here
    dy.sum_elems(y).value()


@case(
    op="sqrt",
    backward=True,
    argument="x",
    text=[
        "backward of sqrt: the gradient of x (parameter /W) is not finite: 2 inf of 4, the first is element [0, 0]",
        "whose value is from 0 to 3, 2 zeros and its gradient all 1",
        "x  {2,2}  parameter /W: from 0 to 9, 2 zeros",
    ],
)
def sqrt_of_a_parameter_at_zero(device: Device) -> None:
    y = dy.sqrt(weights(device, [[0.0, 4.0], [0.0, 9.0]], "W"))  # here
    dy.sum_elems(y).backward()


@case(
    op="sqrt",
    backward=True,
    argument="x",
    text=[
        "the gradient of x is not finite: 1 inf of 2, the first is element [1]",
        "x  {2}  matmul: from 0 to 4, 1 zero",
    ],
)
def sqrt_of_a_product_at_zero(device: Device) -> None:
    product = weights(device, [[4.0, 0.0], [0.0, 1.0]], "W") * dy.inputVector([1.0, 0.0])
    other = dy.tanh(product)
    root = dy.sqrt(product)  # here
    dy.sum_elems(root + other).backward()


@case(
    op="div", backward=False, argument=None, text=["1 NaN of 2, the first is element [0]", "b  {2}  input: from 0 to 1"]
)
def nothing_by_nothing(device: Device) -> None:
    found = []
    for k in (1.0, 0.0, 2.0):
        x = dy.inputVector([k, 1.0], device=device)
        found.append(dy.cdiv(x, x))  # here
    dy.esum(found).value()


@case(op="exp", backward=False, argument=None, text=["1 inf of 2, the first is element [1]", "from 88 to 89"])
def overflow(device: Device) -> None:
    x = dy.inputVector([88.0, 89.0], device=device)
    dy.exp(x).value()  # here


@case(
    op="matmul",
    backward=False,
    argument=None,
    text=["parameter /hidden: ", "parameter /hidden is not finite itself: an update made it so (is the learning rate"],
)
def learning_rate(device: Device) -> None:
    collection = dy.ParameterCollection()
    w = collection.add_parameters((2, 2), init=1.0, name="hidden", device=device)
    trainer = dy.SimpleSGDTrainer(collection, 3e38)
    trainer.set_clip_threshold(0)
    for _ in range(5):
        dy.renew_cg()
        y = w * dy.inputVector([1.0, 2.0])  # here
        dy.sum_elems(y).backward()
        trainer.update()


@case(op="affine_transform", backward=False, argument=None, text=["xs[1]  {2}    input: 1 NaN of 2, the other 1"])
def within_a_builder(device: Device) -> None:
    builder = dy.LSTMBuilder(1, 2, 2, dy.ParameterCollection())
    x = dy.inputVector([np.nan, 1.0])
    state = builder.initial_state().add_input(x)  # here
    state.output().value()


@case(
    op="lookup",
    backward=False,
    argument=None,
    text=["1 NaN of 3", "row 2 of /words"],
)
def row_of_a_table(device: Device) -> None:
    collection = dy.ParameterCollection()
    rows = np.zeros((4, 3))
    rows[2, 1] = np.nan
    table = collection.lookup_parameters_from_numpy(rows, name="words", device=device)
    found = []
    for i in (0, 2, 1):
        found.append(dy.lookup(table, i))  # here
    dy.esum(found).value()


@case(
    op="div",
    backward=True,
    argument="b",
    text=["the gradient of b is not finite: 1 -inf of 1", "b  {1}  sum: 1e-25"],
)
def shared_argument(device: Device) -> None:
    w = weights(device, [1e-25, 0.0], "w")
    shared = dy.sum_elems(w)
    found = []
    for k in (0.0, 1.0, 0.0):
        found.append(dy.cdiv(dy.scalarInput(k, device=device), shared) * 1e-20)  # here
    dy.esum(found).backward()


@case(
    op="matmul",
    backward=True,
    argument="a",
    text=["(parameter /big)", "1600 inf of 1600", "a sum over all that use it"],
)
def collected(device: Device) -> None:
    w = weights(device, np.full((40, 40), 1e-30), "big")
    x = dy.inputVector([1e30] * 40)
    y = w * x  # here
    (dy.sum_elems(y) * 1e30).backward()


def check_gradients_stay(device: Device) -> None:
    """Gradients that backward added before its error are undone: in those that were zero and in others, of rows too.

    The error occurs after several batches: in the gradient of `bad`, or of a weight with collected gradients.
    """
    collection = dy.ParameterCollection()
    W, V = (collection.add_parameters((3, 3), init=0.5, device=device) for _ in range(2))
    fresh = collection.add_parameters((3, 3), init=0.5, device=device)
    bad = collection.add_parameters(3, init=0.0, device=device)
    table = collection.add_lookup_parameters((6, 3), init=0.25, device=device)
    own = [W, V, fresh, bad, table]

    def terms(first: int) -> list[dy.Expression]:
        xs = [table[i] for i in range(first, first + 3)]
        return [dy.squared_norm(W * dy.tanh(V * x)) for x in xs]

    for before in (False, True):
        for _ in range(2):  # computed again after reading, which fetches gradients from a device
            wanted = [p.grad_as_array() for p in own]
            collection.zero_gradients()
            if before:
                dy.renew_cg()
                dy.esum(terms(0)).backward()
        assert wanted[0].any() == wanted[4].any() == before
        for late in (False, True):  # late: a gradient that overflows only when its collected factors are multiplied
            dy.renew_cg()
            many = dy.esum(terms(2)) + dy.squared_norm(fresh * table[5])
            if late:
                for _ in range(2):
                    many = many + dy.pick(W * dy.inputVector([2e38, 0.0, 0.0], device=device), 0)
            else:
                many = many + dy.sum_elems(dy.sqrt(dy.square(bad) + 0.0 * dy.sum_elems(fresh)))
            with dy.detect_anomaly(), pytest.raises(dy.AnomalyError, match="^backward of"):
                many.backward()
            for p, want in zip(own, wanted):
                np.testing.assert_array_equal(p.grad_as_array(), want)
    # The next update is right: it knows which rows were touched.
    trainer = dy.SimpleSGDTrainer(collection, 1.0)
    trainer.set_clip_threshold(0)
    start, gradient = table.as_array(), table.grad_as_array()
    trainer.update()
    np.testing.assert_allclose(table.as_array(), start - gradient, rtol=1e-6)
    dy.renew_cg()
    dy.esum(terms(2)).backward()
    assert table.grad_as_array()[2:5].any(axis=1).all()
    assert not table.grad_as_array()[[0, 1, 5]].any()
