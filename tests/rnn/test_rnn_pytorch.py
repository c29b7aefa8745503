"""Weights of PyTorch's recurrent networks in builders, and back: outputs as by its formulas, and by PyTorch itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import dynet_cy as dy

X, H, LENGTH = 3, 4, 6
Array = Any
GRU = partial(dy.GRUBuilder, reset_after=True)
KINDS: dict[str, tuple[Any, int]] = {  # the builder, and the number of gates
    "LSTM": (dy.VanillaLSTMBuilder, 4),
    "GRU": (GRU, 3),
    "RNN": (dy.SimpleRNNBuilder, 1),
}
MORE = {"LSTM": [dy.CompactVanillaLSTMBuilder, partial(dy.LSTMBuilder, forget_bias=0.25), dy.SparseLSTMBuilder]}
BUILDERS = [(kind, builder) for kind in KINDS for builder in [KINDS[kind][0], *MORE.get(kind, [])]]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def step(kind: str, a: Array, b: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """A step of PyTorch, from W_ih x + b_ih and W_hh h + b_hh."""
    if kind == "RNN":
        return np.tanh(a + b), c
    if kind == "LSTM":
        i, f, g, o = np.split(a + b, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    (r, z, n), (r_h, z_h, n_h) = np.split(a, 3), np.split(b, 3)
    r, z = sigmoid(r + r_h), sigmoid(z + z_h)
    return (1 - z) * np.tanh(n + r * n_h) + z * h, c


def formulas(kind: str, w: dict[str, Array], xs: Array, layers: int, directions: int) -> Array:
    for layer in range(layers):
        found = []
        for ending in ("", "_reverse")[:directions]:
            h = c = np.zeros(H)
            rows = []
            for x in xs[::-1] if ending else xs:
                a, b = (
                    w[f"weight_{k}_l{layer}{ending}"] @ v + w.get(f"bias_{k}_l{layer}{ending}", 0)
                    for k, v in (("ih", x), ("hh", h))
                )
                h, c = step(kind, a, b, h, c)
                rows.append(h)
            found.append(rows[::-1] if ending else rows)
        xs = np.concatenate(found, 1)
    return xs


def drawn(kind: str, layers: int, directions: int, bias: bool = True, size: int = X) -> dict[str, Array]:
    rng, rows = np.random.default_rng(4), KINDS[kind][1] * H
    found = {}
    for layer in range(layers):
        for ending in ("", "_reverse")[:directions]:
            shapes = {"weight_ih": (rows, directions * H if layer else size), "weight_hh": (rows, H)}
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)} if bias else {}
            for name, shape in shapes.items():
                found[f"{name}_l{layer}{ending}"] = rng.uniform(-0.8, 0.8, shape).astype(np.float32)
    return found


def built(builder: Any, layers: int, directions: int) -> Any:
    model = dy.ParameterCollection()
    if directions == 2:
        return dy.BiRNNBuilder(layers, X, 2 * H, model, builder)
    return builder(layers, X, H, model)


def outputs(rnn: Any, xs: Array) -> Array:
    with dy.ComputationGraph():
        return np.array(dy.npvalues(rnn.transduce([dy.inputVector(x) for x in xs])))


def inputs() -> Array:
    return np.random.default_rng(1).normal(size=(LENGTH, X)).astype(np.float32)


def module(kind: str, layers: int, directions: int, weights: dict[str, Array], **options: Any) -> Any:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    found = getattr(torch.nn, kind)(X, H, layers, bidirectional=directions == 2, **options)
    found.load_state_dict({k: torch.from_numpy(np.array(w)) for k, w in weights.items()})
    return found


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (2, 1), (1, 2), (3, 2)])
@pytest.mark.parametrize(("kind", "builder"), BUILDERS)
def test_outputs_are_those_of_the_formulas(
    kind: str, builder: Any, layers: int, directions: int, bias: bool, tmp_path
) -> None:
    weights, xs = drawn(kind, layers, directions, bias), inputs()
    rnn = built(builder, layers, directions)
    save_file({f"encoder.{k}": w for k, w in weights.items()} | {"head.bias": np.ones(3)}, tmp_path / "m")
    rnn.load_pytorch(tmp_path / "m", "encoder.")
    np.testing.assert_allclose(outputs(rnn, xs), formulas(kind, weights, xs, layers, directions), rtol=0, atol=1e-5)
    # Back: other biases, the same network.
    back = rnn.pytorch_state_dict()
    assert {k: w.shape for k, w in back.items()} == {k: w.shape for k, w in drawn(kind, layers, directions).items()}
    np.testing.assert_allclose(formulas(kind, back, xs, layers, directions), outputs(rnn, xs), rtol=0, atol=1e-5)
    if kind != "GRU":
        assert not any(w.any() for k, w in back.items() if k.startswith("bias_hh"))
    other = built(builder, layers, directions)
    other.load_pytorch(rnn.pytorch_state_dict("a."), "a.")
    np.testing.assert_allclose(outputs(other, xs), outputs(rnn, xs), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("layers", "directions"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_pytorch(kind: str, layers: int, directions: int) -> None:
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    weights, xs = drawn(kind, layers, directions), inputs()
    theirs, rnn = module(kind, layers, directions, weights), built(KINDS[kind][0], layers, directions)
    rnn.load_pytorch(theirs)
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(xs))[0].numpy()
    np.testing.assert_allclose(outputs(rnn, xs), wanted, rtol=0, atol=1e-5)
    again = built(KINDS[kind][0], layers, directions)
    again.load_pytorch(dict(theirs.named_parameters()))  # with gradients
    np.testing.assert_array_equal(outputs(again, xs), outputs(rnn, xs))
    back = module(kind, layers, directions, rnn.pytorch_state_dict())
    with torch.no_grad():
        np.testing.assert_allclose(back(torch.from_numpy(xs))[0].numpy(), wanted, rtol=0, atol=1e-5)
    again.load_pytorch(theirs.bfloat16())
    np.testing.assert_allclose(outputs(again, xs), wanted, rtol=0, atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_cells(kind: str) -> None:
    weights, xs = drawn(kind, 1, 1), inputs()
    cell = {name[: -len("_l0")]: w for name, w in weights.items()}
    rnn = built(KINDS[kind][0], 1, 1)
    rnn.load_pytorch(cell)
    np.testing.assert_allclose(outputs(rnn, xs), formulas(kind, weights, xs, 1, 1), rtol=0, atol=1e-5)
    assert list(rnn.pytorch_state_dict(cell=True)) == list(cell)
    with pytest.raises(ValueError, match="argument cell: a cell is one layer in one direction, and this has 2"):
        built(KINDS[kind][0], 1, 2).pytorch_state_dict(cell=True)


class Tagger(dy.nn.Layer):
    """A layer with the same attributes as a module of PyTorch."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.embed = dy.nn.Embedding(9, X, self.collection)
        self.reader = dy.BiRNNBuilder(1, X, 2 * H, self.collection, dy.LSTMBuilder)
        self.out = dy.nn.Linear(2 * H, 2, self.collection)


