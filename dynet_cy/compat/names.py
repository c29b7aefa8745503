"""The names that DyNet's modules give to a program, and where dynet_cy has them."""

from __future__ import annotations
import __future__

import os
import pickle
import sys
from types import ModuleType
from typing import Any

import numpy as np

import dynet_cy
from dynet_cy import config, viz
from dynet_cy.hints.equivalents import Elsewhere

__all__ = ["NAMES", "namespace"]

# DyNet's functions and classes.
_NAMES = """
AdadeltaTrainer AdagradTrainer AdamTrainer AmsgradTrainer BiRNNBuilder ClassFactoredSoftmaxBuilder
CompactVanillaLSTMBuilder ComputationGraph ConstInitializer CoupledLSTMBuilder CyclicalSGDTrainer DeviceInfo
DynetParams Expression FastLSTMBuilder FloatValue FloatVectorValue FromFileInitializer GRUBuilder GlorotInitializer
IdentityInitializer LSTMBuilder LookupParameters Model MomentumSGDTrainer NormalInitializer NumpyInitializer
ParameterCollection Parameters PyInitializer RMSPropTrainer RNNState SaxeInitializer SimpleRNNBuilder
SimpleSGDTrainer SoftmaxBuilder SparseLSTMBuilder StackedRNNState StandardSoftmaxBuilder Tensor Trainer
UniformInitializer UnsignedValue UnsignedVectorValue VanillaLSTMBuilder abs acos acosh affine_transform argmax asin
asinh atan atanh available_devices average binary_log_loss block_dropout bmax bmin cdiv ceil cg cg_checkpoint
cg_revert cg_version circ_conv circ_corr cmult colwise_add concatenate concatenate_cols concatenate_to_batch
const_parameter constant constrained_softmax contract3d_1d contract3d_1d_1d contract3d_1d_1d_bias
contract3d_1d_bias conv2d conv2d_bias cos cosh cube cumsum dot_product dropout dropout_batch dropout_dim dump_cg
elu emax erf esum exp filter1d_narrow flip_gradient floor fold_rows forward get_device_info hinge hinge_batch
hinge_dim huber_distance init init_from_params inputMatrix inputTensor inputTensorTranspose inputVector inverse
kmax_pooling kmh_ngram l1_distance l2_norm layer_norm lgamma load load_generator log log_sigmoid log_softmax logdet
logistic logsumexp logsumexp_dim lookup lookup_batch matInput max_dim maxpooling2d mean_batches mean_dim mean_elems
min_dim moment_batches moment_dim moment_elems nobackprop noise npvalues one_hot ones pairwise_rank_loss parameter
pick pick_batch pick_batch_elem pick_batch_elems pick_range pickneglogsoftmax pickneglogsoftmax_batch pickrange
poisson_loss pow print_text_graphviz random_bernoulli random_gumbel random_normal random_uniform rectify renew_cg
reset_random_seed reshape round save scalarInput scale_gradient select_cols select_rows selu silu sin sinh softmax
softsign sparse_inputTensor sparsemax sqrt square squared_distance squared_norm std_batches std_dim std_elems
strided_select sum_batches sum_dim sum_elems tan tanh to_device trace_of_product transpose values vanilla_lstm_c
vanilla_lstm_gates vanilla_lstm_gates_concat vanilla_lstm_gates_dropout vanilla_lstm_gates_dropout_concat
vanilla_lstm_h vecInput weight_norm zeroes zeros
"""
NAMES = _NAMES.split()

# What its modules import, which programs use: `dy.np.random.choice`.
_IMPORTED: dict[str, Any] = {"np": np, "os": os, "pickle": pickle, "sys": sys}

# What `dynet` has and `_dynet` has not.
_OF_DYNET: dict[str, Any] = {
    "ERRMSG": "dynet_cy has no GPU here; see docs/gpu.md",
    "HAVE_CUDA": dynet_cy.HAVE_CUDA,
    "dynet_config": config,
    "print_function": __future__.print_function,
    "print_graphviz": dynet_cy.print_graphviz,
}

# For each module of DyNet, the one of ours with its functions and classes, other names, and all that its star gives.
_MODULES: dict[str, tuple[ModuleType, dict[str, Any], list[str]]] = {
    "_dynet": (dynet_cy, _IMPORTED, [*NAMES, *_IMPORTED]),
    "dynet": (dynet_cy, {**_IMPORTED, **_OF_DYNET}, [*NAMES, *_IMPORTED, *_OF_DYNET]),
    "dynet_config": (config, {}, ["get", "gpu", "set", "set_gpu"]),
    "dynet_viz": (viz, {}, NAMES),
}


def namespace(module: str) -> dict[str, Any]:
    """The contents of a module of DyNet: all our public names; ``from ... import *`` imports DyNet's only.

    A `__getattr__` that looks names up would slow down `dy.tanh`.
    """
    ours, others, star = _MODULES[module]
    held = {
        name: value
        for name, value in vars(ours).items()
        if (not name.startswith("_") or name in ("_RNNBuilder", "__version__", "__gitversion__"))
        and not isinstance(value, Elsewhere)
    }
    return {**held, **others, "__all__": star}
