"""The formulas of docs/rnn.md in NumPy and float64, and helpers for the tests of builders."""

from __future__ import annotations

import numpy as np

INPUT, HIDDEN = 4, 3

# Kind: class name, options, number of parameters of a layer, number of vectors in the state of a layer.
KINDS = {
    "simple": ("SimpleRNNBuilder", {}, 3, 1),
    "gru": ("GRUBuilder", {}, 9, 1),
    "vanilla": ("VanillaLSTMBuilder", {}, 3, 2),
    "vanilla_bias": ("VanillaLSTMBuilder", {"forget_bias": 0.25}, 3, 2),
    "vanilla_norm": ("VanillaLSTMBuilder", {"ln_lstm": True, "forget_bias": 0.5}, 9, 2),
    "compact": ("CompactVanillaLSTMBuilder", {}, 3, 2),
    "coupled": ("CoupledLSTMBuilder", {}, 11, 2),
    "fast": ("FastLSTMBuilder", {}, 11, 2),
}


def make(module, kind, layers, seed=0):
    """A builder of dynet_cy or DyNet, with parameter values that depend only on the seed, and its collection."""
    name, options, _, _ = KINDS[kind]
    model = module.ParameterCollection()
    builder = getattr(module, name)(layers, INPUT, HIDDEN, model, **options)
    rng = np.random.default_rng(seed)
    for p in model.parameters_list():
        p.set_value(rng.normal(0.1, 0.6, p.shape()).astype(np.float32))
    return builder, model


def arrays(model, kind, layers):
    """The values of the parameters of each layer, in the order of the collection."""
    count = KINDS[kind][2]
    values = [np.array(p.as_array(), np.float64) for p in model.parameters_list()]
    assert len(values) == count * layers
    return [values[count * i : count * (i + 1)] for i in range(layers)]


def batched(module, value):
    """An expression from an array (length, batch size), or (length,)."""
    flat = module.inputVector([float(v) for v in np.asarray(value).ravel(order="F")])
    if np.ndim(value) == 1:
        return flat
    return module.reshape(flat, (value.shape[0],), batch_size=value.shape[1])


def value_of(e):
    """The value of a vector expression as (length, batch size)."""
    (length,), batch = e.dim()
    return np.array(e.npvalue(), np.float64).reshape((length, batch), order="F")


def random_inputs(steps, batch, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 1, (INPUT, batch)).astype(np.float32) for _ in range(steps)]


def random_state(kind, layers, batch, seed=2):
    """Vectors for initial_state: c of each layer and h of each layer, or only h."""
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.7, (HIDDEN, batch)).astype(np.float32) for _ in range(KINDS[kind][3] * layers)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer_norm(x, g, b):
    return g[:, None] * (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) + b[:, None]


def cell(kind, p, x, h, c):
    """One step of one layer; h and c are None in an empty state."""
    empty = h is None and c is None
    zero = np.zeros((HIDDEN, x.shape[1]))
    h = zero if h is None else h
    c = zero if c is None else c
    if kind == "simple":
        w_x, w_h, b = p
        return np.tanh(w_x @ x + w_h @ h + b[:, None]), None
    if kind == "gru":
        w_zx, w_zh, b_z, w_rx, w_rh, b_r, w_hx, w_hh, b_h = p
        z = sigmoid(w_zx @ x + w_zh @ h + b_z[:, None])
        r = sigmoid(w_rx @ x + w_rh @ h + b_r[:, None])
        g = np.tanh(w_hx @ x + w_hh @ (r * h) + b_h[:, None])
        return (1 - z) * h + z * g, None
    if kind in ("coupled", "fast"):
        w_ix, w_ih, w_ic, b_i, w_ox, w_oh, w_oc, b_o, w_cx, w_ch, b_c = p
        if kind == "fast":
            w_ic = w_oc = np.zeros((HIDDEN, HIDDEN))
        i = sigmoid(w_ix @ x + w_ih @ h + w_ic @ c + b_i[:, None])
        g = np.tanh(w_cx @ x + w_ch @ h + b_c[:, None])
        c = (1 - i) * c + i * g
        o = sigmoid(w_ox @ x + w_oh @ h + w_oc @ c + b_o[:, None])
        return o * np.tanh(c), c
    forget_bias = KINDS[kind][1].get("forget_bias", 1.0)
    if kind == "vanilla_norm":
        w_x, w_h, b, g_h, b_h, g_x, b_x, g_c, b_c = p
        sums = layer_norm(w_x @ x, g_x, b_x) + b[:, None]
        if not empty:
            sums = sums + (layer_norm(w_h @ h, g_h, b_h) if h.any() else b_h[:, None])
    else:
        w_x, w_h, b = p
        sums = w_x @ x + w_h @ h + b[:, None]
    i, f, o, g = np.split(sums, 4)
    c = sigmoid(f + forget_bias) * c + sigmoid(i) * np.tanh(g)
    squashed = np.tanh(layer_norm(c, g_c, b_c) if kind == "vanilla_norm" else c)
    return sigmoid(o) * squashed, c


def run(kind, params, xs, state=None):
    """The vectors of the state after each input, in the order of `s()`."""
    layers = len(params)
    h = c = None
    if state is not None:
        state = [np.asarray(v, np.float64) for v in state]
        if KINDS[kind][3] == 1:
            h = state
        else:
            c, h = state[:layers], state[layers:] or None
    after = []
    for x in xs:
        x = np.asarray(x, np.float64)
        new_h, new_c = [], []
        for i, p in enumerate(params):
            x, cell_state = cell(kind, p, x, h and h[i], c and c[i])
            new_h.append(x)
            new_c.append(cell_state)
        h, c = new_h, (new_c if KINDS[kind][3] == 2 else None)
        after.append((c or []) + h)
    return after
