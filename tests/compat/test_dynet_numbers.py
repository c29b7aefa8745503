"""Numbers of DyNet's that hold for programs with `import dynet` only: weight decay, rows that the loss does not need.

All of them are exact in float32, so they are equal to the last bit.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from own_process import environment

COMPAT = ("-m", "dynet_cy.compat")
DYNET = pytest.param(
    (),
    marks=[pytest.mark.peer, pytest.mark.skipif(importlib.util.find_spec("dynet") is None, reason="no DyNet")],
    id="DyNet",
)
both = pytest.mark.parametrize("how", [pytest.param(COMPAT, id="compat"), DYNET])


def printed(folder: Path, how: tuple[str, ...], program: str) -> list[str]:
    (folder / "program.py").write_text(textwrap.dedent(program), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *how, "program.py"], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


DECAY = """
import dynet as dy
import numpy as np

m = dy.ParameterCollection()
m.set_weight_decay(0.5)
w = m.add_parameters(2, init=dy.ConstInitializer(1.0))
e = m.add_lookup_parameters((4, 2), init=dy.ConstInitializer(1.0))
trainer = dy.SimpleSGDTrainer(m, 0.125)

def step():
    dy.renew_cg()
    loss = dy.sum_elems(w) + dy.sum_elems(e[0])
    loss.value()
    loss.backward()
    trainer.update()

def show(what):
    dy.renew_cg()
    values = [w.value()[0], e[0].value()[0], e[1].value()[0]]
    arrays = [w.as_array()[0], e.as_array()[0, 0], e.as_array()[1, 0], e.row_as_array(0)[0], e.rows_as_array([1])[0, 0]]
    print(what, *[float(x) for x in values + arrays])

step(); show("update")
m.save("text"); dy.save("pair", [w, e])
kept = w.as_array()
w.set_value([4, 4]); e.init_row(1, [4, 4]); show("set")
w.scale(2); show("scale")
w.clip_inplace(-1, 5); show("clip")
w.clip_inplace(-1, 3); show("clip")
e.init_from_array(np.full((4, 2), 2.0)); show("table")
w.zero(); show("zero")
m.populate("text"); show("populate")
w.populate("text", "/_0"); w.set_value(kept); show("set")
new = m.add_parameters(2, init=dy.ConstInitializer(1.0)); dy.renew_cg()
print("added", new.value()[0], new.as_array()[0])
step(); show("update")
step(); show("reset")
step(); show("update")
other = dy.ParameterCollection()
w, e = dy.load("pair", other); show("load")
"""
DECAYED = [
    "update 0.4375 0.4375 0.5 0.875 0.875 1.0 0.875 1.0",
    "set 2.0 0.4375 2.0 4.0 0.875 4.0 0.875 4.0",
    "scale 4.0 0.4375 2.0 8.0 0.875 4.0 0.875 4.0",
    "clip 4.0 0.4375 2.0 8.0 0.875 4.0 0.875 4.0",
    "clip 3.0 0.4375 2.0 6.0 0.875 4.0 0.875 4.0",
    "table 3.0 1.0 1.0 6.0 2.0 2.0 2.0 2.0",
    "zero 0.0 1.0 1.0 0.0 2.0 2.0 2.0 2.0",
    "populate 0.21875 0.21875 0.25 0.4375 0.4375 0.5 0.4375 0.5",
    "set 0.4375 0.21875 0.25 0.875 0.4375 0.5 0.4375 0.5",
    "added 0.5 1.0",
    "update 0.15625 0.046875 0.125 0.625 0.1875 0.5 0.1875 0.5",
    "reset 0.015625 -0.0390625 0.0625 0.015625 -0.0390625 0.0625 -0.0390625 0.0625",
    "update -0.0546875 -0.08203125 0.03125 -0.109375 -0.1640625 0.0625 -0.1640625 0.0625",
    "load 0.4375 0.4375 0.5 0.4375 0.4375 0.5 0.4375 0.5",
]


@both
def test_arrays_under_weight_decay(tmp_path: Path, how: tuple[str, ...]) -> None:
    """Arrays are of what DyNet stores; values are that times a factor, which is reset below a quarter."""
    assert printed(tmp_path, how, DECAY) == DECAYED


ROWS = """
import dynet as dy
import numpy as np

