"""Ops of lists: work grows linearly with the number of arguments, and each argument gets its gradient."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dynet_cy as dy

PTRACE_TRACEME, PTRACE_SINGLESTEP = 0, 9


def instructions(run: Callable[[], object]) -> int:
    """The number of instructions a function takes, counted one by one in a child process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    child = os.fork()
    if child == 0:
        gc.disable()
        if libc.ptrace(PTRACE_TRACEME, 0, None, None):
            os._exit(1)
        os.kill(os.getpid(), signal.SIGSTOP)
        run()
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    count = 0
    try:
        status = os.waitpid(child, 0)[1]
        if os.WIFEXITED(status):
            pytest.skip("processes cannot be traced here")
        while os.WIFSTOPPED(status) and (count == 0 or os.WSTOPSIG(status) == signal.SIGTRAP):
            if libc.ptrace(PTRACE_SINGLESTEP, child, None, None):
                pytest.skip("instructions cannot be counted here")
            count += 1
            status = os.waitpid(child, 0)[1]
    finally:
        if not os.WIFEXITED(status):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return count


def vectors(n: int) -> list[dy.Expression]:
    return [dy.inputVector([i % 7, 2]) for i in range(n)]


def lstm_inputs(n: int) -> dy.Expression:
    W, h, b = (dy.ones((8, size)) for size in (2 * n, 2, 1))
    return dy.vanilla_lstm_gates_concat(vectors(n), dy.inputVector([1, 2]), W, h, dy.reshape(b, (8,)))


def affine(n: int) -> dy.Expression:
    W = dy.ones((2, 2))
    return dy.affine_transform([dy.inputVector([0, 0]), *(e for x in vectors(n) for e in (W, x))])


def tree(n: int) -> dy.Expression:
    return dy.tree_lstm_c(dy.ones(2 * (3 + n)), vectors(n))


LISTS: dict[str, Callable[[int], dy.Expression]] = {
    "concatenate": lambda n: dy.concatenate(vectors(n)),
    "concatenate_cols": lambda n: dy.concatenate_cols(vectors(n)),
    "concatenate_to_batch": lambda n: dy.concatenate_to_batch(vectors(n)),
    "esum": lambda n: dy.esum(vectors(n)),
    "average": lambda n: dy.average(vectors(n)),
    "emax": lambda n: dy.emax(vectors(n)),
    "emax of equal ones": lambda n: dy.emax([dy.inputVector([i >= n // 2, 2]) for i in range(n)]),
    "logsumexp": lambda n: dy.logsumexp(vectors(n)),
    "affine_transform": affine,
    "vanilla_lstm_gates_concat": lstm_inputs,
    "tree_lstm_c": tree,
}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs ptrace")
@pytest.mark.parametrize("name", LISTS)
def test_work_with_more_arguments(graph: Any, name: str) -> None:
    """Each additional argument costs the same."""

    def backward(n: int, attempt: int) -> int:
        dy.renew_cg(autobatching=0)
        # All values get into the segment of memory after this vector's: looking for the segment of a value takes longer
        # where there are more of them.  Memory begins elsewhere in each attempt.
        dy.inputVector([0.0] * (100000 + 100 * attempt))
        loss = dy.sum_batches(dy.sum_elems(LISTS[name](n)))
        loss.forward()
        loss.backward(full=True)
        return instructions(lambda: loss.backward(full=True))

    # The system or the allocator sometimes adds a few, so the test is repeated.  A loop over the preceding arguments,
    # with two instructions per iteration, would show clearly: it is a sixth of the cost of 16 more arguments.
    for attempt in range(4):
        few, some, many = (backward(n, attempt) for n in (4, 20, 36))
        more, more_again = some - few, many - some
        if more_again < 1.1 * more:
            return
        assert attempt < 3, (few, some, many)


@pytest.mark.parametrize("needed", [range(6), [0, 5], [1, 3], [4]])
@pytest.mark.parametrize("op", ["concatenate", "concatenate_cols", "rows", "concatenate_to_batch"])
def test_only_some_arguments_get_gradients(graph: Any, strategy: int, op: str, needed: Any) -> None:
    """Each gradient reaches its argument, even if the arguments before it need none."""
    pc = dy.ParameterCollection()
    ps = [pc.add_parameters((2, 1 + i % 2), init=1.0) for i in range(6)]
    if op == "rows":
        ps = [pc.add_parameters((1 + i % 3, 2), init=1.0) for i in range(6)]
    if op == "concatenate_to_batch":
        ps = [pc.add_parameters((2, 2), init=1.0) for i in range(6)]
    xs = [p if i in needed else dy.const_parameter(p) for i, p in enumerate(ps)]
    join = {"concatenate": lambda es: dy.concatenate(es, 1), "rows": dy.concatenate}.get(op) or getattr(dy, op)
    y = join([x * 1.0 for x in xs])
    weights = np.arange(y.npvalue().size, dtype=float).reshape(y.npvalue().shape, order="F") + 1
    dy.sum_batches(dy.sum_elems(dy.cmult(y, dy.inputTensor(weights, batched=y.dim()[1] > 1)))).backward()
    axis = {"rows": 0, "concatenate_to_batch": 2}.get(op, 1)
    parts = np.split(weights, np.cumsum([1 if axis == 2 else p.shape()[axis] for p in ps])[:-1], axis)
    for i, (p, part) in enumerate(zip(ps, parts)):
        np.testing.assert_array_equal(p.grad_as_array(), part.reshape(p.shape(), order="F") * (i in needed))


def test_the_first_of_equal_ones_has_the_gradient(graph: Any, strategy: int) -> None:
    xs = [dy.inputTensor(np.array(v)) for v in ([1.0, 5, np.nan, 2], [3.0, 5, 0, 2], [3.0, 4, 0, 2])]
    y = dy.emax(xs)
    dy.sum_elems(y).backward(full=True)
    gradients = [x.gradient() for x in xs]
    np.testing.assert_array_equal(gradients, [[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
