"""Where pickles find functions and classes: under public names, from wherever earlier versions had them."""

from __future__ import annotations

import importlib
import pickle
import pickletools
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_process import run_python

import dynet_cy as dy
from dynet_cy import profiling
from dynet_cy.files.places import FORMER, PRIVATE, PUBLIC

PACKAGE = Path(dy.__file__).parent


def public() -> Iterator[tuple[str, str, Any]]:
    """All public functions and classes of this package: module, name, object."""
    for module in PUBLIC:
        held = sys.modules[module]
        for name in held.__all__:
            x = getattr(held, name)
            ours = str(getattr(x, "__module__", "")).startswith("dynet_cy")
            if ours and not isinstance(x, types.ModuleType) and (isinstance(x, type) or callable(x)):
                yield module, name, x


def named_in(data: bytes) -> set[tuple[str, str]]:
    """The names of this package in a pickle of protocol 2."""
    found = (str(arg).split(" ") for op, arg, _ in pickletools.genops(data) if op.name == "GLOBAL")
    return {(module, name) for module, name in found if module.startswith(("dynet_cy", "_dynet"))}


def is_public(module: str, name: str) -> bool:
    return (module in PUBLIC and name in sys.modules[module].__all__) or (module == "dynet_cy" and name in PRIVATE)


def test_all_public_names() -> None:
    found = list(public())
    assert len(found) > 450
    for module, name, x in found:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(x, protocol)) is x, name
        ((place, own),) = named_in(pickle.dumps(x, 2))
        assert is_public(place, own), (module, name, place, own)
        assert PUBLIC.index(place) <= PUBLIC.index(module)


def test_a_name_is_that_of_the_package_first() -> None:
    assert named_in(pickle.dumps(dy.tanh, 2)) == {("dynet_cy", "tanh")}
    assert named_in(pickle.dumps(dy.serving.Server, 2)) == {("dynet_cy", "Server")}
    assert named_in(pickle.dumps(dy.nn.Linear, 2)) == {("dynet_cy.nn", "Linear")}
    assert named_in(pickle.dumps(dy.metrics.accuracy, 2)) == {("dynet_cy.data.metrics", "accuracy")}


def objects() -> Iterator[Any]:
    """Objects that pickle, of all kinds."""
    m = dy.ParameterCollection()
    yield from (m, m.add_parameters((2, 3)), m.add_lookup_parameters((4, 2)), m.add_subcollection("a"))
    for name in dy.__all__:
        x = getattr(dy, name)
        if not isinstance(x, type):
            continue
        if issubclass(x, dy.Trainer) and x not in (dy.Trainer, dy.PythonTrainer):
            trainer = x(m)
            trainer.group([m.add_parameters(1)], learning_rate=0.5)
            yield trainer
        elif name.endswith("Builder"):
            for arguments in ((1, 2, 2, m), (2, 2, m), (2, 4, m), (1, 2, 2, m, dy.GRUBuilder)):
                try:
                    yield x(*arguments)
                    break
                except Exception:
                    continue
        elif issubclass(x, BaseException):
            try:
                yield x("text")
            except TypeError:
                continue
        elif name.endswith("Initializer") and name != "PyInitializer":
            try:
                yield x(*(np.ones(2),) if name.startswith("Numpy") else ())
            except TypeError:
                yield x("file" if name.startswith("FromFile") else 1)
        elif name.endswith("Schedule") and name != "Schedule":
            try:
                yield x(10)
            except Exception:
                continue
    for name in dy.nn.__all__:
        x = getattr(dy.nn, name)
        for arguments in ((2, 2, m), (2, m), (4, 2, m), (2, 2, 2, m), (2, 2, 1, m), ()):
            try:
                made = x(*arguments)
                pickle.dumps(made)
            except Exception:
                continue
            yield made
            break
    yield from (dy.get_device_info("CPU"), dy.DynetParams(), dy.data.Vocabulary(["a", "b"]), dy.memory_report())
    yield from (dy.EarlyStopping(m), dy.data.parse_tree("(S (N a))"), dy.Hypothesis([1], -0.5, None))
    with profiling.measure() as profile:
        dy.tanh(dy.inputVector([1, 2])).value()
    yield profile
    yield from (dy.metrics.precision_recall([[1]], [[1]]), dy.OneOf([[1, 2]]))


def test_objects_name_only_what_is_public() -> None:
    made = list(objects())
    assert len(made) > 60
    assert not {place: type(x) for x in made for place in named_in(pickle.dumps(x, 2)) if not is_public(*place)}