def moved(build, name, *settings):
    m = dy.ParameterCollection()
    w = m.add_parameters(2, init=dy.ConstInitializer(1.0))
    e, f = [m.add_lookup_parameters((5, 1), init=dy.ConstInitializer(1.0)) for _ in range(2)]
    trainer = getattr(dy, name)(m, *settings)
    trainer.set_clip_threshold(0)
    dy.renew_cg()
    loss = dy.sum_elems(w) + dy.esum([t[i] for t in (e, f) for i in range(5)])
    loss.value()
    loss.backward()
    trainer.update()
    before = [np.array(t.as_array()) for t in (e, f)]
    dy.renew_cg()
    for loss in build(w, e, f):
        loss.value()
        loss.backward()
    trainer.update()
    now = [np.array(t.as_array()) for t in (e, f)]
    print(build.__name__, *["".join("01"[int(x)] for x in (a != b).ravel()) for a, b in zip(before, now)],
          *sorted({float(x) for a in now for x in a.ravel()}) if name[0] == "M" else [])

def used_and_others(w, e, f):
    a, b, c = e[0], e[1], dy.tanh(e[2])
    loss = dy.sum_elems(w) + a
    after = e[3]
    yield loss

def constants_and_batches(w, e, f):
    a, b = e[0], dy.lookup(e, 1, update=False)
    c, d = dy.lookup_batch(e, [2, 3]), dy.lookup_batch(e, [4], update=False)
    yield a * 2

def no_parameter(w, e, f):
    a = e[0]
    yield dy.scalarInput(1) * 2

def whole_table(w, e, f):
    a = e * 2
    yield f[0] * 2

def whole_table_not_used(w, e, f):
    a = e.expr()
    yield f[0] * 2

def another_row_is_set(w, e, f):
    a, b = e[0], e[1]
    loss = a * 2
    loss.value()
    b.set(3)
    yield loss

def no_gradient_there(w, e, f):
    yield dy.nobackprop(e[0]) + e[1]

def two_losses(w, e, f):
    a, b = e[0], e[1]
    yield a * 2
    c = e[2]
    yield a * 3

def two_graphs(w, e, f):
    a = e[0]
    yield a * 2
    dy.renew_cg()
    b = f[1]
    yield dy.scalarInput(1) * 2

def no_backward(w, e, f):
    (e[0] * 2).value()
    return []

for build in (used_and_others, constants_and_batches, no_parameter, whole_table, whole_table_not_used,
              another_row_is_set, no_gradient_there, two_losses, two_graphs, no_backward):
    moved(build, "MomentumSGDTrainer", 0.125, 0.5)
    moved(build, "AdamTrainer", 0.125)
    moved(build, "SimpleSGDTrainer", 0.125)
"""
MOVED = [
    *["used_and_others 11100 00000 0.6875 0.8125 0.875", "used_and_others 11100 00000", "used_and_others 10000 00000"],
    "constants_and_batches 10110 00000 0.5625 0.8125 0.875",
    *["constants_and_batches 10110 00000", "constants_and_batches 10000 00000"],
    *["no_parameter 10000 00000 0.8125 0.875", "no_parameter 10000 00000", "no_parameter 00000 00000"],
    *["whole_table 11111 10000 0.5625 0.8125 0.875", "whole_table 11111 10000", "whole_table 00000 10000"],
    "whole_table_not_used 00000 10000 0.5625 0.875",
    *["whole_table_not_used 00000 10000", "whole_table_not_used 00000 10000"],
    "another_row_is_set 10010 00000 0.5625 0.8125 0.875",
    *["another_row_is_set 10010 00000", "another_row_is_set 10000 00000"],
    "no_gradient_there 11000 00000 0.6875 0.8125 0.875",
    *["no_gradient_there 11000 00000", "no_gradient_there 01000 00000"],
    *["two_losses 11100 00000 0.1875 0.8125 0.875", "two_losses 11100 00000", "two_losses 10000 00000"],
    *["two_graphs 10000 01000 0.5625 0.8125 0.875", "two_graphs 10000 01000", "two_graphs 10000 00000"],
    *["no_backward 00000 00000 0.875", "no_backward 00000 00000", "no_backward 00000 00000"],
]


@both
def test_rows_that_the_loss_does_not_need(tmp_path: Path, how: tuple[str, ...]) -> None:
    """Rows that were looked up before the loss have a gradient of zero: momentum moves them."""
    assert printed(tmp_path, how, ROWS) == MOVED


TRAINING = """
import dynet as dy
import numpy as np

