"""Small random models of every architecture: their formulas in NumPy, in float64, with Hugging Face's names.

A formula asks for its tensors by name and shape, and random ones are made with the first request; so it also says what
the files of such a model hold.
"""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = Any
NO_TORCH = "" if all(map(importlib.util.find_spec, ("torch", "transformers"))) else "transformers is not installed"


class Tensors(dict):
    """Tensors by name, made as they are asked for."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)

    def get(self, name, *shape):
        if name not in self:
            # Numbers of bfloat16, which every type of float in files holds.
            numbers = (0.4 * self.random.normal(size=shape) + (len(shape) == 1)).astype(np.float32)
            self[name] = (numbers.view(np.uint32) & 0xFFFF0000).view(np.float32)
        return self[name].astype(np.float64)

    def linear(self, x, name, rows, bias=True):
        y = x @ self.get(f"{name}.weight", rows, x.shape[1]).T
        return y + self.get(f"{name}.bias", rows) if bias else y

    def norm(self, x, name, eps, bias=True):
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        y = y * self.get(f"{name}.weight", x.shape[1])
        return y + self.get(f"{name}.bias", x.shape[1]) if bias else y


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gelu_by_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_new": gelu_by_tanh,
    "gelu_pytorch_tanh": gelu_by_tanh,
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def attend(q, k, v, heads, bias=0.0, factor=1):
    """Attention; `bias` is added to the scores, (heads, queries, keys)."""
    n, d = q.shape
    q, k, v = (x.reshape(n, heads, d // heads).transpose(1, 0, 2) for x in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(d // heads * factor) + bias
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, d)


class Names(NamedTuple):
    """The names of the modules of a block."""

    layer: str
    q: str
    k: str
    v: str
    out: str
    norm: str
    inner: str
    outer: str
    last_norm: str


BERT = Names(
    "encoder.layer.{}",
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
DISTILBERT = Names(
    "transformer.layer.{}",
    *(f"attention.{name}_lin" for name in ("q", "k", "v", "out")),
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
)
ALBERT = Names(
    "encoder.albert_layer_groups.{}.albert_layers.{}",
    *(f"attention.{name}" for name in ("query", "key", "value", "dense", "LayerNorm")),
    "ffn",
    "ffn_output",
    "full_layer_layer_norm",
)
MPNET = BERT._replace(
    q="attention.attn.q", k="attention.attn.k", v="attention.attn.v", out="attention.attn.o", norm="attention.LayerNorm"
)
DEBERTA = BERT._replace(q="attention.self.query_proj", k="attention.self.key_proj", v="attention.self.value_proj")


def block(w, x, names, number, c, attention=attend):
    layer = names.layer.format(*number)
    d, eps = x.shape[1], c.get("layer_norm_eps", 1e-12)
    q, k, v = (w.linear(x, f"{layer}.{name}", d) for name in (names.q, names.k, names.v))
    found = attention(q, k, v, c["heads"]) if attention is attend else attention(layer, q, k, v)
    x = w.norm(x + w.linear(found, f"{layer}.{names.out}", d), f"{layer}.{names.norm}", eps)
    hidden = ACTIVATIONS[c["act"]](w.linear(x, f"{layer}.{names.inner}", c["hidden"]))
    return w.norm(x + w.linear(hidden, f"{layer}.{names.outer}", d), f"{layer}.{names.last_norm}", eps)


def tables(w, ids, types, c, width, first=0):
    """The sum of the vectors of pieces, positions and types."""
    n, name = len(ids), "embeddings.{}_embeddings.weight".format
    x = w.get(name("word"), c["vocab_size"], width)[ids]
    if first is not None:
        x = x + w.get(name("position"), c["max_position_embeddings"], width)[first : first + n]
    if c.get("type_vocab_size", 2):
        x = x + w.get(name("token_type"), c.get("type_vocab_size", 2), width)[types]
    return x


def bert(
    w, ids, types, config, names=BERT, first=0, projection="", width=None, attention=attend, pooler="pooler.dense"
):
    """The results of all layers, with rows for pieces, and the vector of the text."""
    c = common(config)
    eps = c.get("layer_norm_eps", 1e-12)
    x = w.norm(tables(w, ids, types, c, width or c["dim"], first), "embeddings.LayerNorm", eps)
    if projection:
        x = w.linear(x, projection, c["dim"])
    states = [x]
    for i in range(c["layers"]):
        number = (i,)
        if names is ALBERT:
            number = (i * c.get("num_hidden_groups", 1) // c["layers"],)
        for inner in range(c.get("inner_group_num", 1)):
            x = block(w, x, names, (*number, inner) if names is ALBERT else number, c, attention)
            states.append(x)
    return states, np.tanh(w.linear(x[:1], pooler, c["dim"]))[0] if pooler else None


def common(config):
    """Settings by one name for all architectures."""
    c = dict(config)
    for name, *others in (
        ("dim", "hidden_size"),
        ("layers", "num_hidden_layers", "n_layers"),
        ("heads", "num_attention_heads", "n_heads"),
        ("hidden", "intermediate_size", "hidden_dim"),
        ("act", "hidden_act", "activation", "hidden_activation"),
    ):
        c[name] = next((config[other] for other in (name, *others) if other in config), "gelu")
    return c


def roberta(w, ids, types, config):
    return bert(w, ids, types, config, first=config.get("pad_token_id", 1) + 1)


def electra(w, ids, types, config):
    width = config["embedding_size"]
    projection = "embeddings_project" if width != config["hidden_size"] else ""
    return bert(w, ids, types, config, width=width, projection=projection, pooler="")


def distilbert(w, ids, types, config):
    return bert(w, ids, types, {**config, "type_vocab_size": 0}, DISTILBERT, pooler="")


def albert(w, ids, types, config):
    projection = "encoder.embedding_hidden_mapping_in"
    return bert(w, ids, types, config, ALBERT, 0, projection, config["embedding_size"], pooler="pooler")


def mpnet(w, ids, types, config):
    heads, n = config["num_attention_heads"], len(ids)
    table = w.get("encoder.relative_attention_bias.weight", 32, heads)
    bias = np.empty((heads, n, n))
    for i in range(n):
        for j in range(n):
            far, row = abs(i - j), 16 if j > i else 0
            row += far if far < 8 else min(8 + int(np.float32(math.log(far / 8) / math.log(16) * 8)), 15)
            bias[:, i, j] = table[row]

    def attention(layer, q, k, v):
        return attend(q, k, v, heads, bias)

    return bert(w, ids, types, {**config, "type_vocab_size": 0}, MPNET, first=2, attention=attention)


def deberta(w, ids, types, config):
    c = {"layer_norm_eps": 1e-7, "type_vocab_size": 0, **common(config)}
    d, heads, n, eps = c["dim"], c["heads"], len(ids), c["layer_norm_eps"]
    width = c.get("embedding_size", d)
    x = tables(w, ids, types, c, width, 0 if c.get("position_biased_input", True) else None)
    if width != d:
        x = w.linear(x, "embeddings.embed_proj", d, bias=False)
    x = w.norm(x, "embeddings.LayerNorm", eps)
    kinds = c.get("pos_att_type", "").split("|") if c.get("relative_attention") else []
    buckets = c.get("position_buckets", -1)
    farthest = c.get("max_relative_positions", -1)
    farthest = farthest if farthest > 0 else c["max_position_embeddings"]
    span = buckets if buckets > 0 else farthest
    rows = np.empty((n, n), int)
    for i in range(n):
        for j in range(n):
            far, middle = abs(i - j), buckets // 2
            if buckets > 0 and far > middle:
                far = middle + math.ceil(math.log(far / middle) / math.log((farthest - 1) / middle) * (middle - 1))
            rows[i, j] = min(max(span + (far if i > j else -far), 0), 2 * span - 1)

    def attention(layer, q, k, v):
        if not c.get("relative_attention"):
            return attend(q, k, v, heads)
        factor = 1 + len(kinds)
        distances = w.get("encoder.rel_embeddings.weight", 2 * span, d)
        if c.get("norm_rel_ebd") == "layer_norm":
            distances = w.norm(distances, "encoder.LayerNorm", eps)
        shared, bias = c.get("share_att_key", False), np.zeros((heads, n, n))
        size = d // heads
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            if "c2p" in kinds:
                name = "key_proj" if shared else "pos_key_proj"
                products = q[:, part] @ w.linear(distances, f"{layer}.attention.self.{name}", d)[:, part].T
                bias[h] += products[np.arange(n)[:, None], rows]
            if "p2c" in kinds:
                name = "query_proj" if shared else "pos_query_proj"
                products = k[:, part] @ w.linear(distances, f"{layer}.attention.self.{name}", d)[:, part].T
                bias[h] += products[np.arange(n)[None, :], rows]
        return attend(q, k, v, heads, bias / math.sqrt(size * factor), factor)

    states = [x]
    for i in range(c["layers"]):
        y = block(w, x, DEBERTA, (i,), c, attention)
        if i == 0 and c.get("conv_kernel_size"):
            kernel = c["conv_kernel_size"]
            filters = w.get("encoder.conv.conv.weight", d, d, kernel)
            padded = np.pad(x, ((kernel // 2, kernel // 2), (0, 0)))
            near = sum(padded[t : t + n] @ filters[:, :, t].T for t in range(kernel))
            near = ACTIVATIONS[c.get("conv_act", "tanh")](near + w.get("encoder.conv.conv.bias", d))
            y = w.norm(y + near, "encoder.conv.LayerNorm", eps)
        x = y
        states.append(x)
    return states, None


def modernbert(w, ids, types, config):
    c = common(config)
    d, heads, n = c["dim"], c["heads"], len(ids)
    eps, norm_bias = c.get("norm_eps", 1e-5), c.get("norm_bias", False)
    x = w.norm(w.get("embeddings.tok_embeddings.weight", c["vocab_size"], d)[ids], "embeddings.norm", eps, norm_bias)
    states = [x]

    for i in range(c["layers"]):
        near = i % c.get("global_attn_every_n_layers", 3)
        base = c.get("local_rope_theta", 1e4) if near else c.get("global_rope_theta", 1.6e5)
        distances = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        bias = np.where(near and distances > c.get("local_attention", 128) // 2, -np.inf, 0.0)
        y = w.norm(x, f"layers.{i}.attn_norm", eps, norm_bias) if i else x
        biased = c.get("attention_bias", False)
        q, k, v = np.split(w.linear(y, f"layers.{i}.attn.Wqkv", 3 * d, biased), 3, 1)
        found = attend(rotated(q, heads, base), rotated(k, heads, base), v, heads, bias)
        x = x + w.linear(found, f"layers.{i}.attn.Wo", d, biased)
        y = w.norm(x, f"layers.{i}.mlp_norm", eps, norm_bias)
        biased = c.get("mlp_bias", False)
        value, gate = np.split(w.linear(y, f"layers.{i}.mlp.Wi", 2 * c["hidden"], biased), 2, 1)
        x = x + w.linear(ACTIVATIONS[c["act"]](value) * gate, f"layers.{i}.mlp.Wo", d, biased)
        states.append(x)
    return [*states[:-1], w.norm(x, "final_norm", eps, norm_bias)], None


def causal(n):
    return np.where(np.tri(n) > 0, 0.0, -np.inf)


def gpt2(w, ids, types, config):
    """The results of all layers of a decoder, and for `scores` its matrix or table."""
    c = {"activation_function": "gelu_new", "n_inner": 4 * config["n_embd"], **config}
    d, heads, n, eps, t = c["n_embd"], c["n_head"], len(ids), 1e-5, "transformer"
    x = w.get(f"{t}.wte.weight", c["vocab_size"], d)[ids] + w.get(f"{t}.wpe.weight", c["n_positions"], d)[:n]
    states = [x]

    def conv(x, name, rows):  # a matrix that is stored as its transpose
        return x @ w.get(f"{name}.weight", x.shape[1], rows) + w.get(f"{name}.bias", rows)

    for i in range(c["n_layer"]):
        h = f"{t}.h.{i}"
        q, k, v = np.split(conv(w.norm(x, f"{h}.ln_1", eps), f"{h}.attn.c_attn", 3 * d), 3, 1)
        x = x + conv(attend(q, k, v, heads, causal(n)), f"{h}.attn.c_proj", d)
        hidden = ACTIVATIONS[c["activation_function"]](conv(w.norm(x, f"{h}.ln_2", eps), f"{h}.mlp.c_fc", c["n_inner"]))
        x = x + conv(hidden, f"{h}.mlp.c_proj", d)
        states.append(x)
    return [*states[:-1], w.norm(x, f"{t}.ln_f", eps)], None


def turns(size, base, scaling):
    """The angle of each pair from one position to the next, and what queries and keys are multiplied by."""
    found, kind, factor = [], scaling.get("rope_type"), scaling.get("factor", 1)
    longest = scaling.get("original_max_position_embeddings")
    for i in range(size // 2):
        angle = base ** (-2 * i / size)
        if kind == "linear":
            angle /= factor
        elif kind == "llama3":
            within, low, high = longest * angle / (2 * math.pi), scaling["low_freq_factor"], scaling["high_freq_factor"]
            if within < low:
                angle /= factor
            elif within <= high:
                share = (within - low) / (high - low)
                angle = (1 - share) * angle / factor + share * angle
        elif kind == "yarn":
            ends = (size * math.log(longest / (b * 2 * math.pi)) / (2 * math.log(base)) for b in (32, 1))
            begin, end = next(ends), next(ends)
            begin, end = max(math.floor(begin), 0), min(math.ceil(end), size - 1)
            share = min(max((i - begin) / (end - begin), 0), 1)
            angle = share * angle / factor + (1 - share) * angle
        found.append(angle)
    return np.array(found), 0.1 * math.log(factor) + 1 if kind == "yarn" else 1


def rotated(x, heads, base, **scaling):
    """Queries or keys, rotated by their positions."""
    n, d = x.shape
    size = d // heads
    each, factor = turns(size, base, scaling)
    x, angles = factor * x, np.arange(n)[:, None] * each
    angles = np.tile(np.concatenate([angles, angles], 1), heads)
    halves = x.reshape(n, heads, 2, size // 2)
    turned = np.stack([-halves[:, :, 1], halves[:, :, 0]], 2).reshape(n, d)
    return x * np.cos(angles) + turned * np.sin(angles)


def llama(w, ids, types, config):
    c = {"rope_theta": 1e4, "head_dim": config["hidden_size"] // config["num_attention_heads"], **config}
    kind, d, heads, n, eps = c["model_type"], c["hidden_size"], c["num_attention_heads"], len(ids), 1e-6
    size, kv = c["head_dim"], c["num_key_value_heads"]
    scaling = c.get("rope_scaling", {})
    qkv_bias, bias = c.get("attention_bias", kind == "qwen2"), c.get("attention_bias", False)

    def norm(x, name):
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * w.get(f"{name}.weight", x.shape[-1])

    x = w.get("model.embed_tokens.weight", c["vocab_size"], d)[ids]
    states = [x]
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        y, at = norm(x, f"{layer}.input_layernorm"), f"{layer}.self_attn"
        q, k, v = (
            w.linear(y, f"{at}.{name}_proj", count * size, qkv_bias)
            for name, count in (("q", heads), ("k", kv), ("v", kv))
        )
        if kind == "qwen3":
            q, k = (
                norm(z.reshape(n, -1, size), f"{at}.{name}_norm").reshape(n, -1) for z, name in ((q, "q"), (k, "k"))
            )
        turning = kind != "smollm3" or (i + 1) % c.get("no_rope_layer_interval", 4)
        if turning:
            q, k = rotated(q, heads, c["rope_theta"], **scaling), rotated(k, kv, c["rope_theta"], **scaling)
        near = c.get("use_sliding_window") and (not turning if kind == "smollm3" else i >= c["max_window_layers"])
        distances = np.subtract.outer(np.arange(n), np.arange(n))
        window = np.where(distances >= c["sliding_window"], -np.inf, 0.0) if near else 0.0
        k, v = (np.repeat(z.reshape(n, kv, size), heads // kv, 1).reshape(n, -1) for z in (k, v))
        x = x + w.linear(attend(q, k, v, heads, causal(n) + window), f"{at}.o_proj", d, bias)
        y, biased = norm(x, f"{layer}.post_attention_layernorm"), c.get("mlp_bias", False)
        gate = ACTIVATIONS["silu"](w.linear(y, f"{layer}.mlp.gate_proj", c["intermediate_size"], biased))
        inner = gate * w.linear(y, f"{layer}.mlp.up_proj", c["intermediate_size"], biased)
        x = x + w.linear(inner, f"{layer}.mlp.down_proj", d, biased)
        states.append(x)
    if not c["tie_word_embeddings"]:
        w.get("lm_head.weight", c["vocab_size"], d)
    return [*states[:-1], norm(x, "model.norm")], None


def scores(w, x):
    """What a decoder has for each piece to follow: products with its table, or with a matrix."""
    names = ("lm_head.weight", "transformer.wte.weight", "model.embed_tokens.weight")
    return x @ w[next(name for name in names if name in w)].T.astype(np.float64)


def near(distance, buckets, farthest, both):
    """The bucket of T5 for the distance of a key from a query."""
    begin = 0
    if both:
        buckets //= 2
        begin = buckets if distance > 0 else 0
    far, single = abs(distance) if both else max(-distance, 0), buckets // 2
    if far >= single:
        wide = np.log(np.float32(far / single)) / np.float32(math.log(farthest / single)) * np.float32(buckets - single)
        far = min(single + int(wide), buckets - 1)
    return begin + far


def t5_both(w, ids, target, config):
    """The results of all layers of the encoder, and the scores of the decoder."""
    d, heads, size, eps = config["d_model"], config["num_heads"], config["d_kv"], 1e-6
    buckets, farthest = config["relative_attention_num_buckets"], config["relative_attention_max_distance"]
    gated = config.get("feed_forward_proj", "relu") == "gated-gelu"

    def norm(x, name):
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + eps) * w.get(f"{name}.weight", d)

    def attention(name, x, memory, bias):
        q = w.linear(x, f"{name}.q", heads * size, False) * math.sqrt(size)
        k, v = (w.linear(memory, f"{name}.{part}", heads * size, False) for part in "kv")
        q, k, v = (z.reshape(len(z), heads, size).transpose(1, 0, 2) for z in (q, k, v))
        e = np.exp(q @ k.transpose(0, 2, 1) / math.sqrt(size) + bias)
        found = (e / e.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(x), -1)
        return w.linear(found, f"{name}.o", d, False)

    def stack(side, ids, memory):
        n = len(ids)
        x = w.get("shared.weight", config["vocab_size"], d)[ids]
        table = w.get(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", buckets, heads)
        rows = [[near(j - i, buckets, farthest, memory is None) for j in range(n)] for i in range(n)]
        bias = table[np.array(rows)].transpose(2, 0, 1) + (0 if memory is None else causal(n))
        states = [x]
        for i in range(config["num_layers"]):
            layer = f"{side}.block.{i}.layer"
            y = norm(x, f"{layer}.0.layer_norm")
            x = x + attention(f"{layer}.0.SelfAttention", y, y, bias)
            last = f"{layer}.1"
            if memory is not None:
                x = x + attention(f"{layer}.1.EncDecAttention", norm(x, f"{layer}.1.layer_norm"), memory, 0)
                last = f"{layer}.2"
            y, part = norm(x, f"{last}.layer_norm"), f"{last}.DenseReluDense"
            if gated:
                hidden = gelu_by_tanh(w.linear(y, f"{part}.wi_0", config["d_ff"], False))
                hidden = hidden * w.linear(y, f"{part}.wi_1", config["d_ff"], False)
            else:
                hidden = np.maximum(w.linear(y, f"{part}.wi", config["d_ff"], False), 0)
            x = x + w.linear(hidden, f"{part}.wo", d, False)
            states.append(x)
        return [*states[:-1], norm(x, f"{side}.final_layer_norm")]

    states = stack("encoder", ids, None)
    found = stack("decoder", target, states[-1])[-1]
    if config.get("tie_word_embeddings", True):
        return states, found @ w["shared.weight"].T.astype(float) / math.sqrt(d)
    return states, found @ w.get("lm_head.weight", config["vocab_size"], d).T


def bart_both(w, ids, target, config):
    """The results of all layers of the encoder, and the scores of the decoder."""
    d, eps, learnt = config["d_model"], 1e-5, config["model_type"] == "bart"

    def attention(name, x, memory, heads, bias):
        q = w.linear(x, f"{name}.q_proj", d)
        k, v = (w.linear(memory, f"{name}.{part}_proj", d) for part in "kv")
        q, k, v = (z.reshape(len(z), heads, d // heads).transpose(1, 0, 2) for z in (q, k, v))
        e = np.exp(q @ k.transpose(0, 2, 1) / math.sqrt(d // heads) + bias)
        found = (e / e.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(x), d)
        return w.linear(found, f"{name}.out_proj", d)

    def stack(side, ids, memory):
        n, heads, name = len(ids), config[f"{side}_attention_heads"], f"model.{side}"
        x = w.get("model.shared.weight", config["vocab_size"], d)[ids]
        x = x * math.sqrt(d) if config.get("scale_embedding") else x
        if learnt:
            rows = config["max_position_embeddings"] + 2
            x = w.norm(
                x + w.get(f"{name}.embed_positions.weight", rows, d)[2 : n + 2], f"{name}.layernorm_embedding", eps
            )
        else:
            angles = np.arange(n)[:, None] / 1e4 ** (np.arange(0, d, 2) / d)
            x = x + np.concatenate([np.sin(angles), np.cos(angles)], 1)
        states = [x]
        for i in range(config[f"{side}_layers"]):
            layer = f"{name}.layers.{i}"
            bias = 0 if memory is None else causal(n)
            x = x + attention(f"{layer}.self_attn", x, x, heads, bias)
            x = w.norm(x, f"{layer}.self_attn_layer_norm", eps)
            if memory is not None:
                x = x + attention(f"{layer}.encoder_attn", x, memory, heads, 0)
                x = w.norm(x, f"{layer}.encoder_attn_layer_norm", eps)
            hidden = ACTIVATIONS[config["activation_function"]](w.linear(x, f"{layer}.fc1", config[f"{side}_ffn_dim"]))
            x = w.norm(x + w.linear(hidden, f"{layer}.fc2", d), f"{layer}.final_layer_norm", eps)
            states.append(x)
        return states

    states = stack("encoder", ids, None)
    found = stack("decoder", target, states[-1])[-1] @ w["model.shared.weight"].T.astype(float)
    return states, found + w.get("final_logits_bias", 1, config["vocab_size"])


def t5(w, ids, types, config):
    return t5_both(w, ids, [0], config)[0], None


def bart(w, ids, types, config):
    return bart_both(w, ids, [0], config)[0], None


class Case(NamedTuple):
    """A model: its formula and `config.json`."""

    formula: Any
    config: dict[str, Any]

    def tensors(self, seed=0):
        w = Tensors(seed)
        self.formula(w, [3], [0], self.config)
        return w

    def write(self, folder, seed=0):
        """Write a folder with random tensors, which are returned."""
        w = self.tensors(seed)
        write(folder, self.config, w)
        return w


def write(folder, config, tensors):
    """Write a folder in Hugging Face's layout."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(tensors))


