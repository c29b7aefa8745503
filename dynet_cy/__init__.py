"""Dynamic neural networks with automatic batching: a successor of DyNet.

Build expressions for one example, ask for their values or gradients, renew the graph, continue:

    import dynet_cy as dy

    model = dy.ParameterCollection()
    W = model.add_parameters((10, 5))
    dy.renew_cg()
    y = dy.tanh(W * dy.inputVector([1, 2, 3, 4, 5]))
    y.npvalue()
"""

import typing as _typing

import dynet_cy._built  # first: says what is wrong where the others would fail without a reason
from dynet_cy.core.later import later as _later

if _typing.TYPE_CHECKING:
    from dynet_cy import data, loggers, nn, onnx, pretrained, profiling
    from dynet_cy.data import metrics
else:  # so that programs without them begin sooner; before the others, which have them from here
    data = _later("dynet_cy.data")
    loggers = _later("dynet_cy.loggers")
    metrics = _later("dynet_cy.data.metrics")
    nn = _later("dynet_cy.nn")
    onnx = _later("dynet_cy.onnx")
    pretrained = _later("dynet_cy.pretrained")
    profiling = _later("dynet_cy.profiling")

import dynet_cy.config  # reads options of the command line and the environment
import dynet_cy.execute.cpu  # type: ignore[import-not-found]  # noqa: F401 - puts the executor in place
from dynet_cy import functions, parallel
from dynet_cy._version import __version__
from dynet_cy.config import DynetParams, init, init_from_params
from dynet_cy.core.devices import HAVE_CUDA, DeviceInfo, available_devices, get_device_info
from dynet_cy.core.keywords import watch as _watch
from dynet_cy.decoding.greedy import decode
from dynet_cy.decoding.search import Hypothesis, OneOf, beam_search, best_tree
from dynet_cy.decoding.states import join_states, select_states
from dynet_cy.derivatives import gradients, hessian_vector_product
from dynet_cy.drawing.svg import Drawing, draw
from dynet_cy.drawing.text import dump_cg, print_graphviz, print_text_graphviz
from dynet_cy.extension import get_cython_path, get_include
from dynet_cy.files import places as _places
from dynet_cy.files.checkpoint import load_network, load_safetensors, read_extra, save_safetensors
from dynet_cy.files.saving import load, load_generator, save
from dynet_cy.files.textfile import ModelFileError
from dynet_cy.functions import *  # noqa: F403 - its __all__ is the list of them
from dynet_cy.graph import (
    ComputationGraph,
    Expression,
    StaleExpressionError,
    cg,
    cg_checkpoint,
    cg_revert,
    cg_version,
    forward,
    npvalues,
    renew_cg,
    values,
)
from dynet_cy.graph.expressions import reset_random_seed
from dynet_cy.graph.input_values import FloatValue, FloatVectorValue, UnsignedValue, UnsignedVectorValue
from dynet_cy.graph.making import to_device
from dynet_cy.graph.origin import name_scope, record_lines
from dynet_cy.graph.regions import checkpoint
from dynet_cy.graph.structs import give_attributes as _give_attributes
from dynet_cy.graph.tensor import Tensor
from dynet_cy.hints import equivalents as _equivalents
from dynet_cy.hints import strictness as _strictness
from dynet_cy.hints.strictness import AmbiguityError, strict
from dynet_cy.model import (
    LookupExpression,
    LookupParameters,
    ParameterCollection,
    Parameters,
    const_parameter,
    lookup,
    lookup_batch,
    parameter,
)
from dynet_cy.model.initializers import (
    ConstInitializer,
    FromFileInitializer,
    GlorotInitializer,
    IdentityInitializer,
    NormalInitializer,
    NumpyInitializer,
    PyInitializer,
    SaxeInitializer,
    UniformInitializer,
)
from dynet_cy.ops import api as _api
from dynet_cy.ops.api import *  # noqa: F403 - its __all__ is the list of ops
from dynet_cy.ops.inputs import InputExpression
from dynet_cy.ops.registry import DimensionError
from dynet_cy.ops.select import PickedExpression
from dynet_cy.rnn.builder import _RNNBuilder
from dynet_cy.rnn.softmax_builders import ClassFactoredSoftmaxBuilder, SoftmaxBuilder, StandardSoftmaxBuilder
from dynet_cy.serving.fibers import batched_map
from dynet_cy.serving.server import Server, ServerCall, ServerClosed, ServerFull, ServerStatistics
from dynet_cy.train.schedules import (
    CosineSchedule,
    LinearSchedule,
    PlateauSchedule,
    Schedule,
    StepSchedule,
    WarmupSchedule,
)
from dynet_cy.train.stopping import EarlyStopping
from dynet_cy.train.training import Epoch, Training
from dynet_cy.watch.anomaly import AnomalyError, detect_anomaly
from dynet_cy.watch.memory import MemoryReport, memory_report

