"""Layers that work column by column, containers, modes, files and copies."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layer_checks import arrays, check_layer, parameters, randomized, sentences
from layer_reference import ELSEWHERE, LAYERS, ROWS, D
from module_examples import run_examples

import dynet_cy as dy
from dynet_cy import nn

PAGE = Path(__file__).parents[2] / "docs" / "layers.md"


def made(name: str, seed: int = 0):
    cls, *spec = ROWS[name].layer
    return randomized(cls.from_spec(spec, dy.ParameterCollection()), seed)


@pytest.mark.usefixtures("on_each_device")
@pytest.mark.parametrize("name", ROWS)
def test_values_and_gradients(name: str) -> None:
    row = ROWS[name]
    check_layer(made(name), row.formula, row.inputs, tolerance=row.tolerance)


@pytest.mark.parametrize("name", LAYERS)
def test_a_vector_is_a_column(name: str) -> None:
    layer = made(name)
    x = np.random.default_rng(0).normal(size=D)
    want = LAYERS[name][1](arrays(layer), x[:, None])[:, 0]
    found = layer(dy.inputVector(x))
    assert len(found.dim()[0]) == 1
    np.testing.assert_allclose(found.npvalue(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_files_pickles_and_copies(name: str, training: bool, tmp_path: Path) -> None:
    layer = made(name, 3).train(training)
    ((x,), *_) = ROWS[name].inputs

    def value(layer):
        return layer(dy.inputTensor(x)).npvalue()

    others = [pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)]
    if parameters(layer):
        dy.save(tmp_path / "m", [layer])
        others += [loaded.train(training) for loaded in dy.load(tmp_path / "m", dy.ParameterCollection())]
    for other in others:
        assert type(other) is type(layer)
        assert (other.spec, other.training) == (layer.spec, training)
        np.testing.assert_array_equal(value(other), value(layer))
        if parameters(layer):
            for p in parameters(other):
                p.scale(2)
            assert not np.array_equal(value(other), value(layer))


@pytest.mark.parametrize("name", LAYERS)
def test_errors(name: str) -> None:
    layer = made(name)
    with pytest.raises(dy.DimensionError, match=r"argument x: expected 4 rows, got \(3, 2\)"):
        layer(dy.zeros((3, 2)))
    for x in ("text", None, [[1.0, 2.0], [3.0]], np.array(["a"]), [dy.zeros(4)]):
        with pytest.raises(TypeError, match="argument x: expected an expression, an array or a list of numbers"):
            layer(x)


@pytest.mark.parametrize("name", LAYERS)
def test_arrays_and_lists_are_inputs(name: str) -> None:
    layer = made(name)
    x = sentences(D)[0][0]
    want = layer(dy.inputTensor(x)).npvalue()
    for given in (x, x.astype(np.float64), x.tolist()):
        np.testing.assert_array_equal(layer(given).npvalue(), want)
    assert len(layer([1, 2, 3, 4]).dim()[0]) == 1


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("gelu_new", lambda x: dy.gelu(x, "tanh")),
        ("gelu_pytorch_tanh", lambda x: dy.gelu(x, approximate="tanh")),
        ("quick_gelu", lambda x: dy.silu(x, 1.702)),
    ],
)
def test_activations_of_transformers(name: str, want) -> None:
    x = dy.inputVector(np.linspace(-4, 4, 9))
    np.testing.assert_array_equal(nn.Activation(name)(x).npvalue(), want(x).npvalue())
    with pytest.raises(ValueError, match='gelu: approximate must be "none" or "tanh", not None'):
        dy.gelu(x, approximate=None)


def test_errors_of_constructors() -> None:
    model = dy.ParameterCollection()
    net: Any = type("Net", (), {})()
    with pytest.raises(TypeError, match=r"got Net; pass its collection, or derive Net from dy\.nn\.Layer$"):
        nn.Linear(2, 3, net)
    with pytest.raises(TypeError, match=r"Linear: argument x: .*; join them with dy\.concatenate_cols$"):
        nn.Linear(2, 3, dy.ParameterCollection())([dy.ones(2)] * 3)
    with pytest.raises(TypeError, match="Linear: argument model: expected a ParameterCollection or a layer, got int"):
        nn.Linear(3, 4, 5)
    with pytest.raises(ValueError, match="Linear: argument input_dim: expected at least 1, got 0"):
        nn.Linear(0, 4, model)
    with pytest.raises(ValueError, match="RMSNorm: argument eps"):
        nn.RMSNorm(3, model, eps=0)
    with pytest.raises(ValueError, match="Activation: argument activation: expected one of elu"):
        nn.Activation("sinus")
    named = re.search(r"name: (.*?)\n\n", inspect.getdoc(nn.Activation) or "", re.DOTALL)
    assert set(nn.layer.ACTIVATIONS) <= set(re.findall(r"\w+", named[1]))
    with pytest.raises(ValueError, match="Dropout: argument rate: expected a probability"):
        nn.Dropout(1.5)
    with pytest.raises(TypeError, match="Sequential: argument layers: expected a class of layers"):
        nn.Sequential([dy.tanh], model)
    with pytest.raises(ValueError, match="padding: expected a number from 0 to 2"):
        nn.Embedding(3, 2, model, padding=3)


# ---- Embedding


def test_embedding() -> None:
    layer = randomized(nn.Embedding(5, 3, dy.ParameterCollection()))
    table = layer.table.as_array()
    np.testing.assert_array_equal(layer(4).npvalue(), table[4])
    np.testing.assert_array_equal(layer([4, 0, 4]).npvalue(), table[[4, 0, 4]].T)
    ids = np.array([[1, 2], [3, 4], [0, 0]])
    found = layer(ids)
    assert found.dim() == ((3, 3), 2)
    for b in range(2):
        np.testing.assert_array_equal(found.npvalue()[..., b], table[ids[:, b]].T)
    for wrong, error in [([], ValueError), ([1.5], TypeError), (5, IndexError), (np.zeros((1, 1, 1), int), ValueError)]:
        with pytest.raises(error):
            layer(wrong)


def test_padding_is_zero_and_not_trained() -> None:
    layer = randomized(nn.Embedding(5, 3, dy.ParameterCollection(), padding=2))
    before = layer.table.as_array().copy()
    trainer = dy.AdamTrainer(layer.param_collection())
    ids = np.array([[1, 2], [2, 2]])
    found = layer(ids)
    np.testing.assert_array_equal(found.npvalue()[:, 0, 1], 0)
    np.testing.assert_array_equal(found.npvalue()[:, 0, 0], before[1])
    np.testing.assert_array_equal(layer(2).npvalue(), 0)
    dy.sum_batches(dy.sum_elems(dy.square(found - 3))).backward()
    trainer.update()
    after = layer.table.as_array()
    np.testing.assert_array_equal(after[[0, 2, 3, 4]], before[[0, 2, 3, 4]])
    assert not np.array_equal(after[1], before[1])


def test_embedding_of_an_array_and_frozen(tmp_path: Path) -> None:
    vectors = np.arange(12.0).reshape(4, 3)
    model = dy.ParameterCollection()
    layer = nn.Embedding.from_numpy(vectors, model, frozen=True)
    np.testing.assert_array_equal(layer([3, 0]).npvalue(), vectors[[3, 0]].T)
    trainer = dy.SimpleSGDTrainer(model)
    dy.sum_elems(layer([3, 0])).backward()
    trainer.update()
    np.testing.assert_array_equal(layer.table.as_array(), vectors)
    dy.save(tmp_path / "m", [layer])
    (loaded,) = dy.load(tmp_path / "m", dy.ParameterCollection())
    assert not loaded.table.is_updated()
    with pytest.raises(ValueError, match="expected rows of vectors"):
        nn.Embedding.from_numpy(np.zeros(3), model)


# ---- modes


class Tagger(nn.Layer):
    """A layer as programs define it."""

    def __init__(self, words, tags, model, dropout=0.5):
        super().__init__(model, (words, tags, dropout))
        self.words = nn.Embedding(words, D, self.collection)
        self.dropout = nn.Dropout(dropout)
        self.scores = [nn.Linear(D, tags, self.collection)]

    def __call__(self, ids):
        return self.scores[0](self.dropout(self.words(ids)))


def test_modes_reach_all_layers() -> None:
    tagger = Tagger(9, 3, dy.ParameterCollection())
    ids = [1, 2, 3]
    assert tagger.training
    assert not np.array_equal(tagger(ids).npvalue(), tagger(ids).npvalue())
    assert tagger.eval() is tagger
    assert not tagger.dropout.training
    assert not tagger.scores[0].training
    np.testing.assert_array_equal(tagger(ids).npvalue(), tagger(ids).npvalue())
    tagger.train().set_dropout(0.9)
    assert tagger.dropout.rate == 0.9
    tagger.disable_dropout()
    np.testing.assert_array_equal(tagger(ids).npvalue(), tagger(ids).npvalue())


class Reader(nn.Layer):
    """A layer that contains builders."""

    def __init__(self, model):
        super().__init__(model)
        self.one = dy.GRUBuilder(1, D, D, self.collection)
        self.both = [dy.BiRNNBuilder(1, D, D, self.collection, dy.LSTMBuilder)]
        self.one.set_dropout(0.5)
        self.both[0].set_dropout(0.5)

    def __call__(self, xs):
        return dy.concatenate_cols(self.both[0].transduce(self.one.initial_state().transduce(xs)))


def test_builders_follow_the_layer() -> None:
    reader = Reader(dy.ParameterCollection())

    def value():
        dy.renew_cg()
        return reader([dy.ones(D), dy.ones(D)]).npvalue()

    assert not np.array_equal(value(), value())
    reader.eval()
    assert not reader.one.training
    np.testing.assert_array_equal(value(), value())
    reader.both[0].train()
    assert not np.array_equal(value(), value())
    reader.train().disable_dropout()
    np.testing.assert_array_equal(value(), value())
    reader.set_updated(False)
    assert not any(p.is_updated() for p in parameters(reader))


def test_dropout() -> None:
    layer = nn.Dropout(0.25)
    found = layer(dy.ones((100, 100))).npvalue()
    assert set(np.unique(found)) == {np.float32(0), np.float32(1 / 0.75)}
    assert 0.2 < (found == 0).mean() < 0.3
    x = dy.ones(3)
    assert layer.eval()(x) is x


def test_frozen_layers() -> None:
    tagger = Tagger(9, 3, dy.ParameterCollection())
    tagger.set_updated(False)
    assert not any(p.is_updated() for p in parameters(tagger))
    tagger.set_updated(True)
    assert all(p.is_updated() for p in parameters(tagger))


def test_files_of_own_layers(tmp_path: Path) -> None:
    tagger = Tagger(9, 3, dy.ParameterCollection(), 0.1).eval()
    dy.save(tmp_path / "m", [tagger, nn.Linear(2, 2, dy.ParameterCollection())])
    loaded, _ = dy.load(tmp_path / "m", dy.ParameterCollection())
    assert loaded.spec == (9, 3, 0.1)
    assert loaded.training
    np.testing.assert_array_equal(loaded.eval()([1, 2]).npvalue(), tagger([1, 2]).npvalue())


def test_specs_in_files_are_checked(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2, dy.ParameterCollection())
    layer.spec = (10**6, 10**6, True)
    dy.save(tmp_path / "large", [layer])
    # Constructors would accept it as a true value, but no layer has it in its spec.
    layer.spec = (2, 2, {1: 2})
    dy.save(tmp_path / "odd", [layer])
    layers = nn.Sequential([(nn.Linear, 2, 2)], dy.ParameterCollection())
    layers.spec = (((nn.Linear, 2, 2, {1: 2}),),)
    dy.save(tmp_path / "within", [layers])
    odd = "cannot be made with spec"
    for name, message in [("large", "more parameters than the file"), ("odd", odd), ("within", odd)]:
        model = dy.ParameterCollection()
        with pytest.raises(dy.ModelFileError, match=message):
            dy.load(tmp_path / name, model)
        assert model.parameter_count() == 0


def test_list() -> None:
    layers = nn.LayerList([(nn.Linear, 2, 2), "tanh"], dy.ParameterCollection())
    assert len(layers) == 2
    assert [type(layer) for layer in layers] == [nn.Linear, nn.Activation]
    assert layers[-1].name == "tanh"
    assert repr(layers) == "<LayerList [Linear (2, 2, True), Activation ('tanh',)]>"
    with pytest.raises(NotImplementedError, match="LayerList has no __call__"):
        layers(dy.zeros(2))


def test_trained_by_a_trainer() -> None:
    model = dy.ParameterCollection()
    net = nn.Sequential([(nn.Linear, 2, 8), "tanh", (nn.Linear, 8, 1)], model)
    trainer = dy.AdamTrainer(model, alpha=0.05)
    xs = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], dtype=np.float32)
    ys = np.array([[0, 1, 1, 0]], dtype=np.float32)
    for _ in range(200):
        dy.renew_cg()
        loss = dy.squared_distance(net(dy.inputTensor(xs)), dy.inputTensor(ys))
        loss.backward()
        trainer.update()
    dy.renew_cg()
    np.testing.assert_allclose(net(dy.inputTensor(xs)).npvalue(), ys, atol=0.2)


MODULES = sorted(path.stem for path in Path(nn.__file__).parent.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(f"dynet_cy.nn.{name}")
    assert run_examples(module).failed == 0


def test_every_layer_says_what_it_takes() -> None:
    for name in nn.__all__:
        found = getattr(nn, name)
        assert found.__doc__, name
        if isinstance(found, type) and issubclass(found, nn.Layer) and found.__call__ is not nn.Layer.__call__:
            assert found.__call__.__doc__, name


def layer_classes() -> set[str]:
    classes = {name: value for name in nn.__all__ if isinstance(value := getattr(nn, name), type)}
    return {name for name, cls in classes.items() if issubclass(cls, nn.Layer)} - {"Layer"}


def test_every_layer_has_a_row_or_tests_of_its_own() -> None:
    rows = {row.layer[0].__name__ for row in ROWS.values()}
    assert rows | set(ELSEWHERE) == layer_classes()
    assert not rows & set(ELSEWHERE)
    for name, file in ELSEWHERE.items():
        assert f"nn.{name}" in (Path(__file__).parent / file).read_text(encoding="utf-8")


def test_every_layer_is_in_the_list_of_the_page() -> None:
    listed = PAGE.read_text(encoding="utf-8").partition("## List of layers")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", listed, re.MULTILINE))
    assert set(rows) == layer_classes()
    for name, arguments in rows.items():
        own = list(inspect.signature(getattr(nn, name)).parameters)
        shown = re.findall(r"(\w+)[^,]*", arguments.removesuffix(", ..."))
        assert shown == (own[: len(shown)] if arguments.endswith("...") else own), name


def test_embeddings_start_large_enough_to_be_heard_beside_positions() -> None:
    table = nn.Embedding(2000, 64, dy.ParameterCollection()).table.as_array()
    assert abs(table.std() - 1) < 0.01
    small = nn.Embedding(5, 3, dy.ParameterCollection(), init=dy.ConstInitializer(0.25))
    assert (small.table.as_array() == 0.25).all()


@pytest.mark.parametrize("ids", [np.ones((1, 7), np.int64), [[1, 2, 3]]])
def test_indices_of_tokenizers(ids) -> None:
    """They give an array of one row for one sentence, which would be a minibatch of single words."""
    words = nn.Embedding(9, D, dy.ParameterCollection())
    n = len(ids[0])
    says = rf"shape \(1, {n}\): write ids\[0\] for one sentence of {n}, ids.T if"
    with pytest.raises(ValueError, match=says):
        words(ids)
    assert words(ids[0]).dim() == ((D, n), 1)
    assert words.table.batch(ids[0]).dim() == ((D,), n)
    assert words([[5]]).dim() == ((D, 1), 1)
