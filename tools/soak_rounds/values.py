"""Rounds on values and gradients: schedules, plans, anomalies, lack of memory, reverts, mistakes, builders."""

from __future__ import annotations

import contextlib
import gc

import numpy as np

import dynet_cy as dy
from dynet_cy.core import engine
from dynet_cy.memory import arena
from soak_rounds.programs import (
    ROWS,
    Changed,
    Changing,
    Engine,
    Model,
    N,
    Numpy,
    check,
    check_slope,
    close,
    program,
    same,
    slope,
)


def values_and_gradients(rng):
    """Values and gradients agree with float64, for every schedule."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    before = model.values()
    expected = program(Numpy(before), seed)
    direction = {name: rng.standard_normal(v.shape) for name, v in before.items()}
    expected_slope = slope(before, direction, seed)
    first = None
    for autobatch in (0, 1, 2, 1):  # the second 1 takes the plan from the cache
        loss = model.loss(seed, autobatching=autobatch, check_validity=bool(rng.integers(2)))
        close(loss.value(), expected, f"value with autobatch {autobatch}")
        found = check_slope(model, seed, direction, expected_slope, f"with autobatch {autobatch}", loss)
        first = found if first is None else first
        close(found, first, f"gradient with autobatch {autobatch}", 1e-3)
    loss = model.loss(seed, forward_only=True)
    close(loss.value(), expected, "value of a forward-only graph")
    loss = model.loss(seed, immediate_compute=True)
    close(loss.value(), expected, "value of nodes computed at once")


def cached_plans(rng):
    """One structure several times, with different inputs and parameters: soon it is no longer scheduled."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    trainer = dy.SimpleSGDTrainer(model.collection, 0.01)
    for k in range(5):
        numbers = int(rng.integers(1 << 30))
        if k == 2:
            engine.stats("schedule.plan", reset=True)
        loss = model.loss(seed, numbers, autobatching=1 + k % 2 if k < 2 else 1)
        close(loss.value(), program(Numpy(model.values()), seed, numbers), f"value of repetition {k}")
        loss.backward()
        trainer.update()
    check(
        engine.stats("schedule.plan")["made"] <= 1,
        f"a structure was scheduled {engine.stats('schedule.plan')['made']} times more",
    )


def anomalies(rng):
    """Checks for anomalies change no results, and find the operation."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    found = []
    autobatch = int(rng.integers(3))
    for looking in (contextlib.nullcontext(), dy.detect_anomaly()):
        with looking:
            loss = model.loss(seed, autobatching=autobatch)
            value = loss.value()
            loss.backward()
        found.append({"value": np.float64(value), **model.gradients()})
        model.clear()
    same(found[1], found[0], "with detect_anomaly: bits")
    with dy.detect_anomaly():
        loss = model.loss(seed, autobatching=autobatch)
        row = model.stored["table"][3]
        backward = bool(rng.integers(2))
        wrong = dy.sqrt(dy.cmult(row, dy.zeros(N))) if backward else dy.log(row - row)
        total = loss + dy.sum_elems(wrong)
        try:
            total.value()
            total.backward()
        except dy.AnomalyError as error:
            check(("sqrt" if backward else "log") in str(error), f"anomaly: {error}")
        else:
            check(False, "an anomaly was not found")
    check(not any(g.any() for g in model.gradients().values()), "a gradient is left of an anomaly")
    close(loss.value(), program(Numpy(model.values()), seed), "value after an anomaly")


def out_of_memory(rng):
    """MemoryError wherever the limit is reached; what fits in a fresh process fits afterwards."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    autobatch = int(rng.integers(3))
    # Free what other rounds have left, so that this one cannot use it.
    dy.renew_cg()
    gc.collect()
    arena.give_back()
    left = int(rng.integers(1 << 20, 6 << 20))
    dy.config.set(mem=(arena.used_bytes() + left) / 2**20)
    try:
        with contextlib.suppress(MemoryError):
            loss = model.loss(seed, autobatching=autobatch)
            x = dy.tanh(
                model.stored["w"] * dy.concatenate_cols([model.stored["table"][1]] * int(rng.integers(100, 3000)))
            )
            for _ in range(int(rng.integers(1, 60))):
                x = dy.tanh(model.stored["u"] * x)
            loss = loss + dy.sum_elems(x)
            if rng.integers(2):
                loss.value()
            loss.backward()
        with contextlib.suppress(MemoryError):
            big = model.collection.add_parameters(int(rng.integers(1, 2 * left)))
            check(big.as_array().shape == big.shape(), "a parameter that was made")
        model.clear()
        loss = model.loss(seed, autobatching=autobatch)
        close(loss.value(), program(Numpy(model.values()), seed), "value after a lack of memory")
        loss.backward()
        check(any(g.any() for g in model.gradients().values()), "no gradient after a lack of memory")
    finally:
        dy.config.set(mem=0)


