"""Low-rank adapters, and what training changes of an encoder."""

from __future__ import annotations

import json

import numpy as np
import pytest
from architectures import CASES, random_ids, safetensors
from safetensors.numpy import load_file

import dynet_cy as dy
from dynet_cy.files.textfile import ModelFileError

IDS = random_ids(6)


class Tagger(dy.nn.Layer):
    """An encoder and a head, as a program joins them."""

    def __init__(self, encoder, tags, model):
        super().__init__(model)
        self.encoder = encoder
        self.scores = dy.nn.Linear(encoder.settings.dim, tags, self.collection)

    def __call__(self, ids):
        return self.scores(self.encoder(ids))


@pytest.fixture
def bert(tmp_path):
    CASES["bert"].write(tmp_path / "base")
    return dy.pretrained.load(tmp_path / "base", dy.ParameterCollection())


def trained(layer, encoder, trainer, steps=3):
    for _ in range(steps):
        dy.renew_cg()
        dy.sum_elems(dy.square(layer(IDS) - 1)).backward()
        trainer.update()
    dy.renew_cg()
    return encoder(IDS).npvalue()


@pytest.mark.parametrize("before", [False, True])
def test_only_adapters_are_trained(before, bert):
    tagger = Tagger(bert, 3, dy.ParameterCollection())
    trainer = dy.AdamTrainer(tagger, 0.01) if before else None
    x = bert(IDS).npvalue()
    adapters = dy.pretrained.lora(bert, rank=2, of=("query", "value"))
    assert len(adapters) == 4
    dy.renew_cg()
    np.testing.assert_array_equal(bert(IDS).npvalue(), x)
    values = bert.state_dict()
    y = trained(tagger, bert, trainer or dy.AdamTrainer(tagger, 0.01))
    assert np.abs(y - x).max() > 1e-4
    changed = {name for name, array in bert.state_dict().items() if not np.array_equal(array, values[name])}
    places = [f"layers.{i}.attention.{name}" for i in range(2) for name in ("query", "value")]
    assert changed == {f"{place}.{matrix}" for place in places for matrix in "AB"}


@pytest.mark.parametrize(
    ("of", "count"), [("query", 2), (("attention.self.key", "inner"), 4), ("output.dense", 4), ("all-linear", 13)]
)
def test_merged_adapters(of, count, bert, tmp_path):
    adapters = dy.pretrained.lora(bert, 2, of, alpha=8, dropout=0.5)
    assert len(adapters) == count
    for adapter in adapters:
        adapter.B.set_value(np.random.default_rng(0).normal(size=adapter.B.shape))
    x = bert(IDS).npvalue()
    with pytest.raises(ValueError, match="an adapter is merged first, or saved alone"):
        bert.save(tmp_path / "no")
    adapters.merge()
    assert len(adapters) == 0
    with pytest.raises(ValueError, match="there are no adapters any more: they have been merged; save them before"):
        adapters.save(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    dy.renew_cg()
    np.testing.assert_allclose(bert(IDS).npvalue(), x, atol=1e-5)
    bert.save(tmp_path / "merged")
    again = dy.pretrained.load(tmp_path / "merged", dy.ParameterCollection())
    np.testing.assert_array_equal(again(IDS).npvalue(), bert(IDS).npvalue())


def test_files_have_the_layout_of_peft(bert, tmp_path):
    adapters = dy.pretrained.lora(bert, 2, ("query", "attention.output"), alpha=6)
    for adapter in adapters:
        adapter.B.set_value(np.random.default_rng(0).normal(size=adapter.B.shape))
    x = bert(IDS).npvalue()
    adapters.save(tmp_path / "adapters")
    settings = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 2, 6)
    # "dense" would mean others too.
    names = ("attention.output.dense", "attention.self.query")
    assert settings["target_modules"] == [f"encoder.layer.{i}.{name}" for i in range(2) for name in names]
    tensors = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    shapes = {name: array.shape for name, array in tensors.items()}
    assert shapes == {
        f"base_model.model.encoder.layer.{i}.{name}.lora_{matrix}.weight": (2, 12) if matrix == "A" else (12, 2)
        for i in range(2)
        for name in names
        for matrix in "AB"
    }
    other = dy.pretrained.load(tmp_path / "base", dy.ParameterCollection())
    found = dy.pretrained.load_lora(tmp_path / "adapters", other)
    assert len(found) == 4
    np.testing.assert_allclose(other(IDS).npvalue(), x, atol=1e-5)


