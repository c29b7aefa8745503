"""Trains by steps in Python; writes the parameters to FOLDER/RANK.npz, or the error to RANK.txt."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import dynet_cy as dy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "train"))
from python_trainers import Adam


def train() -> dict[str, np.ndarray]:
    """The parameters after six updates with 4 examples each, whatever the number of processes."""
    dy.reset_random_seed(3)
    m = dy.ParameterCollection()
    W, b, E = m.add_parameters((4, 5)), m.add_parameters(4), m.add_lookup_parameters((12, 5))
    far = m.add_parameters((90, 100))  # not next to the others in memory
    near = m.add_parameters(4)
    trainer = Adam(m, 0.05)
    trainer.group(b, learning_rate=0.01, weight_decay=0.1)
    trainer.set_clip_threshold(0.5)
    trainer.schedule = dy.LinearSchedule(10, end=0.5)
    trainer = dy.parallel.wrap(trainer)
    rank, size = dy.parallel.rank(), dy.parallel.size()
    for k in range(6):
        own = range(4 * k, 4 * k + 4)[rank::size]
        dy.renew_cg()
        terms = [dy.pickneglogsoftmax(W * (E[i % 12] + E[i * 5 % 12]) + b + near, i % 4) for i in own]
        (dy.average(terms) + dy.squared_norm(far)).backward()
        trainer.update()
    return {"W": W.as_array(), "b": b.as_array(), "E": E.as_array(), "far": far.as_array(), "near": near.as_array()} | {
        "norm": np.array(trainer.gradient_norm)
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    rank = dy.parallel.rank()
    try:
        np.savez(folder / f"{rank}.npz", **train())
    except RuntimeError as error:
        (folder / f"{rank}.txt").write_text(str(error), encoding="utf-8")
