"""Random programs for dynet_cy and, in float64, for NumPy; models, comparison of results, alarms."""

from __future__ import annotations

import contextlib
import signal

import numpy as np

import dynet_cy as dy

N, ROWS = 6, 12
MANY_ROWS = 800  # rows of a table that is large enough for deferred updates of rows without a gradient


class Numpy:
    """The operations of programs in float64, on columns of numbers."""

    def __init__(self, values):
        self.values = values

    def parameter(self, name):
        return self.values[name]

    def row(self, i):
        return self.values["table"][i]

    def input(self, numbers):
        return numbers

    affine = staticmethod(lambda b, w, x: b + w @ x)
    tanh = staticmethod(np.tanh)
    logistic = staticmethod(lambda x: 1 / (1 + np.exp(-x)))
    cmult = staticmethod(lambda x, y: x * y)
    halves = staticmethod(lambda x, y: np.concatenate([x[N // 2 :], y[: N // 2]]))
    mean = staticmethod(lambda xs: sum(xs) / len(xs))
    squared_norm = staticmethod(lambda x: (x * x).sum())
    element = staticmethod(lambda x, i: x[i])
    dot = staticmethod(lambda x, y: (x * y).sum())
    total = staticmethod(sum)

    @staticmethod
    def softmax(x):
        e = np.exp(x - x.max())
        return e / e.sum()

    @staticmethod
    def loss(x, i):
        return np.log(np.exp(x - x.max()).sum()) + x.max() - x[i]

    @staticmethod
    def attend(xs, q):
        memory = np.stack(xs, 1)
        return memory @ Numpy.softmax(memory.T @ q)

    @staticmethod
    def norm(x, gain, bias):
        c = x - x.mean()
        return gain * c / np.sqrt((c * c).mean()) + bias


class Engine:
    """The operations of `Numpy` in dynet_cy, on the device of the model."""

    def __init__(self, model):
        self.model = model

    def parameter(self, name):
        return self.model.stored[name]

    def row(self, i):
        return dy.to_device(self.model.stored["table"][i], self.model.device)

    def input(self, numbers):
        return dy.inputVector(numbers, device=self.model.device)

    affine = staticmethod(lambda b, w, x: dy.affine_transform([b, w, x]))
    tanh = staticmethod(dy.tanh)
    logistic = staticmethod(dy.logistic)
    cmult = staticmethod(dy.cmult)
    halves = staticmethod(lambda x, y: dy.concatenate([dy.pick_range(x, N // 2, N), dy.pick_range(y, 0, N // 2)]))
    mean = staticmethod(lambda xs: dy.average(list(xs)))
    squared_norm = staticmethod(dy.squared_norm)
    element = staticmethod(dy.pick)
    dot = staticmethod(dy.dot_product)
    total = staticmethod(dy.esum)
    softmax = staticmethod(dy.softmax)
    loss = staticmethod(dy.pickneglogsoftmax)

    @staticmethod
    def attend(xs, q):
        memory = dy.concatenate_cols(list(xs))
        return memory * dy.softmax(dy.transpose(memory) * q)

    @staticmethod
    def norm(x, gain, bias):
        return dy.layer_norm(x, gain, bias)


def program(ops, seed, numbers=None):
    """Run the random program of a seed, which returns a scalar.  Inputs are drawn from the seed `numbers`, if given."""
    rng = np.random.default_rng(seed)
    inputs = rng if numbers is None else np.random.default_rng(numbers)
    scalars = []
    for _ in range(int(rng.integers(1, 6))):
        pool = [ops.row(int(rng.integers(ROWS))) for _ in range(int(rng.integers(1, 5)))]
        pool.append(ops.input(inputs.uniform(-1, 1, N)))
        for _ in range(int(rng.integers(1, 12))):
            x, y = (pool[int(rng.integers(len(pool)))] for _ in range(2))
            kind, k = int(rng.integers(11)), int(rng.integers(N))
            w, b = ops.parameter("w" if rng.integers(2) else "u"), ops.parameter("b")
            if kind < 3:
                pool.append(ops.tanh(ops.affine(b, w, x)))
            elif kind == 3:
                pool.append(ops.logistic(ops.affine(b, w, y)))
            elif kind == 4:
                pool.append(ops.cmult(x, y))
            elif kind == 5:
                pool.append(ops.halves(x, y))
            elif kind == 6:
                pool.append(ops.attend(pool, x))
            elif kind == 7:
                pool.append(ops.tanh(ops.norm(x, ops.parameter("gain"), b)))
            elif kind == 8:
                scalars.append(ops.loss(ops.affine(b, w, x), k))
            elif kind == 9:
                scalars.append(ops.element(x, k))
            else:
                scalars.append(ops.dot(x, y))
        scalars.append(ops.squared_norm(ops.mean(pool)))
    return ops.total(scalars)


class Model:
    """The parameters of programs, and a table, which may be on another device."""

    SHAPES = (("w", (N, N)), ("u", (N, N)), ("b", (N,)), ("gain", (N,)))

    def __init__(self, seed, device="CPU", device_of_table=None, rows=ROWS):
        rng = np.random.default_rng(seed)
        self.device = device
        self.collection = dy.ParameterCollection()
        self.stored = {
            name: self.collection.parameters_from_numpy(rng.uniform(-1, 1, shape), name, device)
            for name, shape in self.SHAPES
        }
        table = rng.uniform(-1, 1, (rows, N))
        self.stored["table"] = self.collection.lookup_parameters_from_numpy(table, "table", device_of_table or device)

    def values(self):
        return {name: p.as_array().astype(np.float64) for name, p in self.stored.items()}

    def gradients(self):
        return {name: p.grad_as_array().astype(np.float64) for name, p in self.stored.items()}

    def clear(self):
        self.collection.zero_gradients()

    def loss(self, seed, numbers=None, **graph):
        dy.renew_cg(**graph)
        return program(Engine(self), seed, numbers)


class Changed(Numpy):
    """Programs with other rows, inputs and elements: all indices are moved on by `shift`, inputs by `step`."""

    def __init__(self, values, shift, step):
        super().__init__(values)
        self.shift, self.step = shift, step

    def row(self, i):
        return super().row((i + self.shift) % ROWS)

    def input(self, numbers):
        return numbers + self.step

    def element(self, x, i):
        return x[(i + self.shift) % N]


class Changing(Engine):
    """Programs whose rows, inputs and elements can be changed after they were made, as `Changed` has them."""

    def __init__(self, model):
        super().__init__(model)
        self.leaves = []

    def row(self, i):
        return self.changing(dy.lookup(self.model.stored["table"], i), lambda e, s, _: e.set((i + s) % ROWS))

    def input(self, numbers):
        return self.changing(dy.inputVector(numbers), lambda e, _, step: e.set(numbers + step))

    def element(self, x, i):
        return self.changing(dy.pick(x, i), lambda e, s, _: e.set_index((i + s) % N))

    def changing(self, made, change):
        self.leaves.append((made, change))
        return made

    def change(self, shift, step, order):
        for k in order.permutation(len(self.leaves)):
            made, change = self.leaves[k]
            change(made, shift, step)


def check(ok, what):
    if not ok:
        raise AssertionError(what)


def close(found, expected, what, tolerance=1e-4):
    if isinstance(found, dict):
        for name in expected:
            close(found[name], expected[name], f"{what} of {name}", tolerance)
        return
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    scale = 1 + np.abs(expected).max(initial=0)
    error = np.abs(found - expected).max(initial=0)
    check(error <= tolerance * scale, f"{what}: {found} and {expected} differ by {error}")


def same(found, expected, what):
    """Check that all bits are equal."""
    for name in expected:
        check((found[name] == expected[name]).all(), f"{what} of {name}: {found[name]} and {expected[name]}")


def slope(values, direction, seed):
    """The derivative of a program in a direction of its parameters."""
    step = 1e-5
    ahead, behind = (program(Numpy({k: v + s * step * direction[k] for k, v in values.items()}), seed) for s in (1, -1))
    return (ahead - behind) / (2 * step)


def check_slope(model, seed, direction, expected, what, loss):
    """Run backward and compare the gradients of the model with the derivative; they are zero afterwards."""
    loss.backward()
    found = model.gradients()
    model.clear()
    close(sum((found[k] * direction[k]).sum() for k in found), expected, f"slope {what}", 2e-3)
    return found


class Stop(Exception):
    """The exception that the handler of alarms raises."""


def _stop(number, frame):
    raise Stop


@contextlib.contextmanager
def alarm(seconds):
    """Raise Stop after this time, unless the block ends before; no alarm is pending afterwards."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
