"""Rules of DyNet's that hold for programs with `import dynet` only: arrays of expressions, threads, names, options."""

from __future__ import annotations

import importlib.util

import pytest

COMPAT = ("-m", "dynet_cy.compat", "program.py")
DYNET = pytest.param(
    ("program.py",),
    marks=[
        pytest.mark.peer,
        pytest.mark.skipif(importlib.util.find_spec("dynet") is None, reason="DyNet is not installed"),
    ],
    id="DyNet",
)
both = pytest.mark.parametrize("arguments", [pytest.param(COMPAT, id="compat"), DYNET])


def lines(done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line]


ARRAYS = """
import numpy as np
import dynet as dy
pc = dy.ParameterCollection()
E = pc.add_lookup_parameters((5, 2), init=np.arange(10.0).reshape(5, 2))
trainer = dy.SimpleSGDTrainer(pc, 0.25)
trainer.set_clip_threshold(0)

def table():
    print(np.asarray(E.as_array()).round(4).tolist())

dy.renew_cg()
total = np.sum(np.array([dy.lookup(E, i) for i in (3, 4)]), axis=0)
dy.squared_norm(total).backward()
trainer.update()
table()
dy.renew_cg()
np.sum([dy.squared_norm(E[i]) for i in range(3)]).backward()
trainer.update()
table()

dy.renew_cg()
a, b = dy.inputVector([1, 2]), dy.inputVector([3, 4])
pair = np.array([a, b])
print(pair.dtype, pair.shape, pair[0] is a, np.array(a).shape, np.array([[a, b], [b, a]]).shape)
print(np.stack([a, b]).tolist() == [a, b], np.random.choice([a, b]) in (a, b), np.random.permutation([a, b]).shape)
print(np.concatenate([[a], [b]]).tolist() == [a, b], np.append([a], b).shape, np.where([True], [a], [b])[0] is a)
print([x.value() for x in pair * 2], [x.value() for x in pair + a], [x.value() for x in -pair])
print(np.sum(a) is a, np.add(a, b).value(), np.dot([dy.squared_norm(a)], [2]).value(), np.cumsum(pair)[1].value())
print(np.array([a, None]).shape, np.ndim(a), len(np.atleast_1d(a)), np.copy(a).item() is a)
pair += a
print([x.value() for x in pair])
"""


@both
def test_arrays_hold_expressions(run, arguments) -> None:
    assert lines(run(*arguments, program=ARRAYS)) == [
        "[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [-1.0, -1.0], [1.0, 1.0]]",
        "[[0.0, 0.5], [1.0, 1.5], [2.0, 2.5], [-1.0, -1.0], [1.0, 1.0]]",
        "object (2,) True () (2, 2)",
        "True True (2,)",
        "True (2,) True",
        "[[2.0, 4.0], [6.0, 8.0]] [[2.0, 4.0], [4.0, 6.0]] [[-1.0, -2.0], [-3.0, -4.0]]",
        "True [4.0, 6.0] 10.0 [4.0, 6.0]",
        "(2,) 0 1 True",
        "[[2.0, 4.0], [4.0, 6.0]]",
    ]


# Calls that DyNet refuses, or accepts with older versions of NumPy only.
MORE_ARRAYS = """
import numpy as np
import dynet as dy
a, b = dy.inputVector([1, 2]), dy.inputVector([3, 4])
print(np.mean([a, b]).value(), np.mean([a, b], axis=0).value(), np.average([a, b], weights=[0.25, 0.75]).value())
print((np.array([1.0, 2.0]) * dy.transpose(a)).npvalue().tolist(), (np.array([1.0, 2.0]) + a).value())
print((np.float64(2) * a).value(), (2 - a).value(), dy.inputVector(np.array([1, 2])).value(), a.sum().value())
print(np.asarray(a, dtype=np.float32), a.npvalue(), np.array([0.0]) == dy.scalarInput(0))
print(dy.concatenate(np.array([a, b])).value(), dy.esum(list(np.array([a, b]))).value())
try:
    dy.inputTensor([a, b])
except TypeError as error:
    print(error)
"""


def test_more_arrays(run) -> None:
    assert lines(run(*COMPAT, program=MORE_ARRAYS)) == [
        "[2.0, 3.0] [2.0, 3.0] [2.5, 3.5]",
        "[[1.0, 2.0], [2.0, 4.0]] [2.0, 4.0]",
        "[2.0, 4.0] [1.0, 0.0] [1.0, 2.0] 3.0",
        "[1. 2.] [1. 2.] [False]",
        "[1.0, 2.0, 3.0, 4.0] [4.0, 6.0]",
        "inputTensor: the value must hold real numbers, not object (shape (2,))",
    ]


THREADS = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import dynet as dy
pc = dy.ParameterCollection()
W = pc.add_parameters((2, 2), init=np.array([[1.0, 2.0], [3.0, 4.0]]))
trainer = dy.SimpleSGDTrainer(pc, 0.01)
trainer.set_clip_threshold(0)

