"""Errors of parameters on GPUs; every rank prints the error of each case."""

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


def places() -> None:
    """A parameter is on the CPU of one rank and on the GPU of another."""
    m = model()[0]
    m.add_parameters(3, device="CPU", name="b")
    m.add_parameters(4, device="CPU" if RANK else "GPU:0", name="c")
    dy.parallel.wrap(dy.AdamTrainer(m))


def adopted() -> None:
    """All parameters get the values of rank 0, on whatever device they are."""
    m = dy.ParameterCollection()
    own = [m.add_parameters(3, init=RANK + 1.0, device=device) for device in ("CPU", "GPU:0")]
    dy.parallel.wrap(dy.AdamTrainer(m))
    for p in own:
        assert (p.as_array() == 1).all(), p.as_array()


def added() -> None:
    """A parameter on the GPU is added to a model on the CPU after its trainer was wrapped."""
    m = dy.ParameterCollection()
    p = m.add_parameters(3, device="CPU")
    trainer = dy.parallel.wrap(dy.AdamTrainer(m))
    m.add_parameters(3, device="GPU:0")
    dy.renew_cg()
    dy.sum_elems(p).backward()
    trainer.update()


def infinite() -> None:
    """The error is raised at once on all ranks, and nothing changes."""
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
        assert np.isinf(p.grad_as_array()).any() == (RANK == 1), "each rank keeps its own gradients"


def asynchronous() -> None:
    dy.parallel.wrap(dy.AdamTrainer(model()[0]))


def main() -> None:
    print("GPU", config.get()["gpu_mask"], flush=True)
    together = [devices, places, adopted, added, infinite]
    cases: list[Callable[[], None]] = [asynchronous] if dy.parallel.mode() == "async" else together
    for case in cases:
        try:
            case()
        except RuntimeError as error:
            print(f"in {case.__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
