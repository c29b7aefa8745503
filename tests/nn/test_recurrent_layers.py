"""nn.LSTM, nn.GRU and nn.RNN on columns, as builders on lists and columns; weights and initial values of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import all_equal

import dynet_cy as dy

X = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
KINDS = [(name, layers, both) for name in ("LSTM", "GRU", "RNN") for layers in (1, 2) for both in (False, True)]


def made(name: str, layers: int = 1, bidirectional: bool = False, **options: Any) -> Any:
    return getattr(dy.nn, name)(3, 4, dy.ParameterCollection(), layers, bidirectional, **options)


@pytest.mark.parametrize(("name", "layers", "both"), KINDS)
def test_columns_and_lists(name: str, layers: int, both: bool) -> None:
    """A column of the result is the item of the list, for layer, builder and state; empty matrices and batches too."""
    layer = made(name, layers, both)
    x, rows = dy.inputTensor(X), layer.output_dim
    listed = [dy.inputVector(column) for column in X.T]
    want = np.stack([y.npvalue() for y in layer.rnn.transduce(listed)], 1)
    results = [layer(X), layer(X.tolist()), layer.rnn.transduce(x), dy.concatenate_cols(layer(listed))]
    if not both:
        results.append(layer.rnn.initial_state().transduce(x))
    for result in results:
        np.testing.assert_allclose(result.npvalue(), want, atol=1e-6)
    states = (layer.rnn if both else layer.rnn.initial_state()).add_inputs(x)
    assert len(states) == 5
    assert layer(x[:, 0]).dim() == ((rows,), 1)
    assert layer(x[:, :1]).dim() == ((rows, 1), 1)
    assert layer(dy.zeros((3, 0))).dim() == ((rows, 0), 1)
    assert layer(dy.zeros((3, 2), batch_size=3)).dim() == ((rows, 2), 3)
    assert layer.rnn.transduce([]) == layer([]) == layer(()) == []


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(
    ("shape", "says"), [((5, 3), "; write x.T$"), ((2,), r"got shape \(2,\)$"), ((3, 2, 2), r"got shape \(3, 2, 2\)$")]
)
def test_other_shapes(both: bool, shape: tuple[int, ...], says: str) -> None:
    layer = made("GRU", bidirectional=both)
    reads = [layer.rnn.transduce, (layer.rnn if both else layer.rnn.initial_state()).add_inputs]
    for read in reads:
        with pytest.raises(
            dy.DimensionError, match=rf"^(GRU|BiRNN)Builder\.\w+: argument xs: expected columns of 3 rows.*{says}"
        ):
            read(dy.zeros(shape))
    with pytest.raises(dy.DimensionError, match="columns of 3 rows|expected 3 rows"):
        layer(dy.zeros(shape))


@pytest.mark.parametrize(("name", "layers", "both"), KINDS)
def test_weights_of_pytorch(name: str, layers: int, both: bool) -> None:
    """The names and order of gates of torch.nn, from and to, alone and within a layer of one's own."""
    layer, other = made(name, layers, both), made(name, layers, both, init="pytorch")
    state = other.pytorch_state_dict()
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    assert state["weight_ih_l0"].shape == (4 * gates, 3)
    assert all(abs(array).max() <= 0.5 for array in state.values() if array.ndim == 2)
    assert ("weight_hh_l0_reverse" in state, "weight_hh_l1" in state) == (both, layers == 2)
    layer.load_pytorch(state)
    assert np.array_equal(layer(X).npvalue(), other(X).npvalue())

    class Outer(dy.nn.Layer):
        def __init__(self, model: dy.ParameterCollection) -> None:
            super().__init__(model)
            self.rnn = type(layer)(3, 4, self.collection, layers, both)

    outer = Outer(dy.ParameterCollection())
    outer.load_pytorch({f"rnn.{key}": array for key, array in state.items()})
    assert np.array_equal(outer.rnn(X).npvalue(), other(X).npvalue())


@pytest.mark.parametrize(("name", "layers", "both"), KINDS)
def test_pytorch(name: str, layers: int, both: bool) -> None:
    torch = pytest.importorskip("torch")
    module = getattr(torch.nn, name)(3, 4, num_layers=layers, bidirectional=both)
    layer = made(name, layers, both)
    layer.load_pytorch(module)
    want = module(torch.from_numpy(X.T.copy()))[0].detach().numpy().T
    np.testing.assert_allclose(layer(X).npvalue(), want, atol=1e-5)
    back = {key: torch.from_numpy(array) for key, array in layer.pytorch_state_dict().items()}
    module.load_state_dict(back)
    np.testing.assert_allclose(module(torch.from_numpy(X.T.copy()))[0].detach().numpy().T, want, atol=1e-5)


