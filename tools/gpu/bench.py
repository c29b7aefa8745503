#!/usr/bin/env python3
"""Measures the costs that the design of the executor is based on: launches, waits, copies, products.

python tools/gpu/bench.py                              on GPU:0
python tools/gpu/emulate.py python tools/gpu/bench.py  to test that it runs; the times are meaningless
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.gpu.driver import device_name, synchronize
from dynet_cy.graph.expressions import set_default_device

EMULATED = False


def best(action: Callable[[], object], repeats: int = 10) -> float:
    """Seconds of the fastest of several runs, after a warm-up run."""
    action()
    times = []
    for _ in range(1 if EMULATED else repeats):
        begun = time.perf_counter()
        action()
        times.append(time.perf_counter() - begun)
    return min(times)


def row(what: str, seconds: float, note: str = "") -> None:
    print(f"{what:58} {seconds * 1e6:12.2f} us  {note}")


def chain(n: int, wait: bool) -> Callable[[], None]:
    """A chain of n small nodes."""

    def run() -> None:
        dy.renew_cg(autobatching=0)
        x = dy.inputVector([0.5] * 128)
        for _ in range(n):
            x = dy.tanh(x)
        x.forward()
        if wait:
            synchronize(0)

    return run


def main() -> None:
    global EMULATED
    dy.get_device_info("GPU:0")
    set_default_device(1)
    print(device_name(0))
    EMULATED = "emulation" in device_name(0).lower()
    n = 20 if EMULATED else 2000
    built = best(lambda: [dy.renew_cg(), [dy.tanh(dy.inputVector([0.5])) for _ in range(n)]]) / n
    row("making a node, on the host, each", built)
    row("making and launching a node without waiting, each", best(chain(n, wait=False)) / n)
    row("the same, waited for at the end, each", best(chain(n, wait=True)) / n)
    row("a wait with nothing to wait for", best(lambda: synchronize(0)))
    for size in (1, 1 << 12, 1 << 20):
        values = np.ones(size, np.float32)

        def there_and_back(values: np.ndarray = values) -> None:
            dy.renew_cg()
            (dy.inputTensor(values) * 2).npvalue()

        row(f"{4 * size} bytes to the device, one launch, and back", best(there_and_back))
    model = dy.ParameterCollection()
    m, k = (32, 16) if EMULATED else (800, 200)
    weights = model.add_parameters((m, k))
    for columns in (1, 8, 32, 128):
        inputs = [np.ones(k, np.float32)] * columns
        for autobatch, name in ((0, "one by one"), (1, "autobatched")):

            def products(inputs: list[np.ndarray] = inputs, autobatch: int = autobatch) -> None:
                dy.renew_cg(autobatching=autobatch)
                loss = dy.sum_elems(dy.esum([weights * dy.inputVector(x) for x in inputs]))
                loss.backward()
                synchronize(0)

            before = engine.stats("gpu.0")
            products()
            after = engine.stats("gpu.0")
            launches = after["launches"] + after["products"] - before["launches"] - before["products"]
            row(f"W {m}x{k}, {columns} products and their gradients, {name}", best(products), f"{launches} launches")
    set_default_device(0)


if __name__ == "__main__":
    main()
