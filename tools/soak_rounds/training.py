"""Rounds on training: rules, groups, resumed processes, frozen parameters, GPUs."""

from __future__ import annotations

import os
import tempfile

import numpy as np

import dynet_cy as dy
from soak_rounds.programs import MANY_ROWS, ROWS, Engine, Model, Numpy, check, check_slope, close, program, same, slope

TRAINERS = (
    dy.SimpleSGDTrainer, dy.MomentumSGDTrainer, dy.AdagradTrainer, dy.AdadeltaTrainer, dy.RMSPropTrainer,
    dy.AdamTrainer, dy.AmsgradTrainer, dy.CyclicalSGDTrainer, dy.AdamWTrainer,
)  # fmt: skip


def make_trainer(kind, rng, models):
    """A trainer of one kind for each model, all with the same random settings."""
    decay, dense, grouped, average, clip = (bool(rng.integers(2)) for _ in range(5))
    rates = rng.uniform(0.5, 2, 2)
    trainers = []
    for model in models:
        trainer = kind(model.collection)
        model.collection.set_weight_decay_lambda(1e-3 if decay else 0)
        trainer.set_sparse_updates(not dense)
        trainer.set_clip_threshold(1.0 if clip else 5.0)
        if grouped:
            own = model.stored
            trainer.group([own["b"], own["gain"]], weight_decay=0)
            trainer.group(own["table"], learning_rate=trainer.learning_rate * rates[0], clip_threshold=0.5)
        if average:
            trainer.exponential_moving_average(0.9)
        trainers.append(trainer)
    return trainers


def train(model, trainer, seeds, autobatch, frozen=()):
    """A step for each seed, the first half of them with some parameters frozen."""
    for number, seed in enumerate(seeds):
        for name in frozen:
            model.stored[name].set_updated(2 * number >= len(seeds))
        model.loss(int(seed), autobatching=autobatch).backward()
        trainer.update()


def poison(model, trainer, rng):
    """A batch whose gradients are not finite changes nothing."""
    before = model.values()
    skipped = trainer._skipped
    dy.renew_cg()
    (dy.sum_elems(model.stored["b"] * float(rng.choice([np.nan, np.inf]))) + Engine(model).row(1)[0]).backward()
    trainer.update(skip_nonfinite=True)
    check(not np.isfinite(trainer.gradient_norm), f"the norm of a step that was dropped: {trainer.gradient_norm}")
    check(trainer._skipped == skipped + 1, "a step that is not finite was not counted as dropped")
    same(model.values(), before, "values after a step that was dropped")
    check(not any(g.any() for g in model.gradients().values()), "gradients of a step that was dropped")


def training(rng):
    """Three equal models, trained with three schedules; one has steps that are dropped, one is saved and loaded."""
    start, seeds = rng.integers(1 << 30), rng.integers(1 << 30, size=6)
    kind = TRAINERS[rng.integers(len(TRAINERS))]
    settings = int(rng.integers(1 << 30))
    rows = int(rng.choice([ROWS, MANY_ROWS]))
    models = one, other, third = [Model(seed, rows=rows) for seed in (start, start, start + 1)]
    trainers = make_trainer(kind, np.random.default_rng(settings), models)
    train(one, trainers[0], seeds, 0)
    train(other, trainers[1], seeds[:2], 1)
    poison(other, trainers[1], rng)
    train(other, trainers[1], seeds[2:3], 1)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "state.safetensors")
        dy.save_safetensors(file, other.collection, trainers[1])
        dy.load_safetensors(file, third.collection, trainers[2])
    train(other, trainers[1], seeds[3:], 2)
    train(third, trainers[2], seeds[3:], 2)
    same(third.values(), other.values(), f"parameters trained on from a file by {kind.__name__}")
    # Steps of Adagrad and others divide by small numbers.
    close(other.values(), one.values(), f"parameters trained by {kind.__name__}", 2e-2)


def frozen(rng):
    """Frozen parameters keep their values, have no gradient, and do not contribute to the norm."""
    start, seeds = rng.integers(1 << 30), rng.integers(1 << 30, size=4)
    kind = TRAINERS[rng.integers(len(TRAINERS))]
    settings = int(rng.integers(1 << 30))
    models = model, _ = Model(start), Model(start)
    trainers = make_trainer(kind, np.random.default_rng(settings), models)
    names = rng.choice(sorted(model.stored), size=int(rng.integers(1, 4)), replace=False)
    before = model.values()
    for name in names:
        model.stored[name].set_updated(False)
    train(model, trainers[0], seeds[:2], 1)
    after = model.values()
    for name in names:
        same({name: after[name]}, {name: before[name]}, "frozen")
        model.stored[name].set_updated(True)
    # All programs use the table, but perhaps no other parameter that is not frozen.
    check("table" in names or (after["table"] != before["table"]).any(), "nothing was trained")
    train(model, trainers[0], seeds[2:], 1)
    train(models[1], trainers[1], seeds, 0, names)
    close(models[1].values(), model.values(), f"parameters trained by {kind.__name__}, frozen at first", 2e-2)


def saving(rng):
    """Models are loaded as they were saved, in every format."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    expected = model.loss(seed).value()
    with tempfile.TemporaryDirectory() as folder:
        base = os.path.join(folder, "model")
        model.collection.save(base + ".txt")
        other = Model(1)
        other.collection.populate(base + ".txt")
        close(other.loss(seed).value(), expected, "value after populate", 1e-5)
        dy.save(base, list(model.stored.values()))
        third = Model(2)
        third.stored = dict(zip(model.stored, dy.load(base, dy.ParameterCollection())))
        close(third.loss(seed).value(), expected, "value after dy.load", 1e-5)
        with open(base + ".txt", "r+b") as file:
            size = file.seek(0, 2)
            file.truncate(int(rng.integers(size // 2)))
        before = other.values()
        try:
            other.collection.populate(base + ".txt")
        except (ValueError, RuntimeError):
            pass
        else:
            check(False, "a file that was cut off was read")
        close(other.values(), before, "values after a failed populate", 0)


def gpu(rng):
    """Programs on a GPU, perhaps with their table on the CPU: values, gradients and training as on the CPU."""
    places = ("GPU:0", "GPU:0" if rng.integers(2) else "CPU")
    start, seeds = rng.integers(1 << 30), rng.integers(1 << 30, size=4)
    model, here = Model(start, *places), Model(start)
    before = model.values()
    direction = {name: rng.standard_normal(v.shape) for name, v in before.items()}
    seed = int(seeds[0])
    for autobatch in rng.permutation(3):
        loss = model.loss(seed, autobatching=int(autobatch))
        close(loss.value(), program(Numpy(before), seed), f"value on {places}")
        check_slope(model, seed, direction, slope(before, direction, seed), f"on {places}", loss)
    kind = TRAINERS[rng.integers(len(TRAINERS))]
    trainers = make_trainer(kind, rng, [model, here])
    train(here, trainers[1], seeds, 0)
    train(model, trainers[0], seeds[:2], 1)
    poison(model, trainers[0], rng)
    train(model, trainers[0], seeds[2:], 1)
    close(model.values(), here.values(), f"parameters trained on {places} by {kind.__name__}", 2e-2)