def test_files_modes_and_errors(tmp_path: Any) -> None:
    layer = made("LSTM", 2, True, dropout=0.5)
    dy.save(str(tmp_path / "m"), [layer])
    (loaded,) = dy.load(str(tmp_path / "m"), dy.ParameterCollection())
    assert np.array_equal(loaded.eval()(X).npvalue(), layer.eval()(X).npvalue())
    dy.renew_cg()
    assert not np.array_equal(layer.train()(X).npvalue(), layer.eval()(X).npvalue())
    with pytest.raises(ValueError, match=r"^LSTM: argument dropout: "):
        made("LSTM", dropout=2)
    with pytest.raises(TypeError, match="LSTM: there is no argument input_size; write `input_dim=`"):
        dy.nn.LSTM(input_size=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(("name", "layers", "both"), KINDS)
def test_some_states_are_kept(name: str, layers: int, both: bool, tmp_path: Any) -> None:
    """`checkpoint` is that of the builders, also after `load`; gradients are the same."""
    plain, dropping = made(name, layers, both), made(name, layers, both, checkpoint=2)
    dropping.load_state_dict(plain.state_dict())
    dy.save(str(tmp_path / "m"), [dropping, plain])
    for layer, every in zip([dropping, plain, *dy.load(str(tmp_path / "m"), dy.ParameterCollection())], [2, 0, 2, 0]):
        builders = [rnn for pair in layer.rnn.builder_layers for rnn in pair] if both else [layer.rnn]
        assert {rnn.checkpoint for rnn in builders} == {every}
    gradients = []
    for layer in (plain, dropping):
        dy.renew_cg()
        dy.squared_norm(layer(X)).backward()
        gradients.append([p.grad_as_array() for p in layer.parameters()])
    all_equal(*gradients)
    with pytest.raises(ValueError, match="checkpoint: expected at least 0, got -1"):
        made(name, layers, both, checkpoint=-1)


# ---- initial values of PyTorch


LAYERS: dict[str, Any] = {
    "Linear": (lambda m, **o: dy.nn.Linear(16, 8, m, **o), [0.25, 0.25]),
    "GatedLinear": (lambda m, **o: dy.nn.GatedLinear(16, 8, m, **o), [0.25] * 4),
    "Conv1d": (lambda m, **o: dy.nn.Conv1d(8, 8, 4, m, groups=2, **o), [0.25, 0.25]),
    "Conv2d": (lambda m, **o: dy.nn.Conv2d(4, 8, (2, 2), m, **o), [0.25, 0.25]),
    "ConvTranspose1d": (lambda m, **o: dy.nn.ConvTranspose1d(8, 8, 4, m, groups=2, **o), [0.25, 0.25]),
    "ConvTranspose2d": (lambda m, **o: dy.nn.ConvTranspose2d(8, 4, (2, 2), m, **o), [0.25, 0.25]),
    "Attention": (lambda m, **o: dy.nn.MultiHeadAttention(16, 2, m, **o), [1.5**0.5 / 4] * 3 + [0.25] + [0.0] * 4),
    "Encoder": (
        lambda m, **o: dy.nn.TransformerEncoder(1, 16, 2, 64, m, **o),
        [1.5**0.5 / 4] * 3 + [0.25] + [0.0] * 4 + [0.25] * 2 + [0.125] * 2 + [1, 0] * 2,
    ),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("later", [False, True])
def test_initial_values_of_pytorch(kind: str, later: bool) -> None:
    """Uniform up to the bound of torch.nn, as an argument, and for a finished layer and all in it."""
    make, bounds = LAYERS[kind]
    layer = (
        make(dy.ParameterCollection()).initialize("pytorch")
        if later
        else make(dy.ParameterCollection(), init="pytorch")
    )
    greatest = [float(abs(p.as_array()).max()) for p in layer.parameters()]
    assert all(0.6 * bound <= most <= bound * 1.0001 for most, bound in zip(greatest, bounds)), greatest
    assert len(greatest) == len(bounds)


def test_initial_values_of_layers_that_pytorch_does_not_have() -> None:
    model = dy.ParameterCollection()
    layer = dy.nn.Highway(4, model)
    before = layer.W.as_array()
    assert np.array_equal(layer.initialize("pytorch").W.as_array(), before)
    with pytest.raises(ValueError, match=r'^Linear: argument init: expected "pytorch", got \'he\'$'):
        dy.nn.Linear(2, 2, model, init="he")
    assert len(list(model.named_parameters())) == 4
    assert abs(dy.nn.Embedding(100, 50, model, init="pytorch").table.as_array().std() - 1) < 0.05
