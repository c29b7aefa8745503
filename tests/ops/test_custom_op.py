"""Custom ops written in Python."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from arrays import all_close

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.core import engine


def soft_forward(x, w, *, scale=1.0):
    """y_k = scale sum_i w_ik^2 x_i, for each batch element."""
    return scale * (w**2 * x[:, None]).sum(axis=0)


def soft_backward(dy, y, x, w, *, scale=1.0):
    """The gradient of w has the batch of y even if w has none: the library sums it."""
    return scale * (w**2 * dy[None]).sum(axis=1), scale * 2 * w * x[:, None] * dy[None]


def soft_shape(x, w, *, scale=1.0):
    if len(x) != 1 or len(w) != 2 or x[0] != w[0]:
        raise ValueError(f"{x} does not fit {w}")
    return (w[1],)


soft = dy.custom_op("soft", soft_forward, soft_backward, soft_shape)


def in_ops(x, w, scale=1.0):
    return dy.transpose(dy.square(w)) * x * scale


@pytest.fixture
def model():
    return dy.ParameterCollection()


@pytest.fixture
def weights(model):
    return model.add_parameters((4, 3), init="glorot")


def loss_of(op, w, xs, scale=0.5):
    return dy.sum_batches(dy.esum([dy.sum_elems(dy.tanh(op(x, w, scale=scale))) for x in xs]))


def results(op, w, data):
    """The loss, and the gradients of w and of the inputs."""
    dy.renew_cg()
    xs = [dy.inputTensor(x, batched=True) for x in data]
    loss = loss_of(op, w, xs)
    value = loss.value()
    loss.backward(full=True)
    return [value, w.grad_as_array().copy(), *(x.gradient() for x in xs)]


def made_data(rng, batch, n=5):
    return [rng.normal(size=(4, batch)).astype(np.float32) for _ in range(n)]


@pytest.mark.parametrize("batch", [1, 3])
def test_values_and_gradients(model, weights, rng, strategy, batch) -> None:
    """Values and gradients equal those of built-in ops, with and without minibatches, for every schedule."""
    data = made_data(rng, batch)
    for _ in range(3):  # later times with the cached plan
        found = []
        for op in (soft, in_ops):
            model.zero_gradients()
            found.append(results(op, weights, data))
        all_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [lambda: dy.renew_cg(), lambda: dy.ones(3), lambda: [dy.ones(3) for _ in range(100000)], lambda: dy.cg_revert()],
    ids=["renew", "add", "many", "revert"],
)
@pytest.mark.parametrize("raises", [False, True])
def test_shape_may_not_change_the_graph(change, raises: bool) -> None:
    """A node is being added to it."""

    def shape(of):
        change()
        if raises:
            raise ValueError("no such shape")
        return of

    op = dy.custom_op("changes_the_graph", lambda x: x, shape=shape)
    dy.renew_cg()
    x = dy.inputVector([1, 2])
    dy.cg_checkpoint()
    y = 2 * x
    with pytest.raises(RuntimeError, match="changes_the_graph: the graph changed while shape ran"):
        op(y)
    dy.renew_cg()
    assert dy.ones(2).value() == [1, 1]


def test_forward_only(weights, rng) -> None:
    data = made_data(rng, 2)
    dy.renew_cg(forward_only=True)
    y = loss_of(soft, weights, [dy.inputTensor(x, batched=True) for x in data]).value()
    dy.renew_cg()
    assert y == pytest.approx(
        loss_of(in_ops, weights, [dy.inputTensor(x, batched=True) for x in data]).value(), rel=1e-5
    )


def test_nodes_with_equal_parameters_are_one_call(weights) -> None:
    """The arrays of a call hold all nodes of a batch side by side; other keyword values make another call."""
    seen = []

    def forward(x, *, power=2):
        seen.append((x.shape, power))
        return x**power

    raised = dy.custom_op("raised", forward)
    dy.renew_cg()
    ys = [raised(dy.inputVector([1, 2, i])) for i in range(4)] + [raised(dy.inputVector([1, 2, 3]), power=3)]
    dy.forward(ys)
    assert sorted(seen) == [((3, 1), 3), ((3, 4), 2)]
    np.testing.assert_array_equal(ys[3].npvalue(), [1, 4, 9])
    np.testing.assert_array_equal(ys[4].npvalue(), [1, 8, 27])


def test_keywords_of_other_types_are_others() -> None:
    typed = dy.custom_op("typed", lambda x, *, n=0: x * 0 + (2 if isinstance(n, float) else 1))
    dy.renew_cg()
    x = dy.scalarInput(1)
    assert [typed(x, n=n).value() for n in (1, 1.0, 1, 1.0)] == [1, 2, 1, 2]


def test_any_number_of_arguments(rng) -> None:
    def backward(dy, y, *xs):
        return [y * dy / x for x in xs]

    product = dy.custom_op("product", lambda *xs: np.prod(xs, axis=0), backward)
    dy.renew_cg()
    xs = [dy.inputVector(rng.uniform(1, 2, 3)) for _ in range(4)]
    y = product(*xs)
    dy.sum_elems(y).backward(full=True)
    np.testing.assert_allclose(xs[2].gradient(), y.npvalue() / xs[2].npvalue(), rtol=1e-6)


def test_no_gradient_of_an_argument(weights) -> None:
    """A gradient of None means zeros."""
    first = dy.custom_op("first", lambda a, b: a + 0 * b, lambda dy, y, a, b: (dy, None))
    dy.renew_cg()
    a, b = dy.inputVector([1, 2]), dy.inputVector([3, 4])
    dy.sum_elems(first(a, b)).backward(full=True)
    np.testing.assert_array_equal(a.gradient(), [1, 1])
    np.testing.assert_array_equal(b.gradient(), [0, 0])


def test_arrays_are_copies() -> None:
    """Arrays that a function keeps do not change, and writing to its arrays changes no values."""
    kept = []

    def forward(x):
        kept.append(x)
        x += 1
        return x

    added = dy.custom_op("added", forward, lambda dy, y, x: dy)
    dy.renew_cg()
    x = dy.inputVector([1, 2])
    np.testing.assert_array_equal(added(x).npvalue(), [2, 3])
    np.testing.assert_array_equal(x.npvalue(), [1, 2])
    dy.renew_cg()
    dy.inputVector([7, 8]).npvalue()
    np.testing.assert_array_equal(kept[0][:, 0], [2, 3])


# ---- exceptions -------------------------------------------------------------------------


class Wrong(Exception):
    """The exception that functions of these tests raise."""


def failing(forward=False, backward=False):
    state = {"forward": forward, "backward": backward}

    def run(x):
        if state["forward"]:
            raise Wrong("forward")
        return x**2

    def back(dy, y, x):
        if state["backward"]:
            raise Wrong("backward")
        return 2 * x * dy

    return dy.custom_op("failing", run, back), state


def test_an_exception_in_forward(strategy) -> None:
    """The exception reaches the program, and the graph can still be used."""
    op, state = failing(forward=True)
    dy.renew_cg()
    x = dy.inputVector([1, 2])
    y = dy.sum_elems(op(dy.tanh(x)))
    for _ in range(2):
        with pytest.raises(Wrong, match="forward"):
            y.value()
    np.testing.assert_allclose(dy.exp(x).npvalue(), np.exp([1, 2]), rtol=1e-6)
    state["forward"] = False
    assert y.value() == pytest.approx((np.tanh([1, 2]) ** 2).sum(), rel=1e-5)


def test_an_exception_is_of_the_value_that_is_asked_for() -> None:
    """A requested value does not fail because of one that would be computed beside it."""
    op, state = failing()
    for turn in range(4):
        state["forward"] = turn == 3
        dy.renew_cg()
        first = dy.sum_elems(dy.tanh(dy.inputVector([1, 2])))
        second = dy.sum_elems(op(dy.inputVector([1, 2])))
        assert first.value() == pytest.approx(np.tanh([1, 2]).sum(), rel=1e-5)
        if turn < 3:
            assert second.value() == 5
    with pytest.raises(Wrong):
        second.value()


@pytest.mark.parametrize("accumulated", [False, True])
def test_an_exception_in_backward(weights, accumulated) -> None:
    """An error in backward changes no gradient, even if there were some before."""
    op, state = failing()
    dy.renew_cg()
    if accumulated:
        dy.sum_elems(dy.square(weights)).backward()
    before = weights.grad_as_array().copy()
    dy.renew_cg()
    # The gradient of the second term is added before backward of the first one runs.
    loss = dy.sum_elems(op(dy.tanh(weights))) + dy.sum_elems(dy.square(weights))
    loss.value()
    state["backward"] = True
    with pytest.raises(Wrong, match="backward"):
        loss.backward()
    np.testing.assert_array_equal(weights.grad_as_array(), before)
    state["backward"] = False
    loss.backward()
    t = np.tanh(weights.as_array())
    np.testing.assert_allclose(
        weights.grad_as_array() - before, 2 * t * (1 - t**2) + 2 * weights.as_array(), rtol=1e-4, atol=1e-6
    )


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_in_a_function() -> None:
    def interrupted(x):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        return x

    op = dy.custom_op("interrupted", interrupted)
    dy.renew_cg()
    with pytest.raises(KeyboardInterrupt):
        op(dy.inputVector([1])).value()
    assert dy.scalarInput(3).value() == 3


def test_a_function_cannot_use_the_graph_that_runs() -> None:
    dy.renew_cg()
    x = dy.inputVector([1, 2])
    op = dy.custom_op("reentrant", lambda a: dy.tanh(x).npvalue()[:, None])
    with pytest.raises(RuntimeError, match="running|computing"):
        op(x).value()
    np.testing.assert_array_equal(x.npvalue(), [1, 2])


def test_anomalies_are_found() -> None:
    op = dy.custom_op("root", np.sqrt, lambda dy, y, x: dy / (2 * y))
    dy.renew_cg()
    with dy.detect_anomaly(), np.errstate(invalid="ignore"), pytest.raises(dy.AnomalyError, match="root"):
        op(dy.inputVector([-1, 1])).value()


def test_threads() -> None:
    """Two threads run functions at the same time: each function waits for the other."""
    barrier = threading.Barrier(2, timeout=600)

    def forward(x):
        barrier.wait()
        return x * 2

    op = dy.custom_op("waits", forward, lambda dy, y, x: 2 * dy)
    found = {}

    def work(i):
        dy.renew_cg()
        found[i] = op(dy.inputVector([i, 1])).npvalue()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    np.testing.assert_array_equal([found[0], found[1]], [[0, 2], [2, 2]])


def test_threads_with_one_parameter(model, weights, rng) -> None:
    """No deadlock: a thread that waits for the GIL holds no lock of a parameter."""
    data = made_data(rng, 1, 20)

    def work():
        for _ in range(10):
            dy.renew_cg()
            loss_of(soft, weights, [dy.inputTensor(x, batched=True) for x in data]).backward()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(600)
    assert not any(t.is_alive() for t in threads)
    found = weights.grad_as_array().copy()
    model.zero_gradients()
    one = results(in_ops, weights, data)[1]
    np.testing.assert_allclose(found, 30 * one, rtol=1e-3, atol=1e-4)


@pytest.mark.fibers
def test_in_batched_map(weights, rng) -> None:
    calls = []

    def forward(x):
        calls.append(x.shape[-1])
        return np.tanh(x)

    op = dy.custom_op("tanh_here", forward)
    data = rng.normal(size=(6, 4))
    dy.renew_cg()
    found = dy.batched_map(lambda x: op(dy.inputVector(x)).npvalue(), data)
    np.testing.assert_allclose(found, np.tanh(data), rtol=1e-5)
    assert calls == [6]


def test_names(weights) -> None:
    """The name of an op is shown in profiles, drawings and lists of nodes."""
    dy.renew_cg()
    with profiling.measure() as p:
        y = soft(dy.inputVector([1, 2, 3, 4]), weights)
        y.npvalue()
    assert "soft" in str(p)
    assert "soft" in str(dy.draw(y)._repr_svg_())
    assert repr(soft) == "<custom op soft(x w)>"


def test_training(model) -> None:
    w = model.add_parameters((4, 3), init=0.5)
    trainer = dy.SimpleSGDTrainer(model, 0.02)
    losses = []
    for _ in range(20):
        dy.renew_cg()
        loss = dy.squared_norm(soft(dy.inputVector([1, -1, 2, 0.5]), w) - dy.inputVector([1, 2, 3]))
        losses.append(loss.value())
        loss.backward()
        trainer.update()
    assert losses[-1] < 0.1 * losses[0]


# ---- misuse ------------------------------------------------------------------------------


def value_of(op, *xs):
    dy.renew_cg()
    return op(*[dy.inputVector(x) for x in xs or ([1, 2],)]).npvalue()


@pytest.mark.parametrize(
    ("forward", "error", "message"),
    [
        (lambda x: x[:1], dy.DimensionError, r"bad: what forward returns has shape \(1, 1\), expected \(2, 1\)"),
        (lambda x: x.sum(), dy.DimensionError, r"bad: what forward returns has shape \(\), expected \(2, 1\)"),
        (lambda x: x * 1j, TypeError, "bad: what forward returns must hold real numbers, not complex64"),
        (lambda x: None, TypeError, "bad: what forward returns must hold real numbers, not object"),
        (lambda x: "no", TypeError, "bad: what forward returns must hold real numbers"),
        (lambda x: [[1], [2, 3]], ValueError, "bad: what forward returns is not a rectangular array"),
    ],
)
def test_what_forward_returns(forward, error, message) -> None:
    with pytest.raises(error, match=message):
        value_of(dy.custom_op("bad", forward))
    assert dy.scalarInput(3).value() == 3


@pytest.mark.parametrize(
    ("backward", "error", "message"),
    [
        (None, RuntimeError, "bad: there is no gradient without backward"),
        (lambda d, y, a, b: d, ValueError, "bad: backward returned 1 gradient, expected 2, one for each argument"),
        (lambda d, y, a, b: (d,) * 3, ValueError, "bad: backward returned 3 gradients, expected 2"),
        (
            lambda d, y, a, b: (d, d[:1]),
            dy.DimensionError,
            r"bad: the gradient of argument b that backward returns has shape \(1, 1\), expected \(2, 1\)",
        ),
        (lambda d, y, a, b: (d, d * 1j), TypeError, "bad: the gradient of argument b .* real numbers, not complex64"),
    ],
)
def test_what_backward_returns(backward, error, message) -> None:
    op = dy.custom_op("bad", lambda a, b: a + b, backward)
    dy.renew_cg()
    a, b = dy.inputVector([1, 2]), dy.inputVector([3, 4])
    loss = dy.sum_elems(op(a, b))
    with pytest.raises(error, match=message):
        loss.backward(full=True)
    assert loss.value() == 10


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        (lambda x: (x[0], "no"), TypeError, "bad: shape returned"),
        (lambda x: (-1,), dy.DimensionError, "bad: what shape returns: axis 0 of shape"),
        (lambda x: (1,) * 8, dy.DimensionError, "bad: what shape returns: shape .* has 8 axes"),
        (lambda x: 1 // 0, ZeroDivisionError, "division"),
    ],
)
def test_what_shape_returns(shape, error, message) -> None:
    with pytest.raises(error, match=message):
        value_of(dy.custom_op("bad", lambda x: x, None, shape))


def test_shape_says_why() -> None:
    """A ValueError raised by `shape` becomes a DimensionError that lists all arguments."""
    dy.renew_cg()
    with pytest.raises(dy.DimensionError, match=r"soft: \(4,\) does not fit \(3, 2\)(.|\n)*x.*4"):
        soft(dy.inputVector([1, 2, 3, 4]), dy.zeros((3, 2)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("tanh", np.tanh), ValueError, "custom_op: 'tanh' is an op of the library"),
        (("", np.tanh), ValueError, "name must not be empty"),
        (("bad", None), TypeError, "custom_op bad: forward must be a function, not NoneType"),
        (("bad", lambda: 1), TypeError, "custom_op bad: forward must take at least one argument"),
        (("bad", lambda x: x, 3), TypeError, "custom_op bad: backward must be a function, not int"),
        (("bad", lambda x: x, lambda dy: dy), TypeError, r"custom_op bad: backward must take \(dy, y, x\)"),
        (("bad", lambda x: x, None, lambda: 1), TypeError, "custom_op bad: shape must take the shapes of x"),
    ],
)
def test_definitions(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        dy.custom_op(*arguments)


@pytest.mark.parametrize(
    ("forward", "cuda", "error", "message"),
    [
        (lambda x: x, 3, TypeError, "cuda must be a text with kernels, or a dictionary of expressions, not int"),
        (lambda x: x, {"y": 3}, TypeError, r"cuda\['y'\] must be a text, not int"),
        (lambda x: x, {"dx": "dy"}, ValueError, "cuda has no expression for 'y'"),
        (lambda x: x, {"y": "x", "dz": "dy"}, ValueError, r"for 'dz', which is none of \['y', 'dx'\]"),
        (lambda x, y: x, {"y": "x"}, ValueError, "no argument may be called y, which is the result"),
        (lambda x: x, "void backward(In x) {} // forward()", ValueError, "cuda has no kernel named forward"),
        (lambda *xs: xs[0], {"y": "x"}, TypeError, "kernels in CUDA take a fixed number of arguments"),
        (lambda x, **kw: x, {"y": "x"}, TypeError, "kernels in CUDA take a fixed number of arguments"),
    ],
)
def test_kernels_in_cuda(forward, cuda, error, message) -> None:
    with pytest.raises(error, match=f"custom_op bad: .*{message}"):
        dy.custom_op("bad", forward, None, None, cuda=cuda)


def test_kernels_are_for_devices() -> None:
    """On the CPU the functions run, whatever the kernels are; only shapes and numbers are checked."""
    op = dy.custom_op("powers", lambda x, w, *, n=2: x**n * w, cuda={"y": "this is not compiled"})
    dy.renew_cg()
    x = dy.inputVector([1, 2])
    np.testing.assert_array_equal(op(x, dy.ones((1,)), n=3).npvalue(), [1, 8])
    with pytest.raises(dy.DimensionError, match=r"powers: an expression .* but argument w has shape \(3,\)"):
        op(x, dy.ones((3,)))
    with pytest.raises(TypeError, match="powers: kernels in CUDA get n as a number, which 'no' is not"):
        op(x, x, n="no")


def test_calls() -> None:
    dy.renew_cg()
    x = dy.inputVector([1, 2])
    with pytest.raises(TypeError, match=r"soft takes 2 expressions \(x w\), not 1"):
        soft(x)
    with pytest.raises(TypeError, match="soft: argument w must be an Expression, not int"):
        soft(x, 3)
    for i in (1, 2):
        with pytest.raises(TypeError, match=rf"many: argument xs\[{i - 1}\] must be an Expression, not int"):
            dy.custom_op("many", lambda x, *xs: x)(*[x] * i, 3)
    with pytest.raises(TypeError, match="soft: forward takes no argument gamma by keyword"):
        soft(x, x, gamma=1)
    with pytest.raises(TypeError, match="soft: values given by keyword must be hashable"):
        soft(x, x, scale=[1])


def test_a_name_may_come_again() -> None:
    """A name can be reused, as in a notebook: earlier expressions keep their functions."""
    one = dy.custom_op("again", lambda x: x + 1)
    dy.renew_cg()
    y = one(dy.scalarInput(1))
    two = dy.custom_op("again", lambda x: x + 2)
    z = two(dy.scalarInput(1))
    assert (y.value(), z.value()) == (2, 3)


def test_other_graphs_pay_nothing() -> None:
    """Only backward over a graph with such an op copies gradients, so that it can be undone."""
    p = dy.ParameterCollection().parameters_from_numpy(np.ones(4))
    custom = dy.custom_op("not_everywhere", lambda x: x, lambda dy_, y, x: dy_)
    for function, copied in ((dy.tanh, 0), (custom, 1), (dy.tanh, 0)):
        dy.renew_cg()
        engine.stats("execute.accumulation", reset=True)
        dy.sum_elems(function(p)).backward()  # the gradient is not zero from the second round on
        assert engine.stats("execute.accumulation")["copied"] == (copied if function is custom else 0)
