"""Plans that are divided into parts, where a batch of all examples does not fit into memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from limits import MB, limited, without_limit  # noqa: F401

import dynet_cy as dy
from dynet_cy import config, profiling
from dynet_cy.memory import arena

Program = Callable[[dy.ParameterCollection], dy.Expression]


def scores(model: dy.ParameterCollection) -> dy.Expression:
    """A language model: the scores of all words at all positions are one batch, which is most of the memory."""
    table = model.add_lookup_parameters((50, 16))
    cells = dy.LSTMBuilder(1, 16, 32, model)
    out, bias = model.add_parameters((2000, 32)), model.add_parameters(2000)
    losses = []
    for k in range(24):
        states = cells.transduce([table[(3 * k + i) % 50] for i in range(12)])
        losses += [dy.pickneglogsoftmax(dy.affine_transform([bias, out, h]), 7 * i) for i, h in enumerate(states)]
    return dy.esum(losses)


def images(model: dy.ParameterCollection) -> dy.Expression:
    """Convolutions of images that the program made one by one."""
    first, second = model.add_parameters((5, 5, 1, 8)), model.add_parameters((5, 5, 8, 16))
    out = model.add_parameters((10, 16 * 4 * 4))
    losses = []
    for k in range(64):
        x: dy.Expression = dy.inputTensor(np.sin(np.arange(28 * 28) * (k + 1)).reshape(28, 28, 1))
        x = dy.rectify(dy.maxpooling2d(dy.conv2d(x, first, [1, 1]), [2, 2], [2, 2]))
        x = dy.rectify(dy.maxpooling2d(dy.conv2d(x, second, [1, 1]), [2, 2], [2, 2]))
        losses.append(dy.pickneglogsoftmax(out * dy.reshape(x, (16 * 4 * 4,)), k % 10))
    return dy.esum(losses)


def shared(model: dy.ParameterCollection) -> dy.Expression:
    """What all examples read: an input, the rows of a table, and a sum of parameters; losses are added one by one."""
    W, b, c = model.add_parameters((256, 256)), model.add_parameters(256), model.add_parameters(256)
    table = model.add_lookup_parameters((20, 256))
    bias, mask = b + dy.tanh(c), dy.inputVector(np.arange(256) % 2)
    rows = [table[i] for i in range(20)]
    total = dy.zeros(1)
    for k in range(300):
        h: dy.Expression = rows[k % 20]
        for _ in range(4):
            h = dy.tanh(dy.affine_transform([bias, W, dy.cmult(h, mask)])) + h
        total = total + dy.squared_norm(h)
    return total


def sentences(model: dy.ParameterCollection) -> dy.Expression:
    """Attention within sentences of different lengths, whose operations run as batches of all sentences."""
    W = [model.add_parameters((64, 64)) for _ in range(3)]
    losses = []
    for k in range(40):
        x: dy.Expression = dy.inputTensor(np.cos(np.arange(64 * (20 + k % 5)) * (k + 1)).reshape(64, -1))
        for _ in range(3):
            q, keys, v = (w * x for w in W)
            x = dy.tanh(v * dy.softmax(dy.transpose(keys) * q)) + x
        losses.append(dy.mean_elems(dy.square(x)))
    return dy.average(losses)


def trained(program: Program, mem: float | None = None) -> tuple[list[np.ndarray], int]:
    """The loss and the gradients, within a limit of the graph; and the bytes that the graph has taken."""
    dy.reset_random_seed(3)
    dy.renew_cg(mem=mem)
    model = dy.ParameterCollection()
    loss = program(model)
    loss.backward()
    found: list[np.ndarray] = [loss.npvalue()]
    found += [p.grad_as_array() for p in model.parameters_list()]
    found += [p.grad_as_array() for p in model.lookup_parameters_list()]
    of_graph = ("values", "gradients of values", "scratch", "nodes and plan", "kept for the next graph")
    return found, sum(row.bytes for row in dy.memory_report().rows if row.kind.startswith(of_graph))


@pytest.mark.usefixtures("values_stay")
@pytest.mark.usefixtures("small_graphs_keep_all")
@pytest.mark.parametrize(
    ("program", "part"),
    [
        (scores, 0.5),
        (scores, 0.3),
        (images, 0.5),
        (images, 0.3),
        (shared, 0.5),
        (shared, 0.3),
        (sentences, 0.5),
        (sentences, 0.3),
    ],
)
@pytest.mark.usefixtures("nothing_held", "one_thread")
def test_examples_run_part_by_part(program: Program, part: float) -> None:
    """In less memory than any schedule of the whole batches needs, with the same numbers but for rounding."""
    dy.renew_cg()
    arena.give_back()
    expected, taken = trained(program)
    batches = dy.cg().n_batches()
    found, less = trained(program, part * taken / MB)
    divided = dy.cg().n_batches() > batches
    assert less <= part * taken
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    for x, y in zip(found, expected):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5 * max(1, float(np.abs(y).max())))
    if program in (scores, images) and part < 0.5:
        assert divided
    if program is scores:  # only what is around the scores
        assert dy.cg().n_batches() < 2 * batches


def test_random_numbers_are_those_of_the_whole() -> None:
    """Draws are counted by node, not by the order in which nodes run."""

    def masks() -> list[np.ndarray]:
        dy.reset_random_seed(9)
        dy.renew_cg()
        b = dy.ParameterCollection().add_parameters(4096, init=1.0)
        losses = [dy.squared_norm(dy.tanh(dy.dropout(b, 0.5))) for _ in range(300)]
        dy.esum(losses).backward()
        return [b.grad_as_array(), np.array([x.value() for x in losses])]

    expected = masks()
    with limited(2):
        found = masks()
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    assert np.array_equal(found[1], expected[1])


@pytest.mark.usefixtures("nothing_held")
def test_one_node_that_is_too_large_is_an_error() -> None:
    """A node is never divided; the process goes on."""
    x = dy.ones((1024, 256))
    loss = dy.sum_elems(dy.exp(dy.concatenate([x] * 8)))
    config.set(mem=arena.used_bytes() / MB + 4)
    with pytest.raises(MemoryError, match="largest values of the graph"):
        loss.backward()
    config.set(mem=0)
    assert dy.sum_elems(dy.ones(3)).value() == 3


def test_collected_factors_give_way_to_gradients() -> None:
    """The factors of the weights fit, but then those gradients do not that come after them."""

    def trained_once() -> list[np.ndarray]:
        dy.reset_random_seed(5)
        dy.renew_cg()
        model = dy.ParameterCollection()
        wide = model.add_parameters(20000, init=0.5)
        weights = [model.add_parameters((256, 256)) for _ in range(4)]
        losses = []
        for k in range(40):
            x = dy.pick_range(dy.tanh(wide * (0.1 * k)), 0, 256)
            for w in weights:
                x = dy.tanh(w * x)
            losses.append(dy.squared_norm(x))
        dy.esum(losses).backward()
        return [p.grad_as_array() for p in model.parameters_list()]

    expected = trained_once()
    with limited(3.5):  # 2.2 of which are parameters and their gradients
        found = trained_once()
    for x, y in zip(found, expected):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5 * float(np.abs(y).max()))


def cells(model: dy.ParameterCollection) -> dy.Expression:
    """A network whose inputs, for all words at once, are half of the memory."""
    reader = dy.LSTMBuilder(1, 16, 256, model)
    table = model.add_lookup_parameters((50, 16))
    out = model.add_parameters((4, 256))
    losses = []
    for k in range(24):
        states = reader.transduce([table[(k + i) % 50] for i in range(40 + k % 3)])
        losses += [dy.pickneglogsoftmax(out * h, i % 4) for i, h in enumerate(states)]
    return dy.esum(losses)


@pytest.mark.usefixtures("nothing_held", "one_thread")
@pytest.mark.parametrize("part", [0.55])
def test_inputs_of_steps_run_in_slices(part: float) -> None:
    """Right before the steps that read them, which stay whole; with the numbers of a graph that keeps all."""
    dy.renew_cg()
    arena.give_back()
    expected, taken = trained(cells)
    batches = dy.cg().n_batches()
    for _ in range(3):
        found, less = trained(cells, part * taken / MB)
        assert less <= part * taken
        for x, y in zip(found, expected):
            np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5 * max(1, float(np.abs(y).max())))
    assert batches < dy.cg().n_batches() < 1.5 * batches


def test_what_is_quick_is_dropped_first() -> None:
    """The products of a chain are kept as long as dropping its elementwise values suffices."""

    def run(mem: float | None) -> tuple[list[np.ndarray], int, dict[str, int]]:
        dy.reset_random_seed(3)
        dy.renew_cg(mem=mem)
        model = dy.ParameterCollection()
        W = model.add_parameters((256, 256))
        h: dy.Expression = dy.inputTensor(np.cos(np.arange(256 * 64)).reshape(256, 64) / 9)
        for _ in range(24):
            product = W * h
            h = dy.tanh(dy.square(product) - dy.logistic(product)) * 0.5 + product
        loss = dy.squared_norm(h)
        with profiling.measure() as profile:
            loss.backward()
        again = {row.op: row.nodes for row in profile if row.way == "again"}
        values = next(row.bytes for row in dy.memory_report().rows if row.kind == "values")
        return [loss.npvalue(), W.grad_as_array()], values, again

    expected, _, _ = run(None)
    for mem in (9.0, 8.0, 7.0):
        found, _, again = run(mem)
        for x, y in zip(found, expected):
            np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-5 * max(1, float(np.abs(y).max())))
    assert sum(again.values()) > 0
    assert again.get("matmul", 0) < max(again.values())
