"""What may go wrong where parameters live on GPUs; prints what is said of each on every rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import dynet_cy as dy
from dynet_cy import config

RANK = dy.parallel.rank()


def model() -> tuple[dy.ParameterCollection, dy.Parameters]:
    m = dy.ParameterCollection()
    return m, m.add_parameters((2, 3))


def devices() -> None:
    if RANK:
        config.set_gpu(False)
    try:
        dy.parallel.wrap(dy.AdamTrainer(model()[0]))
    finally:
        config.set_gpu()


def infinite() -> None:
    """At once, on all ranks, and nothing is changed."""
    m, p = model()
    trainer = dy.parallel.wrap(dy.MomentumSGDTrainer(m))
    before = p.as_array()
    dy.renew_cg()
    (dy.sum_elems(p) * (float("inf") if RANK else 1.0)).backward()
    try:
        trainer.update()
    finally:
        assert (p.as_array() == before).all()
        assert trainer._steps == 0
        assert np.isinf(p.grad_as_array()).any() == (RANK == 1), "each rank keeps its own"


def asynchronous() -> None:
    dy.parallel.wrap(dy.AdamTrainer(model()[0]))


def main() -> None:
    print("GPU", config.get()["gpu_mask"], flush=True)
    cases: list[Callable[[], None]] = [asynchronous] if dy.parallel.mode() == "async" else [devices, infinite]
    for case in cases:
        try:
            case()
        except RuntimeError as error:
            print(f"in {case.__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
