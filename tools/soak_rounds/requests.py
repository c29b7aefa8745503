"""Rounds with several requests in one graph: new, computed and dropped values, and losses that share batches.

Each request is compared with the same one as the first of a graph without batching, limits and dropped values.
"""

from __future__ import annotations

import contextlib

import numpy as np

import dynet_cy as dy
from soak_rounds.programs import check

SIZES = (8, 96)
TOGETHER = 12  # elements of a minibatch
TOLERANCE = 2e-4
KINDS = (dy.LSTMBuilder, dy.LSTMBuilder, dy.GRUBuilder, dy.SimpleRNNBuilder, dy.CoupledLSTMBuilder)


class Answered(Exception):
    """The one request of a reference has been answered."""


class Plain:
    """A model, whose only request is the one of a number; nothing is dropped, batched or computed before that."""

    def __init__(self, seed, only=None):
        rng = np.random.default_rng(seed)
        self.only, self.n, self.answers = only, 0, []
        self.collection = pc = dy.ParameterCollection()
        self.w, self.u, self.b, self.gain, self.builder = {}, {}, {}, {}, {}
        for n in SIZES:
            self.w[n], self.u[n] = (pc.add_parameters((n, n)) for _ in range(2))
            self.b[n], self.gain[n] = (pc.add_parameters(n) for _ in range(2))
            kind = KINDS[rng.integers(len(KINDS))]
            self.builder[n] = kind(1 + int(rng.random() < 0.3), n, n, pc, **self.settings(rng))
        for p in pc.parameters_list():
            p.set_value(rng.normal(0, p.shape()[-1] ** -0.5, p.shape()))

    def settings(self, rng):
        rng.integers(4)
        return {}

    def checkpoint(self, function, *args):
        return function(*args)

    def map(self, function, items, width):
        return [function(item) for item in items]

    def ask(self, request):
        """Make a request, whose answer is a list of arrays."""
        self.n += 1
        if self.n - 1 == self.only:
            self.answers.append(request())
            raise Answered

    def asks(self):
        """Whether the next request is made."""
        return self.n == self.only


class Tried(Plain):
    """A program with all requests, and with batching and dropping as in a random program."""

    def settings(self, rng):
        return {"checkpoint": (2, True, 2, 3)[rng.integers(4)]}

    def checkpoint(self, function, *args):
        return dy.checkpoint(function, *args)

    def map(self, function, items, width):
        return list(dy.batched_map(function, items, width=width))

    def ask(self, request):
        self.n += 1
        self.answers.append(request())

    def asks(self):
        return True


# ---- what programs consist of ------------------------------------------------------------


def inputs(rng, n, count, batched=0.2):
    """Vectors, of which some are minibatches."""
    return [
        dy.inputTensor(rng.normal(0, 1, (n, TOGETHER)), batched=True)
        if rng.random() < batched
        else dy.inputVector(rng.normal(0, 1, n))
        for _ in range(count)
    ]


