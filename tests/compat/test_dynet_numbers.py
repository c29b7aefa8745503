"""Numbers of DyNet's that hold for programs with `import dynet` only: weight decay, rows that the loss does not need.

All of them are exact in float32, so they are equal to the last bit.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from own_process import environment

COMPAT = ("-m", "dynet_cy.compat")
DYNET = pytest.param(
    (),
    marks=[
        pytest.mark.peer,
        pytest.mark.skipif(importlib.util.find_spec("dynet") is None, reason="DyNet is not installed"),
    ],
    id="DyNet",
)
both = pytest.mark.parametrize("how", [pytest.param(COMPAT, id="compat"), DYNET])


def printed(folder: Path, how: tuple[str, ...], program: str) -> list[str]:
    (folder / "program.py").write_text(textwrap.dedent(program), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, *how, "program.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
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


# In DyNet, a graph that goes on after an update has the values of first use.
UPDATES = """
import warnings
warnings.simplefilter("ignore")
import dynet as dy
import numpy as np

collections = []

def new(trainer="SimpleSGDTrainer", *settings):
    m = dy.ParameterCollection()
    w = m.add_parameters((2, 3), init=dy.ConstInitializer(0.5))
    v = m.add_parameters((2, 3), init=dy.ConstInitializer(0.25))
    e = m.lookup_parameters_from_numpy(np.full((4, 3), 0.5))
    t = getattr(dy, trainer)(m, *(settings or (0.125,)))
    t.set_clip_threshold(0)
    dy.renew_cg()
    collections.append(m)                           # DyNet's parameters need it
    return w, v, e, t

def x():
    return dy.inputVector([1, 2, 3])

def far(y):
    return dy.squared_distance(y, dy.inputVector([2, 2]))

def show(name, *xs):
    print(name, *[np.asarray(a, float).ravel().round(4).tolist() for a in xs])

def train(build, name, *made, n=3):
    w, v, e, t = new(*made)
    found = []
    for i in range(n):
        loss = build(w, v, e)
        found.append(loss.value())
        loss.backward()
        t.update()
    show(name, found, w.as_array(), v.as_array(), e.as_array())

train(lambda w, v, e: far(w * x()), "parameter")
train(lambda w, v, e: far(w.expr(False) * x() + v * x()), "constant")
train(lambda w, v, e: far(w.expr(True) * x() + v * x()), "expression")
train(lambda w, v, e: far(dy.const_parameter(w) * x() + w * x()), "constants of its own")
train(lambda w, v, e: far(w * e[1]), "row")
train(lambda w, v, e: far(w * dy.lookup(e, 1, update=False)), "constant row")
train(lambda w, v, e: dy.sum_batches(far(w * dy.lookup_batch(e, [1, 2, 1]))), "rows")
train(lambda w, v, e: dy.sum_elems(dy.square(e * 1)), "table")
train(lambda w, v, e: dy.esum([far(dy.tanh(w * e[i]) + v * e[i]) for i in range(4)]), "batched")
train(lambda w, v, e: far(w * e[1]), "momentum", "MomentumSGDTrainer", 0.125, 0.5)
train(lambda w, v, e: far(w * e[1]), "adam", "AdamTrainer", 0.125)

w, v, e, t = new()
late, y = far(v * x()), far(w * x())
rows, last = e[1] * 2, far(w * e[2])
last.backward(); t.update()
show("made before what was asked for", late.value(), y.value(), rows.npvalue(), e[2].npvalue())
late.backward(); t.update()
show("then", w.as_array(), v.as_array())

w, v, e, t = new()
y = far(w * x())
y.value(); late = far(v * x()); rows = e[1]
v.set_value(np.full((2, 3), 0.5)); e.init_row(1, [1, 2, 3])
show("made after it", late.value(), rows.npvalue())

w, v, e, t = new()
a, b = far(w * x()), far(dy.tanh(w * x()))
a.value(), b.value()
a.backward(); t.update(); b.backward()
show("two losses", w.grad_as_array())
t.update()
show("two updates", w.as_array(), w.npvalue(), (w * x()).npvalue())