def work(x):
    y = W * x
    return y, y.value()

with ThreadPoolExecutor(1) as pool:
    for i in range(3):
        dy.renew_cg()
        y, value = pool.submit(work, dy.inputVector([i, 1])).result(60)
        loss = dy.squared_norm(y)
        print(np.round(value, 4).tolist(), round(loss.value(), 4))
        loss.backward()
        pool.submit(trainer.update).result(60)
    pool.submit(dy.renew_cg).result(60)
    x = pool.submit(dy.inputVector, [5]).result(60)
    print(x.value())
"""


@both
def test_threads_share_a_graph(run, arguments) -> None:
    assert lines(run(*arguments, program=THREADS)) == [
        "[2.0, 4.0] 20.0",
        "[2.96, 6.92] 56.648",
        "[3.7824, 9.5048] 104.6478",
        "5.0",
    ]


TIMEOUT = """
import threading, time
from concurrent.futures import ThreadPoolExecutor, TimeoutError
import numpy as np
import dynet as dy
pc = dy.ParameterCollection()
W = pc.add_parameters((400, 400), init=0.001)

def work(x, busy):
    begun.set()
    while True:
        for _ in range(200):
            x = dy.tanh(W * x)
        x.value() if busy else time.sleep(0.01)

ends = []
for i in range(12):
    begun = threading.Event()
    pool = ThreadPoolExecutor(1)
    dy.renew_cg()
    x = dy.inputVector(np.ones(400))
    late = pool.submit(work, x, i % 3)
    begun.wait()
    try:
        late.result(timeout=0.02)
    except TimeoutError:
        pass
    dy.renew_cg()
    y = dy.squared_norm(W * dy.inputVector(np.ones(400)))
    for _ in range(60000):                      # the other thread may run the graph at this moment
        try:
            value = y.value()
            break
        except RuntimeError as error:
            assert "another thread" in str(error), error
            time.sleep(0.01)
    assert abs(value - 64) < 1e-3, value
    ends.append(type(late.exception(timeout=600)).__name__)
print(*sorted(set(ends)))
"""


def test_a_program_goes_on_after_a_timeout(run) -> None:
    (ends,) = lines(run(*COMPAT, program=TIMEOUT))
    assert set(ends.split()) <= {"StaleExpressionError", "RuntimeError"}  # the latter: the main thread was computing


TWO_AT_ONCE = """
import threading
import numpy as np
import dynet as dy
pc = dy.ParameterCollection()
W = pc.add_parameters((600, 600))
errors = set()
for _ in range(100):  # on a busy machine a pass may have ended before this thread goes on
    dy.renew_cg()
    x = dy.inputVector(np.ones(600))
    for _ in range(300):
        x = W * x
    thread = threading.Thread(target=x.value)
    thread.start()
    while thread.is_alive():
        try:
            dy.scalarInput(1).value()
        except RuntimeError as error:
            errors.add(str(error))
    thread.join()
    if errors:
        break
print(*errors)
print(dy.scalarInput(1).value(), len(x.value()))
"""


def test_two_threads_at_once(run) -> None:
    assert lines(run(*COMPAT, program=TWO_AT_ONCE)) == [
        "this graph is running in another thread, or in this one below the handler of a signal",
        "1.0 600",
    ]


CHILD = """
import multiprocessing, threading
import numpy as np
import dynet as dy

def work(x):
    dy.renew_cg()
    found = []
    e = dy.inputVector([x, 1])
    thread = threading.Thread(target=lambda: found.append((2 * e).value()))
    thread.start()
    thread.join()
    return found, np.array([e]).dtype.name