def test_a_layer_with_a_builder() -> None:
    tagger, weights = Tagger(dy.ParameterCollection()), drawn("LSTM", 1, 2)
    rng = np.random.default_rng(0)
    state = {f"reader.{name}": w for name, w in weights.items()} | {"embed.weight": rng.normal(size=(9, X))}
    state |= {"out.weight": rng.normal(size=(2, 2 * H)), "out.bias": rng.normal(size=2)}
    tagger.load_pytorch(state)
    xs = inputs()
    np.testing.assert_allclose(outputs(tagger.reader, xs), formulas("LSTM", weights, xs, 1, 2), rtol=0, atol=1e-5)
    with pytest.raises(dy.ModelFileError, match="there is no reader.weight_hh_l0_reverse"):
        tagger.load_pytorch({name: w for name, w in state.items() if name != "reader.weight_hh_l0_reverse"})


def test_what_does_not_fit_changes_nothing() -> None:
    rnn, good = built(dy.LSTMBuilder, 2, 1), drawn("LSTM", 2, 1)
    before = rnn.pytorch_state_dict()
    wrong: list[tuple[dict[str, Array], str]] = [
        ({"weight_hh_l1": np.ones((16, 5))}, r"parameter weight_hh_l1: has shape \(16, 5\), the layer needs \(16, 4\)"),
        ({"bias_ih_l0": np.ones(12)}, r"parameter bias_ih_l0: has shape \(12,\), the layer needs \(16,\)"),
        ({"weight_ih_l2": np.ones((16, 4))}, "no place for weight_ih_l2"),
        ({"weight_hr_l0": np.ones((2, 4))}, "no place for weight_hr_l0"),
        ({"weight_ih_l0_reverse": np.ones((16, 3))}, "no place for weight_ih_l0_reverse"),
    ]
    for change, message in wrong:
        with pytest.raises(dy.ModelFileError, match=message):
            rnn.load_pytorch({**good, **change})
    del good["bias_hh_l1"]
    with pytest.raises(dy.ModelFileError, match="there is no bias_hh_l1"):
        rnn.load_pytorch(good)
    for name, array in rnn.pytorch_state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    with pytest.raises(dy.ModelFileError, match="weight_ih_l0: has shape"):
        built(GRU, 1, 1).load_pytorch(drawn("LSTM", 1, 1))


