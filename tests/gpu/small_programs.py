"""Small programs with what devices run in ways of their own: cells, copies, fused runs, several passes, views.

A program takes a `Net` and returns a loss and the nodes whose values and gradients are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import dynet_cy as dy

H = 5
COUNT = 5
LENGTHS = (3, 6, 1, 5, 6, 2)

Made = tuple[dy.Expression, list[dy.Expression]]
Pair = tuple[dy.Expression, dy.Expression]


class Net:
    """Parameters with the same values on each device, and helpers that make nodes."""

    def __init__(self, device: str, h: int = H) -> None:
        self.device, self.h = device, h
        self.rng = np.random.default_rng(7)
        self.pc = dy.ParameterCollection()
        self.cells = [[self.parameter(4 * h, n) for n in (h, h)] + [self.parameter(4 * h)] for _ in range(2)]
        self.start = [self.parameter(h), self.parameter(h)]
        self.out = self.parameter(2, 2 * h)
        self.w, self.u, self.v = (self.parameter(h, h) for _ in range(3))
        self.b = self.parameter(h)
        self.row = self.parameter(1, h)
        self.sums = self.parameter(5 * h), self.parameter(5 * h, h)
        self.xs = [self.input() for _ in range(12)]

    def numbers(self, *shape: int) -> np.ndarray:
        return self.rng.uniform(-0.7, 0.7, shape).astype(np.float32)

    def parameter(self, *shape: int) -> dy.Parameters:
        return self.pc.parameters_from_numpy(self.numbers(*shape), device=self.device)

    def input(self, batch: int = 1) -> dy.Expression:
        return dy.inputTensor(self.numbers(self.h, batch), batched=True, device=self.device)

    def tensor(self, *shape: int) -> dy.Expression:
        return dy.inputTensor(self.numbers(*shape), device=self.device)

    def zero(self, batch: int = 1) -> dy.Expression:
        return dy.inputTensor(np.zeros((self.h, batch)), batched=True, device=self.device)

    def affine(self, batch: int = 1) -> dy.Expression:
        """A vector with a gradient."""
        return dy.affine_transform([self.b, self.w, self.input(batch)])

    def gates(self) -> list[dy.Expression]:
        """Five parts of a sum."""
        gates = dy.affine_transform([*self.sums, self.input()])
        return [dy.pick_range(gates, k * H, (k + 1) * H) for k in range(5)]

    def step(self, cell: int, x: dy.Expression, h: dy.Expression, c: dy.Expression) -> list[dy.Expression]:
        """Gates, state and output of an LSTM."""
        gates = dy.vanilla_lstm_gates(x, h, *self.cells[cell])
        state = dy.vanilla_lstm_c(c, gates)
        return [gates, state, dy.vanilla_lstm_h(state, gates)]

    def chain(self, cell: int, xs: Sequence[dy.Expression], start: Pair | None = None) -> list[list[dy.Expression]]:
        h, c = start or (self.zero(), self.zero())
        steps = []
        for x in xs:
            steps.append(self.step(cell, x, h, c))
            _, c, h = steps[-1]
        return steps


def loss_of(ends: Sequence[dy.Expression]) -> dy.Expression:
    return dy.sum_batches(dy.esum([dy.squared_norm(x) for x in ends]))


def asked(x: dy.Expression) -> dy.Expression:
    """Compute a value before the next node is made."""
    x.npvalue()
    return x


def flat(rows: Sequence[Sequence[dy.Expression]]) -> list[dy.Expression]:
    return [x for row in rows for x in row]


# ---- cells, copies, additions that wait, nodes in the order of their use -----------------


def both_directions(net: Net) -> Made:
    """Two directions over sentences of different lengths, side by side in each position."""
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    for length in LENGTHS:
        xs = [net.input() for _ in range(length)]
        forward = net.chain(0, xs)
        back = net.chain(1, xs[::-1])[::-1]
        for there, here in zip(forward, back):
            ends.append(dy.logistic(net.out * dy.concatenate([there[2], here[2]])))
        seen += flat(forward + back) + xs
    return loss_of(ends), seen + ends


def chains(net: Net) -> Made:
    steps = [net.chain(0, [net.input() for _ in range(n)]) for n in LENGTHS]
    return loss_of([chain[-1][2] for chain in steps]), []


def learned_start(net: Net) -> Made:
    """All chains begin with the same two parameters."""
    h, c = (dy.parameter(p) for p in net.start)
    steps = [net.chain(0, [net.input() for _ in range(n)], (h, c)) for n in LENGTHS]
    return loss_of([s[-1][2] for s in steps]), flat(flat(steps))


def shared_state(net: Net) -> Made:
    """Several cells continue from the same state, which is a value, as in beam search."""
    c = dy.tanh(net.input())
    h = dy.tanh(net.input())
    steps = [net.step(i % 2, net.input(), h, c) for i in range(6)]
    more = [net.step(0, net.input(), step[2], step[1]) for step in steps for _ in range(2)]
    return loss_of([s[2] for s in more]), [c, h, *flat(steps + more)]


def states_only(net: Net) -> Made:
    """The loss depends on states, on outputs or on gates only, and other nodes use the gates."""
    steps = [net.chain(0, [net.input() for _ in range(n)]) for n in LENGTHS]
    ends = [steps[0][-1][1], steps[1][-1][2], steps[2][0][0], dy.tanh(steps[3][2][0])]
    return loss_of(ends), flat(flat(steps))


def minibatches_of_cells(net: Net) -> Made:
    """Minibatches whose first state has batch size 1, and its gradient is a sum."""
    c, h = dy.tanh(net.input()), dy.tanh(net.input())
    steps = [net.chain(0, [net.input(3) for _ in range(n)], (h, c)) for n in (2, 3)]
    steps.append(net.chain(0, [net.input(2)], (net.zero(2), c)))
    ends = [dy.sum_batches(dy.squared_norm(s[-1][2])) for s in steps]
    return dy.esum(ends), [c, h, *flat(flat(steps))]


def concatenations(net: Net) -> Made:
    """Concatenations of concatenations, of parameters and of matrices, along both axes; reshaped values."""
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    for i in range(4):
        a, b = dy.tanh(net.input()), dy.tanh(net.input())
        twice = dy.concatenate([a, b, a])
        nested = dy.concatenate([twice, dy.parameter(net.start[0]), b])
        matrix = dy.concatenate_cols([a, b, a + b] if i % 2 else [b, a])
        tall = dy.concatenate([matrix, matrix])
        line = dy.reshape(tall, (tall.dim()[0][0] * tall.dim()[0][1],))
        ends += [dy.tanh(nested), dy.tanh(line), net.out * dy.concatenate([a, b])]
        seen += [a, b, twice, nested, matrix, tall, line]
    return loss_of(ends), seen


def affine_maps(net: Net) -> Made:
    """Affine maps of concatenations; their biases are parameters, values, copies themselves, or broadcast."""
    bias = dy.parameter(net.parameter(2))
    seen: list[dy.Expression] = []
    for i in range(3):
        a, b = dy.tanh(net.input()), dy.tanh(net.input())
        pair = dy.concatenate([a, b])
        own = net.out * pair
        copied = dy.concatenate([dy.pick(a, 0), dy.pick(b, i)])
        columns = dy.concatenate_cols([pair, pair])
        seen += [a, b, pair, own, copied]
        seen += [dy.affine_transform([x, net.out, pair]) for x in (bias, own, copied)]
        seen.append(dy.affine_transform([copied, net.out, columns]))
    return loss_of(seen[5:]), seen


def copies_used_twice(net: Net) -> Made:
    """Copies that another copy uses, which is needed late, and another batch, which is needed early."""
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    for _ in range(3):
        x = dy.tanh(net.input())
        pair = dy.concatenate([x, x])
        four = dy.concatenate([pair, pair])
        early = dy.tanh(dy.logistic(net.out * pair))
        late = dy.concatenate([early, four])
        seen += [x, pair, four, early, late]
        ends += [early, dy.tanh(late), dy.concatenate([x, late])]
    return loss_of(ends), seen


def attention(net: Net) -> Made:
    """Attention over sentences of different lengths: a call for each node.  Two queries share a memory."""
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    for length in LENGTHS:
        memory = dy.tanh(net.tensor(H, length))
        seen.append(memory)
        for _ in range(2):
            query = dy.tanh(net.input())
            keys = dy.colwise_add(memory, query)
            weights = dy.softmax(dy.transpose(keys) * query)
            found = memory * weights
            logs = dy.log_softmax(dy.cmult(weights, dy.transpose(dy.transpose(weights))))
            ends += [found, logs, dy.pick(weights, 0), keys]
            seen += [query, keys, weights, found, logs]
    return loss_of(ends), seen


def decoders(net: Net) -> Made:
    """LSTMs whose inputs are a vector and what they find in a sentence, for sentences of different lengths."""
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    W, Wh, b = net.parameter(4 * H, 2 * H), net.parameter(4 * H, H), net.parameter(4 * H)
    for length in LENGTHS:
        memory = dy.tanh(net.tensor(H, length))
        h, c = net.zero(), net.zero()
        for _ in range(4):
            weights = dy.softmax(dy.transpose(memory) * h)
            context = memory * weights
            x = dy.concatenate([dy.tanh(net.input()), context])
            gates = dy.vanilla_lstm_gates(x, h, W, Wh, b)
            c = dy.vanilla_lstm_c(c, gates)
            h = dy.vanilla_lstm_h(c, gates)
            seen += [memory, weights, context, x, gates, c, h]
        ends.append(h)
    return loss_of(ends), seen


def broadcast_biases(net: Net) -> Made:
    """Biases of matrices: vectors, matrices, inputs; one that is a matrix of a product too."""
    b, v = dy.parameter(net.start[0]), dy.parameter(net.parameter(2))
    seen: list[dy.Expression] = []
    ends: list[dy.Expression] = []
    for columns in (1, 3, 3, 2):
        x = net.tensor(2 * H, columns)
        y = dy.affine_transform([v, net.out, x])
        z = dy.affine_transform([b, b, net.tensor(1, columns)])
        w = dy.affine_transform([y, net.out, x])
        seen += [y, z, w]
        ends += [dy.tanh(y), dy.tanh(dy.affine_transform([net.input(), b, dy.sum_elems(y)])), dy.tanh(z), w]
    return loss_of(ends), seen


# ---- elementwise batches that follow each other, which one fused kernel computes ---------


def each(make: Callable[[Net], dy.Expression]) -> Callable[[Net], Made]:
    """A program of some equal nodes."""

    def program(net: Net) -> Made:
        made = [make(net) for _ in range(COUNT)]
        return loss_of(made), made

    program.__name__ = make.__name__
    return program


@each
def gated(net: Net) -> dy.Expression:
    """Gates in DyNet's style: every part of the sums is used."""
    i, o, u, f, g = net.gates()
    c = dy.cmult(dy.logistic(i), dy.tanh(u)) + dy.cmult(dy.logistic(f), net.affine())
    return dy.cmult(dy.logistic(o), dy.tanh(c + dy.cmult(dy.logistic(g), net.affine())))