@pytest.mark.parametrize(
    ("place", "there"),
    [
        ("dynet_cy.ops.unary tanh", dy.tanh),
        ("dynet_cy.ops.elementwise tanh", dy.tanh),
        ("dynet_cy.initializers ConstInitializer", dy.ConstInitializer),
        ("dynet_cy.devices DeviceInfo", dy.DeviceInfo),
        ("dynet_cy.core.devices DeviceInfo", dy.DeviceInfo),
        ("dynet_cy.search Hypothesis", dy.Hypothesis),
        ("dynet_cy.train.trainers AdamTrainer", dy.AdamTrainer),
        ("dynet_cy.graph.graph StaleExpressionError", dy.StaleExpressionError),
        ("dynet_cy.graph.random_state set_seed", dy.reset_random_seed),
        ("dynet_cy.metrics accuracy", dy.metrics.accuracy),
        ("dynet_cy.nn.basic Linear", dy.nn.Linear),
        ("dynet_cy.data.vocabulary Vocabulary", dy.data.Vocabulary),
        ("dynet_cy.graph.timeline Span", profiling.Span),
        ("dynet_cy.graph.usage GraphUsage", vars(dy)["_GraphUsage"]),
        ("dynet_cy.graph.usage DroppedUsage", vars(dy)["_DroppedUsage"]),
        ("dynet_cy.graph.drawing Drawing", dy.Drawing),
        ("dynet_cy.graph.show dump_cg", dy.dump_cg),
        ("dynet_cy.execute.watch AnomalyError", dy.AnomalyError),
        ("dynet_cy.serving.search Hypothesis", dy.Hypothesis),
        ("dynet_cy.serving.decoding decode", dy.decode),
        ("dynet_cy.readings AmbiguityError", dy.AmbiguityError),
        ("dynet_cy.model.parameters ParameterCollection", dy.ParameterCollection),
        ("dynet_cy.model.parameters _restored_members", vars(dy)["_restored_members"]),
        ("dynet_cy.model.collection _restored_collection", vars(dy)["_restored_collection"]),
    ],
)
def test_files_of_earlier_versions(place: str, there: Any) -> None:
    module, name = place.split()
    assert pickle.loads(f"c{module}\n{name}\n.".encode()) is there


def test_code_may_move(monkeypatch: pytest.MonkeyPatch) -> None:
    elementwise = importlib.import_module("dynet_cy.ops.elementwise")
    former, data = b"cdynet_cy.ops.elementwise\ntanh\n.", pickle.dumps(dy.tanh)
    # What stands in for the module is set as its package's attribute, too.
    monkeypatch.setattr("dynet_cy.ops.elementwise", elementwise)
    monkeypatch.delattr(elementwise, "tanh")
    assert pickle.loads(former) is pickle.loads(data) is dy.tanh
    monkeypatch.delitem(sys.modules, "dynet_cy.ops.elementwise")
    monkeypatch.setattr(sys, "meta_path", [x for x in sys.meta_path if type(x).__name__ == "_Former"])
    assert pickle.loads(former) is dy.tanh
    with pytest.raises(AttributeError, match="attribute 'nothing'"):
        pickle.loads(b"cdynet_cy.ops.elementwise\nnothing\n.")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("dynet_cy.nowhere")


def test_the_table_has_all_places() -> None:
    """Each module that defines something public is in it, so that nothing is lost when code moves."""
    sources = [path for ending in ("py", "pyx") for path in PACKAGE.rglob(f"*.{ending}")]
    if not any(path.suffix == ".pyx" for path in sources):
        pytest.skip("the package is installed without its .pyx sources")
    names = {name for _, name, _ in public()}
    rules = ("dynet_cy.derivatives.", "dynet_cy.onnx.", "dynet_cy.gpu.", "dynet_cy.kernels.", "dynet_cy.commands.")
    missing = {}
    for path in sources:
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if module in (*FORMER, *PUBLIC) or module.startswith(rules):
            continue
        own = re.findall(r"^(?:cdef class|class|def) (\w+)", path.read_text(encoding="utf-8"), re.M)
        loaded = sys.modules.get(module)
        own = [n for n in own if n in names and getattr(loaded, n, None) in [x for _, name, x in public() if name == n]]
        if own:
            missing[module] = own
    assert not missing


def test_public_names_stay_when_former_modules_are_imported(tmp_path: Path) -> None:
    """The import of a module sets an attribute of its package, which may be a function there today."""
    code = (
        "import importlib, dynet_cy as dy; from dynet_cy.files import places\n"
        "before = dict(vars(dy))\n"
        "for former in places.FORMER: importlib.import_module(former)\n"
        "changed = [name for name, x in before.items() if vars(dy)[name] is not x]\n"
        "assert not changed, changed"
    )
    done = run_python(tmp_path, code)
    assert done.returncode == 0, done.stderr


def test_models_that_are_pretrained_are_loaded_when_they_are_used(tmp_path: Path) -> None:
    """Naming all public names does not load a module that `later` has put there."""
    code = (
        "import sys, dynet_cy as dy\n"
        "loaded = lambda: [name for name in sys.modules if name.startswith('dynet_cy.pretrained.')]\n"
        "assert not loaded(), loaded()\n"
        "dy.pretrained.load\n"
        "assert loaded()"
    )
    done = run_python(tmp_path, code)
    assert done.returncode == 0, done.stderr
