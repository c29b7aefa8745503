"""Heads of encoders: scores of masked pieces, and of labels of texts and of pieces, by their formulas in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from architectures import ACTIVATIONS, CASES, NO_TORCH, Tensors, random_ids, write
from safetensors.numpy import load_file

import dynet_cy as dy
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError

TABLES = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")
ROBERTA = {
    "masked": ("gelu", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "sequence": ("tanh", "classifier.dense", None, "classifier.out_proj"),
}
BERT = "cls.predictions"
BERT = ("gelu", f"{BERT}.transform.dense", f"{BERT}.transform.LayerNorm", f"{BERT}.bias")
MODERN = ("gelu", "head.dense", "head.norm")
# For each case: what stands before the names of the encoder; and for each kind of head the activation, the linear
# layer, the norm, and what makes the scores. Without a linear layer, texts have the vector of the pooler.
HEADS = {
    "bert": ("bert.", {"masked": BERT, "sequence": (None, None, None, "classifier")}),
    "roberta": ("roberta.", ROBERTA),
    "electra": (
        "electra.",
        {
            "masked": (
                "gelu",
                "generator_predictions.dense",
                "generator_predictions.LayerNorm",
                "generator_lm_head.bias",
            ),
            "sequence": ("gelu", "classifier.dense", None, "classifier.out_proj"),
        },
    ),
    "distilbert": (
        "distilbert.",
        {
            "masked": ("gelu", "vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
            "sequence": ("relu", "pre_classifier", None, "classifier"),
        },
    ),
    "albert": (
        "albert.",
        {
            "masked": ("gelu_new", "predictions.dense", "predictions.LayerNorm", "predictions.bias"),
            "sequence": (None, None, None, "classifier"),
        },
    ),
    "mpnet": ("mpnet.", ROBERTA),
    "deberta 3": ("deberta.", {"masked": BERT, "sequence": ("gelu", "pooler.dense", None, "classifier")}),
    "modernbert, biases": (
        "model.",
        {
            "masked": (*MODERN, "decoder.bias"),
            "sequence": (*MODERN, "classifier"),
            "token": (*MODERN, "classifier"),
        },
    ),
}
LABELS = {"id2label": {"0": "noun", "1": "verb", "2": "other"}, "classifier_bias": True}
ALL = [(name, kind) for name in HEADS for kind in ("masked", "sequence", "token")]


def parts(name, kind):
    return HEADS[name][1].get(kind, (None, None, None, "classifier"))


def formula(w, ids, name, kind):
    """The scores, with rows for pieces."""
    config = CASES[name].config
    states, pooled = CASES[name].formula(w, ids, [0] * len(ids), config)
    activation, dense, norm, output = parts(name, kind)
    x = states[-1]
    if kind == "sequence":
        x = x[:1] if dense else pooled[None]
    table = w[next(name for name in TABLES if name in w)].astype(np.float64)
    eps = config.get("layer_norm_eps", {"modernbert": 1e-5, "deberta-v2": 1e-7}.get(config["model_type"], 1e-12))
    if dense:
        x = ACTIVATIONS[activation](w.linear(x, dense, table.shape[1] if kind == "masked" else x.shape[1]))
    if norm:
        x = w.norm(x, norm, eps)
    if kind == "masked":
        return x @ table.T + w.get(output, len(table))
    return w.linear(x, output, 3)[0 if kind == "sequence" else slice(None)]


def folder_with(path, name, kind, **settings):
    """A folder with random tensors, which are returned, with the names that they have in the file."""
    case, (prefix, _) = CASES[name], HEADS[name]
    bare = Tensors()
    case.formula(bare, [3], [0], case.config)
    inner = set(bare)
    formula(bare, [3], name, kind)
    if kind != "sequence" or parts(name, kind)[1]:
        inner -= {n for n in inner if n.startswith("pooler.")}
    named = {prefix + n if n in inner else n: x for n, x in bare.items() if n in inner or not n.startswith("pooler.")}
    named |= {n: x for n, x in bare.items() if n.startswith("pooler.") and parts(name, kind)[1] == "pooler.dense"}
    write(path, {**case.config, **LABELS, **settings}, named)
    return bare, named


@pytest.mark.parametrize(("name", "kind"), ALL)
def test_scores(name, kind, tmp_path):
    bare, named = folder_with(tmp_path / "one", name, kind)
    encoder = dy.pretrained.load(tmp_path / "one", dy.ParameterCollection(), head=kind)
    assert encoder.labels == ([] if kind == "masked" else ["noun", "verb", "other"])
    for n in (1, 2, 9):
        ids = random_ids(n)
        expected = formula(bare, ids, name, kind).T
        found = encoder.scores(ids)
        assert found.dim() == (expected.shape, 1)
        np.testing.assert_allclose(found.npvalue(), expected, atol=2e-5 * max(1, np.abs(expected).max()))
    encoder.save(tmp_path / "two")
    written = load_file(tmp_path / "two" / "model.safetensors")
    assert set(written) == set(named)
    assert all((written[name] == array).all() for name, array in named.items())
    dy.save(str(tmp_path / "whole"), [encoder])
    (again,) = dy.load(str(tmp_path / "whole"), dy.ParameterCollection(), classes=[type(encoder)])
    np.testing.assert_array_equal(again.scores(ids).npvalue(), found.npvalue())


@pytest.mark.skipif(bool(NO_TORCH), reason=NO_TORCH or "-")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "settings"), [*((name, {}) for name in HEADS), ("modernbert, biases", {"classifier_pooling": "mean"})]
)
def test_scores_of_transformers(name, settings, tmp_path):
    import torch
    import transformers

    for kind, auto in (
        ("masked", "MaskedLM"),
        ("sequence", "SequenceClassification"),
        ("token", "TokenClassification"),
    ):
        cls = getattr(transformers, f"AutoModelFor{auto}")
        folder_with(tmp_path / "one", name, kind, **settings)
        theirs = cls.from_pretrained(tmp_path / "one", attn_implementation="eager").eval()
        encoder = dy.pretrained.load(tmp_path / "one", dy.ParameterCollection(), head=kind)
        ids = random_ids(9)
        dy.renew_cg()
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0].numpy().T
        np.testing.assert_allclose(encoder.scores(ids).npvalue(), expected, atol=1e-4)
        encoder.save(tmp_path / "two")
        again, told = cls.from_pretrained(tmp_path / "two", output_loading_info=True)
        assert type(again) is type(theirs)
        assert not told["missing_keys"]
        assert not told["unexpected_keys"]
        assert all((again.state_dict()[key] == value).all() for key, value in theirs.state_dict().items())


def test_a_new_head_is_trained_and_read_again(tmp_path):
    CASES["bert"].write(tmp_path / "one")
    model = dy.ParameterCollection()
    encoder = dy.pretrained.load(tmp_path / "one", model, head="sequence", labels=["bad", "good"])
    trainer = dy.AdamTrainer(encoder, 0.01)
    texts = [(random_ids(n), n % 2) for n in range(3, 9)]
    losses = []
    for _ in range(15):
        dy.renew_cg()
        loss = dy.esum([dy.cross_entropy(encoder.scores(ids), label) for ids, label in texts])
        losses.append(loss.value())
        loss.backward()
        trainer.update()
    assert losses[-1] < 0.5 * losses[0]
    encoder.save(tmp_path / "two")
    again = dy.pretrained.load(tmp_path / "two", dy.ParameterCollection(), head="sequence")
    assert again.labels == ["bad", "good"]
    dy.renew_cg()
    np.testing.assert_array_equal(again.scores(texts[0][0]).npvalue(), encoder.scores(texts[0][0]).npvalue())
    assert "(head='sequence' reads the head)" in repr(dy.pretrained.load(tmp_path / "two", model))
    other = dy.pretrained.load(tmp_path / "two", model, head="sequence", labels=5)
    assert other.scores([3, 4]).dim() == ((5,), 1)
    assert other.labels[4] == "LABEL_4"


def test_adapters_and_a_head(tmp_path):
    CASES["bert"].write(tmp_path / "one")
    encoder = dy.pretrained.load(tmp_path / "one", dy.ParameterCollection(), head="sequence", labels=2)
    adapters = dy.pretrained.lora(encoder, 2, "all-linear")
    assert not isinstance(encoder.head.output, dy.pretrained.LoRA)
    before, trainer = encoder.head.output.W.as_array(), dy.AdamTrainer(encoder, 0.1)
    dy.cross_entropy(encoder.scores([3, 4]), 1).backward()
    trainer.update()
    assert (encoder.head.output.W.as_array() != before).any()
    adapters.merge()
    encoder.save(tmp_path / "two")
    again = dy.pretrained.load(tmp_path / "two", dy.ParameterCollection(), head="sequence")
    dy.renew_cg()
    np.testing.assert_allclose(again.scores([3, 4]).npvalue(), encoder.scores([3, 4]).npvalue(), atol=1e-5)
    dy.pretrained.lora(again, 2)  # its head has been read
    assert not any(parameter.is_updated() for parameter in again.head.parameters())


def test_other_names_of_labels(tmp_path):
    folder_with(tmp_path / "one", "bert", "token")
    encoder = dy.pretrained.load(tmp_path / "one", dy.ParameterCollection(), head="token")
    encoder.labels = ["a", "b", "c"]
    encoder.save(tmp_path / "two")
    assert dy.pretrained.load(tmp_path / "two", dy.ParameterCollection(), head="token").labels == ["a", "b", "c"]
    with pytest.raises(ValueError, match="attribute labels: expected 3 names"):
        encoder.labels = ["a"]


def test_a_layer_of_ones_own_as_head(tmp_path):
    folder_with(tmp_path, "bert", "token")
    model = dy.ParameterCollection()
    encoder = dy.pretrained.load(tmp_path, model)
    with pytest.raises(TypeError, match="attribute head: expected none of your own: load.folder, model, head='token'"):
        encoder.head = dy.nn.Linear(12, 3, model)
    assert encoder.head is None


@pytest.mark.parametrize(("there", "asked"), [("token", "sequence"), ("sequence", "token")])
def test_a_head_of_another_kind(there, asked, tmp_path):
    """A linear layer of labels of pieces is not read as one of labels of texts, nor the other way round."""
    folder_with(tmp_path / "one", "distilbert", there)
    dy.pretrained.load(tmp_path / "one", dy.ParameterCollection(), head=there).save(tmp_path / "two")
    model = dy.ParameterCollection()
    message = f"architectures is .*DistilBertFor.*head='{there}' reads its head, and labels=.* makes a new one"
    with pytest.raises(ModelFileError, match=message):
        dy.pretrained.load(tmp_path / "two", model, head=asked)
    assert model.parameters_list() == []
    assert dy.pretrained.load(tmp_path / "two", model, head=asked, labels=["x", "y"]).labels == ["x", "y"]


def test_scores_of_words(tmp_path):
    folder_with(tmp_path, "bert", "token")
    encoder = dy.pretrained.load(tmp_path, dy.ParameterCollection(), head="token")
    code = dy.pretrained.Code([2, 5, 6, 7, 3], list("abcde"), [None, 0, 0, 1, None], ["x", "y"])
    found = encoder.head(encoder.words(code)).npvalue()
    np.testing.assert_allclose(found, encoder.scores(code).npvalue()[:, [1, 3]], atol=1e-5)


@pytest.mark.parametrize("rows", [34, 20])
@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kind in ALL if name in ("bert", "electra")])
def test_further_pieces_and_fewer(name, kind, rows, tmp_path):
    """Scores of pieces follow the table, and files have the new sizes."""
    folder_with(tmp_path / "one", name, kind)
    encoder = dy.pretrained.load(tmp_path / "one", dy.ParameterCollection(), head=kind)
    names = [name for name, _ in encoder.named_parameters()]
    before = encoder.scores([5, 6, 7]).npvalue()
    encoder.resize(rows)
    dy.renew_cg()
    after = encoder.scores([5, 6, 7]).npvalue()
    if kind == "masked":
        assert after.shape == (rows, 3)
        after, before = after[:20], before[:20]
    np.testing.assert_allclose(after, before, atol=1e-5)
    assert sorted(name for name, _ in encoder.named_parameters()) == sorted(names)
    encoder.save(tmp_path / "two")
    again = dy.pretrained.load(tmp_path / "two", dy.ParameterCollection(), head=kind)
    dy.renew_cg()
    np.testing.assert_array_equal(again.scores([rows - 1]).npvalue(), encoder.scores([rows - 1]).npvalue())
    made = type(encoder).from_spec(encoder.spec, dy.ParameterCollection())
    assert (made.kind, made.settings.vocabulary) == (kind, rows)


@pytest.mark.parametrize("name", HEADS)
def test_initial_values_of_pytorch(name):
    """They reach the linear layers of attention and of heads."""
    config = {**CASES[name].config, **LABELS}
    encoder = dy.pretrained.loading.ARCHITECTURES[config["model_type"]](config, dy.ParameterCollection(), head="token")
    encoder.initialize("pytorch")
    for path, parameter in encoder.named_parameters():
        if path.endswith(("attention.output.W", "attention.query.W", "attention.joint.W", "head.output.W")):
            bound = parameter.shape[1] ** -0.5
            assert 0.6 * bound < abs(parameter.as_array()).max() <= bound * 1.0001, path


def test_scores_of_a_long_text(tmp_path):
    folder_with(tmp_path, "bert", "token")
    encoder = dy.pretrained.load(tmp_path, dy.ParameterCollection(), head="token")
    assert encoder.scores([3] * 70).dim() == ((3, 70), 1)  # in windows


@pytest.mark.parametrize(
    ("settings", "arguments", "error", "message"),
    [
        ({}, {"head": "masked"}, ModelMismatchError, "there is no cls.predictions"),
        (
            {},
            {"head": "sequence"},
            ModelMismatchError,
            "there is no bert.pooler.dense.weight; `labels=` makes a new head",
        ),
        ({}, {"head": "tagger"}, ValueError, "argument head: expected one of masked, sequence, token, got 'tagger'"),
        ({}, {"labels": 3}, ValueError, "argument labels: expected head='sequence' or head='token'"),
        ({}, {"head": "masked", "labels": 3}, ValueError, "argument labels"),
        ({}, {"head": "token", "labels": 0}, ValueError, "argument labels"),
        ({}, {"head": "token", "labels": "no"}, ValueError, "argument labels: expected a number, or names"),
        ({}, {"head": "token", "labels": []}, ValueError, "argument labels: expected a number, or names"),
        ({}, {"head": "token", "labels": ["a", "b", "a"]}, ValueError, "expected different names, got 'a' twice"),
        ({"id2label": {"0": "a", "7": "b"}}, {"head": "token"}, ModelFileError, "id2label is .*a name for each number"),
        ({"id2label": {"0": "a"}}, {"head": "token"}, ModelMismatchError, "classifier.weight: has shape"),
        ({"tie_word_embeddings": False}, {"head": "masked"}, ModelFileError, "tie_word_embeddings is False, only True"),
    ],
)
def test_errors(settings, arguments, error, message, tmp_path):
    folder_with(tmp_path, "bert", "token", **settings)
    model = dy.ParameterCollection()
    with pytest.raises(error, match=message):
        dy.pretrained.load(tmp_path, model, **arguments)
    assert model.parameters_list() == []


def test_no_head(tmp_path):
    folder_with(tmp_path / "bert", "bert", "token")
    encoder = dy.pretrained.load(tmp_path / "bert", dy.ParameterCollection())
    with pytest.raises(ValueError, match="there is no head; load"):
        encoder.scores([1, 2])
    CASES["gpt2"].write(tmp_path / "gpt")
    with pytest.raises(ValueError, match="argument head: encoders of texts have one"):
        dy.pretrained.load(tmp_path / "gpt", dy.ParameterCollection(), head="token")
