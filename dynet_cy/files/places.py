"""Public names for pickles: pickles find functions and classes under them, also after code moves to other modules.

A pickle names what it refers to by a module and a name in it. Functions and classes say that they are of the public
module that has them, such as ``dynet_cy`` or ``dynet_cy.nn``. Pickles of earlier versions name the modules in which
they were defined, of which some are gone: `FORMER` says where their names are now.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from dynet_cy.core.later import LATER
from dynet_cy.graph.structs import set_place

# The modules with public names, each of which is named by the first one that has it.
PUBLIC = tuple(
    f"dynet_cy{name}"
    for name in (
        "",
        ".config",
        ".nn",
        ".data",
        ".data.metrics",
        ".onnx",
        ".parallel",
        ".profiling",
        ".serving",
        ".loggers",
    )
)

# What pickles of public objects name besides: by its name in the package, the module and its name there.
PRIVATE = {
    "_restored_collection": ("model.collection", "_restored_collection"),
    "_restored_members": ("model.collection", "_restored_members"),
    "_restored_member": ("model.collection", "_restored_member"),
    "_Affine": ("rnn.softmax_builders", "_Affine"),
    "_Record": ("train.schedules", "Record"),
    "_MemoryRow": ("watch.memory", "MemoryRow"),
    "_GraphUsage": ("watch.usage", "GraphUsage"),
    "_ValueUsage": ("watch.usage", "ValueUsage"),
    "_DroppedUsage": ("watch.usage", "DroppedUsage"),
}

_OF_PACKAGE = """
anomaly checkpoint core.devices decoding.constraints decoding.greedy decoding.search decoding.states
derivatives.gradients devices drawing.svg drawing.text execute.anomaly execute.watch extension fibers
files.checkpoint files.saving files.textfile functions.choices functions.contraction functions.convolutions
functions.losses functions.norms functions.reductions functions.sequences functions.shapes graph.drawing
graph.expressions graph.graph graph.holders graph.input_values graph.making graph.origin graph.random_state
graph.regions graph.show graph.tensor graph.transfer graph.usage graph.values hints.readings hints.strictness
initializers model.collection model.initializers model.leaves model.parameters ops.along ops.arithmetic
ops.attention ops.batch_norm ops.batched ops.cells ops.constrained ops.contract ops.conv ops.crf ops.custom
ops.elementwise ops.gated ops.inputs ops.integers ops.inverse ops.linalg ops.losses ops.norm ops.order ops.pooling
ops.products ops.random ops.recurrent ops.reduce ops.registry ops.select ops.shape ops.softmax ops.unary
ops.vector_norm profiling.anomaly profiling.memory readings rnn.birnn rnn.gru rnn.lstm rnn.simple
rnn.softmax_builders rnn.stacked rnn.state rnn.tree saving schedules search serving.constraints serving.decoding
serving.fibers serving.search serving.server serving.states softmax_builders stopping strictness textfile
train.python_trainer train.schedules train.stopping train.trainer train.trainers train.training training
watch.anomaly watch.instruments watch.memory watch.usage
"""

# Modules whose functions and classes pickles of earlier versions name, by where these are now.
FORMER: dict[str, str] = {
    f"dynet_cy.{former}": place
    for place, modules in {
        "dynet_cy": _OF_PACKAGE,
        "dynet_cy.nn": "nn.attention nn.basic nn.batch_norm nn.containers nn.convolution nn.crf nn.layer nn.pooling "
        "nn.positions nn.recurrent nn.residual nn.transformer nn.vectors",
        "dynet_cy.data": "data.batching data.conllu data.digits data.entities data.environments data.files "
        "data.inflections data.text data.toy_trees data.transitions data.trees data.vocabulary",
        "dynet_cy.data.metrics": "metrics",
        "dynet_cy.onnx": "onnx.errors onnx.exporting onnx.inputs",
        "dynet_cy.parallel": "parallel.communicator parallel.data parallel.exchange parallel.resume parallel.runtime "
        "parallel.trainer",
        "dynet_cy.profiling": "execute.profile graph.timeline profiling.plans profiling.timelines timelines "
        "watch.lifetimes watch.timeline",
        "dynet_cy.loggers": "loggers.curves loggers.lines loggers.live loggers.logger loggers.services "
        "loggers.tensorboard",
    }.items()
    for former in modules.split()
}

# Names that have changed themselves.
_RENAMED = {"set_seed": "reset_random_seed", **{there: name for name, (_, there) in PRIVATE.items()}}


def name_by(place: str, named: Mapping[str, Any], own: Iterable[str] = ()) -> None:
    """Let pickles name functions and classes of this package by a module that has them.

    Args:
        place: the module.
        named: the functions and classes, by their names in it; anything else is left as it is.
        own: places whose functions and classes are named well already.
    """
    for x in named.values():
        if isinstance(x, ModuleType):  # which may be there without being loaded: core/later.py
            continue
        before = getattr(x, "__module__", None)
        if not isinstance(before, str) or not f"{before}.".startswith(("dynet_cy.", "_dynet.")) or before in own:
            continue
        if isinstance(x, type):
            set_place(x, place)
        else:
            x.__module__ = place


def name_all(place: str) -> None:
    """Let pickles name all that a public module has by it, unless an earlier one does."""
    module = sys.modules[place]
    name_by(place, {name: getattr(module, name) for name in module.__all__}, PUBLIC[: PUBLIC.index(place)])


def begin() -> None:
    """Name all public functions and classes by public modules, and let former places lead there."""
    for place in PUBLIC:
        if place not in LATER:  # which name what they have when they are loaded
            name_all(place)
    package = sys.modules["dynet_cy"]
    for name, (home, there) in PRIVATE.items():
        x = getattr(sys.modules[f"dynet_cy.{home}"], there)
        setattr(package, name, x)
        if name != there:
            x.__qualname__ = name
    name_by("dynet_cy", {name: getattr(package, name) for name in PRIVATE})
    for former in FORMER:
        above, _, name = former.rpartition(".")
        if above in LATER:  # whose modules have kept their names
            continue
        if former not in sys.modules and name in vars(sys.modules.get(above, object)):
            # Its import would replace what is public under this name, such as the function `checkpoint`.
            sys.modules[former] = ModuleType(former)
        if former in sys.modules:
            vars(sys.modules[former])["__getattr__"] = partial(_moved, former)
    sys.meta_path.append(_Former())


def _moved(former: str, name: str) -> Any:
    """The attribute of a former module with that name."""
    name = _RENAMED.get(name, name)
    place = importlib.import_module(FORMER[former])
    if name not in place.__all__ and not (place.__name__ == "dynet_cy" and name in PRIVATE):
        raise AttributeError(f"module {former!r} has no attribute {name!r}")
    return getattr(place, name)


class _Former:
    """Finds modules that are gone, after all other finders: without content, they lead on."""

    def find_spec(self: Any, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in FORMER else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = partial(_moved, module.__name__)
