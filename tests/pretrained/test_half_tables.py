"""Tables of pieces in bfloat16."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from architectures import CASES, random_ids, safetensors
from safetensors.numpy import load_file

import dynet_cy as dy
from dynet_cy.pretrained.tensors import Stored

TABLE = "embeddings.word_embeddings.weight"


def rounded(x):
    """Floats with the bits of bfloat16, the nearest ones, and the even one of two."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


@pytest.fixture
def folder(tmp_path):
    case = CASES["bert"]
    tensors = case.write(tmp_path / "model")
    tensors[TABLE] = (tensors[TABLE] * 1.2345).astype(np.float32)
    (tmp_path / "model" / "model.safetensors").write_bytes(safetensors(tensors))
    return tmp_path / "model"


def load(folder, **options):
    return dy.pretrained.load(folder, dy.ParameterCollection(), **options)


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "deberta 2", "modernbert", "albert", "mpnet"])
def test_vectors_are_those_of_the_rounded_table(name, tmp_path):
    case = CASES[name]
    tensors = case.write(tmp_path)  # numbers of bfloat16
    whole, half = load(tmp_path), load(tmp_path, tables="bfloat16")
    texts = [random_ids(n) for n in (1, 5, 9)]
    for x, y in zip(dy.npvalues([whole(t) for t in texts]), dy.npvalues([half(t) for t in texts])):
        np.testing.assert_array_equal(x, y)
    half.save(tmp_path / "again")
    found = load_file(tmp_path / "again" / "model.safetensors")
    assert set(found) == set(tensors)
    assert all((found[name] == array).all() for name, array in tensors.items())


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "F64"])
def test_rounding(kind, folder):
    before = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").write_bytes(safetensors(before, kind))
    half = load(folder, tables="bfloat16")
    given = before[TABLE] if kind != "F16" else before[TABLE].astype(np.float16)
    if kind == "BF16":
        given = (given.view(np.uint32) & 0xFFFF0000).view(np.float32)
    half.save(folder / "again")
    np.testing.assert_array_equal(load_file(folder / "again" / "model.safetensors")[TABLE], rounded(given))


def test_rounding_of_what_is_not_finite():
    given = np.array([[np.nan, np.inf, -np.inf, 3.4028235e38, -0.0, 1e-45]], np.float32)
    given = np.concatenate([given, np.array([[0x7F800001]], np.uint32).view(np.float32).repeat(6, 1)])
    found = (Stored((2, 6), "F32", given.tobytes()).halves().astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(found[0, 0])
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[0, 1:], np.array([np.inf, -np.inf, np.inf, -0.0, 0.0], np.float32))


def test_half_the_bytes_and_the_rest_is_trained(folder):
    half = load(folder, tables="bfloat16")
    assert half.embeddings.pieces.numbers.nbytes == 30 * 12 * 2
    assert not any(name.startswith("embeddings.pieces") for name in half.state_dict())
    before = half.embeddings.pieces.numbers.copy()
    trainer, losses = dy.AdamTrainer(half, 0.01), []
    for _ in range(5):
        dy.renew_cg()
        loss = dy.squared_norm(half([3, 4, 5]))
        losses.append(loss.value())
        loss.backward()
        trainer.update()
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(half.embeddings.pieces.numbers, before)
    dy.renew_cg()
    again = copy.deepcopy(half)
    np.testing.assert_array_equal(again([3, 4]).npvalue(), half([3, 4]).npvalue())


def test_refusals(folder, tmp_path):
    with pytest.raises(ValueError, match="argument tables: expected float32 or bfloat16, got 'float16'"):
        load(folder, tables="float16")
    with pytest.raises(ValueError, match="a head for masked pieces multiplies with the table"):
        load(folder, tables="bfloat16", head="masked")
    CASES["gpt2"].write(tmp_path / "gpt")
    with pytest.raises(
        ValueError, match="argument tables: only encoders of texts have other tables than float32, .* for GPT2"
    ):
        load(tmp_path / "gpt", tables="bfloat16")
    half = load(folder, tables="bfloat16")
    with pytest.raises(ValueError, match="a table in bfloat16 is not trained; load the encoder without"):
        half.set_updated(True)
    half.set_updated(False)
    with pytest.raises(ValueError, match="resize: a table in bfloat16 keeps its [0-9]+ vectors, and cannot have 40"):
        half.resize(40)
    for write in (lambda: dy.save(str(tmp_path / "m"), [half]), lambda: pickle.dumps(half)):
        with pytest.raises((TypeError, pickle.PicklingError), match="a table in bfloat16 is written by"):
            write()
    for wrong in ([30], [-1]):
        with pytest.raises(IndexError, match="there is no vector"):
            half(wrong)
    assert half([3, 4]).dim() == ((12, 2), 1)