def test_a_checkpoint_of_a_tagger_with_adapters(bert, tmp_path):
    tagger = Tagger(bert, 3, dy.ParameterCollection())
    dy.pretrained.lora(bert, 2)
    trainer = dy.AdamTrainer(tagger, 0.01)
    x = trained(tagger, bert, trainer)
    dy.save_safetensors(tmp_path / "tagger.st", tagger, trainer)
    other = dy.pretrained.load(tmp_path / "base", dy.ParameterCollection())
    again = Tagger(other, 3, dy.ParameterCollection())
    dy.pretrained.lora(other, 2)
    dy.load_safetensors(tmp_path / "tagger.st", again, dy.AdamTrainer(again))
    np.testing.assert_array_equal(other(IDS).npvalue(), x)


def adapter(**settings):
    base = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query"]}
    return {**base, **settings}


MATRICES = {
    f"base_model.model.bert.encoder.layer.0.attention.self.query.lora_{matrix}.weight": np.ones(shape, np.float32)
    for matrix, shape in (("A", (2, 12)), ("B", (12, 2)))
}


@pytest.mark.parametrize(
    ("settings", "tensors", "message"),
    [
        (adapter(peft_type="IA3"), MATRICES, "peft_type is 'IA3', one of LORA"),
        (adapter(use_dora=True), MATRICES, "use_dora is True, only False"),
        (adapter(bias="all"), MATRICES, "bias is 'all', one of none"),
        (adapter(rank_pattern={"query": 3}), MATRICES, "rank_pattern is .*, nothing else"),
        (adapter(r=3), MATRICES, r"has shape \(2, 12\), not \(3, 12\)"),
        (adapter(r=0), MATRICES, "r is 0, a whole number from 1"),
        (adapter(lora_alpha=float("nan")), MATRICES, "lora_alpha is nan"),
        (adapter(), dict(list(MATRICES.items())[:1]), "there is no .*lora_B.weight"),
        (adapter(), dict(list(MATRICES.items())[1:]), "it has matrices B without A"),
        (adapter(), {"other.lora_A.weight": np.ones((2, 12))}, "other.lora_A.weight: there is no such linear layer"),
        (adapter(), {}, "it has no adapters"),
        (adapter(), {"classifier.weight": np.ones(2)}, "classifier.weight: is not a matrix of an adapter"),
    ],
)
def test_adapters_that_do_not_fit(settings, tensors, message, bert, tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    (tmp_path / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    names = [name for name, _ in bert.named_parameters()]
    with pytest.raises(ModelFileError, match=message):
        dy.pretrained.load_lora(tmp_path, bert)
    assert [name for name, _ in bert.named_parameters()] == names
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter()))
    (tmp_path / "adapter_model.safetensors").write_bytes(safetensors(MATRICES))
    assert len(dy.pretrained.load_lora(tmp_path, bert)) == 1


@pytest.mark.parametrize(("settings", "scale"), [({}, 2.0), ({"use_rslora": True}, 4 / 2**0.5)])
def test_the_scale_of_adapters(settings, scale, bert, tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter(**settings)))
    (tmp_path / "adapter_model.safetensors").write_bytes(safetensors(MATRICES))
    x = bert.layers[0].attention.query(dy.ones(12)).npvalue()
    dy.pretrained.load_lora(tmp_path, bert)
    dy.renew_cg()
    found = bert.layers[0].attention.query(dy.ones(12)).npvalue()
    np.testing.assert_allclose(found, x + scale * 2 * 12, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda e: dy.pretrained.lora(3), TypeError, "expected a layer, got int"),
        (lambda e: dy.pretrained.lora(e, r=8), TypeError, "there is no argument r; write `rank=`;"),
        (lambda e: dy.pretrained.lora(e, lora_alpha=8), TypeError, "no argument lora_alpha; write `alpha=`;"),
        (lambda e: dy.pretrained.lora(e, target_modules=[]), TypeError, "no argument target_modules; write `of=`;"),
        (lambda e: dy.pretrained.lora(e, 0), ValueError, "argument rank"),
        (lambda e: dy.pretrained.lora(e, 2.5), TypeError, "argument rank"),
        (lambda e: dy.pretrained.lora(e, 2, alpha=-1), ValueError, "argument alpha"),
        (lambda e: dy.pretrained.lora(e, 2, dropout=2), ValueError, "probability"),
        (lambda e: dy.pretrained.lora(e, 2, ()), ValueError, "argument of: expected names of linear layers, got none"),
        (lambda e: dy.pretrained.lora(e.embeddings), ValueError, "there is no linear layer in Embeddings"),
        (
            lambda e: dy.pretrained.lora(e, 2, "nothing"),
            ValueError,
            "no linear layer is named 'nothing'; there are inner, ",
        ),
    ],
)
def test_errors(call, error, message, bert):
    with pytest.raises(error, match=message):
        call(bert)
    assert all(parameter.is_updated() for parameter in bert.parameters())


