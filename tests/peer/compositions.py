"""Random graphs of 5 to 15 ops on vectors and matrices, with and without batches, the same in both libraries.

As a program, it writes the results of DyNet, so that DyNet can run with its own options:
``python compositions.py FILE SEEDS --dynet-autobatch 1``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

N, M, BATCH = 4, 3, 3

UNARY = ["tanh", "logistic", "sin", "cos", "atan", "softsign", "erf", "elu", "selu", "square", "cube", "rectify", "abs"]
UNARY += ["log_sigmoid", "asinh", "sinh", "cosh", "exp", "silu", "tan", "asin", "acos", "atanh", "nobackprop"]


def bounded(name: str, dy: Any, x: Any) -> Any:
    """A function of x, scaled to -0.9 to 0.9, where all of these functions are defined."""
    if name == "softsign" and len(x.dim()[0]) > 1:  # DyNet's takes only vectors
        name = "atan"
    return getattr(dy, name)(dy.tanh(x) * 0.9)


def size_of(x: Any) -> int:
    return x.dim()[1]


# Ops on one vector, two vectors, a matrix, a matrix and a vector: each gives a vector, a matrix or a scalar.
# DyNet's min, max and mean need equal batch sizes.
ONE: dict[str, Callable] = {
    "softmax": lambda dy, x: dy.softmax(x),
    "log_softmax": lambda dy, x: dy.log_softmax(x),
    "scale": lambda dy, x: x * 0.7 - 0.2,
    "negate": lambda dy, x: -x,
    "cumsum": lambda dy, x: dy.cumsum(x),
    "reverse": lambda dy, x: dy.select_rows(x, list(range(N))[::-1]),
    "swap": lambda dy, x: dy.concatenate([dy.pick_range(x, 2, N), dy.pick_range(x, 0, 2)]),
    "sum": lambda dy, x: dy.sum_elems(x),
    "mean": lambda dy, x: dy.mean_elems(x),
    "deviation": lambda dy, x: dy.std_elems(x),
    "norm": lambda dy, x: dy.squared_norm(x),
    "pick": lambda dy, x: dy.pick(x, 1),
    "index": lambda dy, x: x[2],
    "max": lambda dy, x: dy.max_dim(x),
    "min": lambda dy, x: dy.min_dim(x),
    "logsumexp": lambda dy, x: dy.logsumexp_dim(x),
    "as matrix": lambda dy, x: dy.concatenate_cols([x] * M),
    "scaled gradient": lambda dy, x: dy.scale_gradient(x, 0.5),
    "flipped gradient": lambda dy, x: dy.flip_gradient(x),
    "mean of batch": lambda dy, x: dy.mean_batches(x),
    "sum of batch": lambda dy, x: dy.sum_batches(x) * 0.3,
}
TWO: dict[str, Callable] = {
    "add": lambda dy, x, y: x + y,
    "subtract": lambda dy, x, y: x - y,
    "multiply": lambda dy, x, y: dy.cmult(x, y),
    "sum of three": lambda dy, x, y: dy.esum([x, y, x]),
    "dot": lambda dy, x, y: dy.dot_product(x, y),
    "distance": lambda dy, x, y: dy.squared_distance(x, y),
    "greater": lambda dy, x, y: dy.bmax(x, y) if size_of(x) == size_of(y) else x - y,
    "less": lambda dy, x, y: dy.bmin(x, y) if size_of(x) == size_of(y) else x + y,
    "average": lambda dy, x, y: dy.average([x, y]) if size_of(x) == size_of(y) else x + y * 0.5,
    "logsumexp": lambda dy, x, y: dy.logsumexp([x, y]) if size_of(x) == size_of(y) else x - y * 0.5,
    "quotient": lambda dy, x, y: dy.cdiv(x, dy.square(y) + 1.0) if size_of(x) >= size_of(y) else x,
    "outer": lambda dy, x, y: x * dy.pick_range(dy.transpose(y), 0, M, 1),
}
MATRIX: dict[str, Callable] = {
    "column": lambda dy, m: dy.pick(m, 1, 1),
    "columns": lambda dy, m: dy.select_cols(m, [2, 0, 1]),
    "sum": lambda dy, m: dy.sum_dim(m, [1]),
    "mean": lambda dy, m: dy.mean_dim(m, [1], False),
    "deviation": lambda dy, m: dy.std_dim(m, [1], False),
    "max": lambda dy, m: dy.max_dim(m, 1),
    "softmax": lambda dy, m: dy.softmax(m, 1),
    "twice transposed": lambda dy, m: dy.transpose(dy.tanh(dy.transpose(m))),
    "reshaped": lambda dy, m: dy.reshape(m, (N, M), batch_size=size_of(m)),
    "picked": lambda dy, m: dy.kmax_pooling(m, M, 1),
    "elements": lambda dy, m: dy.mean_elems(m),
}
BOTH: dict[str, Callable] = {
    "columnwise": lambda dy, m, x: dy.colwise_add(m, x),
    "broadcast": lambda dy, m, x: dy.cmult(m, x),
    "attention": lambda dy, m, x: m * dy.softmax(dy.transpose(m) * x),
    "scores": lambda dy, m, x: dy.sum_elems(dy.transpose(m) * x),
}


def composition(dy: Any, seed: int) -> dict[str, Any]:
    """The results of a random graph: the name of each op, values, gradients of parameters."""
    rng = np.random.default_rng(seed)
    model = dy.ParameterCollection()
    w = model.parameters_from_numpy(rng.uniform(-1, 1, (N, N)))
    v = model.parameters_from_numpy(rng.uniform(-1, 1, N))
    k = model.parameters_from_numpy(rng.uniform(-1, 1, (N, M)))
    e = model.lookup_parameters_from_numpy(rng.uniform(-1, 1, (5, N)))
    inputs = [dy.inputTensor(rng.uniform(-1, 1, (N, BATCH)), batched=True), dy.inputTensor(rng.uniform(-1, 1, N))]
    inputs.append(dy.inputTensor(rng.uniform(-1, 1, (N, M, BATCH)), batched=True))
    rows = [int(i) for i in rng.integers(0, 5, BATCH + 1)]
    vectors: list[Any] = [v * 1.0, inputs[0], inputs[1], e[rows[0]], e.batch(rows[1:])]
    matrices: list[Any] = [k * 1.0, inputs[2]]
    names: list[str] = []
    found: list[Any] = []

    def one(pool: list[Any]) -> Any:
        return pool[int(rng.integers(len(pool)))]

    def some(ops: dict[str, Callable], *args: Any) -> Any:
        names.append(list(ops)[int(rng.integers(len(ops)))])
        return ops[names[-1]](dy, *args)

    for _ in range(int(rng.integers(5, 16))):
        kind = int(rng.integers(8))
        if kind == 0:
            y = some(ONE, one(vectors))
        elif kind in (1, 2):
            y = some(TWO, one(vectors), one(vectors))
        elif kind == 3:
            y = some(MATRIX, one(matrices))
        elif kind == 4:
            y = some(BOTH, one(matrices), one(vectors))
        elif kind == 5:
            names.append("affine")
            y = dy.affine_transform([v, w, one(vectors), w, one(vectors)])
        elif kind == 6:
            names.append("product")
            y = w * one([*vectors, *matrices])
        else:
            names.append(UNARY[int(rng.integers(len(UNARY)))])
            y = bounded(names[-1], dy, one([*vectors, *matrices]))
        shape = y.dim()[0]
        if shape == (N,):
            vectors.append(dy.tanh(y))
        elif shape == (N, M):
            matrices.append(dy.tanh(y))
        found.append(y)
    loss = dy.esum([dy.sum_batches(dy.sum_elems(dy.tanh(y * 0.5))) for y in found])
    loss.forward()
    values = [np.array(y.npvalue()) for y in found]
    loss.backward()
    gradients = [np.array(p.grad_as_array()) for p in (w, v, k, e)]
    values.append(np.array(loss.npvalue()))
    return {"ops": names, "dims": [y.dim() for y in found], "values": values, "gradients": gradients}


if __name__ == "__main__":
    import pickle

    import dynet
    from libraries import Library

    file, seeds = sys.argv[1], range(int(sys.argv[2]))
    everything = []
    for seed in seeds:
        dynet.renew_cg()
        everything.append(composition(Library(dynet), seed))
    with open(file, "wb") as out:
        pickle.dump(everything, out)
