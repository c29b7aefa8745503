"""The layers of dy.nn: one row each for those that are called on columns or on images, with its formula in NumPy.

The rows are used by the tests of values, gradients, files, copies, errors and GPUs. A layer that is called in another
way has tests of its own, in the file that `ELSEWHERE` names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from layer_checks import sentences

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


# ---- convolutions, pools and norms of images ---------------------------------------------


def conv1d(p, x, width, stride, padding, dilation, groups=1):
    reach = dilation * (width - 1)
    before = {"valid": 0, "same": reach // 2}.get(padding, padding)
    after = {"valid": 0, "same": reach - reach // 2}.get(padding, padding)
    x = np.pad(x, ((0, 0), (before, after)))
    starts = range(0, x.shape[1] - reach, stride)
    parts = []
    for rows, W in zip(np.split(x, groups), np.split(p["W"], groups)):
        windows = [np.concatenate([rows[:, at + k * dilation] for k in range(width)]) for at in starts]
        parts.append(W @ np.stack(windows, 1))
    return np.concatenate(parts) + p.get("b", np.zeros(1))[:, None]


def conv2d(p, x, stride, around, dilation=(1, 1), groups=1):
    x = np.pad(x, ((around[0],) * 2, (around[1],) * 2, (0, 0)))
    f = p["W"]
    rows, columns = ((f.shape[d] - 1) * dilation[d] + 1 for d in range(2))
    found = np.empty(
        ((x.shape[0] - rows) // stride[0] + 1, (x.shape[1] - columns) // stride[1] + 1, f.shape[3]), dtype=x.dtype
    )
    for i, j in np.ndindex(*found.shape[:2]):
        window = x[i * stride[0] :, j * stride[1] :][: rows : dilation[0], : columns : dilation[1]]
        parts = zip(np.split(window, groups, 2), np.split(f, groups, 3))
        found[i, j] = np.concatenate([np.einsum("abc,abco->o", *part) for part in parts])
    return found + p.get("b", 0)


def conv_transpose2d(p, x, stride, padding, more, dilation, groups):
    """Each pixel adds the filters of its group, times its value, to the result."""
    f = p["W"]
    shape = [(x.shape[d] - 1) * stride[d] + (f.shape[d] - 1) * dilation[d] + 1 for d in range(2)]
    y = np.zeros((*(shape[d] + more[d] for d in range(2)), f.shape[2] * groups), dtype=x.dtype)
    for i, j in np.ndindex(*x.shape[:2]):
        parts = zip(np.split(x[i, j], groups), np.split(f, groups, 3))
        put = np.concatenate([np.einsum("c,aboc->abo", *part) for part in parts], 2)
        at = y[i * stride[0] :, j * stride[1] :]
        at[: (f.shape[0] - 1) * dilation[0] + 1 : dilation[0], : (f.shape[1] - 1) * dilation[1] + 1 : dilation[1]] += (
            put
        )
    ends = [shape[d] - padding[d] + more[d] for d in range(2)]
    return y[padding[0] : ends[0], padding[1] : ends[1]] + p.get("b", 0)


def conv_transpose1d(p, x, stride, padding, more, dilation, groups):
    """A transposed convolution of images along one axis."""
    p = {**p, "W": p["W"].swapaxes(0, 1)[:, None]}
    pairs = (stride, 1), (padding, 0), (more, 0), (dilation, 1)
    return conv_transpose2d(p, x.T[:, None], *pairs, groups)[:, 0].T


def pooled(x, size, stride, padding, f):
    x = np.pad(x, [(n, n) for n in padding] + [(0, 0)], constant_values=np.nan)
    starts = [range(0, n - s + 1, by) for n, s, by in zip(x.shape, size, stride)]
    return np.array([[f(x[i : i + size[0], j : j + size[1]], axis=(0, 1)) for j in starts[1]] for i in starts[0]])


def flat(x):
    """As PyTorch flattens: the channels are its first axis."""
    return (x.transpose(2, 0, 1) if x.ndim == 3 else x).ravel()


def group_norm(p, x, groups, eps=1e-5, name=""):
    parts = x.reshape(-1, groups, x.shape[-1] // groups)
    scale = np.sqrt(parts.var((0, 2), keepdims=True) + eps)
    return ((parts - parts.mean((0, 2), keepdims=True)) / scale).reshape(x.shape) * p[name + "g"] + p[name + "b"]


def residual(p, x, stride, bottleneck, groups):
    """The formula of a block with group norms."""

    def step(x, i, stride=1):
        around = 1 if p[f"conv{i}/W"].shape[0] == 3 else 0
        found = conv2d({"W": p[f"conv{i}/W"]}, x, (stride, stride), (around, around))
        return group_norm(p, found, groups, name=f"bn{i}/")

    if bottleneck:
        y = step(np.maximum(step(np.maximum(step(x, 1), 0), 2, stride), 0), 3)
    else:
        y = step(np.maximum(step(x, 1, stride), 0), 2)
    if "downsample/0/W" in p:
        x = group_norm(p, conv2d({"W": p["downsample/0/W"]}, x, (stride, stride), (0, 0)), groups, name="downsample/1/")
    return np.maximum(y + x, 0)


def images(*shapes, channels=4, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(*shape, channels)).astype(np.float32),) for shape in shapes]


def both(n):
    return (n, n) if isinstance(n, int) else n


class Row(NamedTuple):
    """A layer: the class and its arguments without the model; its formula; inputs; the error that rounding makes."""

    layer: tuple[Any, ...]
    formula: Callable[..., Any]
    inputs: list[Any]
    tolerance: float = 3e-5


# Width, stride, padding, dilation, bias.
CONV1D = [
    (3, 1, "valid", 1, True),
    (3, 1, "same", 1, True),
    (2, 1, "same", 1, False),
    (3, 2, 1, 1, True),
    (2, 1, 2, 2, True),
    (1, 1, "valid", 1, True),
    (1, 2, "valid", 1, False),
]
# Size, stride, padding, the zeros around, bias.
CONV2D = [
    (2, 1, "valid", (0, 0), True),
    (3, 1, "same", (1, 1), False),
    ((2, 3), (1, 2), (1, 0), (1, 0), True),
    ((1, 2), 1, 1, (1, 1), True),
]
# Stride, padding, output padding, dilation, groups, bias.
TRANSPOSED = [
    ((1, 1), (0, 0), (0, 0), (1, 1), 1, True),
    ((2, 2), (1, 1), (1, 0), (1, 1), 1, False),
    ((3, 2), (0, 1), (2, 1), (2, 1), 2, True),
]
POOLS = [(2, None, 0), (3, 2, 1), ((3, 2), (1, 3), (1, 0)), ((1, 4), 2, (0, 2))]
SIZES = (3, 4), (3, 4), (2, 5)


def convolutions():
    for width, stride, padding, dilation, bias in CONV1D:
        for groups, rows, outputs in ((1, 3, 4), (2, 4, 6)):
            spec = (nn.Conv1d, rows, outputs, width, stride, padding, dilation, bias, groups)
            formula = partial(conv1d, width=width, stride=stride, padding=padding, dilation=dilation, groups=groups)
            yield Row(spec, formula, sentences(rows, (5, 3, 6)), 1e-5)
    for size, stride, padding, around, bias in CONV2D:
        formula = partial(conv2d, stride=both(stride), around=around)
        yield Row((nn.Conv2d, 2, 3, size, stride, padding, bias), formula, images(*SIZES, channels=2))
    for dilation, groups in (((2, 1), 1), (1, 2), (2, 4)):
        formula = partial(conv2d, stride=(1, 1), around=(1, 1), dilation=both(dilation), groups=groups)
        yield Row((nn.Conv2d, 4, 8, (2, 3), 1, (1, 1), True, dilation, groups), formula, images(*SIZES))
    for stride, padding, more, dilation, groups, bias in TRANSPOSED:
        options = {"stride": stride, "padding": padding, "more": more, "dilation": dilation, "groups": groups}
        spec = (nn.ConvTranspose2d, 4, 6, (3, 2), stride, padding, more, bias, dilation, groups)
        yield Row(spec, partial(conv_transpose2d, **options), images((3, 4), (3, 4), (4, 3)))
        options = {"stride": stride[1], "padding": padding[1], "more": more[1], "dilation": dilation[0]}
        spec = (nn.ConvTranspose1d, 4, 6, 3, stride[1], padding[1], more[1], bias, dilation[0], groups)
        yield Row(spec, partial(conv_transpose1d, **options, groups=groups), sentences(4, (5, 3, 6)))


def pools_and_norms():
    for size, stride, padding in POOLS:
        window = both(size), both(size if stride is None else stride), both(padding)
        for cls, f in ((nn.MaxPool2d, np.nanmax), (nn.AvgPool2d, np.nanmean)):
            formula = lambda p, x, f=f, window=window: pooled(x, *window, f)  # noqa: E731
            yield Row((cls, size, stride, padding), formula, images((4, 5), (5, 4), channels=1))
    yield Row((nn.GlobalAvgPool2d,), lambda p, x: x.mean((0, 1)), images((6, 5), (1, 1), (2, 9)))
    for shape in ((3, 2), (3, 2, 4), (1, 2, 4), (3, 2, 1), (5,)):
        yield Row((nn.Flatten,), lambda p, x: flat(x), images(shape[:-1], channels=shape[-1]))
    for groups, eps in ((1, 1e-5), (2, 0.1), (4, 1e-5)):
        formula = partial(group_norm, groups=groups, eps=eps)
        yield Row((nn.GroupNorm, groups, 4, -1, eps), formula, images((3, 2), (3, 2), (2, 5)))
    yield Row((nn.GroupNorm, 2, 4, 0), lambda p, x: group_norm(p, x.T, 2).T, sentences(4, (3,)))
    for outputs, stride, inner in ((2, 1, None), (4, 2, None), (2, 1, 2), (4, 2, 2), (4, 1, 2)):
        formula = partial(residual, stride=stride, bottleneck=inner is not None, groups=2)
        yield Row((nn.ResidualBlock, 2, outputs, stride, inner, 2), formula, images((4, 3), channels=2), 2e-4)


OTHERS = {" ".join(map(str, (row.layer[0].__name__, *row.layer[1:]))): row for row in convolutions()}
OTHERS |= {f"{row.layer[0].__name__} {i}": row for i, row in enumerate(pools_and_norms())}


def of_columns(layer, formula):
    """The row of a layer that is called on columns."""
    return Row(layer, formula, sentences(D), 1e-5)


ROWS = {name: of_columns(*row) for name, row in LAYERS.items()} | OTHERS

# Layers without a row, and the files of their tests.
ELSEWHERE = {
    "LSTM": "test_recurrent_layers.py",
    "GRU": "test_recurrent_layers.py",
    "RNN": "test_recurrent_layers.py",
    "Activation": "test_basic_layers.py",
    "BatchNorm": "test_convolution_layers.py",
    "BiaffineAttention": "test_attention_layers.py",
    "CRF": "test_crf_layer.py",
    "Dropout": "test_basic_layers.py",
    "Embedding": "test_basic_layers.py",
    "LayerList": "test_basic_layers.py",
    "MultiHeadAttention": "test_attention_layers.py",
    "PointerAttention": "test_attention_layers.py",
    "RelativeBias": "test_attention_layers.py",
    "SinusoidalPositions": "test_attention_layers.py",
    "TransformerDecoder": "test_transformer_layers.py",
    "TransformerDecoderLayer": "test_transformer_layers.py",
    "TransformerEncoder": "test_transformer_layers.py",
    "TransformerEncoderLayer": "test_transformer_layers.py",
}
