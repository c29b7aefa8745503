"""Random graphs over sentences of different lengths, with separate seeds for structure and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import dynet_cy as dy

N = 6


class Model:
    """Parameters of random graphs."""

    def __init__(self) -> None:
        rng = np.random.default_rng(17)
        pc = self.collection = dy.ParameterCollection()
        self.w, self.u = (pc.parameters_from_numpy(rng.uniform(-1, 1, (N, N))) for _ in range(2))
        self.b = pc.parameters_from_numpy(rng.uniform(-1, 1, N))
        self.v = pc.parameters_from_numpy(rng.uniform(-1, 1, (1, N)))
        self.table, self.other = (pc.lookup_parameters_from_numpy(rng.uniform(-1, 1, (20, N))) for _ in range(2))

    def gradients(self) -> list[np.ndarray]:
        """The gradients of all parameters; they are set to zero."""
        stored = [self.w, self.u, self.b, self.v, self.table]
        found = [p.grad_as_array().astype(np.float64) for p in stored]
        for p in stored:
            p.scale_gradient(0)
        return found


def build(m: Model, structure: int, numbers: int, look: float = 0.0) -> list[Any]:
    """One scalar for each sentence.  `numbers` chooses words, elements and inputs, `structure` everything else.

    `look` is the probability that a value is requested on the way.
    """
    choose, fill, looks = (np.random.default_rng(seed) for seed in (structure, numbers, structure + 1))
    return [sentence(m, choose, fill, looks, look) for _ in range(int(choose.integers(2, 7)))]


def sentence(
    m: Model, choose: np.random.Generator, fill: np.random.Generator, looks: np.random.Generator, look: float
) -> Any:
    words = [m.table[int(fill.integers(20))] for _ in range(int(choose.integers(1, 6)))]
    words.append(dy.inputVector(fill.uniform(-1, 1, N)))
    pool, scalars = list(words), []
    state = m.b + pool[0]
    for _ in range(int(choose.integers(2, 12))):
        kind = int(choose.integers(11))
        x, y = (pool[int(choose.integers(len(pool)))] for _ in range(2))
        if kind == 0:
            pool.append(dy.tanh(dy.affine_transform([m.b, m.w, x, m.u, y])))
        elif kind == 1:
            pool.append(dy.logistic(m.w * x) - y)
        elif kind == 2:
            pool.append(dy.cmult(x, y) + m.b)
        elif kind == 3:
            scalars.append(dy.pick(x, int(fill.integers(N))))
        elif kind == 4:
            scalars.append(dy.pickneglogsoftmax(m.u * x, int(fill.integers(N))))
        elif kind == 5:
            pool.append(dy.concatenate([dy.pick_range(x, 3, N), dy.pick_range(y, 0, 3)]))
        elif kind == 6:
            scalars.append(dy.dot_product(x, y))
        elif kind == 7:
            memory = dy.concatenate_cols(pool)
            scores = m.v * dy.tanh(dy.colwise_add(m.w * memory, m.u * state))
            state = dy.tanh(memory * dy.softmax(dy.transpose(scores)))
        elif kind == 8:
            memory = dy.concatenate_cols(pool)
            mask = dy.inputTensor(fill.uniform(0, 1, (1, len(pool))))
            scalars.append(dy.sum_elems(dy.sum_dim(dy.cmult(m.u * memory, mask), [1])))
            state = dy.max_dim(memory + m.b, 1)
        elif kind == 9:
            scores = dy.transpose(dy.concatenate_cols(pool)) * m.b
            scalars.append(dy.pickneglogsoftmax(scores, int(fill.integers(len(pool)))))
            scalars.append(dy.mean_elems(dy.log_softmax(scores)))
        else:
            memory = dy.concatenate_cols(pool)
            state = memory * dy.log_softmax(dy.transpose(memory) * dy.tanh(state)) * 0.1
        if looks.random() < look:
            (pool[-1] if kind < 6 else state).npvalue()
    scalars.append(dy.squared_norm(state))
    return dy.esum(scalars)
