"""Speed of each kernel per instruction set, and the limit set by its loads and stores: python benchmarks/kernels.py

Prints nanoseconds per element for vectors of 32,768 floats, which fit into the second-level cache: the minimum over
many calls, minus the time of a call without elements. After it comes the ratio to the time of the loads and stores
alone: a load costs as much as in `sum`, a store as much as in `fill`, and both run in parallel. If a kernel is slower
with a wider instruction set, or many times slower than its loads and stores without expensive mathematics, the
compiler has probably not vectorized it.
"""

from __future__ import annotations

import argparse
import ctypes
import time

import numpy as np

from dynet_cy.kernels import kernels

N = 32_768
P, F, I, Z = ctypes.c_void_p, ctypes.c_float, ctypes.c_int, ctypes.c_size_t  # noqa: E741


class Hyper(ctypes.Structure):
    _fields_ = [(name, F) for name in ("lr", "grad_scale", "step_scale", "b1", "b2", "eps")]


HYPER = Hyper(1e-3, 1.0, 1.0, 0.9, 0.999, 1e-8)
RNG = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64, Z)


def table() -> dict[str, tuple[int, int, tuple, tuple]]:
    """Loads and stores per element, types of the arguments after the number of elements, and the arguments."""
    r = np.random.default_rng(0)
    x, y, dy, out, s0, s1, s2 = (P(a.ctypes.data) for a in keep(r.uniform(0.5, 1.5, (7, N)).astype(np.float32)))
    h = P(ctypes.addressof(HYPER))
    rows: dict[str, tuple[int, int, tuple, tuple]] = {
        "fill": (0, 1, (F, P), (1.0, out)),
        "sum": (1, 0, (P,), (x,)),
        "scale": (1, 1, (F, P, P), (1.5, x, out)),
        "add": (2, 1, (P, P), (x, out)),
        "axpy": (2, 1, (F, P, P), (1e-9, x, out)),
        "dot": (2, 0, (P, P), (x, y)),
        "sumsq": (1, 0, (P,), (x,)),
        "max": (1, 0, (P,), (x,)),
        "all_finite": (1, 0, (P,), (x,)),
    }
    for name in ("rectify", "abs", "sqrt", "floor", "round", "exp", "log", "tanh", "logistic", "softplus", "erf"):
        rows[f"unary_fwd.{name}"] = (1, 1, (P, F, F, P), (x, 0.0, 0.0, out))
    for name in ("rectify", "sqrt", "tanh", "logistic"):
        rows[f"unary_bwd.{name}"] = (2, 1, (P, P, P, F, F, P, I), (x, y, dy, 0.0, 0.0, out, 0))
    for name in ("mul", "div", "max"):
        rows[f"binary_fwd.{name}"] = (2, 1, (P, I, P, I, P), (x, 1, y, 1, out))
    for name, states in kernels.optim_states().items():
        planes = [s if k < states else None for k, s in enumerate((s0, s1, s2))]
        rows[f"optim.{name}"] = (2 + states, 1 + states, (P,) * 6, (h, dy, out, *planes))
    for name in ("uniform", "normal"):
        rows[f"rng.{name}"] = (0, 1, (F, F, P), (0.0, 1.0, out))
    return rows


KEPT: list[np.ndarray] = []


def keep(arrays: np.ndarray) -> np.ndarray:
    KEPT.append(arrays)
    return arrays


def least(function, head: tuple, n: int, rest: tuple, seconds: float) -> float:
    """Nanoseconds of the fastest call."""
    best, end = float("inf"), time.perf_counter() + seconds
    while True:  # at least once, also where another process has the core for that long
        for _ in range(20):
            begun = time.perf_counter_ns()
            function(*head, n, *rest)
            best = min(best, time.perf_counter_ns() - begun)
        if time.perf_counter() >= end:
            return best


def measure(addresses: dict[str, int], seconds: float) -> dict[str, tuple[float, int, int]]:
    """Nanoseconds per element, loads and stores of every kernel."""
    found = {}
    for name, (loads, stores, types, arguments) in table().items():
        head = (1, 0, 0, 0) if name.startswith("rng.") else ()
        result = F if name in ("sum", "sumsq", "dot", "max") else None
        function = ctypes.CFUNCTYPE(result, *(RNG if head else ()), Z, *types)(addresses[name])
        empty = least(function, head, 0, arguments, seconds / 4)
        found[name] = max(least(function, head, N, arguments, seconds) - empty, 1) / N, loads, stores
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each kernel and instruction set")
    seconds = parser.parse_args().seconds
    tables = kernels.tables()
    isas = list(reversed(tables))  # the best first
    results = {isa: measure(tables[isa], seconds) for isa in isas}
    print(f"\n{kernels.isa()} is the instruction set in use\n")
    print("| kernel | loads, stores | " + " | ".join(isas) + " |")
    print("|---|---|" + "---|" * len(isas))
    for name, (_, loads, stores) in results[isas[0]].items():
        cells = []
        for isa in isas:
            times = results[isa]
            allowed = max(loads * times["sum"][0], stores * times["fill"][0])
            cells.append(f"{times[name][0]:.3f} ({times[name][0] / allowed:.1f})")
        print(f"| `{name}` | {loads}, {stores} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
