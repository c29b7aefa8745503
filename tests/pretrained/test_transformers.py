"""Every architecture against `transformers`, and adapters against `peft`, where these are installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from architectures import CASES, DECODERS, ENCODER_DECODERS, LENGTHS, NO_TORCH, random_ids

import dynet_cy as dy

NO_PEFT = NO_TORCH or ("" if importlib.util.find_spec("peft") else "peft is not installed")
needs_transformers = pytest.mark.skipif(bool(NO_TORCH), reason=NO_TORCH or "-")
needs_peft = pytest.mark.skipif(bool(NO_PEFT), reason=NO_PEFT or "-")
# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def theirs(folder):
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


def result(model, ids):
    import torch

    model = model.get_encoder() if model.config.is_encoder_decoder else model
    with torch.no_grad():
        return model(torch.tensor([ids]), output_hidden_states=True)


@needs_transformers
@pytest.mark.parametrize("name", CASES)
def test_states_and_files(name, tmp_path):
    CASES[name].write(tmp_path / "one")
    encoder, model = dy.pretrained.load(tmp_path / "one", dy.ParameterCollection()), theirs(tmp_path / "one")
    for n in LENGTHS:
        ids = random_ids(n)
        dy.renew_cg()
        found, expected = encoder(ids, all_layers=True), result(model, ids)
        states = [*expected.hidden_states[:-1], expected.last_hidden_state]
        assert len(found) == len(states)
        for x, y in zip(found, states):
            np.testing.assert_allclose(x.npvalue(), y[0].numpy().T, atol=1e-4)
    encoder.save(tmp_path / "two")
    again = theirs(tmp_path / "two")
    assert type(again) is type(model)
    np.testing.assert_array_equal(result(again, ids).last_hidden_state, result(model, ids).last_hidden_state)


@needs_transformers
@pytest.mark.parametrize("name", [*DECODERS, *ENCODER_DECODERS])
def test_scores_and_generation(name, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    CASES[name].write(tmp_path / "one")
    ours = dy.pretrained.load(tmp_path / "one", dy.ParameterCollection())
    both = name in ENCODER_DECODERS
    cls = AutoModelForSeq2SeqLM if both else AutoModelForCausalLM
    model = cls.from_pretrained(tmp_path / "one").eval()
    target = [2, 5, 7, 4]
    further = {"decoder_input_ids": torch.tensor([target])} if both else {}
    ids = random_ids(9)

    def scores(model):
        with torch.no_grad():
            return model(torch.tensor([ids]), **further).logits[0].numpy().T

    np.testing.assert_allclose(ours.scores(*([ids, target] if both else [ids])).npvalue(), scores(model), atol=1e-4)
    ours.save(tmp_path / "two")
    np.testing.assert_array_equal(scores(cls.from_pretrained(tmp_path / "two").eval()), scores(model))
    prompts, options = [[5, 6, 7], [4], [9, 8, 7, 6, 5]], {"do_sample": False, "num_beams": 1, "eos_token_id": None}
    expected = []
    for prompt in prompts:
        found = model.generate(torch.tensor([prompt]), max_new_tokens=7, pad_token_id=1, **options)[0].tolist()
        expected.append(found[1 if both else len(prompt) :])
    dy.renew_cg(forward_only=True)
    assert ours.generate(prompts, longest=7, end=[], forbidden=[]) == expected


@needs_peft
@pytest.mark.parametrize(
    ("name", "of", "modules"),
    [
        ("bert", ("query", "value"), ["query", "value"]),
        ("bert", "attention.output", ["attention.output.dense"]),
        ("bert", "all-linear", "all-linear"),
        ("albert", ("query",), ["query"]),
        ("distilbert", ("query", "value"), ["q_lin", "v_lin"]),
        ("deberta 3", ("query_proj", "value_proj"), ["query_proj", "value_proj"]),
        ("modernbert", ("Wqkv", "inner"), ["Wqkv", "Wi"]),
        ("gpt2", ("joint",), ["c_attn"]),
        ("llama", ("query", "value"), ["q_proj", "v_proj"]),
    ],
)
def test_adapters_both_ways(name, of, modules, tmp_path):
    import peft

    CASES[name].write(tmp_path / "base")
    ids = random_ids(6)
    encoder = dy.pretrained.load(tmp_path / "base", dy.ParameterCollection())
    adapters = dy.pretrained.lora(encoder, 3, of, alpha=6)
    for adapter in adapters:
        adapter.B.set_value(np.random.default_rng(0).normal(size=adapter.B.shape))
    adapters.save(tmp_path / "ours")
    model = peft.PeftModel.from_pretrained(theirs(tmp_path / "base"), tmp_path / "ours").eval()
    assert sum(key.endswith("lora_A.default.weight") for key in model.state_dict()) == len(adapters)
    expected = result(model, ids).last_hidden_state[0].numpy().T
    np.testing.assert_allclose(encoder(ids).npvalue(), expected, atol=1e-4)

    settings = peft.LoraConfig(r=2, lora_alpha=3, target_modules=modules, init_lora_weights=False, use_rslora=True)
    model = peft.get_peft_model(theirs(tmp_path / "base"), settings).eval()
    model.save_pretrained(tmp_path / "theirs")
    encoder = dy.pretrained.load(tmp_path / "base", dy.ParameterCollection())
    found = dy.pretrained.load_lora(tmp_path / "theirs", encoder)
    assert len(found) == len(adapters)
    dy.renew_cg()
    expected = result(model, ids).last_hidden_state[0].numpy().T
    np.testing.assert_allclose(encoder(ids).npvalue(), expected, atol=1e-4)