w, v, e, t = new()
a = far(w * x()); a.value()
w.set_value(np.full((2, 3), 3.0))
show("set", (w * x()).npvalue(), w.npvalue(), w.as_array(), a.value())
w.zero(); show("zero", (w * x()).npvalue(), w.as_array())
v.npvalue(); v.scale(2); show("read itself", v.npvalue(), (v * x()).npvalue(), v.as_array())

w, v, e, t = new()
given = dy.inputVector([1, 2, 3])
a = far(w * given + v * e[1])
for k in range(3):
    given.set([1, 2, 3 + k]); value = a.value(); a.backward(); t.update(); show("inputs set", value)
a.value(recalculate=True); show("recalculated", a.value())

w, v, e, t = new()
for k in range(6):
    if k % 3 == 0:
        dy.renew_cg()
    loss = far(w * e[k % 4]) + far(v * x()); show("renewed at times", loss.value()); loss.backward(); t.update()
dy.renew_cg(); show("at last", w.npvalue(), v.npvalue(), e.as_array())
"""


@pytest.mark.peer
def test_updates_within_a_graph_as_dynet(tmp_path: Path) -> None:
    if importlib.util.find_spec("dynet") is None:
        pytest.skip("DyNet is not installed")
    there, here = printed(tmp_path, (), UPDATES), printed(tmp_path, COMPAT, UPDATES)
    numbers = re.compile(r"-?[0-9.]+")
    assert [numbers.sub("", line) for line in here] == [numbers.sub("", line) for line in there]
    for mine, theirs in zip(here, there):
        found, wanted = ([float(x) for x in numbers.findall(line)] for line in (mine, theirs))
        assert found == pytest.approx(wanted, abs=2e-4), mine


def test_updates_within_a_graph(tmp_path: Path) -> None:
    found = printed(tmp_path, COMPAT, UPDATES)
    assert found[0] == (
        "parameter [2.0, 2.0, 2.0] [-0.25, -1.0, -1.75, -0.25, -1.0, -1.75] [0.25, 0.25, 0.25, 0.25, 0.25, 0.25] "
        "[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]"
    )
    assert found[4].startswith("row [3.125, ")
    assert "constant row [3.125, 3.125, 3.125]" in found[5]
    assert "set [3.0, 3.0] [0.5, 0.5, 0.5, 0.5, 0.5, 0.5] [3.0, 3.0, 3.0, 3.0, 3.0, 3.0] [2.0]" in found


# An update is made when something looks at what it changes, whatever that is.
LOOKS = """
import dynet as dy, numpy as np, pickle, copy, dynet_cy
LOOKS = {
    "array": lambda m, w, e: (w.as_array(), e.as_array()),
    "row": lambda m, w, e: (w.as_array(), e.row_as_array(0), e.rows_as_array([1, 2, 3])),
    "pickle": lambda m, w, e: [x.as_array() for x in pickle.loads(pickle.dumps((w, e)))],
    "copy": lambda m, w, e: [x.as_array() for x in copy.deepcopy((w, e))],
    "text": lambda m, w, e: (m.save("model"), again("model")),
    "one": lambda m, w, e: (w.save("w", "/w"), e.save("w", "/e", append=True), again("w")),
    "pair": lambda m, w, e: (dy.save("pair", [w, e]), [x.as_array() for x in dy.load("pair", dy.Model())]),
    "arrays": lambda m, w, e: (dynet_cy.save_safetensors("s", m), stored("s")),
    "graph": lambda m, w, e: (dy.renew_cg() is None or None, w.npvalue(), [e[i].npvalue() for i in range(4)]),
    "other graph": lambda m, w, e: read_elsewhere(w, e),
    "norm": lambda m, w, e: (m.gradient_l2_norm() if hasattr(m, "gradient_l2_norm") else 0, w.as_array(), e.as_array()),
    "gradient": lambda m, w, e: (w.grad_as_array(), e.grad_as_array(), w.as_array(), e.as_array()),
    "scale": lambda m, w, e: (w.scale(1), e.scale(1), w.as_array(), e.as_array()),
    "dlpack": lambda m, w, e: (np.from_dlpack(w).copy(), e.as_array()),
}