# isort: split
# derived: packages, by tools/derive.py
from dynet_cy.rnn import (
    BiRNNBuilder,
    ChildSumTreeLSTMBuilder,
    CompactVanillaLSTMBuilder,
    CoupledLSTMBuilder,
    FastLSTMBuilder,
    GRUBuilder,
    LSTMBuilder,
    NaryTreeLSTMBuilder,
    RNNState,
    SimpleRNNBuilder,
    SparseLSTMBuilder,
    StackedRNNState,
    TreeState,
    VanillaLSTMBuilder,
)
from dynet_cy.train import (
    AdadeltaTrainer,
    AdagradTrainer,
    AdamTrainer,
    AdamWTrainer,
    AmsgradTrainer,
    CyclicalSGDTrainer,
    LionTrainer,
    MomentumSGDTrainer,
    NesterovSGDTrainer,
    PythonTrainer,
    RMSPropTrainer,
    SignumTrainer,
    SimpleSGDTrainer,
    Trainer,
)

# end of packages

# DyNet's other names.
Model = ParameterCollection
__gitversion__ = __version__

__all__ = [
    "__gitversion__",
    "__version__",
    # settings and devices
    "DeviceInfo",
    "DynetParams",
    "HAVE_CUDA",
    "available_devices",
    "get_device_info",
    "init",
    "init_from_params",
    "to_device",
    # numbers
    "FloatValue",
    "FloatVectorValue",
    "UnsignedValue",
    "UnsignedVectorValue",
    # gradients as expressions
    "gradients",
    "hessian_vector_product",
    # memory
    "MemoryReport",
    "memory_report",
    # looking for errors
    "AmbiguityError",
    "AnomalyError",
    "detect_anomaly",
    "name_scope",
    "record_lines",
    "strict",
    # graphs
    "ComputationGraph",
    "Drawing",
    "Expression",
    "InputExpression",
    "LookupExpression",
    "PickedExpression",
    "StaleExpressionError",
    "Tensor",
    "batched_map",
    "cg",
    "cg_checkpoint",
    "cg_revert",
    "cg_version",
    "checkpoint",
    "draw",
    "dump_cg",
    "forward",
    "npvalues",
    "print_graphviz",
    "print_text_graphviz",
    "renew_cg",
    "reset_random_seed",
    "values",
    # initializers
    "ConstInitializer",
    "FromFileInitializer",
    "GlorotInitializer",
    "IdentityInitializer",
    "NormalInitializer",
    "NumpyInitializer",
    "PyInitializer",
    "SaxeInitializer",
    "UniformInitializer",
    # models
    "LookupParameters",
    "Model",
    "ParameterCollection",
    "Parameters",
    "const_parameter",
    "lookup",
    "lookup_batch",
    "parameter",
    # files
    "ModelFileError",
    "load",
    "load_generator",
    "load_network",
    "load_safetensors",
    "read_extra",
    "save",
    "save_safetensors",
    # ops
    "DimensionError",
    "get_cython_path",
    "get_include",
    # softmax layers
    "ClassFactoredSoftmaxBuilder",
    "SoftmaxBuilder",
    "StandardSoftmaxBuilder",
    # layers
    "nn",
    # pretrained encoders
    "pretrained",
    # files for other programs
    "onnx",
    # decoding
    "Hypothesis",
    "OneOf",
    "beam_search",
    "best_tree",
    "decode",
    "join_states",
    "select_states",
    # serving
    "Server",
    "ServerCall",
    "ServerClosed",
    "ServerFull",
    "ServerStatistics",
    # training
    "CosineSchedule",
    "LinearSchedule",
    "PlateauSchedule",
    "Schedule",
    "StepSchedule",
    "WarmupSchedule",
    # data
    "EarlyStopping",
    "Epoch",
    "Training",
    "data",
    "metrics",
    # several processes
    "parallel",
    # derived: names of builders and trainers, by tools/derive.py
    "BiRNNBuilder",
    "ChildSumTreeLSTMBuilder",
    "CompactVanillaLSTMBuilder",
    "CoupledLSTMBuilder",
    "FastLSTMBuilder",
    "GRUBuilder",
    "LSTMBuilder",
    "NaryTreeLSTMBuilder",
    "RNNState",
    "SimpleRNNBuilder",
    "SparseLSTMBuilder",
    "StackedRNNState",
    "TreeState",
    "VanillaLSTMBuilder",
    "AdadeltaTrainer",
    "AdagradTrainer",
    "AdamTrainer",
    "AdamWTrainer",
    "AmsgradTrainer",
    "CyclicalSGDTrainer",
    "LionTrainer",
    "MomentumSGDTrainer",
    "NesterovSGDTrainer",
    "PythonTrainer",
    "RMSPropTrainer",
    "SignumTrainer",
    "SimpleSGDTrainer",
    "Trainer",
    # end of names
]
# Each list by itself, as editors and pyright read `__all__`.
__all__ += _api.__all__
__all__ += functions.__all__


def _finish() -> None:
    """Set up what needs all names of the package; a function, so that its variables are not among them."""
    # Errors of names that other libraries have say what to write.
    globals().update(_equivalents.of_package(globals()))
    for column, classes in (
        ("x", (Expression,)),
        ("trainer", (Trainer,)),
        ("model", (ParameterCollection,)),
        ("state", (RNNState,)),
        ("layer", (_RNNBuilder, BiRNNBuilder)),
    ):
        for cls in classes:
            _give_attributes(cls, _equivalents.elsewhere(column, cls))
    # So do errors of arguments that functions do not have.
    for called in (*map(globals().get, __all__), *vars(Expression).values()):
        _watch(called)
    _strictness.begin()
    _places.begin()


_finish()