def safetensors(tensors, kind="F32"):
    """The bytes of a safetensors file, in row-major order."""
    header, data = {}, b""
    for name, array in tensors.items():
        numbers = np.ascontiguousarray(array, {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<f4"}[kind])
        part = (numbers.view("<u4") >> 16).astype("<u2").tobytes() if kind == "BF16" else numbers.tobytes()
        offsets = [len(data), len(data) + len(part)]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


_SIZES = {
    "vocab_size": 30,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 16,
}
_B = {**_SIZES, "max_position_embeddings": 32}
_DISTANCES = {
    "relative_attention": True,
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
_DISTIL = {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 16, "vocab_size": 30, "max_position_embeddings": 32}
# Pieces of their own, which lie within the table, for `transformers`.
_OWN = {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}

CASES = {
    "bert": Case(bert, {"model_type": "bert", **_B}),
    "bert, another activation": Case(
        bert, {"model_type": "bert", **_B, "hidden_act": "gelu_new", "type_vocab_size": 3}
    ),
    "bert, a third": Case(bert, {"model_type": "bert", **_B, "hidden_act": "relu", "layer_norm_eps": 1e-5}),
    "roberta": Case(roberta, {"model_type": "roberta", **_B, "pad_token_id": 1}),
    "camembert": Case(roberta, {"model_type": "camembert", **_B, "pad_token_id": 1, "type_vocab_size": 1}),
    "xlm-roberta": Case(roberta, {"model_type": "xlm-roberta", **_B, "pad_token_id": 1, "type_vocab_size": 1}),
    "electra": Case(electra, {"model_type": "electra", **_B, "embedding_size": 8}),
    "electra, one size": Case(electra, {"model_type": "electra", **_B, "embedding_size": 12}),
    "distilbert": Case(distilbert, {"model_type": "distilbert", **_DISTIL}),
    "albert": Case(albert, {"model_type": "albert", **_B, "embedding_size": 8, "hidden_act": "gelu_new"}),
    "albert, groups": Case(
        albert,
        {
            "model_type": "albert",
            **_B,
            "embedding_size": 12,
            "hidden_act": "gelu_new",
            "num_hidden_groups": 2,
            "inner_group_num": 2,
        },
    ),
    "mpnet": Case(mpnet, {"model_type": "mpnet", **_B}),
    "deberta 3": Case(deberta, {"model_type": "deberta-v2", **_B, **_DISTANCES}),
    "deberta 2": Case(
        deberta,
        {
            "model_type": "deberta-v2",
            **_B,
            **_DISTANCES,
            "conv_kernel_size": 3,
            "conv_act": "gelu",
            "share_att_key": False,
            "position_biased_input": True,
            "type_vocab_size": 2,
        },
    ),
    "deberta 2, no buckets": Case(
        deberta,
        {
            "model_type": "deberta-v2",
            **_B,
            **_DISTANCES,
            "position_buckets": -1,
            "max_relative_positions": 4,
            "pos_att_type": "c2p",
            "norm_rel_ebd": "none",
            "embedding_size": 8,
        },
    ),
    "deberta 2, no distances": Case(deberta, {"model_type": "deberta-v2", **_B}),
    "modernbert": Case(
        modernbert,
        {"model_type": "modernbert", **_B, **_OWN, "global_attn_every_n_layers": 2, "local_attention": 6},
    ),
    "modernbert, biases": Case(
        modernbert,
        {
            "model_type": "modernbert",
            **_B,
            **_OWN,
            "global_attn_every_n_layers": 2,
            "local_attention": 8,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "local_rope_theta": 100.0,
        },
    ),
}
_GPT = {"model_type": "gpt2", "vocab_size": 30, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 32}
_GPT |= {"bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {**_B, **_OWN, "num_attention_heads": 6, "num_key_value_heads": 3, "tie_word_embeddings": False}
DECODERS = {
    "gpt2": Case(gpt2, _GPT),
    "gpt2, another activation": Case(gpt2, {**_GPT, "activation_function": "quick_gelu", "n_inner": 20}),
    "llama": Case(llama, {**_LLAMA, "model_type": "llama"}),
    "llama, biases": Case(
        llama,
        {
            **_LLAMA,
            "model_type": "llama",
            "num_key_value_heads": 1,
            "head_dim": 4,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_theta": 100.0,
            "tie_word_embeddings": True,
        },
    ),
    "llama, linear": Case(
        llama,
        {**_LLAMA, "model_type": "llama", "head_dim": 8, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    ),
    "llama 3.1": Case(
        llama,
        {
            **_LLAMA,
            "model_type": "llama",
            "head_dim": 8,
            "rope_theta": 100.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "qwen2, windows": Case(
        llama,
        {
            **_LLAMA,
            "model_type": "qwen2",
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
        },
    ),
    "qwen3, yarn": Case(
        llama,
        {
            **_LLAMA,
            "model_type": "qwen3",
            "head_dim": 16,
            "rope_theta": 100.0,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        },
    ),
    "smollm3": Case(
        llama,
        {
            **_LLAMA,
            "model_type": "smollm3",
            "rope_theta": 2e6,
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ),
    "qwen2": Case(llama, {**_LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}),
    "qwen3": Case(llama, {**_LLAMA, "model_type": "qwen3", "head_dim": 8}),
}
_T5 = {"vocab_size": 30, "d_model": 12, "d_kv": 5, "d_ff": 16, "num_layers": 2, "num_heads": 3}
_T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
_T5 |= {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
_BART = {"vocab_size": 30, "d_model": 12, "encoder_layers": 2, "decoder_layers": 1, "max_position_embeddings": 32}
_BART |= {"encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 20}
_BART |= {"activation_function": "gelu", "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_BART |= {"decoder_start_token_id": 2}
ENCODER_DECODERS = {
    "t5": Case(t5, {**_T5, "model_type": "t5"}),
    "t5 1.1": Case(t5, {**_T5, "model_type": "t5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": Case(t5, {**_T5, "model_type": "mt5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": Case(bart, {**_BART, "model_type": "bart"}),
    "bart, scaled": Case(bart, {**_BART, "model_type": "bart", "scale_embedding": True, "activation_function": "relu"}),
    "marian": Case(
        bart,
        {**_BART, "model_type": "marian", "scale_embedding": True, "activation_function": "silu", "d_model": 12},
    ),
}
BOTH = {t5: t5_both, bart: bart_both}
CASES |= DECODERS | ENCODER_DECODERS
LENGTHS = (1, 2, 5, 20)


def random_ids(n, seed=0):
    return np.random.default_rng(seed + n).integers(3, 30, n).tolist()