def test_a_second_adapter_of_a_layer_is_an_error(bert):
    dy.pretrained.lora(bert, 2)
    with pytest.raises(ValueError, match=r"layers\.0\.attention\.query has an adapter already"):
        dy.pretrained.lora(bert, 2)


# ---- learning rates of layers


def test_rates_fall_from_layer_to_layer(bert):
    tagger = Tagger(bert, 3, dy.ParameterCollection())
    trainer = dy.SimpleSGDTrainer(tagger, 0.1)
    trainer.set_clip_threshold(0)
    bert.layerwise(trainer, 0.5)
    before = tagger.state_dict()
    dy.sum_elems(dy.square(tagger(IDS))).backward()
    gradients = {name: parameter.grad_as_array() for name, parameter in tagger.named_parameters()}
    trainer.update()
    rates = {"scores": 0.1, "encoder.layers.1": 0.05, "encoder.layers.0": 0.025, "encoder.embeddings": 0.0125}
    for name, array in tagger.state_dict().items():
        if name.startswith("encoder.pooler"):
            continue
        rate = next(rate for start, rate in rates.items() if name.startswith(start))
        np.testing.assert_allclose(before[name] - array, rate * gradients[name], atol=2e-6, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_rates_of_every_architecture(name, tmp_path):
    CASES[name].write(tmp_path)
    encoder = dy.pretrained.load(tmp_path, dy.ParameterCollection())
    trainer = dy.AdamTrainer(encoder, 1.0)
    encoder.layerwise(trainer, 0.5)
    grouped = {name for group in trainer.groups for name in group.names}
    rest = {parameter.name() for parameter in encoder.parameters()} - grouped
    after = {name.split("/")[2] for name in rest}
    assert {name for name in after if not name.startswith("decoder")} <= {"pooler", "norm", "head", "bias"}


@pytest.mark.parametrize("decay", [0, 1.5, float("nan")])
def test_rates_that_do_not_fall(decay, bert):
    with pytest.raises(ValueError, match="argument decay"):
        bert.layerwise(dy.AdamTrainer(bert), decay)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.9, None), "argument trainer: expected a trainer"),
        ((None, "x"), "argument decay: expected a number"),
    ],
)
def test_rates_of_something_else(arguments, message, bert):
    trainer = dy.AdamTrainer(bert)
    with pytest.raises(TypeError, match=f"Bert.layerwise: {message}"):
        bert.layerwise(arguments[0] or trainer, arguments[1])
    assert trainer.groups == ()


def test_rates_after_other_groups(bert):
    trainer = dy.AdamTrainer(bert, 1.0)
    (group,) = trainer.group_by_name({"embeddings.*": {"weight_decay": 0}})
    with pytest.raises(ValueError, match=r"Bert.layerwise: /bert/embeddings/.* call `layerwise` before"):
        bert.layerwise(trainer, 0.5)
    assert trainer.groups == (group,)
    trainer.group_by_name({"*layers.0.*.b": {"learning_rate": 0.5, "weight_decay": 0}})  # what the error recommends


def test_dropout_is_active_in_training_only(bert):
    x = bert(IDS).npvalue()
    assert not bert.training
    bert.train()
    assert np.abs(bert(IDS).npvalue() - x).max() > 1e-3
    bert.disable_dropout()
    np.testing.assert_allclose(bert(IDS).npvalue(), x, atol=1e-6)
