"""The layers of dy.nn: for those that are called on columns, one row each, with its formula in NumPy.

The rows are used by the tests of values, gradients, files, copies, errors and GPUs. A layer that is called in another
way has tests of its own, in the file that `ELSEWHERE` names.
"""

from __future__ import annotations

import numpy as np

from dynet_cy import nn

D = 4


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def linear(p, x, name=""):
    return p[name + "W"] @ x + p.get(name + "b", np.zeros(1))[:, None]


def layer_norm(p, x, eps=None, name=""):
    centered = x - x.mean(0)
    scale = np.sqrt(x.var(0) + (1e-5 if eps is None else eps))
    return p[name + "g"][:, None] * centered / scale + p.get(name + "b", np.zeros(1))[:, None]


def rms_norm(p, x):
    return p["g"][:, None] * x / np.sqrt((x**2).mean(0) + 1e-5)


def gated_linear(p, x, f):
    return linear(p, x, "value/") * f(linear(p, x, "gate/"))


def highway(p, x):
    t = sigmoid(p["Wt"] @ x + p["bt"][:, None])
    return t * np.tanh(p["W"] @ x + p["b"][:, None]) + (1 - t) * x


# Name: the class and its arguments without the model; and the result for p, the arrays of its parameters by name, and
# x, a matrix of D rows.
LAYERS = {
    "linear": ((nn.Linear, D, 3), linear),
    "linear_without_bias": ((nn.Linear, D, 3, False), linear),
    "layer_norm": ((nn.LayerNorm, D), layer_norm),
    "layer_norm_eps": ((nn.LayerNorm, D, 0.1), lambda p, x: layer_norm(p, x, 0.1)),
    "layer_norm_without_bias": ((nn.LayerNorm, D, None, False), layer_norm),
    "rms_norm": ((nn.RMSNorm, D), rms_norm),
    "gated_linear": ((nn.GatedLinear, D, 3), lambda p, x: gated_linear(p, x, sigmoid)),
    "gated_linear_tanh": ((nn.GatedLinear, D, 3, "tanh", False), lambda p, x: gated_linear(p, x, np.tanh)),
    "highway": ((nn.Highway, D, "tanh"), highway),
    "sequential": (
        (nn.Sequential, ((nn.Linear, D, 3), "tanh", (nn.Linear, 3, 2))),
        lambda p, x: linear(p, np.tanh(linear(p, x, "0/")), "2/"),
    ),
}

# Layers without a row, and the files of their tests.
ELSEWHERE = {
    "LSTM": "test_recurrent_layers.py",
    "GRU": "test_recurrent_layers.py",
    "RNN": "test_recurrent_layers.py",
    "Activation": "test_basic_layers.py",
    "AvgPool2d": "test_image_layers.py",
    "BatchNorm": "test_convolution_layers.py",
    "BiaffineAttention": "test_attention_layers.py",
    "CRF": "test_crf_layer.py",
    "Conv1d": "test_convolution_layers.py",
    "Conv2d": "test_convolution_layers.py",
    "ConvTranspose1d": "test_convolution_layers.py",
    "ConvTranspose2d": "test_convolution_layers.py",
    "Dropout": "test_basic_layers.py",
    "Embedding": "test_basic_layers.py",
    "Flatten": "test_image_layers.py",
    "GlobalAvgPool2d": "test_image_layers.py",
    "GroupNorm": "test_image_layers.py",
    "LayerList": "test_basic_layers.py",
    "MaxPool2d": "test_image_layers.py",
    "MultiHeadAttention": "test_attention_layers.py",
    "PointerAttention": "test_attention_layers.py",
    "RelativeBias": "test_attention_layers.py",
    "ResidualBlock": "test_image_layers.py",
    "SinusoidalPositions": "test_attention_layers.py",
    "TransformerDecoder": "test_transformer_layers.py",
    "TransformerDecoderLayer": "test_transformer_layers.py",
    "TransformerEncoder": "test_transformer_layers.py",
    "TransformerEncoderLayer": "test_transformer_layers.py",
}
