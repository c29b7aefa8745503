"""One large sparse graph: two layers that add the states of neighbours, forward and backward, in dynet_cy and PyTorch.

    python benchmarks/sparse_graph.py                  # needs PyTorch in the same environment
    python benchmarks/sparse_graph.py --nodes 20000 --edges 200000 --width 128

The states of all nodes are one matrix, a column for each; a layer multiplies it by its weights, takes the column of the
source of each edge, and adds it to that of the target (Kipf and Welling 2017, Semi-supervised classification with graph
convolutional networks). PyTorch has rows for columns. Both run on one thread, in turns; the medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import dynet_cy as dy

LAYERS = 2
Step = Callable[[], float]


def with_dynet(states: np.ndarray, weights: list[np.ndarray], sources: np.ndarray, targets: np.ndarray) -> Step:
    model = dy.ParameterCollection()
    own = [model.parameters_from_numpy(w) for w in weights]
    n = states.shape[1]

    def step() -> float:
        dy.renew_cg()
        h = dy.inputTensor(states)
        for w in own:
            h = dy.rectify(dy.scatter_cols(dy.select_cols(w * h, sources), targets, n))
        loss = dy.sum_elems(h)
        value = loss.value()
        loss.backward()
        return value

    return step


def with_torch(states: np.ndarray, weights: list[np.ndarray], sources: np.ndarray, targets: np.ndarray) -> Step:
    import torch

    torch.set_num_threads(1)
    own = [torch.tensor(w.T.copy(), requires_grad=True) for w in weights]
    x, source, target = torch.tensor(states.T.copy()), torch.tensor(sources), torch.tensor(targets)

    def step() -> float:
        h = x
        for w in own:
            products = h @ w
            messages = products.index_select(0, source)
            h = torch.relu(torch.zeros_like(products).index_add(0, target, messages))
        loss = h.sum()
        loss.backward()
        return float(loss.detach())

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--edges", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=30)
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    states = rng.standard_normal((args.width, args.nodes)).astype(np.float32)
    shape = (args.width, args.width)
    weights = [(rng.standard_normal(shape) / args.width**0.5 / 3).astype(np.float32) for _ in range(LAYERS)]
    sources, targets = rng.integers(args.nodes, size=(2, args.edges))
    steps = {f.__name__[5:]: f(states, weights, sources, targets) for f in (with_dynet, with_torch)}
    losses = {name: step() for name, step in steps.items()}
    np.testing.assert_allclose(losses["dynet"], losses["torch"], rtol=1e-4)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(args.repeat):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    for name, own in seconds.items():
        print(f"{name}: {1000 * statistics.median(own):.1f} ms a step, {1000 * min(own):.1f} at best")


if __name__ == "__main__":
    main()