if __name__ == "__main__":
    with multiprocessing.get_context("{method}").Pool(1) as pool:
        print(*pool.map(work, [2.0]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_rules_hold_in_child_processes(run, method: str) -> None:
    assert lines(run(*COMPAT, program=CHILD.replace("{method}", method))) == ["([[4.0, 2.0]], 'object')"]


def test_other_programs_keep_their_rules(run) -> None:
    program = """
    import threading
    import numpy as np
    import dynet_cy as dy
    import dynet_cy.compat                       # but not installed
    x, found = dy.inputVector([1, 2]), []
    thread = threading.Thread(target=lambda: found.append(len(dy.cg())))
    thread.start()
    thread.join()
    print(np.array([x, x]).tolist(), found)
    """
    assert lines(run("program.py", program=program)) == ["[[1.0, 2.0], [1.0, 2.0]] [0]"]


NAMES = """
import dynet as dy

def build(pc):
    own = pc.add_parameters(2), pc.add_lookup_parameters((3, 2)), pc.add_parameters(2, name="w")
    return [*own, dy.LSTMBuilder(1, 2, 2, pc)]

def names(pc):
    print(*[p.name() for p in pc.parameters_list() + pc.lookup_parameters_list()])

pc = dy.ParameterCollection()
dy.save("pair", build(pc))
pc.save("model")

pc = dy.ParameterCollection()
dy.load("pair", pc)
pc.add_parameters(2, init=7.0)
pc.add_lookup_parameters((3, 2))
names(pc)
pc.save("second")
pc = dy.ParameterCollection()
print(pc.load_param("second", "/_3").as_array().tolist())
pc.load_lookup_param("second", "/_1")
pc.add_parameters(1)
names(pc)

pc = dy.ParameterCollection()
pc.load_lookup_param("model", "/_1")
pc.load_param("model", "/w")
pc.add_parameters(1)
pc.add_lookup_parameters((1, 1))
names(pc)

pc = dy.ParameterCollection()
objects = dy.load_generator("pair", pc)
next(objects), next(objects)
pc.add_parameters(1)
names(pc)
"""


@both
def test_names_after_loading(run, arguments) -> None:
    rest = "/vanilla-lstm-builder/_0 /vanilla-lstm-builder/_1 /vanilla-lstm-builder/_2"
    assert lines(run(*arguments, program=NAMES)) == [
        f"/_0 /w {rest} /_3 /_1 /_4",
        "[7.0, 7.0]",
        "/_3 /_2 /_1",
        "/w /_2 /_1 /_3",
        "/_0 /_2 /_1",
    ]


def test_loaded_names_are_numbered_if_they_are_taken(run) -> None:
    program = """
    import dynet as dy
    pc = dy.ParameterCollection()
    pc.add_parameters(2, name="w", init=1.0), pc.add_parameters(2, init=2.0)
    pc.save("model")
    for _ in range(2):
        pc.load_param("model", "/w")
        pc.load_param("model", "/_0")
    pc.add_parameters(2, name="w")
    names = [p.name() for p in pc.parameters_list()]
    print(*names, len(set(names)) == len(names) == len(pc.keys()))
    """
    (found,) = lines(run(*COMPAT, program=program))
    assert found == "/w /_0 /_1 /_2 /_3 /_4 /w_1 True"


ARGV = """
import sys
sys.argv += {added}
{before}
import dynet as dy, dynet_cy.config as config
settings = config.get()
print(settings["seed"], settings["autobatch"], settings["mem"])
sys.argv += ["--dynet-seed", "99"]
import _dynet
print(config.get()["seed"])
"""


@pytest.mark.parametrize(
    ("given", "added", "before", "expected"),
    [
        ([], ["--dynet-seed", "5", "--dynet-autobatch=0"], "", "5 0 0.0"),
        (["--dynet-seed", "3"], ["--dynet-seed", "5"], "", "5 1 0.0"),
        (["--dynet-seed=3", "--dynet-mem", "500"], [], "del sys.argv[2:]", "3 1 0.0"),
        (["--dynet-seed=3"], ["--dynet-seed=5"], "import dynet_config; dynet_config.set(random_seed=7)", "7 1 0.0"),
    ],
)
def test_options_that_the_program_adds(run, given, added, before: str, expected: str) -> None:
    program = ARGV.format(added=added, before=before)
    for arguments, text in ((COMPAT, program), (("program.py",), "import dynet_cy.compat as c; c.install()" + program)):
        assert lines(run(*arguments, *given, program=text)) == [expected, expected.split()[0]]


def test_a_wrong_option_that_the_program_adds(run) -> None:
    program = "import sys\nsys.argv += ['--dynet-seed', 'x']\nimport dynet"
    done = run(*COMPAT, program=program)
    assert "ValueError: --dynet-seed needs a number, not 'x'" in done.stderr


def test_version_of_the_repository(run) -> None:
    assert lines(run(*COMPAT, program="import dynet as dy\nprint(type(dy.__gitversion__).__name__)")) == ["str"]


def test_another_dynet_would_be_imported(run, tmp_path) -> None:
    (tmp_path / "_dynet.py").write_text("", encoding="utf-8")
    done = run("program.py", program="import dynet_cy.compat\ndynet_cy.compat.install()")
    assert done.returncode == 1
    where = tmp_path / "_dynet.py"
    assert f"ImportError: dynet_cy.compat: _dynet would be imported, from {where}; install() comes" in done.stderr


MAXIMA = """
import dynet as dy
nan = float("nan")
dy.renew_cg()
for numbers in ([1, nan, 3], [nan, 1, 3], [3, 1, nan], [nan, nan]):
    x = dy.inputTensor([numbers])
    print([f(x, 1).value() for f in (dy.max_dim, dy.min_dim)])
for numbers in ([1, nan, 3, 2], [1, nan, 3], [1, 3, nan]):
    print(dy.kmax_pooling(dy.inputTensor([numbers]), 2, 1).vec_value())
"""


@both
def test_maxima_ignore_nan(run, arguments) -> None:
    assert lines(run(*arguments, program=MAXIMA)) == [
        "[3.0, 1.0]", "[3.0, 1.0]", "[3.0, 1.0]", "[-inf, inf]",
        "[3.0, 2.0]", "[1.0, 3.0]", "[1.0, 3.0]"
    ]  # fmt: skip