def new(m, rng, n, x, y):
    """A node of two vectors, with others between."""
    kind = int(rng.integers(10))
    if kind == 0:
        return dy.tanh(m.w[n] * x)
    if kind == 9:
        return dy.tanh(m.w[n] * dy.affine_transform([m.b[n], m.u[n], x]))
    if kind == 1:
        return dy.cmult(x, dy.logistic(y))
    if kind == 2:
        return (x + y) * 0.7
    if kind == 3:
        return dy.pick_range(dy.concatenate([x, dy.tanh(y)]), n // 2, n // 2 + n)
    if kind == 4:
        return dy.softmax(x) + dy.tanh(y)
    if kind == 5:
        return dy.layer_norm(x, m.gain[n], m.b[n])
    if kind == 6:
        return dy.tanh(dy.affine_transform([m.b[n], m.w[n], x, m.u[n], y]))
    if kind == 7:
        return dy.logistic(m.u[n] * dy.tanh(dy.affine_transform([m.b[n], m.w[n], x])))
    both = dy.concatenate([dy.tanh(x), y])
    return dy.cmult(dy.pick_range(both, 0, n), dy.tanh(dy.pick_range(both, n, 2 * n)))


def drawn(rng, pool):
    return pool[int(rng.integers(len(pool)))]


def grow(m, rng, n, pool, depth=0):
    """Further nodes, of which the program forgets some; some of them in nested calls of `checkpoint`."""
    made = []
    for _ in range(int(rng.integers(1, 7))):
        if depth < 3 and rng.random() < 0.25:
            made += m.checkpoint(grow, m, rng, n, pool + made, depth + 1)
        else:
            made.append(new(m, rng, n, drawn(rng, pool + made), drawn(rng, pool + made)))
    return [x for x in made if rng.random() < 0.6] or made[-1:]


def sentence(m, rng, n, pool):
    """States of a recurrent network."""
    length = int(rng.integers(1, 9))
    words = [dy.inputVector(rng.normal(0, 1, n)) if rng.random() < 0.5 else drawn(rng, pool) for _ in range(length)]
    return list(m.builder[n].transduce(words))


def loss_of(m, rng, n, pool):
    """A number of some vectors."""
    kind, x, y = int(rng.integers(4)), drawn(rng, pool), drawn(rng, pool)
    if kind == 0:
        found = dy.squared_norm(x)
    elif kind == 1:
        found = dy.pickneglogsoftmax(m.w[n] * x, int(rng.integers(n)))
    elif kind == 2:
        found = dy.dot_product(dy.tanh(m.u[n] * x), y)
    else:
        found = dy.sum_elems(dy.tanh(dy.affine_transform([m.b[n], m.w[n], x])))
    return dy.sum_batches(found)


# ---- requests ----------------------------------------------------------------------------


def values_of(rng, xs):
    """A request of the values of some expressions."""
    kind, chosen = int(rng.integers(3)), [int(k) for k in rng.permutation(len(xs))[: int(rng.integers(1, len(xs) + 1))]]

    def request():
        if kind == 0:
            return dy.npvalues(xs)
        if kind == 1:
            dy.forward(xs)
        return [xs[k].npvalue() for k in chosen]

    return request


def gradients_of(m, rng, loss, xs):
    """A request of the gradients of all parameters, and of some expressions."""
    full, before = bool(rng.random() < 0.1), bool(rng.random() < 0.3)
    xs = [x for x in xs if rng.random() < 0.2]

    def request():
        m.collection.zero_gradients()
        if before:
            loss.value()
        loss.backward(full=full)
        return [np.array(p.grad_as_array()) for p in m.collection.parameters_list()] + [x.gradient() for x in xs]

    return request


def mapped(m, rng, n, pool):
    """Calls of a batched map that wait for values; a request, and the expressions that they return."""
    seeds, values = [int(s) for s in rng.integers(1 << 30, size=int(rng.integers(1, 6)))], {}
    width = None if rng.random() < 0.5 else int(rng.integers(1, 6))
    asks = m.asks()

    def call(seed):
        rng = np.random.default_rng(seed)
        made = []
        for _ in range(int(rng.integers(1, 4))):
            made += grow(m, rng, n, pool + made)
            xs = [drawn(rng, pool + made) for _ in range(int(rng.integers(1, 4)))]
            if asks:
                values.setdefault(seed, []).extend(dy.npvalues(xs) if len(xs) > 1 else [xs[0].npvalue()])
        return made

    made = [x for xs in m.map(call, seeds, width) for x in xs]
    m.ask(lambda: [v for seed in dict.fromkeys(seeds) for v in values[seed]])
    return made


# ---- programs ----------------------------------------------------------------------------


def mixed(m, rng):
    """Requests of new, computed and dropped values between calls of all kinds."""
    pools = {n: inputs(rng, n, 3) for n in SIZES}
    losses = []
    for _ in range(int(rng.integers(4, 14))):
        n = SIZES[int(rng.integers(len(SIZES)))]
        pool, kind = pools[n], rng.random()
        if kind < 0.25:
            pool += m.checkpoint(grow, m, rng, n, pool) if rng.random() < 0.7 else grow(m, rng, n, pool)
        elif kind < 0.37:
            pool += sentence(m, rng, n, pool)
        elif kind < 0.45:
            pool += mapped(m, rng, n, pool)
        elif kind < 0.7:
            xs = [x if rng.random() < 0.5 else new(m, rng, n, x, drawn(rng, pool))
                  for x in (drawn(rng, pool) for _ in range(int(rng.integers(1, 5))))]  # fmt: skip
            m.ask(values_of(rng, xs))
            pool += xs
        elif kind < 0.8:
            losses.append((loss_of(m, rng, n, pool), list(pool) if rng.random() < 0.3 else []))
        elif losses:
            m.ask(gradients_of(m, rng, *drawn(rng, losses)))
        pools[n] = [x for k, x in enumerate(pool) if k < 3 or rng.random() < 0.8][-12:]
    losses += [(loss_of(m, rng, n, pools[n]), []) for n in SIZES]
    m.ask(gradients_of(m, rng, dy.esum([loss for loss, _ in losses]), []))
    m.ask(gradients_of(m, rng, *drawn(rng, losses)))


def several_losses(m, rng):
    """Sentences of the same layers, which run together, and losses of some of them, one after the other."""
    n = SIZES[1]
    layers = [int(k) for k in rng.integers(1 << 30, size=int(rng.integers(1, 6)))]
    states = []
    for _ in range(int(rng.integers(2, 16))):
        pool = inputs(rng, n, 1, 0.5)
        for seed in layers:
            if rng.random() < 0.9:
                choice = np.random.default_rng(seed)
                pool.append(new(m, choice, n, pool[-1], pool[int(choice.integers(len(pool)))]))
        states.append(pool[-1])
    losses = []
    for _ in range(int(rng.integers(2, 5))):
        some = [x for x in states if rng.random() < 0.5] or states[:1]
        losses.append(dy.esum([loss_of(m, rng, n, [x]) for x in some]))
        if rng.random() < 0.3:
            m.ask(values_of(rng, [drawn(rng, states), losses[-1]]))
    if rng.random() < 0.3:
        m.ask(values_of(rng, losses))
    del states, some, pool
    for k in rng.permutation(len(losses) + 2):
        m.ask(gradients_of(m, rng, losses[k % len(losses)], []))


def checkpoints_of_builders(m, rng):
    """Sentences of builders that drop states, and requests of states, new nodes, and losses."""
    n = SIZES[int(rng.random() < 0.25)]
    pool = [h for _ in range(2) for h in sentence(m, rng, n, inputs(rng, n, 2))]
    for _ in range(int(rng.integers(1, 5))):
        xs = []
        for _ in range(int(rng.integers(1, 5))):
            h = drawn(rng, pool)
            xs.append(h if rng.random() < 0.5 else dy.tanh(m.w[n] * h) if rng.random() < 0.5 else dy.tanh(h))
        m.ask(values_of(rng, xs))
        pool += xs
        if rng.random() < 0.3:
            pool += sentence(m, rng, n, pool)
    for _ in range(int(rng.integers(1, 4))):
        m.ask(gradients_of(m, rng, dy.esum([loss_of(m, rng, n, pool) for _ in range(4)]), []))


# ---- rounds ------------------------------------------------------------------------------


def answers(program, seed, model, **graph):
    """The answers of the requests of a program."""
    dy.renew_cg(**graph)
    with contextlib.suppress(Answered):
        program(model, np.random.default_rng([seed, 1]))
    return model.answers


def compare(program, seed, limited):
    """Compare the answers of a program with those of references; False if there was too little memory."""
    rng = np.random.default_rng([seed, 2])
    graph = {"autobatching": (1, 1, 2, 0)[rng.integers(4)]}
    if limited:
        graph["mem"] = float(rng.uniform(0.2, 0.8))
    try:
        found = answers(program, seed, Tried(seed), **graph)
    except MemoryError:
        if not limited:
            raise
        return False
    for k, answer in enumerate(found):
        (expected,) = answers(program, seed, Plain(seed, k), autobatching=0)
        check(len(answer) == len(expected), f"request {k} has {len(answer)} answers, not {len(expected)}")
        for i, (x, y) in enumerate(zip(answer, expected)):
            check(np.shape(x) == np.shape(y), f"answer {i} of request {k}: shapes {np.shape(x)} and {np.shape(y)}")
            scale, error = 1 + np.abs(y).max(initial=0), np.abs(np.subtract(x, y)).max(initial=0)
            check(error <= TOLERANCE * scale, f"answer {i} of request {k}: {error} at a scale of {scale}")
    return True


PROGRAMS = (mixed, several_losses, checkpoints_of_builders)


def _round(program, rng):
    compare(program, int(rng.integers(1 << 30)), bool(rng.integers(3) == 0))


def mixed_requests(rng):
    """Requests of new, computed and dropped values, alone, in lists and in maps, and gradients of several losses."""
    _round(mixed, rng)


def shared_batches(rng):
    """Losses that share batches, one after the other."""
    _round(several_losses, rng)


def builders_that_drop(rng):
    """Builders with `checkpoint=k`."""
    _round(checkpoints_of_builders, rng)
