"""Several requests of one graph: of new, computed and dropped values, and losses that share batches.

The right value is that of the same request in a graph of its own, which has computed and dropped nothing before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_process import run_python

import dynet_cy as dy

TOOLS = Path(__file__).resolve().parents[2] / "tools"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from soak_rounds import requests
program = next(p for p in requests.PROGRAMS if p.__name__ == sys.argv[2])
for seed in map(int, sys.argv[4:]):
    requests.compare(program, seed, sys.argv[3] == "limited")
"""
# Some that crashed or gave wrong gradients once, and others.
SEEDS = {
    "mixed": (53, 136, 748, *range(8)),
    "several_losses": (13, 91, 99, 119, 139, 237, *range(5)),
    "checkpoints_of_builders": (90, 144, 250, 254, 280, *range(8)),
}


@pytest.mark.parametrize("limited", ["limited", "free"])
@pytest.mark.parametrize("program", SEEDS)
def test_random_programs(program: str, limited: str, tmp_path: Path) -> None:
    """In a process of its own, where freed memory is NaN and small graphs drop values too."""
    seeds = map(str, SEEDS[program])
    done = run_python(
        tmp_path, PROGRAM, str(TOOLS), program, limited, *seeds, DYNET_CY_POISON="1", DYNET_CY_DROP_SMALL="1"
    )
    assert done.returncode == 0, done.stderr


# ---- computed and dropped values in one request -----------------------------------------------

Ask = Callable[[list[dy.Expression]], Any]
ASKS: dict[str, Ask] = {
    "forward": lambda xs: (dy.forward(xs), [x.npvalue() for x in xs])[1],
    "npvalues": dy.npvalues,
    "values": dy.values,
    "batched_map": lambda xs: list(dy.batched_map(lambda x: x.npvalue(), xs)),
    "a sum": lambda xs: [dy.esum([dy.squared_norm(x) for x in xs]).npvalue()],
}


def states(W: dy.Parameters, n: int) -> dict[str, dy.Expression]:
    """Values of two calls of `checkpoint`: of the first one, which is dropped early, and of the one that runs last."""
    x = dy.inputVector(np.linspace(-1, 1, n))

    def first() -> tuple[dy.Expression, dy.Expression]:
        a = dy.tanh(W * x)
        return a, a * 0.9

    a, b = dy.checkpoint(first)
    c, d = dy.checkpoint(lambda: (dy.tanh(W * b), dy.sin(a)))
    return {"a": a, "b": b, "c": c, "d": d}


REQUESTED = [("d", "b"), ("b", "d"), ("c", "a", "d"), ("new", "b"), ("b", "new", "d"), ("a", "a", "new")]


def chosen(made: dict[str, dy.Expression], W: dy.Parameters, names: tuple[str, ...]) -> list[dy.Expression]:
    return [dy.tanh(W * made["a"]) if name == "new" else made[name] for name in names]


@pytest.mark.parametrize("mem", [None, 1.0])
@pytest.mark.parametrize("before", ["c", "b", "d"])
@pytest.mark.parametrize("names", REQUESTED, ids="-".join)
@pytest.mark.parametrize("ask", ASKS)
def test_computed_and_dropped_values_together(ask: str, names: tuple[str, ...], before: str, mem: float | None) -> None:
    """What is there may be dropped by the request itself, which needs memory for what is not."""
    W = dy.ParameterCollection().parameters_from_numpy(np.random.default_rng(2).normal(0, 0.3, (20, 20)))

    def gradient(loss: dy.Expression) -> np.ndarray:
        W.scale_gradient(0)
        loss.backward()
        return W.grad_as_array().copy()

    for name in names:
        dy.renew_cg(mem=mem)
        made = states(W, 20)
        made[before].value()
        found = ASKS[ask](chosen(made, W, names))
        found_gradient = gradient(dy.squared_norm(chosen(made, W, (name,))[0]))
        dy.renew_cg(autobatching=0)
        expected = ASKS[ask](chosen(states(W, 20), W, names))
        dy.renew_cg(autobatching=0)
        expected_gradient = gradient(dy.squared_norm(chosen(states(W, 20), W, (name,))[0]))
        assert len(found) == len(expected)
        for x, y in zip(found, expected):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found_gradient, expected_gradient, rtol=1e-4, atol=1e-6)


def test_the_loss_may_be_a_value_that_would_be_dropped() -> None:
    """Backward from a value inside the call that ran last, after a pass of which it was no target."""
    W = dy.ParameterCollection().parameters_from_numpy(np.eye(8) * 0.5)
    found = []
    for call in (dy.checkpoint, lambda f: f()):
        dy.renew_cg()
        W.scale_gradient(0)
        x = dy.inputVector(np.ones(8))
        loss, last = call(lambda x=x: ((y := dy.squared_norm(dy.tanh(W * x))), dy.tanh(y)))
        last.value()
        for _ in range(2):
            loss.backward()
        found.append(W.grad_as_array().copy())
    np.testing.assert_array_equal(*found)
    assert found[0].any()


# ---- losses that share batches ------------------------------------------------------------------