@each
def some_parts(net: Net) -> dy.Expression:
    """Parts of the sums that are not used get a gradient of zero."""
    gates = net.gates()
    return dy.tanh(dy.cmult(gates[1], dy.logistic(gates[3])))


@each
def overlapping_parts(net: Net) -> dy.Expression:
    """Backward runs batch by batch."""
    gates = dy.affine_transform([*net.sums, net.input()])
    return dy.tanh(dy.cmult(dy.pick_range(gates, 0, H), dy.pick_range(gates, 3, H + 3)))


def shared_argument(net: Net) -> Made:
    """All instances add to the gradient of one vector."""
    shared = net.affine()
    made = [dy.tanh(dy.cmult(dy.logistic(net.affine()), shared)) for _ in range(COUNT)]
    return loss_of(made), made


def argument_twice(net: Net) -> Made:
    """An instance adds twice to the gradient of an argument, which others use too."""
    xs = [net.affine() for _ in range(COUNT)]
    made = [dy.cmult(dy.tanh(x), dy.logistic(x)) for x in xs]
    return loss_of(made + xs), made


@each
def constants(net: Net) -> dy.Expression:
    """Ops with constants, of which there are different ones in different batches."""
    return dy.elu(0.5 * dy.clip(net.affine(), -0.3, 0.4) + 1.25, 0.75) * 2


