"""The names that `dynet`, `_dynet`, `dynet_config` and their stars give, and those that pickles get."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

COMPAT = ("-m", "dynet_cy.compat", "program.py")
SURFACE = json.loads((Path(__file__).parents[1] / "peer" / "surface.json").read_text(encoding="utf-8"))
peer = [
    pytest.mark.peer,
    pytest.mark.skipif(importlib.util.find_spec("dynet") is None, reason="DyNet is not installed"),
]
both = pytest.mark.parametrize(
    "how", [pytest.param(COMPAT, id="compat"), pytest.param(("program.py",), marks=peer, id="DyNet")]
)

STARS = """
import json
stars = {}
for module in ("dynet", "_dynet", "dynet_config"):
    names = {}
    exec(f"from {module} import *", names)
    stars[module] = sorted(set(names) - {"__builtins__"})
print(json.dumps(stars))
"""


def names_of(module: str) -> set[str]:
    return {*SURFACE[module]["functions"], *SURFACE[module]["classes"]}


@both
def test_stars_give_what_dynet_has(run, how) -> None:
    done = run(*how, program=STARS)
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["dynet"]) == names_of("dynet"), done.stderr
    only_there = {"ERRMSG", "HAVE_CUDA", "dynet_config", "print_function", "print_graphviz"}
    assert set(found["_dynet"]) == names_of("dynet") - only_there
    assert set(found["dynet_config"]) == names_of("dynet_config")


USES = """
import dynet as dy, _dynet
print(dy.np.random.RandomState(1).choice([3]), dy.os.path.join("a", "b"), dy.sys.argv[1:], dy.pickle.loads(b"K\x01."))
print(_dynet.np is dy.np, _dynet.sys is dy.sys, _dynet.pickle is dy.pickle, _dynet.os is dy.os)
print(dy.dynet_config.__name__[-6:], callable(dy.dynet_config.set_gpu))
print(isinstance(dy.HAVE_CUDA, bool), type(dy.ERRMSG).__name__)
print(type(dy.print_function).__name__, dy.Model is dy.ParameterCollection, hasattr(_dynet, "_RNNBuilder"))
"""


@both
def test_modules_that_dynet_imports(run, how) -> None:
    done = run(*how, "--x", program=USES)
    assert done.stdout.splitlines() == [
        "3 a/b ['--x'] 1",
        "True True True True",
        "config True",
        "True str",
        "_Feature True True",
    ], done.stderr


OWN = """
data = sample = decode = normalize = Hypothesis = nn = metrics = float = "own"
from dynet import *
from _dynet import *
from dynet_config import *
print(data, sample, decode, normalize, Hypothesis, nn, metrics, float, tanh(inputVector([0])).value())
import dynet, _dynet
globals().update({name: value for name, value in vars(dynet).items() if name in vars(__builtins__)})
print(float, "max" in vars(dynet), "float" in vars(_dynet))
"""


def test_stars_leave_names_of_the_program_alone(run) -> None:
    done = run(*COMPAT, program=OWN)
    assert done.stdout.splitlines() == ["own " * 8 + "0.0", "own False False"], done.stderr


def test_names_beyond_dynet_can_be_used(run) -> None:
    done = run(
        *COMPAT, program="import dynet as dy\nprint(dy.relu(dy.inputVector([-1])).value(), dy.nn.Linear.__name__)"
    )
    assert done.stdout == "0.0 Linear\n", done.stderr


PICKLED = """
import pickle, pickletools, types
import dynet as dy
found = {}
for name in names:
    x = getattr(dy, name)
    if isinstance(x, types.ModuleType) or not callable(x):
        continue
    for protocol in range(2, 5):
        data = pickle.dumps(x, protocol)
        assert pickle.loads(data) is x
    found[name] = next(a for o, a, _ in pickletools.genops(pickle.dumps(x, 2)) if o.name == "GLOBAL")
print(found)
"""


@both
def test_what_dynet_has_pickles_by_its_names(run, how) -> None:
    names = sorted(names_of("dynet"))
    done = run(*how, program=f"names = {names!r}\n{PICKLED}")
    found = eval(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr
    aliases = {"Model": "_dynet ParameterCollection", "LSTMBuilder": "_dynet VanillaLSTMBuilder"}
    aliases |= {"print_graphviz": "dynet print_graphviz"}
    if how is COMPAT:
        aliases["zeroes"] = "_dynet zeros"  # one function here
    assert found == {name: aliases.get(name, f"_dynet {name}") for name in found}
    assert len(found) > 200


OTHERS = """
import io, pickle, pickletools
import dynet as dy, dynet_cy
data = pickle.dumps([dy.gelu, dy.AdamWTrainer, dy.nn.Linear, dy.tanh], 2)
print([a for o, a, _ in pickletools.genops(data) if o.name == "GLOBAL"])
m = dy.ParameterCollection()
made = [m, m.add_parameters(2), dy.AdamTrainer(m), dy.LSTMBuilder(1, 2, 2, m), dy.ConstInitializer(1)]
named = {a.split()[0] for o, a, _ in pickletools.genops(pickle.dumps(made, 2)) if o.name == "GLOBAL"}
print({name for name in named if "dynet" in name})
"""


def test_what_dynet_has_not_pickles_by_ours(run) -> None:
    done = run(*COMPAT, program=OTHERS)
    first, second = done.stdout.splitlines()
    assert eval(first) == ["dynet_cy gelu", "dynet_cy AdamWTrainer", "dynet_cy.nn Linear", "_dynet tanh"], done.stderr
    assert eval(second) == {"_dynet", "dynet_cy"}