rng = np.random.default_rng(5)
m = dy.ParameterCollection()
m.set_weight_decay(0.02)
e = m.add_lookup_parameters((30, 4), init=rng.normal(size=(30, 4)))
w = m.add_parameters((5, 4), init=rng.normal(size=(5, 4)))
b = m.add_parameters(5, init=rng.normal(size=5))
trainer = dy.TRAINER
best = None
for step in range(90):
    dy.renew_cg()
    rows = [e[int(i)] for i in rng.integers(0, 30, 6)]
    scores = [w * dy.tanh(x) + b for x in rows[:3]]
    loss = dy.esum([dy.pickneglogsoftmax(s, step % 5) for s in scores])
    print(loss.value())
    loss.backward()
    trainer.update()
    if step % 20 == 3:
        best = e.as_array(), w.as_array()
    if step % 20 == 13:
        e.init_from_array(best[0]); w.set_value(best[1])
    if step % 15 == 7:
        e.init_row(3, np.array(e.row_as_array(4)) * 0.5)
print(*np.concatenate([np.ravel(p.as_array()) for p in (e, w, b)]).tolist(), sep="\\n")
"""


@pytest.mark.peer
@pytest.mark.skipif(importlib.util.find_spec("dynet") is None, reason="no DyNet")
@pytest.mark.parametrize("trainer", ["MomentumSGDTrainer(m, 0.02, 0.8)", "AdamTrainer(m)", "SimpleSGDTrainer(m, 0.05)"])
def test_training(tmp_path: Path, trainer: str) -> None:
    program = TRAINING.replace("TRAINER", trainer)
    have, want = ([float(x) for x in printed(tmp_path, how, program)] for how in (COMPAT, ()))
    assert have == pytest.approx(want, rel=1e-4, abs=1e-4)


CONSTANTS = """
import dynet as dy
import numpy as np

m = dy.ParameterCollection()
w = m.add_parameters(2, init=dy.ConstInitializer(1.0))
table = m.add_lookup_parameters((3, 2), init=dy.ConstInitializer(1.0))

def gradients(what, make):
    dy.renew_cg()
    xs = make()
    loss = dy.esum([dy.sum_elems(x) * 10**k for k, x in enumerate(xs)])
    loss.value()
    loss.backward(full=True)
    print(what, *[int(x.gradient().ravel()[0]) for x in xs], int(w.grad_as_array()[0]))
    dy.SimpleSGDTrainer(m, 0.0).update()

gradients("const_parameter", lambda: [dy.const_parameter(w), dy.const_parameter(w), dy.const_parameter(w)])
gradients("of two", lambda: list(dy.const_parameter(w, w)))
gradients("of a batch", lambda: [dy.const_parameter(w) * dy.scalarInput(1), dy.const_parameter(w)])
gradients("expr", lambda: [w.expr(False), w.expr(False)])
gradients("expr, const", lambda: [w.expr(False), dy.const_parameter(w), w.expr(False)])
gradients("trained", lambda: [w.expr(True), dy.const_parameter(w), dy.const_parameter(w)])
"""


@both
def test_each_constant_has_its_own_gradient(tmp_path: Path, how: tuple[str, ...]) -> None:
    assert printed(tmp_path, how, CONSTANTS) == [
        "const_parameter 1 10 100 0",
        "of two 1 10 0",
        "of a batch 1 10 0",
        "expr 11 11 0",
        "expr, const 101 10 101 0",
        "trained 1 10 100 1",
    ]