@each
def sums(net: Net) -> dy.Expression:
    x, y = net.affine(), net.affine()
    return dy.tanh(dy.esum([dy.square(x), y, dy.cmult(x, y)]))


@each
def inputs(net: Net) -> dy.Expression:
    """Arguments without a gradient."""
    return dy.tanh(dy.cmult(net.input(), net.affine()) - net.input())


@each
def minibatches(net: Net) -> dy.Expression:
    return dy.cmult(dy.tanh(net.affine(3)), dy.logistic(net.affine(3)))


def one_instance(net: Net) -> Made:
    made = [dy.tanh(dy.logistic(dy.square(net.affine())))]
    return loss_of(made), made


@each
def long_chains(net: Net) -> dy.Expression:
    """More batches than a run has."""
    x = net.affine()
    for _ in range(40):
        x = dy.tanh(x + 0.1)
    return x


def used_in_between(net: Net) -> Made:
    """Results within a run get a gradient from elsewhere too, in some instances."""
    xs = [dy.tanh(net.affine()) for _ in range(COUNT)]
    made = [dy.cmult(x, dy.logistic(x)) for x in xs] + xs[1::2]
    return loss_of(made), made


def different_instances(net: Net) -> Made:
    """No run: the instances differ."""
    xs = [dy.tanh(net.affine()) for _ in range(COUNT)]
    made = [dy.cmult(x, dy.logistic(x) if i % 2 else dy.logistic(net.affine())) for i, x in enumerate(xs)]
    return loss_of(made), made