def test_networks_that_pytorch_does_not_have() -> None:
    model = dy.ParameterCollection()
    none: list[tuple[Callable[[], Any], str]] = [
        (lambda: dy.GRUBuilder(1, X, H, model), "GRUBuilder: .*reset_after=True"),
        (lambda: dy.CoupledLSTMBuilder(1, X, H, model), "CoupledLSTMBuilder: PyTorch has no such network"),
        (lambda: dy.LSTMBuilder(1, X, H, model, ln_lstm=True), "VanillaLSTMBuilder: PyTorch has no such network"),
        (lambda: dy.BiRNNBuilder(1, X, 2 * H, model, dy.FastLSTMBuilder), "FastLSTMBuilder: PyTorch has no such"),
    ]
    for make, message in none:
        with pytest.raises(NotImplementedError, match=message):
            make().load_pytorch(drawn("LSTM", 1, 1))
        with pytest.raises(NotImplementedError, match=message):
            make().pytorch_state_dict()
    relu = type("RNN", (), {"nonlinearity": "relu", "state_dict": lambda self: drawn("RNN", 1, 1)})()
    with pytest.raises(dy.ModelFileError, match="computes with relu, the builder with tanh"):
        dy.SimpleRNNBuilder(1, X, H, model).load_pytorch(relu)


def test_a_gru_that_resets_after_the_product() -> None:
    """States that are set, batches, dropout, and gradients."""
    model = dy.ParameterCollection()
    rnn = dy.GRUBuilder(1, X, H, model, reset_after=True)
    assert rnn.spec == (1, X, H, True)
    assert len(rnn.get_parameters()[0]) == 10
    assert dy.GRUBuilder.from_spec(rnn.spec, dy.ParameterCollection()).reset_after
    rnn.load_pytorch(drawn("GRU", 1, 1))
    xs = inputs()
    zero = np.array([0.0] * H)
    with dy.ComputationGraph():
        first = rnn.initial_state([dy.inputVector(zero)]).transduce([dy.inputVector(x) for x in xs])[-1].npvalue()
    np.testing.assert_allclose(first, outputs(rnn, xs)[-1], atol=1e-6)
    dy.renew_cg()
    ends = rnn.transduce([dy.inputTensor(np.stack([x, -x], 1), batched=True) for x in xs])
    np.testing.assert_allclose(ends[-1].npvalue().T, [outputs(rnn, xs)[-1], outputs(rnn, -xs)[-1]], atol=1e-6)
    loss = dy.sum_batches(dy.squared_norm(ends[-1]))
    loss.backward()
    for p in model.parameters_list():
        got, array = np.array(p.grad_as_array()), p.as_array()
        at = np.unravel_index(np.abs(got).argmax(), got.shape)
        sides = []
        for change in (1e-2, -1e-2):
            moved = array.copy()
            moved[at] += change
            p.set_value(moved)
            with dy.ComputationGraph():
                again = rnn.transduce([dy.inputTensor(np.stack([x, -x], 1), batched=True) for x in xs])[-1]
                sides.append(dy.sum_batches(dy.squared_norm(again)).value())
        p.set_value(array)
        np.testing.assert_allclose(got[at], (sides[0] - sides[1]) / 2e-2, rtol=2e-2)