def reverts(rng):
    """Checkpoints of a graph, and errors when expressions after them are used."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    loss = model.loss(seed)
    expected = program(Numpy(model.values()), seed)
    for _ in range(int(rng.integers(1, 5))):
        dy.cg_checkpoint()
        extra = program(Engine(model), int(rng.integers(1 << 30)))
        if rng.integers(2):
            (extra + loss).value()
        if rng.integers(2):
            extra.backward()
        dy.cg_revert()
        try:
            extra.value()
        except RuntimeError:
            pass
        else:
            check(False, "an expression behind a checkpoint was used")
        close(loss.value(), expected, "value after a revert")


def _mistakes(model):
    w, x = model.stored["w"], dy.inputVector(np.ones(N))
    return [
        lambda: w * dy.inputVector(np.ones(N + 1)),
        lambda: dy.pick(x, N),
        lambda: model.stored["table"][ROWS],
        lambda: dy.concatenate([]),
        lambda: dy.reshape(x, (N + 1,)),
        lambda: (w * x).backward(),
        lambda: dy.pickneglogsoftmax(x, -1),
        lambda: dy.inputVector(["a"]),
        lambda: model.collection.add_parameters((-1, 2)),
        lambda: dy.AdamTrainer(None),
        lambda: dy.renew_cg(autobatching=9),
        lambda: dy.affine_transform([x, w]),
        lambda: dy.pick(x, 2**32 + 1),
        lambda: dy.pick_range(x, 0, 2**31),
        lambda: dy.pick(x, 0).set_index(2**32),
        lambda: dy.lookup(model.stored["table"], 1).set(2**32 + 1),
        lambda: dy.inputVector([1, 2]).set([1, 2, 3]),
        lambda: dy.SimpleSGDTrainer(model.collection).update_subset([w], []),
        lambda: dy.SimpleSGDTrainer(model.collection).update_subset([0], ["table"]),
    ]


def errors(rng):
    """Misuse raises an error, and later results are right."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    loss = model.loss(seed)
    mistakes = _mistakes(model)
    for k in rng.integers(len(mistakes), size=4):
        try:
            mistakes[k]()
        except (ValueError, TypeError, IndexError, RuntimeError):
            pass
        else:
            check(False, f"mistake {k} went unnoticed")
        if rng.integers(2):
            loss.value()
    close(loss.value(), program(Numpy(model.values()), seed), "value after errors")
    # A NaN gradient: the update is refused, and nothing changes.
    trainer = dy.AdamTrainer(model.collection)
    before = model.values()
    dy.renew_cg()
    dy.sum_elems(model.stored["b"] * float("nan")).backward()
    try:
        trainer.update()
    except RuntimeError:
        pass
    else:
        check(False, "an update by NaN was made")
    close(model.values(), before, "values after a refused update", 0)


def builders(rng):
    """Recurrent networks over batches of sentences: the same results together and one by one."""
    collection = dy.ParameterCollection()
    kind = (dy.LSTMBuilder, dy.GRUBuilder, dy.SimpleRNNBuilder, dy.CoupledLSTMBuilder)[rng.integers(4)]
    builder = kind(int(rng.integers(1, 3)), N, N, collection)
    table = collection.add_lookup_parameters((ROWS, N))
    length, size = int(rng.integers(1, 12)), int(rng.integers(1, 6))
    words = rng.integers(ROWS, size=(length, size))

    def loss(columns):
        state = builder.initial_state()
        for row in words:
            state = state.add_input(dy.lookup_batch(table, [int(row[c]) for c in columns]))
        return dy.sum_batches(dy.squared_norm(state.output()))

    found = []
    for groups in ([range(size)], [[c] for c in range(size)]):
        dy.renew_cg()
        total = dy.esum([loss(columns) for columns in groups])
        value = total.value()
        total.backward()
        found.append((value, {p.name(): p.grad_as_array() for p in collection.parameters_list()}))
        for p in (*collection.parameters_list(), *collection.lookup_parameters_list()):
            p.scale_gradient(0)
    close(found[0][0], found[1][0], f"value of {kind.__name__}")
    close(found[0][1], found[1][1], f"gradient of {kind.__name__}", 1e-3)


def changes(rng):
    """Rows, inputs and elements that are changed in graphs already computed, and values that are computed again."""
    model, seed = Model(rng.integers(1 << 30)), int(rng.integers(1 << 30))
    dy.renew_cg(autobatching=int(rng.integers(3)))
    ops = Changing(model)
    loss = program(ops, seed)
    for _ in range(int(rng.integers(2, 6))):
        shift, step = int(rng.integers(50)), float(rng.uniform(-1, 1))
        if rng.integers(2):
            loss.value()
        ops.change(shift, step, rng)
        expected = program(Changed(model.values(), shift, step), seed)
        again = bool(rng.integers(2))
        close(loss.value(recalculate=again), expected, "value after set")
        if rng.integers(2):
            loss.backward()
            found = model.gradients()
            model.clear()
            with dy.ComputationGraph():
                other = Changing(model)
                plain = program(other, seed)
                other.change(shift, step, rng)
                plain.backward()
            close(found, model.gradients(), "gradient after set", 2e-3)
            model.clear()
