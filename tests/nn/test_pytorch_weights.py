"""Weights of PyTorch's layers give the same outputs as its formulas in NumPy, and as PyTorch if it is installed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import save_file

import dynet_cy as dy
from dynet_cy import nn

D, HEADS, HIDDEN = 8, 2, 12
Array = Any


# ---- PyTorch's formulas; words are rows, as in PyTorch


def linear(w, x, name=""):
    y = x @ w[f"{name}weight"].T
    return y + w[f"{name}bias"] if f"{name}bias" in w else y


def layer_norm(w, x, name=""):
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return y * w[f"{name}weight"] + w[f"{name}bias"]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def attention(w, x, memory, name="", causal=False):
    weights, biases = np.split(w[f"{name}in_proj_weight"], 3), np.split(w[f"{name}in_proj_bias"], 3)
    q, k, v = (y @ a.T + b for y, a, b in zip((x, memory, memory), weights, biases))
    size, found = x.shape[1] // HEADS, []
    for h in range(HEADS):
        part = slice(h * size, (h + 1) * size)
        scores = q[:, part] @ k[:, part].T / math.sqrt(size)
        if causal:
            scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf)
        found.append(softmax(scores) @ v[:, part])
    return linear(w, np.concatenate(found, 1), f"{name}out_proj.")


def block(w, x, name, sublayers, norm_first):
    for i, sublayer in enumerate(sublayers, 1):
        norm = f"{name}norm{i}."
        x = x + sublayer(layer_norm(w, x, norm)) if norm_first else layer_norm(w, x + sublayer(x), norm)
    return x


def encoder_layer(w, x, name="", norm_first=False, f=lambda x: np.maximum(x, 0)):
    sublayers = [
        lambda y: attention(w, y, y, f"{name}self_attn."),
        lambda y: linear(w, f(linear(w, y, f"{name}linear1.")), f"{name}linear2."),
    ]
    return block(w, x, name, sublayers, norm_first)


def encoder(w, x):
    for i in range(2):
        x = encoder_layer(w, x, f"layers.{i}.", True, gelu)
    return layer_norm(w, x, "norm.")


def decoder(w, x, memory):
    for i in range(2):
        name = f"layers.{i}."
        sublayers = [
            lambda y, name=name: attention(w, y, y, f"{name}self_attn.", True),
            lambda y, name=name: attention(w, y, memory, f"{name}multihead_attn."),
            lambda y, name=name: linear(w, np.maximum(linear(w, y, f"{name}linear1."), 0), f"{name}linear2."),
        ]
        x = block(w, x, name, sublayers, False)
    return x


def conv1d(w, x):
    """Windows of three rows with stride 2, and a row of zeros on either side."""
    x = np.pad(x, ((1, 1), (0, 0)))
    windows = [x[at : at + 3] for at in range(0, len(x) - 2, 2)]
    return np.stack([np.einsum("kc,ock->o", window, w["weight"]) for window in windows]) + w["bias"]


def conv2d(w, x):
    """x is rows x columns x channels."""
    x = np.pad(x, ((1, 1), (0, 0), (0, 0)))
    rows, columns = x.shape[0] - 1, x.shape[1] - 2
    found = [
        [np.einsum("abc,ocab->o", x[i : i + 2, j : j + 3], w["weight"]) for j in range(columns)] for i in range(rows)
    ]
    return np.array(found) + w["bias"]


def grouped2d(w, x):
    """One filter for each channel, with dilation 2."""
    rows, columns = x.shape[0] - 2, x.shape[1] - 2
    found = [
        [np.einsum("abc,cab->c", x[i : i + 3 : 2, j : j + 3 : 2], w["weight"][:, 0]) for j in range(columns)]
        for i in range(rows)
    ]
    return np.array(found) + w["bias"]


def grouped1d(w, x):
    windows = [x[at : at + 2] for at in range(len(x) - 1)]
    half = x.shape[1] // 2
    parts = [
        np.stack(
            [np.einsum("kc,ock->o", v[:, g * half : (g + 1) * half], w["weight"][2 * g : 2 * g + 2]) for v in windows]
        )
        for g in range(2)
    ]
    return np.concatenate(parts, 1) + w["bias"]


def transposed2d(w, x):
    y = np.zeros((2 * x.shape[0] + 1, 2 * x.shape[1] + 1, 3))
    for i, j in np.ndindex(*x.shape[:2]):
        y[2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += np.einsum("c,coab->abo", x[i, j], w["weight"])
    return y[1:, 1:] + w["bias"]  # padding of 1, output padding of 1 at the end


def transposed1d(w, x):
    y = np.zeros((2 * len(x) + 1, 3))
    for i in range(len(x)):
        y[2 * i : 2 * i + 3] += np.einsum("c,cok->ko", x[i], w["weight"])
    return y[1:-1] + w["bias"]


def batch_norm(w, x):
    return (x - w["running_mean"]) / np.sqrt(w["running_var"] + 1e-5) * w["weight"] + w["bias"]


# ---- cases


class Case(NamedTuple):
    layer: Callable[[Any], Any]
    shapes: dict[str, tuple[int, ...]]
    formula: Callable[..., Array]
    module: Callable[[Any], Any]  # of torch.nn
    inputs: tuple[tuple[int, ...], ...] = ((5, D),)


def both(name, rows, columns):
    return {f"{name}weight": (rows, columns), f"{name}bias": (rows,)}


def norm_shapes(name):
    return {f"{name}weight": (D,), f"{name}bias": (D,)}


def attention_shapes(name=""):
    joined = {f"{name}in_proj_weight": (3 * D, D), f"{name}in_proj_bias": (3 * D,)}
    return {**joined, **both(f"{name}out_proj.", D, D)}


def block_shapes(name="", attentions=("self_attn",)):
    shapes = {**both(f"{name}linear1.", HIDDEN, D), **both(f"{name}linear2.", D, HIDDEN)}
    for part in attentions:
        shapes.update(attention_shapes(f"{name}{part}."))
    for i in range(len(attentions) + 1):
        shapes.update(norm_shapes(f"{name}norm{i + 1}."))
    return shapes


SIZES = (D, HEADS, HIDDEN)
CASES = {
    "linear": Case(lambda m: nn.Linear(D, 3, m), both("", 3, D), linear, lambda t: t.Linear(D, 3)),
    "linear_without_bias": Case(
        lambda m: nn.Linear(D, 3, m, bias=False), {"weight": (3, D)}, linear, lambda t: t.Linear(D, 3, bias=False)
    ),
    "layer_norm": Case(lambda m: nn.LayerNorm(D, m, 1e-5), norm_shapes(""), layer_norm, lambda t: t.LayerNorm(D)),
    "rms_norm": Case(
        lambda m: nn.RMSNorm(D, m, 1e-5),
        {"weight": (D,)},
        lambda w, x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w["weight"],
        lambda t: t.RMSNorm(D, eps=1e-5),
    ),
    "sequential": Case(
        lambda m: nn.Sequential([(nn.Linear, D, 4), "gelu", (nn.Linear, 4, 3)], m),
        {**both("0.", 4, D), **both("2.", 3, 4)},
        lambda w, x: linear(w, gelu(linear(w, x, "0.")), "2."),
        lambda t: t.Sequential(t.Linear(D, 4), t.GELU(), t.Linear(4, 3)),
    ),
    "attention": Case(
        lambda m: nn.MultiHeadAttention(D, HEADS, m),
        attention_shapes(),
        lambda w, x, memory: attention(w, x, memory),
        lambda t: t.MultiheadAttention(D, HEADS),
        ((5, D), (3, D)),
    ),
    "encoder_layer": Case(
        lambda m: nn.TransformerEncoderLayer(*SIZES, m, eps=1e-5),
        block_shapes(),
        encoder_layer,
        lambda t: t.TransformerEncoderLayer(*SIZES, dropout=0),
    ),
    "encoder": Case(
        lambda m: nn.TransformerEncoder(2, *SIZES, m, activation="gelu", norm_first=True, eps=1e-5),
        {**block_shapes("layers.0."), **block_shapes("layers.1."), **norm_shapes("norm.")},
        encoder,
        lambda t: t.TransformerEncoder(
            t.TransformerEncoderLayer(*SIZES, dropout=0, activation="gelu", norm_first=True),
            2,
            t.LayerNorm(D),
            enable_nested_tensor=False,
        ),
    ),
    "decoder": Case(
        lambda m: nn.TransformerDecoder(2, *SIZES, m, eps=1e-5),
        {
            **block_shapes("layers.0.", ("self_attn", "multihead_attn")),
            **block_shapes("layers.1.", ("self_attn", "multihead_attn")),
        },
        decoder,
        lambda t: t.TransformerDecoder(t.TransformerDecoderLayer(*SIZES, dropout=0), 2),
        ((5, D), (3, D)),
    ),
    "conv1d": Case(
        lambda m: nn.Conv1d(D, 3, 3, m, stride=2, padding=1),
        {"weight": (3, D, 3), "bias": (3,)},
        conv1d,
        lambda t: t.Conv1d(D, 3, 3, stride=2, padding=1),
    ),
    "conv2d": Case(
        lambda m: nn.Conv2d(2, 3, (2, 3), m, padding=(1, 0)),
        {"weight": (3, 2, 2, 3), "bias": (3,)},
        conv2d,
        lambda t: t.Conv2d(2, 3, (2, 3), padding=(1, 0)),
        ((4, 5, 2),),
    ),
    "conv1d-groups": Case(
        lambda m: nn.Conv1d(D, 4, 2, m, groups=2),
        {"weight": (4, D // 2, 2), "bias": (4,)},
        grouped1d,
        lambda t: t.Conv1d(D, 4, 2, groups=2),
    ),
    "conv2d-groups": Case(
        lambda m: nn.Conv2d(2, 2, 2, m, dilation=2, groups=2),
        {"weight": (2, 1, 2, 2), "bias": (2,)},
        grouped2d,
        lambda t: t.Conv2d(2, 2, 2, dilation=2, groups=2),
        ((4, 5, 2),),
    ),
    "conv_transpose1d": Case(
        lambda m: nn.ConvTranspose1d(D, 3, 3, m, stride=2, padding=1),
        {"weight": (D, 3, 3), "bias": (3,)},
        transposed1d,
        lambda t: t.ConvTranspose1d(D, 3, 3, stride=2, padding=1),
    ),
    "conv_transpose2d": Case(
        lambda m: nn.ConvTranspose2d(2, 3, 3, m, 2, 1, output_padding=1),
        {"weight": (2, 3, 3, 3), "bias": (3,)},
        transposed2d,
        lambda t: t.ConvTranspose2d(2, 3, 3, 2, 1, 1),
        ((4, 5, 2),),
    ),
    "batch_norm": Case(
        lambda m: nn.BatchNorm(D, m).eval(),
        {"weight": (D,), "bias": (D,), "running_mean": (D,), "running_var": (D,), "num_batches_tracked": ()},
        batch_norm,
        lambda t: t.BatchNorm1d(D).eval(),
    ),
}


def drawn(case: Case) -> tuple[dict[str, Array], list[Array]]:
    rng = np.random.default_rng(7)
    weights = {name: np.asarray(rng.normal(0.1, 0.4, shape), np.float32) for name, shape in case.shapes.items()}
    if "running_var" in weights:
        weights["running_var"] = np.abs(weights["running_var"]) + np.float32(0.1)
    return weights, [rng.normal(size=shape).astype(np.float32) for shape in case.inputs]


def ours(case: Case, layer: Any, inputs: list[Array]) -> Array:
    """The output of a layer, with words in rows as in PyTorch."""
    dy.renew_cg()
    images = inputs[0].ndim == 3
    y = layer(*(dy.inputTensor(x if images else x.T) for x in inputs)).npvalue()
    return y if images else y.T


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_the_formulas(name: str, tmp_path) -> None:
    case = CASES[name]
    weights, inputs = drawn(case)
    layer = case.layer(dy.ParameterCollection())
    want = case.formula({k: w.astype(np.float64) for k, w in weights.items()}, *(x.astype(np.float64) for x in inputs))
    # As part of the file of a larger model.
    save_file({f"model.part.{k}": w for k, w in weights.items()} | {"head.bias": np.ones(3)}, tmp_path / "m.st")
    layer.load_pytorch(tmp_path / "m.st", "model.part.")
    np.testing.assert_allclose(ours(case, layer, inputs), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    case = CASES[name]
    weights, inputs = drawn(case)
    module = case.module(torch.nn).eval()
    module.load_state_dict({k: torch.from_numpy(w.copy()) for k, w in weights.items()})
    tensors = [torch.from_numpy(x)[:, None] for x in inputs]
    with torch.no_grad():
        if name == "attention":
            want = module(tensors[0], tensors[1], tensors[1])[0][:, 0]
        elif name == "decoder":
            mask = torch.nn.Transformer.generate_square_subsequent_mask(len(tensors[0]))
            want = module(*tensors, tgt_mask=mask)[:, 0]
        elif name in ("conv1d", "conv1d-groups", "conv_transpose1d"):
            want = module(torch.from_numpy(inputs[0].T)[None])[0].T
        elif name in ("conv2d", "conv2d-groups", "conv_transpose2d"):
            want = module(torch.from_numpy(inputs[0]).permute(2, 0, 1)[None])[0].permute(1, 2, 0)
        elif name == "batch_norm":
            want = module(torch.from_numpy(inputs[0]))
        else:
            want = module(tensors[0])[:, 0]
    layer = case.layer(dy.ParameterCollection())
    layer.load_pytorch({k: v.numpy() for k, v in module.state_dict().items()})
    np.testing.assert_allclose(ours(case, layer, inputs), want.numpy(), rtol=1e-5, atol=1e-5)


def test_embedding() -> None:
    layer = nn.Embedding(5, 3, dy.ParameterCollection())
    weight = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    layer.load_pytorch({"weight": weight})
    np.testing.assert_array_equal(layer([4, 0]).npvalue(), weight[[4, 0]].T)


class Net(nn.Layer):
    """A layer with the same attributes as the module in PyTorch."""

    def __init__(self, model):
        super().__init__(model)
        self.embed = nn.Embedding(5, 3, self.collection)
        self.hidden = [nn.Linear(3, 3, self.collection) for _ in range(2)]


def test_own_layers_by_the_names_of_their_attributes() -> None:
    net = Net(dy.ParameterCollection())
    rng = np.random.default_rng(0)
    weights = {"embed.weight": rng.normal(size=(5, 3))}
    for i in range(2):
        weights |= {f"hidden.{i}.weight": rng.normal(size=(3, 3)), f"hidden.{i}.bias": rng.normal(size=3)}
    net.load_pytorch(weights)
    np.testing.assert_allclose(net.hidden[1].W.as_array(), weights["hidden.1.weight"], rtol=1e-6)
    np.testing.assert_allclose(net.embed.table.as_array(), weights["embed.weight"], rtol=1e-6)


def test_what_does_not_fit_changes_nothing() -> None:
    layer = nn.Sequential([(nn.Linear, 3, 2), (nn.Linear, 2, 2)], dy.ParameterCollection())
    good = {"0.weight": np.ones((2, 3)), "0.bias": np.ones(2), "1.weight": np.ones((2, 2)), "1.bias": np.ones(2)}
    before = layer[0].W.as_array().copy()
    for change, message in [
        ({"1.bias": np.ones(3)}, r"parameter 1.bias: has shape \(3,\), the layer needs \(2,\)"),
        ({"2.bias": np.ones(3)}, "the layer has no place for 2.bias"),
    ]:
        with pytest.raises(dy.ModelFileError, match=message):
            layer.load_pytorch({**good, **change})
    del good["1.bias"]
    with pytest.raises(dy.ModelFileError, match="there is no 1.bias"):
        layer.load_pytorch(good)
    np.testing.assert_array_equal(layer[0].W.as_array(), before)
    for other in (nn.Highway(3, layer.collection), nn.PointerAttention(2, 2, 2, layer.collection)):
        with pytest.raises(NotImplementedError, match="PyTorch has no such layer"):
            other.load_pytorch({})
    with pytest.raises(NotImplementedError, match="PyTorch has no rotary positions"):
        nn.MultiHeadAttention(4, 2, layer.collection, positions="rotary").load_pytorch({})


def test_types_of_numbers(tmp_path) -> None:
    layer = nn.Linear(2, 2, dy.ParameterCollection(), bias=False)
    weight = np.array([[1.5, -2.0], [0.25, 3.0]])
    for kind in (np.float16, np.float32, np.float64):
        save_file({"weight": weight.astype(kind)}, tmp_path / "m")
        layer.W.set_value(0 * weight)
        layer.load_pytorch(tmp_path / "m")
        np.testing.assert_array_equal(layer.W.as_array(), weight)
    # bfloat16, for which NumPy has no name: the upper halves of floats.
    data = (weight.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    header = b'{"weight":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}}'
    (tmp_path / "m").write_bytes(len(header).to_bytes(8, "little") + header + data)
    layer.W.set_value(0 * weight)
    layer.load_pytorch(tmp_path / "m")
    np.testing.assert_array_equal(layer.W.as_array(), weight)


def test_damaged_files(tmp_path) -> None:
    layer = nn.Linear(2, 2, dy.ParameterCollection())
    save_file({"weight": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)}, tmp_path / "m")
    data = (tmp_path / "m").read_bytes()
    for damaged in (b"", data[:5], data[:-3], data[8:], (1 << 60).to_bytes(8, "little") + data[8:]):
        (tmp_path / "m").write_bytes(damaged)
        with pytest.raises(dy.ModelFileError, match="not a safetensors file"):
            layer.load_pytorch(tmp_path / "m")
    (tmp_path / "m").write_bytes(b"PK\x03\x04" + data)
    with pytest.raises(
        dy.ModelFileError, match=r"not a safetensors file: it is a zip archive, such as those of torch\.save"
    ):
        layer.load_pytorch(tmp_path / "m")
    with pytest.raises(FileNotFoundError):
        layer.load_pytorch(tmp_path / "none")