SHARED = """
import itertools
import numpy as np
import dynet_cy as dy

D, B = 256, 64
rng = np.random.default_rng(1)
pc = dy.ParameterCollection()
V, W = (pc.parameters_from_numpy(rng.normal(0, D**-0.5, (D, D))) for _ in range(2))
b = pc.parameters_from_numpy(rng.normal(size=D))
a, big, small = rng.normal(size=(D, B)), rng.normal(size=(D, B)), rng.normal(size=D)

def losses():
    x = dy.inputTensor(a, batched=True)
    through = dy.affine_transform([b, V, x])
    one, other = dy.tanh(W * through), dy.tanh(dy.inputVector(small) + b)       # one batch
    only = dy.sum_batches(dy.sum_elems(dy.sqrt(dy.rectify(one))))               # infinite gradients at 0
    first = dy.sum_batches(dy.squared_norm(one)) + dy.squared_norm(other) + only
    second = dy.squared_norm(dy.tanh(other * 0.3))
    return first, second + dy.sum_batches(dy.squared_norm(dy.tanh(dy.inputTensor(big, batched=True) * 0.5)))

def gradients(loss):
    pc.zero_gradients()
    loss.backward()
    return [p.grad_as_array().copy() for p in (V, W, b)]

dy.renew_cg(autobatching=0)
expected = gradients(losses()[1])
for autobatching, both in itertools.product(range(3), (False, True)):
    dy.renew_cg(autobatching=autobatching)
    first, second = losses()
    if both:
        dy.forward([first, second])
    gradients(first)
    for _ in range(2):
        for found, right in zip(gradients(second), expected):
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-4, err_msg=f"{autobatching} {both}")
    assert not expected[0].any() and not expected[1].any()
"""


@pytest.mark.parametrize("poison", ["0", "1"])
@pytest.mark.parametrize("small", ["0", "1"])
def test_a_parameter_of_the_other_loss_has_no_gradient(poison: str, small: str, tmp_path: Path) -> None:
    """The loss needs one node of a batch; the call reads the arguments of all, of which an earlier backward has used
    the memory."""
    done = run_python(tmp_path, SHARED, DYNET_CY_POISON=poison, DYNET_CY_DROP_SMALL=small)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:.*the graph .* an update:RuntimeWarning")
def test_an_update_between_losses_that_share_batches() -> None:
    """What the second loss needs is there, with everything that its batches read: nothing has to be computed again."""
    D = 128

    def found(autobatching: int) -> list[np.ndarray]:
        rng = np.random.default_rng(4)
        pc = dy.ParameterCollection()
        V, W, U = (pc.parameters_from_numpy(rng.normal(0, D**-0.5, (D, D))) for _ in range(3))
        dy.renew_cg(autobatching=autobatching)
        xs = [dy.inputTensor(rng.normal(size=(D, 32)), batched=True) for _ in range(40)]
        hs = [dy.tanh(W * dy.tanh(V * x)) for x in xs]
        first = dy.esum([dy.sum_batches(dy.squared_norm(h)) for h in hs])
        second = dy.sum_batches(dy.squared_norm(U * hs[7]))
        del hs, xs
        dy.forward([first, second])
        first.backward()
        pc.zero_gradients()
        V.set_value(V.as_array() * 0.5)  # backward goes on with the values of before
        second.backward()
        return [p.grad_as_array().copy() for p in (V, W, U)]

    for x, y in zip(found(1), found(0)):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)


# ---- limits and what the process did before -----------------------------------------------------

AGAIN = """
import gc
import numpy as np
import dynet_cy as dy
from dynet_cy import config
from dynet_cy.memory import arena

def tagger(length):
    rng = np.random.default_rng(3)
    pc = dy.ParameterCollection()
    cells = dy.LSTMBuilder(1, 32, 64, pc)
    out = pc.add_parameters((300, 64))
    for p in pc.parameters_list():
        p.set_value(rng.normal(0, 0.2, p.shape()))
    dy.renew_cg()
    losses = []
    for k in range(8):
        words = [dy.inputVector(rng.normal(size=32)) for _ in range(length - k)]
        losses += [dy.pickneglogsoftmax(out * h, i) for i, h in enumerate(cells.transduce(words))]
    loss = dy.esum(losses)
    loss.backward()
    return np.concatenate([p.grad_as_array().ravel() for p in pc.parameters_list()])

def limited(megabytes, *size):
    gc.collect()                        # the models of earlier calls, whose memory would be free at some time later
    dy.renew_cg()
    arena.give_back()
    config.set(mem=arena.used_bytes() / 2**20 + megabytes)
    try:
        return tagger(*size)
    except MemoryError:
        return None
    finally:
        config.set(mem=0)

for megabytes in (1.5, 1.8, 2.2):
    assert limited(0.4, 24) is None     # gives back the lists of nodes too, which count
    expected = limited(megabytes, 24)
    assert expected is not None
    for other, length in ((8, 40), (0.8, 24), (1.2, 40)):
        limited(other, length)
    assert limited(0.4, 24) is None
    found = limited(megabytes, 24)
    assert found is not None and np.array_equal(found, expected), megabytes
"""


def test_the_same_bits_after_a_shortage(tmp_path: Path) -> None:
    """A program within a limit adds up the same numbers in the same order, whatever ran short of memory before it."""
    done = run_python(tmp_path, AGAIN)
    assert done.returncode == 0, done.stderr