# ---- several forward passes before backward ----------------------------------------------


def layer(net: Net, x: dy.Expression) -> dy.Expression:
    return asked(dy.tanh(dy.affine_transform([net.b, net.w, x])))


def two_layers(net: Net) -> Made:
    return loss_of([asked(net.u * layer(net, x)) for x in net.xs]), net.xs[:2]


def sequences(net: Net) -> Made:
    """Steps that need each other, in sequences of different lengths; their states are concatenated too."""
    ends = []
    for length in (1, 6, 3, 2, 6):
        states = [net.xs[length]]
        for k in range(length):
            both = dy.affine_transform([net.b, net.w, net.xs[k], net.u, states[-1]])
            states.append(asked(dy.logistic(both)))
        ends.append(asked(net.v * states[-1] + states[0]))
        ends.append(asked(dy.concatenate(states[-2:])))
    return loss_of(ends), net.xs[:2]


def several_functions(net: Net) -> Made:
    """Functions of which backward reads the argument, the result, both; one value has two users."""
    ends = []
    for x in net.xs[:5]:
        y = asked(net.w * x)
        ends += [asked(dy.rectify(y)), asked(dy.square(dy.tanh(y))), asked(dy.exp(y)), asked(dy.logistic(y))]
    return loss_of(ends), net.xs[:2]


