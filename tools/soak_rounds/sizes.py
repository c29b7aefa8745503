"""Rounds of sizes, offsets, and calls of all kinds."""

from __future__ import annotations

import contextlib
import os
import resource
import warnings

import numpy as np

import dynet_cy as dy
from dynet_cy import functions
from dynet_cy.memory import arena
from dynet_cy.ops import api
from soak_rounds.programs import Model, N, Numpy, check, close, program

PAGE = os.sysconf("SC_PAGE_SIZE")
# Functions of tensors any of whose sizes may be 0: arguments as letters, the function, its float64 reference.
OF_ANY_SIZE = [
    ("mn,nk", lambda a, b: a * b, np.matmul),
    ("mn,nk", lambda a, b: dy.matmul(a, b), np.matmul),
    ("mk,mn,nk", lambda b, a, x: dy.affine_transform([b, a, x]), lambda b, a, x: b + a @ x),
    ("mn,nk", lambda a, x: dy.affine_transform([a * x]), np.matmul),
    ("m,m,m", lambda x, g, b: dy.layer_norm(x, g, b), None),
    ("mn", lambda a: dy.transpose(a), np.transpose),
    ("mn,mn", lambda a, b: dy.cmult(a, b), np.multiply),
    ("mn,mn", lambda a, b: a + b, np.add),
    ("mn", lambda a: dy.tanh(a), np.tanh),
    ("mn", lambda a: dy.sum_elems(a), np.sum),
    ("mn", lambda a: dy.squared_norm(a), lambda a: (a * a).sum()),
    ("mn", lambda a: dy.sum_dim(a, [0]), lambda a: a.sum(0)),
    ("mn", lambda a: dy.sum_dim(a, [1]), lambda a: a.sum(1)),
    ("mn", lambda a: dy.mean_dim(a, [1], False), None),
    ("m", lambda a: dy.softmax(a), None),
    ("m", lambda a: dy.log_softmax(a), None),
    ("m", lambda a: dy.logsumexp_dim(a), None),
    ("mn", lambda a: dy.max_dim(a, 0), None),
    ("m,k", lambda a, b: dy.concatenate([a, b]), lambda a, b: np.concatenate([a, b])),
    ("mn,mk", lambda a, b: dy.concatenate([a, b], 1), lambda a, b: np.concatenate([a, b], 1)),
    ("m,m", lambda a, b: dy.dot_product(a, b), np.dot),
    ("mn", lambda a: dy.reshape(a, (a.dim()[0][0] * a.dim()[0][1],)), lambda a: a.reshape(-1, order="F")),
    ("m", lambda a: dy.pick_range(a, 0, a.dim()[0][0] // 2), lambda a: a[: len(a) // 2]),
    ("mn,nk,m", lambda a, x, b: dy.colwise_add(a * x, b), lambda a, x, b: a @ x + b[:, None]),
    ("m,n", lambda a, b: dy.logistic(a) * dy.transpose(b), lambda a, b: np.outer(1 / (1 + np.exp(-a)), b)),
]  # fmt: skip


def sizes(rng):
    """Functions of tensors some of whose sizes are 0, forward and backward: the value, or an error."""
    model = dy.ParameterCollection()
    dy.renew_cg(autobatching=int(rng.integers(3)))
    losses = []
    for k in rng.integers(len(OF_ANY_SIZE), size=int(rng.integers(1, 5))):
        letters, function, reference = OF_ANY_SIZE[k]
        of = {letter: int(rng.choice([0, 0, 1, 3])) for letter in "mnk"}
        numbers = [rng.uniform(-1, 1, [of[letter] for letter in one]) for one in letters.split(",")]
        try:
            made = [model.parameters_from_numpy(x) if rng.integers(2) else dy.inputTensor(x) for x in numbers]
            y = function(*(x if isinstance(x, dy.Expression) else dy.parameter(x) for x in made))
            if reference is not None:
                expected = np.asarray(reference(*numbers))
                value = np.asarray(y.npvalue())
                check(value.size == expected.size, f"{letters} of {of}: shape {value.shape}, not {expected.shape}")
                close(value.reshape(-1), expected.reshape(-1), f"value of {letters} of {of}")
            losses.append(dy.sum_elems(y))
        except (ValueError, TypeError, IndexError, RuntimeError):
            continue
    if losses:
        with contextlib.suppress(ValueError, RuntimeError):
            dy.esum(losses).backward()
        gradients = [p.grad_as_array() for p in model.parameters_list()]
        check(all(np.isfinite(g).all() for g in gradients), "a gradient of empty tensors is not finite")


def _log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


# Functions of a vector, and their float64 references.  Their results do not change, or change by the same number, when
# a number is added to all elements.
OF_ANY_OFFSET = [
    (dy.softmax, lambda x: np.exp(_log_softmax(x))),
    (dy.log_softmax, _log_softmax),
    (lambda x: dy.pickneglogsoftmax(x, 2), lambda x: -_log_softmax(x)[2]),
    (lambda x: dy.pickneglogsoftmax_batch(x, [1]), lambda x: -_log_softmax(x)[1]),
    (lambda x: dy.cross_entropy(x, 1), lambda x: -_log_softmax(x)[1]),
    (lambda x: dy.logistic(x - x[0]), lambda x: 1 / (1 + np.exp(x[0] - x))),
    (lambda x: dy.logsumexp_dim(x), lambda x: x[0] - _log_softmax(x)[0]),
    (lambda x: dy.logsumexp([x[0], x[1], x[2]]), lambda x: x[0] - _log_softmax(x[:3])[0]),
    (lambda x: dy.logcumsumexp(x), np.logaddexp.accumulate),
]


def offsets(rng):
    """Functions with an exp or a log at offsets up to 1e7: values and gradients are rounded once."""
    offset = float(rng.choice([-1, 1]) * 10 ** rng.uniform(0, 7))
    x = np.float32(offset + rng.uniform(-4, 4, N)).astype(np.float64)  # exactly what the engine gets
    weights = rng.uniform(-1, 1, N)
    function, reference = OF_ANY_OFFSET[int(rng.integers(len(OF_ANY_OFFSET)))]
    p = dy.ParameterCollection().parameters_from_numpy(x)
    dy.renew_cg(autobatching=int(rng.integers(3)))
    y = function(dy.parameter(p))
    expected = np.asarray(reference(x))
    error = np.abs(np.asarray(y.npvalue()).reshape(expected.shape) - expected).max()
    most = np.spacing(np.float32(np.abs(expected).max())) + 2e-6
    check(error <= most, f"value at offset {offset}: {y.npvalue()}, not {expected}")
    weighted = dy.dot_product(y, dy.inputVector(weights)) if expected.ndim else y * weights[0]
    weighted.backward()
    # The gradient is a function of differences: take it near 0, where the reference is exact.
    near = x - x[0]
    slopes = []
    for step in np.eye(N) * 1e-5:
        ahead, behind = (np.atleast_1d(reference(near + s * step)) for s in (1, -1))
        slopes.append(((ahead - behind) * weights[: ahead.size]).sum() / 2e-5)
    close(p.grad_as_array(), slopes, f"gradient at offset {offset}", 1e-5)


@contextlib.contextmanager
def little_memory(more=2 << 30):
    """A block in which the process may grow by so many bytes: beyond, NumPy and the engine raise MemoryError."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * PAGE
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = [limit for limit in (now + more, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _functions():
    """The public functions that make expressions, by name: a new one is called without a further word."""
    found = {name: getattr(dy, name) for name in sorted({*api.__all__, *functions.__all__})}
    return {name: f for name, f in found.items() if callable(f)}


def calls(rng):
    """Public functions with arguments of all kinds: each gives an expression or an error; later values are right."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    loss = model.loss(seed, autobatching=int(rng.integers(3)))
    vector, matrix = (dy.inputTensor(rng.uniform(-1, 1, shape)) for shape in (N, (N, N)))
    arguments = [
        vector, matrix, dy.inputTensor(rng.uniform(0, 1, (N, 2)), batched=True), dy.scalarInput(0.5), loss,
        dy.inputTensor(np.zeros((0, N))), dy.inputTensor(np.zeros((N, 0))), dy.inputTensor(np.zeros(0)),
        [vector, vector], [matrix, vector], [vector, matrix, vector], [], [0, 1], [0], (N,), (2, 3), [1.0, 2.0],
        model.stored["w"], model.stored["table"], 0, 1, 2, -1, N, 2**31, 2**32 + 1, -(2**63), 2**64, 0.5, -1.0, 1e30,
        float("nan"), True, None, "x", b"x", np.ones(N), np.zeros((0, 3)), np.float32(1), np.int64(3), {}, object(),
    ]  # fmt: skip
    public = _functions()
    names = sorted(public)
    dy.config.set(mem=arena.used_bytes() / 2**20 + 64)
    made = []
    with contextlib.ExitStack() as stack:
        stack.callback(model.clear)
        stack.callback(dy.config.set, mem=0)
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(little_memory())  # such as that of arange(2**31)
        warnings.simplefilter("ignore", RuntimeWarning)  # of expressions that are compared with numbers
        warnings.simplefilter("ignore", DeprecationWarning)  # NumPy before 2.2: the truth value of an empty array
        for _ in range(30):
            name = names[int(rng.integers(len(names)))]
            given = [arguments[int(i)] for i in rng.integers(len(arguments), size=int(rng.integers(1, 5)))]
            with contextlib.suppress(ValueError, TypeError, IndexError, RuntimeError, OverflowError, MemoryError):
                y = public[name](*given)
                if isinstance(y, dy.Expression):
                    value = y.npvalue()
                    shape, batch = y.dim()
                    check(value.size == int(np.prod(shape)) * batch, f"{name}: {y.dim()} has {value.size} numbers")
                    made.append(dy.sum_batches(dy.sum_elems(y)))
        with contextlib.suppress(ValueError, RuntimeError, MemoryError):
            dy.esum([loss, *made]).backward()
    loss = model.loss(seed)
    close(loss.value(), program(Numpy(model.values()), seed), "value after calls of all kinds")


def huge(rng):
    """About 2**31 elements along an axis, without computing them: the shape, or an error."""
    dy.renew_cg()
    part = dy.ParameterCollection().add_parameters(1 << 20, init=0)
    count = int(rng.integers(2036, 2060))
    try:
        x = dy.concatenate([dy.parameter(part)] * count)
    except (ValueError, OverflowError, MemoryError):
        return
    n = count << 20
    check(x.dim()[0] == (n,), f"{x.dim()} of {n} elements")
    start = int(rng.integers(n))
    end = int(rng.integers(start, n)) + 1
    tries = [
        (lambda: dy.pick_range(x, start, end), (end - start,)),
        (lambda: dy.pick(x, start), (1,)),
        (lambda: dy.reshape(x, (count, 1 << 20)), (count, 1 << 20)),
        (lambda: dy.pick_range(dy.reshape(x, (1, n)), start, end, 1), (1, end - start)),
        (lambda: dy.strided_select(x, [1], [start], [end]), (end - start,)),
        (lambda: dy.strided_select(x, [1 << 31], [0], [n]), (-(-n // (1 << 31)),)),
        (lambda: dy.pickneglogsoftmax(x, start), (1,)),
    ]
    for make, shape in tries:
        with contextlib.suppress(ValueError, IndexError, OverflowError):
            y = make()
            check(y.dim()[0] in (shape, ()), f"shape {y.dim()}, not {shape}, of {n} elements from {start} to {end}")
            for wrong in (n, n + (1 << 31), n + (1 << 32), -n - 1):
                try:
                    dy.pick(x, wrong)
                except (ValueError, IndexError, OverflowError):
                    continue
                check(False, f"pick of {wrong} of {n} elements")
