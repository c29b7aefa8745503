"""Files that encoders are read from: formats, names, and files that are wrong."""

from __future__ import annotations

import collections
import io
import json
import math
import os
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest
from architectures import CASES, random_ids, safetensors, write

import dynet_cy as dy
from dynet_cy.files.textfile import ModelFileError
from dynet_cy.files.unpickling import PickleError
from dynet_cy.pretrained import torch_files

CASE = CASES["bert"]
IDS = random_ids(6)


def load(path):
    return dy.pretrained.load(path, dy.ParameterCollection())


@pytest.fixture
def folder(tmp_path):
    CASE.write(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def tensors():
    return CASE.tensors()


@pytest.fixture
def expected(tensors):
    return CASE.formula(tensors, IDS, [0] * len(IDS), CASE.config)[0][-1].T


# ---- what torch.save writes, by the same pickles


class _Storage:
    def __init__(self, key, array):
        self.key, self.array = key, array


class _Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.all = storage, offset, shape, strides

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, (*self.all, False, collections.OrderedDict())


class _Pickler(pickle.Pickler):
    older = False

    def persistent_id(self, x):
        if not isinstance(x, _Storage):
            return None
        kind = {4: sys.modules["torch"].FloatStorage, 2: sys.modules["torch"].HalfStorage}[x.array.itemsize]
        return ("storage", kind, x.key, "cpu", x.array.size, *([None] * self.older))


@pytest.fixture
def torch_save(monkeypatch):
    """Writes tensors as torch.save does, in both of its formats."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "HalfStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch"}))

    def _rebuild_tensor_v2():
        pass

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)

    def save(path, tensors, older=False, kind=np.float32, transposed=False):
        state, storages = collections.OrderedDict(), []
        for number, (name, array) in enumerate(tensors.items()):
            turned = transposed and array.ndim == 2
            data = np.concatenate([[0.5], (array.T if turned else array).ravel()]).astype(kind)
            storages.append(_Storage(str(number), data))
            strides = [s // array.itemsize for s in np.ascontiguousarray(array).strides]
            if turned:
                strides = [1, array.shape[0]]
            state[name] = _Tensor(storages[-1], 1, array.shape, tuple(strides))

        def pickled(x):
            file = io.BytesIO()
            pickler = _Pickler(file, 2)
            pickler.older = older
            pickler.dump(x)
            return file.getvalue()

        if older:
            parts = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, state, [x.key for x in storages]]
            data = b"".join(map(pickled, parts))
            data += b"".join(struct.pack("<q", x.array.size) + x.array.tobytes() for x in storages)
            path.write_bytes(data)
            return
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickled(state))
            archive.writestr("archive/byteorder", "little")
            for x in storages:
                archive.writestr(f"archive/data/{x.key}", x.array.tobytes())

    return save


# ---- formats


@pytest.mark.parametrize("kind", ["F64", "F32", "F16", "BF16"])
def test_types_of_numbers(kind, folder, tensors, expected):
    (folder / "model.safetensors").write_bytes(safetensors(tensors, kind))
    np.testing.assert_allclose(load(folder)(IDS).npvalue(), expected, atol=1e-2 if kind == "F16" else 1e-5)


@pytest.mark.parametrize("prefix", ["bert.", "model.", "0.auto_model."])
def test_prefixes_and_what_is_left(prefix, folder, tensors, expected):
    more = {"cls.predictions.bias": np.zeros(30, np.float32), f"{prefix}embeddings.position_ids": np.arange(3.0)}
    renamed = {prefix + name: array for name, array in tensors.items()}
    (folder / "model.safetensors").write_bytes(safetensors({**renamed, **more}))
    encoder = load(folder)
    np.testing.assert_allclose(encoder(IDS).npvalue(), expected, atol=1e-5)
    for text in (f"read {len(tensors)} tensors of model.safetensors", *more):
        assert text in repr(encoder)


def test_older_names_of_norms(folder, tensors, expected):
    def older(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    (folder / "model.safetensors").write_bytes(safetensors({older(n): x for n, x in tensors.items()}))
    np.testing.assert_allclose(load(folder)(IDS).npvalue(), expected, atol=1e-5)


def test_a_file_instead_of_its_folder(folder, expected):
    np.testing.assert_allclose(load(folder / "model.safetensors")(IDS).npvalue(), expected, atol=1e-5)


def in_parts(folder, tensors):
    names = list(tensors)
    (folder / "model.safetensors").unlink()
    files = {}
    for i in range(3):
        part = {name: tensors[name] for name in names[i::3]}
        (folder / f"part-{i}.safetensors").write_bytes(safetensors(part))
        files |= dict.fromkeys(part, f"part-{i}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return files


def test_several_files(folder, tensors, expected):
    in_parts(folder, tensors)
    encoder = load(folder)
    np.testing.assert_allclose(encoder(IDS).npvalue(), expected, atol=1e-5)
    assert "part-0.safetensors, part-1.safetensors, part-2.safetensors" in repr(encoder)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("transposed", [False, True])
def test_files_of_torch_save(older, kind, transposed, folder, tensors, expected, torch_save):
    (folder / "model.safetensors").unlink()
    torch_save(folder / "pytorch_model.bin", tensors, older, kind, transposed)
    tolerance = 1e-5 if kind is np.float32 else 1e-2
    np.testing.assert_allclose(load(folder)(IDS).npvalue(), expected, atol=tolerance)


class _Command:
    def __reduce__(self):
        return os.mkdir, ("made",)


@pytest.mark.parametrize("older", [False, True])
def test_nothing_in_a_file_is_run(older, folder, torch_save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    torch_save(folder / "pytorch_model.bin", {}, older)
    if older:
        data = pickle.dumps({"x": _Command()}, 2)
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2) * 3 + data)
    else:
        with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps({"x": _Command()}, 2))
    with pytest.raises(ModelFileError, match=r"pytorch_model.bin: .* names posix.mkdir"):
        load(folder)
    assert not (tmp_path / "made").exists()


# ---- files that are wrong


def changed(**settings):
    """A folder whose config has other settings."""

    def change(folder):
        (folder / "config.json").write_text(json.dumps({**CASE.config, **settings}))

    return change


def bytes_in(name, data):
    def change(folder):
        (folder / name).write_bytes(data)

    return change


def cut(name, at):
    def change(folder):
        (folder / name).write_bytes((folder / name).read_bytes()[:at])

    return change


def without(name):
    def change(folder):
        (folder / name).unlink()

    return change


def index(**values):
    def change(folder):
        (folder / "model.safetensors").rename(folder / "all.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps(values))

    return change


WRONG = [
    (without("config.json"), "config.json'; wanted is the settings of a model"),
    (without("model.safetensors"), "has no model.safetensors, "),
    (bytes_in("config.json", b"{"), "config.json: not the settings of a model"),
    (bytes_in("config.json", b"[]"), "config.json: not the settings of a model: it holds a list"),
    (bytes_in("config.json", b"\xff"), "config.json: not the settings of a model"),
    (bytes_in("config.json", b"[" * 100000), "config.json: not the settings of a model"),
    (bytes_in("model.safetensors", b""), "model.safetensors: not a safetensors file"),
    (bytes_in("model.safetensors", b"nothing of the kind"), "model.safetensors: not a safetensors file"),
    (cut("model.safetensors", -10), "model.safetensors: not a safetensors file, or not all of one"),
    (cut("model.safetensors", 100), "model.safetensors: not a safetensors file, or not all of one"),
    (changed(model_type="unheard of"), "the architectures that can be read are albert, bart, bert, "),
    (changed(model_type=["bert"]), "the architectures that can be read are"),
    (changed(hidden_size=14), "config.json: 3 heads do not divide columns of 14"),
    (changed(hidden_size=24), "embeddings.word_embeddings.weight: has shape (30, 12), config.json says (30, 24)"),
    (changed(hidden_size=None), "config.json: hidden_size is None, a whole number"),
    (changed(hidden_size="12"), "config.json: hidden_size is '12', a whole number"),
    (changed(hidden_size=True), "config.json: hidden_size is True, a whole number"),
    (changed(vocab_size=10**12), "config.json: vocab_size is 1000000000000"),
    (
        changed(vocab_size=10**9),
        "config.json: vocab_size is 1000000000, for 1000000000 times 12 numbers, but the files",
    ),
    (changed(num_hidden_layers=10**9), "config.json: num_hidden_layers is 1000000000, for "),
    (changed(num_hidden_layers=3), "there is no encoder.layer.2.attention.self.query.weight"),
    (changed(max_position_embeddings=10**9), "config.json: max_position_embeddings is 1000000000"),
    (changed(type_vocab_size=10**9), "config.json: type_vocab_size is 1000000000"),
    (changed(intermediate_size=10**9), "config.json: intermediate_size is 1000000000"),
    (changed(intermediate_size=-1), "config.json: intermediate_size is -1"),
    (changed(layer_norm_eps=math.nan), "config.json: layer_norm_eps is nan, a number above 0"),
    (changed(layer_norm_eps=math.inf), "config.json: layer_norm_eps is inf"),
    (changed(hidden_dropout_prob=1.5), "config.json: hidden_dropout_prob is 1.5"),
    (changed(hidden_act="unheard of"), "config.json: hidden_act is 'unheard of', one of elu, gelu, "),
    (index(), "weight_map is no list"),
    (index(weight_map={"x": "../all.safetensors"}), "../all.safetensors is not the name of a file beside it"),
    (index(weight_map={"x": "none.safetensors"}), "none.safetensors"),
    (index(weight_map={"x": "all.safetensors"}), "all.safetensors has no x, but the index lists it"),
    (bytes_in("tokenizer.json", b"{}"), "tokenizer.json: not a tokenizer"),
    (bytes_in("vocab.txt", b""), "vocab.txt: not a tokenizer"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[message for _, message in WRONG])
def test_errors_name_the_file(change, message, folder):
    if "tokenizer" in message:
        pytest.importorskip("tokenizers")
    change(folder)
    model = dy.ParameterCollection()
    with pytest.raises((ModelFileError, FileNotFoundError)) as caught:
        dy.pretrained.load(folder, model)
    assert message in str(caught.value)
    assert not list(model.named_parameters())


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("roberta", "pad_token_id", 1000),
        ("albert", "num_hidden_layers", 10**6),
        ("albert", "num_hidden_groups", 10**6),
        ("deberta 3", "pos_att_type", [1]),
        ("deberta 3", "pos_att_type", "c2c"),
        ("deberta 3", "position_buckets", 10**9),
        ("deberta 2", "conv_groups", 7),
        ("deberta 2", "conv_kernel_size", 10**9),
        ("modernbert", "layer_types", ["full_attention"]),
        ("modernbert", "layer_types", [1, 2]),
        ("modernbert", "rope_parameters", {"full_attention": 3}),
        ("modernbert", "rope_parameters", {"full_attention": {"rope_type": "yarn"}}),
        ("mpnet", "relative_attention_num_buckets", 8),
    ],
)
def test_settings_of_architectures(name, key, value, tmp_path):
    tensors = CASES[name].tensors()
    write(tmp_path, {**CASES[name].config, key: value}, tensors)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        load(tmp_path)


@pytest.mark.parametrize("older", [False, True])
def test_files_of_torch_save_that_are_cut(older, folder, tensors, torch_save):
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    torch_save(file, tensors, older)
    whole = file.read_bytes()
    for at in (0, 1, 50, len(whole) // 2, len(whole) - 5):
        file.write_bytes(whole[:at])
        with pytest.raises(ModelFileError, match=r"pytorch_model\.bin"):
            load(folder)


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [(0, (3,), (1,)), (1, (2,), (1,)), (0, (2, 2), (1, 1)), (0, (2,), (2,)), (5, (1,), (1,))],
)
def test_tensors_beyond_their_storage(offset, shape, strides):
    view = torch_files._View(torch_files._Storage("0", "F32", 4, 2), offset, shape, strides)
    with pytest.raises(PickleError, match="reaches beyond its storage"):
        view.numbers(bytes(8))


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="models are read from disk, nothing is fetched"):
        load(tmp_path / "bert-base-uncased")


def test_a_model_that_is_none(folder):
    with pytest.raises(TypeError, match="argument model: expected a ParameterCollection or a layer, got int"):
        dy.pretrained.load(folder, 3)


def test_a_tensor_of_another_kind(folder, tensors):
    name = "embeddings.LayerNorm.bias"
    del tensors[name]
    write(folder, CASE.config, tensors)
    with pytest.raises(ModelFileError, match=rf"there is no {name}"):
        load(folder)


@pytest.mark.filterwarnings("ignore:Bert bert was made again")
def test_a_cell_that_fails_leaves_what_it_made_before(folder, expected):
    known = {"dy": dy, "folder": folder, "model": dy.ParameterCollection()}
    cell = "bert = dy.pretrained.load(folder, model)"
    for number in range(2):
        exec(compile(cell, f"<cell {number}>", "exec"), known)
        assert len(known["model"].keys()) == len(known["bert"].parameters())
    changed(num_hidden_layers=3)(folder)
    with pytest.raises(ModelFileError):
        exec(compile(cell, "<cell 2>", "exec"), known)
    assert len(known["model"].keys()) == len(known["bert"].parameters()) > 0
    np.testing.assert_allclose(known["bert"](IDS).npvalue(), expected, atol=1e-5)