def again(path):
    m = dy.ParameterCollection()
    own = m.add_parameters((2, 3), name="w"), m.add_lookup_parameters((4, 3), name="e")
    m.populate(path)
    return [x.as_array() for x in own]

def stored(path):
    m = dy.ParameterCollection()
    own = m.add_parameters((2, 3), name="w"), m.add_lookup_parameters((4, 3), name="e")
    dynet_cy.load_safetensors(path, m)
    return [x.as_array() for x in own]

def read_elsewhere(w, e):
    with dynet_cy.ComputationGraph():
        return w.npvalue(), [e[i].npvalue() for i in range(4)]

def flat(x):
    return [] if x is None else sum(map(flat, x), []) if isinstance(x, (list, tuple)) else list(np.ravel(x))

def train(look):
    m = dy.ParameterCollection()
    w, e = m.add_parameters((2, 3), init=0.5, name="w"), m.add_lookup_parameters((4, 3), init=0.5, name="e")
    t = dy.SimpleSGDTrainer(m, 0.25)
    dy.renew_cg()
    dy.sum_elems(w * e[1] + w * e[2]).backward()
    t.update()
    return sum(flat(look(m, w, e)))

print({name: float(train(look)) for name, look in LOOKS.items()})
"""


def test_an_update_is_made_before_anything_looks_at_it(tmp_path: Path) -> None:
    (line,) = printed(tmp_path, COMPAT, LOOKS)
    found = eval(line)
    assert set(found.values()) == {found["array"]} == {9 - 1.5 - 1.5}


# Random programs that go on after updates, and renew at times.
RANDOM = """
import warnings
warnings.simplefilter("ignore")
import random
import numpy as np
import dynet as dy

kept = []
TRAINERS = dy.SimpleSGDTrainer, dy.MomentumSGDTrainer, dy.AdagradTrainer

def made(r, ws, e, xs):
    kind, row, w = r.randrange(6), r.randrange(5), r.choice(ws)
    if kind == 0 or not xs:
        return e[row]
    x = r.choice(xs)
    if kind == 1:
        return w * x
    if kind == 2:
        return dy.tanh(w * e[row] + x)
    if kind == 3:
        return w.expr(r.random() < 0.5) * x
    if kind == 4:
        return dy.const_parameter(w) * x
    return dy.lookup(e, row, update=r.random() < 0.5) + x

for seed in range(60):
    r, m = random.Random(seed), dy.ParameterCollection()
    kept.append(m)
    numbers = np.random.RandomState(seed)
    ws = [m.add_parameters((3, 3), init=dy.NumpyInitializer(numbers.randn(3, 3) * 0.3)) for _ in range(2)]
    e = m.lookup_parameters_from_numpy(numbers.randn(5, 3) * 0.5)
    t = r.choice(TRAINERS)(m, 0.05)
    dy.renew_cg()
    xs, out = [], []
    for _ in range(25):
        kind = r.randrange(10)
        if kind < 5:
            xs.append(made(r, ws, e, xs))
        elif kind == 5 and xs:
            out.append(float(np.sum(r.choice(xs).npvalue())))
        elif kind in (6, 7) and xs:
            loss = dy.squared_norm(r.choice(xs) + r.choice(ws) * r.choice(xs))
            out.append(loss.value())
            loss.backward()
            t.update()
        elif kind == 8 and r.random() < 0.3:
            dy.renew_cg()
            xs = []
        elif kind == 9 and r.random() < 0.3:
            r.choice(ws).scale(0.9)
    print(seed, *["%.5f" % x for x in out], *["%.5f" % x.as_array().sum() for x in (*ws, e)])
"""


@pytest.mark.peer
def test_random_programs_that_go_on_after_updates(tmp_path: Path) -> None:
    if importlib.util.find_spec("dynet") is None:
        pytest.skip("DyNet is not installed")
    for mine, theirs in zip(printed(tmp_path, COMPAT, RANDOM), printed(tmp_path, (), RANDOM)):
        found, wanted = [float(x) for x in mine.split()], [float(x) for x in theirs.split()]
        assert found == pytest.approx(wanted, rel=2e-4, abs=2e-4), mine