def biases(net: Net) -> Made:
    """Shared biases, those of each node and of several columns, and a vector that several products share."""
    xs = [asked(dy.tanh(x)) for x in net.xs[:4]]
    made = [asked(dy.affine_transform([xs[k // 2], net.w, xs[3 - k], net.u, xs[0]])) for k in range(4)]
    pairs = [dy.concatenate_cols([made[k], xs[k]]) for k in range(4)]
    wide = [asked(dy.affine_transform([net.b, net.v, x])) for x in pairs]
    ends = [dy.sum_elems(dy.square(dy.affine_transform([x, net.v, y]))) for x, y in zip(wide, pairs)]
    return dy.esum(ends), net.xs[:2]


def minibatches_in_passes(net: Net) -> Made:
    hidden = [layer(net, x) for x in [*(net.input(3) for _ in range(5)), net.xs[1]]]
    both = [asked(dy.affine_transform([hidden[-1], net.u, x])) for x in hidden[:-1]]
    return loss_of([net.v * x for x in both]), net.xs[:2]


def some_unused(net: Net) -> Made:
    hidden = [layer(net, x) for x in net.xs]
    return loss_of([asked(net.u * x) for x in hidden][::3]), net.xs[:2]


def cells_in_turn(net: Net) -> Made:
    """LSTMs of which each step is a pass, over sequences of different lengths."""
    ends = []
    for length in (4, 7, 1, 5):
        h, c = net.zero(), net.zero()
        for x in net.xs[:length]:
            _, c, h = net.step(0, x, h, c)
            ends.append(asked(net.u * asked(h)))
    return loss_of(ends), net.xs[:2]


def states_of_cells(net: Net) -> Made:
    """Cells in one pass, after others: what uses a state runs backward before the launch of its cell."""
    ends = [layer(net, x) for x in net.xs[:3]]
    for _, c, h in net.chain(0, net.xs[:4]):
        ends += [dy.tanh(net.w * dy.tanh(net.u * c)), dy.square(h)]
    return loss_of(ends), net.xs[:2]


def parts_of_runs(net: Net) -> Made:
    """The same for values within a fused run, in the second of two passes."""
    asked(dy.pick_range(dy.concatenate(net.xs[:2]), 1, 5))
    within = dy.tanh(dy.affine_transform([net.xs[4], net.w, net.xs[5]]))
    ends = [dy.cmult(within, dy.logistic(net.xs[6])), dy.tanh(dy.affine_transform([within, net.w, net.xs[7]]))]
    return loss_of(ends), net.xs[4:8]


# ---- reshaped values that are parts of the memory of their arguments ---------------------


def transposed_scores(net: Net) -> Made:
    """Scores of sentences of different lengths are transposed: each is used once."""
    ends = []
    for length in (3, 5, 1, 5):
        memory = dy.tanh(net.tensor(H, length))
        scores = net.row * dy.tanh(net.w * memory)
        ends.append(memory * dy.softmax(dy.transpose(scores)))
    return loss_of(ends), []


def reshaped(net: Net) -> Made:
    """Reshaped values of one size, with one user, with two, and reshaped twice."""
    xs = [dy.tanh(net.w * net.tensor(H, 4)) for _ in range(4)]
    lines = [dy.reshape(x, (4 * H,)) for x in xs]
    both = [dy.reshape(x, (4, H)) for x in xs[:2]]
    again = [dy.reshape(dy.reshape(dy.exp(x), (2 * H, 2)), (2, 2 * H)) for x in lines]
    return loss_of([*both, *again, *[dy.logistic(x) for x in lines]]), []


def views_that_are_held(net: Net) -> Made:
    xs = [dy.tanh(net.w * net.tensor(H, 2)) for _ in range(3)]
    views = [dy.reshape(x, (2 * H,)) for x in xs]
    return loss_of([dy.exp(x) for x in views[:2]]), views[:2] + xs[:2]


def outputs_of_cells(net: Net) -> Made:
    """States of LSTM cells are reshaped, and cells continue from reshaped states."""
    ends = []
    for length in (2, 3, 1):
        h, c = net.input(), net.input()
        for _ in range(length):
            _, c, h = net.step(0, net.input(), h, c)
            h = dy.reshape(dy.reshape(h, (1, H)), (H,))
        ends.append(dy.reshape(dy.tanh(c), (1, H)) * h)
    return loss_of(ends), []


def used_later(net: Net) -> Made:
    """A value that is the argument of a view is used by a later pass too."""
    xs = [dy.tanh(net.w * net.tensor(H, 3)) for _ in range(3)]
    lines = [dy.reshape(x, (3 * H,)) for x in xs]
    first = asked(loss_of([dy.logistic(x) for x in lines]))
    more = asked(loss_of([dy.exp(x) for x in xs[:2]]))
    return first + more + loss_of([dy.square(x) for x in lines]), []


Program = Callable[[Net], Made]
# Fused runs have the bits of separate launches, where no gradient has three or more contributions.
SAME_BITS: list[Program] = [
    gated, some_parts, constants, inputs, minibatches, one_instance, long_chains, different_instances,
]  # fmt: skip
PROGRAMS: list[Program] = [
    both_directions, chains, learned_start, shared_state, states_only, minibatches_of_cells, concatenations,
    affine_maps, copies_used_twice, attention, decoders, broadcast_biases, *SAME_BITS, overlapping_parts,
    shared_argument, argument_twice, sums, used_in_between, two_layers, sequences, several_functions, biases,
    minibatches_in_passes, some_unused, cells_in_turn, states_of_cells, parts_of_runs, transposed_scores, reshaped,
    views_that_are_held, outputs_of_cells, used_later,
]  # fmt: skip
