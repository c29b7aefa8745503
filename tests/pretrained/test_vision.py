"""ViT and ResNet: formulas in NumPy, files of both layouts, errors, and PyTorch where it is installed."""

from __future__ import annotations

import importlib.util
import json
import warnings

import numpy as np
import pytest
from architectures import ACTIVATIONS, Tensors, attend, safetensors, write
from safetensors.numpy import load_file

import dynet_cy as dy
from dynet_cy.files.textfile import ModelFileError, ModelMismatchError

NOT_THERE = "" if all(map(importlib.util.find_spec, ("torch", "transformers"))) else "transformers is not installed"
NO_ONNX = "" if all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))) else "onnx is not installed"
needs_transformers = pytest.mark.skipif(bool(NOT_THERE), reason=NOT_THERE or "-")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

LABELS = {str(i): f"LABEL_{i}" for i in range(5)}
_VIT = {"model_type": "vit", "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
_VIT |= {"intermediate_size": 16, "image_size": [16, 24], "patch_size": 8, "id2label": LABELS}
_RESNET = {"model_type": "resnet", "embedding_size": 4, "id2label": LABELS}
CONFIGS = {
    "vit": _VIT,
    "vit, one channel": {**_VIT, "image_size": 16, "num_channels": 1, "hidden_act": "gelu_new"},
    "basic": {**_RESNET, "hidden_sizes": [4, 8, 12], "depths": [1, 2, 1], "layer_type": "basic"},
    "bottleneck": {**_RESNET, "hidden_sizes": [8, 16], "depths": [1, 2], "downsample_in_first_stage": True},
}


def pixels(config, n=2, seed=0):
    """Images, rows x columns x channels x batch."""
    size = config.get("image_size", [40, 24])
    rows, columns = [size, size] if isinstance(size, int) else size
    shape = (rows, columns, config.get("num_channels", 3), n)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def vit(w, x, c):
    """All states, with rows for patches, and the scores, of an image channels x rows x columns."""
    d, p, name = c["hidden_size"], c["patch_size"], "vit.embeddings"
    (channels, rows, columns), eps = x.shape, c.get("layer_norm_eps", 1e-12)
    f = w.get(f"{name}.patch_embeddings.projection.weight", d, channels, p, p)
    b = w.get(f"{name}.patch_embeddings.projection.bias", d)
    patches = [
        np.einsum("ocij,cij->o", f, x[:, i : i + p, j : j + p]) + b
        for i in range(0, rows, p)
        for j in range(0, columns, p)
    ]
    y = np.stack([w.get(f"{name}.cls_token", 1, 1, d)[0, 0], *patches])
    y = y + w.get(f"{name}.position_embeddings", 1, len(y), d)[0]
    states = [y]
    for i in range(c["num_hidden_layers"]):
        layer = f"vit.encoder.layer.{i}"
        z = w.norm(y, f"{layer}.layernorm_before", eps)
        q, k, v = (w.linear(z, f"{layer}.attention.attention.{part}", d) for part in ("query", "key", "value"))
        found = attend(q, k, v, c["num_attention_heads"])
        y = y + w.linear(found, f"{layer}.attention.output.dense", d)
        z = w.linear(w.norm(y, f"{layer}.layernorm_after", eps), f"{layer}.intermediate.dense", c["intermediate_size"])
        y = y + w.linear(ACTIVATIONS[c.get("hidden_act", "gelu")](z), f"{layer}.output.dense", d)
        states.append(y)
    states[-1] = w.norm(y, "vit.layernorm", eps)
    return states, w.linear(states[-1][:1], "classifier", len(c["id2label"]))[0]


def resnet(w, x, c):
    """The results of all stages, channels x rows x columns, and the scores."""

    def convolution(x, name, outputs, size, stride):
        f = w.get(f"{name}.convolution.weight", outputs, len(x), size, size)
        around = size // 2
        padded = np.pad(x, ((0, 0), (around, around), (around, around)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (1, 2))[:, ::stride, ::stride]
        y = np.einsum("ocij,chwij->ohw", f, windows)
        name += ".normalization"
        g, b, mean = (w.get(f"{name}.{part}", outputs)[:, None, None] for part in ("weight", "bias", "running_mean"))
        w[f"{name}.running_var"] = np.abs(w.get(f"{name}.running_var", outputs)).astype(np.float32) + 0.5
        w[f"{name}.num_batches_tracked"] = np.zeros((), np.float32)
        return (y - mean) / np.sqrt(w[f"{name}.running_var"][:, None, None] + 1e-5) * g + b

    bottleneck = c.get("layer_type", "bottleneck") == "bottleneck"
    x = np.maximum(convolution(x, "resnet.embedder.embedder", c["embedding_size"], 7, 2), 0)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    x = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2].max((3, 4))
    states = [x]
    for i, (size, depth) in enumerate(zip(c["hidden_sizes"], c["depths"])):
        for j in range(depth):
            name = f"resnet.encoder.stages.{i}.layers.{j}"
            stride = 2 if j == 0 and (i or c.get("downsample_in_first_stage")) else 1
            steps = [(size, 3, stride), (size, 3, 1)]
            if bottleneck:
                steps = [(size // 4, 1, 1), (size // 4, 3, stride), (size, 1, 1)]
            y = x
            for k, step in enumerate(steps):
                y = convolution(np.maximum(y, 0) if k else y, f"{name}.layer.{k}", *step)
            if len(x) != size or stride != 1:
                x = convolution(x, f"{name}.shortcut", size, 1, stride)
            x = np.maximum(x + y, 0)
        states.append(x)
    return states, w.linear(x.mean((1, 2))[None], "classifier.1", len(c["id2label"]))[0]


FORMULAS = {"vit": vit, "resnet": resnet}


def made(config, folder):
    """Write a folder with random tensors, which are returned."""
    w = Tensors()
    FORMULAS[config["model_type"]](w, pixels(config)[..., 0].transpose(2, 0, 1), config)
    if config["model_type"] == "resnet":  # positive variances, as the formula makes them once
        w = {name: array + 0.5 if name.endswith("running_var") else array for name, array in w.items()}
    write(folder, config, w)
    return w


class Fixed(dict):
    """Tensors that are there already, for the formulas."""

    get = Tensors.get
    linear = Tensors.linear
    norm = Tensors.norm

    def __setitem__(self, name, array):
        pass


@pytest.fixture(params=CONFIGS)
def loaded(request, tmp_path):
    config = CONFIGS[request.param]
    tensors = made(config, tmp_path / "folder")
    return config, tensors, dy.pretrained.load(tmp_path / "folder", dy.ParameterCollection())


def test_states_and_scores_are_those_of_the_formula(loaded):
    config, tensors, model = loaded
    x = pixels(config)
    found, scores = model(x, all_layers=True), model.scores(x).npvalue()
    alone = model.scores([x[..., 1]]).npvalue()
    listed = model.scores([x[..., 0], x[..., 1]]).npvalue()
    given = model.scores(dy.inputTensor(x, batched=True)).npvalue()
    for i in range(2):
        expected, result = FORMULAS[config["model_type"]](Fixed(tensors), x[..., i].transpose(2, 0, 1), config)
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            b = b.T if b.ndim == 2 else b.transpose(1, 2, 0)
            np.testing.assert_allclose(a.npvalue()[..., i], b, atol=1e-5 * max(1, np.abs(b).max()))
        for a in (scores, listed, given):
            np.testing.assert_allclose(a[:, i], result, atol=1e-5 * max(1, np.abs(result).max()))
    np.testing.assert_allclose(alone[..., 0] if alone.ndim > 1 else alone, scores[:, 1], atol=1e-5)
    assert model.labels == list(LABELS.values())
    assert "; left" not in repr(model)


def test_what_is_saved_is_what_was_read(loaded, tmp_path):
    config, tensors, model = loaded
    (tmp_path / "folder" / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}')
    model = dy.pretrained.load(tmp_path / "folder", dy.ParameterCollection())
    model.save(tmp_path / "again")
    found = load_file(tmp_path / "again" / "model.safetensors")
    assert set(found) == set(tensors)
    for name, array in found.items():
        np.testing.assert_array_equal(array, tensors[name], name)
    assert json.loads((tmp_path / "again" / "preprocessor_config.json").read_text())["image_mean"] == [0.5] * 3
    again = dy.pretrained.load(tmp_path / "again", dy.ParameterCollection())
    x = pixels(config)
    np.testing.assert_array_equal(again.scores(x).npvalue(), model.scores(x).npvalue())
    # Without the classifier, the names have no prefix.
    base = type(model)(config, dy.ParameterCollection())
    base.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("classifier")})
    base.save(tmp_path / "base")
    assert not any(name.startswith(model.prefix) for name in load_file(tmp_path / "base" / "model.safetensors"))
    again = dy.pretrained.load(tmp_path / "base", dy.ParameterCollection())
    np.testing.assert_array_equal(again.features(x).npvalue(), model.features(x).npvalue())
    with pytest.raises(ValueError, match="the files have no classifier"):
        again.scores(x)


def test_a_classifier_of_ones_own_is_saved(loaded, tmp_path):
    config, _, model = loaded
    dy.reset_random_seed(1)
    holder = dy.ParameterCollection()
    base = type(model)({**config, "id2label": None}, holder)
    base.classifier = dy.nn.Linear(base.dim, 3, holder)
    base.save(tmp_path / "own")
    again = dy.pretrained.load(tmp_path / "own", dy.ParameterCollection())
    x = pixels(config)
    assert again.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    np.testing.assert_array_equal(again.scores(x).npvalue(), base.scores(x).npvalue())


def assigned(folder):
    model = dy.pretrained.load(folder, dy.ParameterCollection())
    model.classifier = dy.nn.Linear(model.dim, 3, model.collection)
    assert model.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    model.labels = ["a", "b", "c"]
    return model


def renamed_in_place(folder):
    model = dy.pretrained.load(folder, dy.ParameterCollection(), labels=3)
    model.labels[:] = ["a", "b", "c"]
    return model


NEW = {
    "labels": lambda folder: dy.pretrained.load(folder, dy.ParameterCollection(), labels=["a", "b", "c"]),
    "assigned": assigned,
    "renamed in place": renamed_in_place,
}


@pytest.mark.parametrize("how", NEW)
def test_new_classes(how, loaded, tmp_path):
    """A new classifier and its labels agree, in files of all kinds too, and nothing warns."""
    config, _, _ = loaded
    x = pixels(config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = NEW[how](tmp_path / "folder")
    assert model.labels == ["a", "b", "c"]
    assert "3 classes" in repr(model)
    want = model.scores(x).npvalue()
    assert want.shape == (3, 2)
    model.save(tmp_path / "own")
    settings = json.loads((tmp_path / "own" / "config.json").read_text())
    assert settings["id2label"] == {"0": "a", "1": "b", "2": "c"}
    again = dy.pretrained.load(tmp_path / "own", dy.ParameterCollection())
    assert again.labels == model.labels
    np.testing.assert_array_equal(again.scores(x).npvalue(), want)
    if how != "renamed in place":
        dy.save(str(tmp_path / "whole"), [model])
        (again,) = dy.load(str(tmp_path / "whole"), dy.ParameterCollection(), classes=[type(model)])
        assert again.labels == model.labels
        np.testing.assert_array_equal(again.scores(x).npvalue(), want)
    # The rest is that of the files, and the new classifier alone has random numbers.
    assert (model.features(x).npvalue() == loaded[2].features(x).npvalue()).all()
    assert model.new_parts == ("classifier",)


def test_labels_that_are_not_those_of_the_classifier(loaded, tmp_path):
    _, _, model = loaded
    for labels, message in [
        (["a"], "attribute labels: expected 5 names, one for each score"),
        ("abcde", "attribute labels: expected 5 names"),
        (list("abcda"), "expected different names, got 'a' twice"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.labels = labels
    model.labels.append("f")
    with pytest.raises(ValueError, match="expected 5 names"):
        model.save(tmp_path / "own")
    assert not (tmp_path / "own").exists()
    base = type(model)({**model.config.values, "id2label": None}, dy.ParameterCollection())
    with pytest.raises(ValueError, match="expected none, as there are no scores of labels"):
        base.labels = ["a"]


@pytest.mark.parametrize("name", ["basic", "bottleneck"])
def test_torchvision_names(name, tmp_path):
    config = {**CONFIGS[name], "downsample_in_first_stage": False}
    made(config, tmp_path / "folder")
    model = dy.pretrained.load(tmp_path / "folder", dy.ParameterCollection())
    file = tmp_path / "resnet.safetensors"
    model.save_torchvision(file)
    tensors = load_file(file)
    last = 2 if name == "basic" else 3
    assert {"conv1.weight", "bn1.running_var", "layer2.1.bn1.num_batches_tracked", "fc.bias"} <= set(tensors)
    assert {f"layer1.0.conv{last}.weight", "layer2.0.downsample.0.weight", "layer2.0.downsample.1.bias"} <= set(tensors)
    x = pixels(config)
    want = model.scores(x).npvalue()
    np.testing.assert_array_equal(dy.pretrained.load(file, dy.ParameterCollection()).scores(x).npvalue(), want)
    # With a prefix, without a classifier, and beside settings of timm.
    timm = {f"module.{k}": v.astype(np.float32) for k, v in tensors.items() if not k.startswith("fc.")}
    write(tmp_path / "timm", {"architecture": "resnet18"}, timm)
    base = dy.pretrained.load(tmp_path / "timm", dy.ParameterCollection())
    assert base.classifier is None
    np.testing.assert_array_equal(base.features(x).npvalue(), model.features(x).npvalue())
    # What is missing or has another shape is named as in the file.
    for change, message in [
        (lambda t: t.pop("layer2.0.bn2.running_mean"), "there is no layer2.0.bn2.running_mean"),
        (lambda t: t.pop("conv1.weight"), "there is no conv1.weight"),
        (lambda t: t.update({"layer1.0.conv1.weight": np.zeros((3, 4, 3, 3), np.float32)}), "layer1.0.conv1.weight"),
        (lambda t: t.update({"conv1.weight": np.zeros(3, np.float32)}), "filters have four axes"),
    ]:
        changed = {k: v.astype(np.float32) for k, v in tensors.items()}
        change(changed)
        file.write_bytes(safetensors(changed))
        holder = dy.ParameterCollection()
        with pytest.raises(ModelMismatchError, match=message):
            dy.pretrained.load(file, holder)
        assert holder.parameter_count() == 0


def gradients(model, x):
    dy.renew_cg()
    for parameter in model.parameters():
        parameter.scale_gradient(0)
    dy.sum_batches(dy.sum_elems(dy.square(model.scores(x)))).backward()
    return {name: parameter.grad_as_array() for name, parameter in model.named_parameters()}


def test_checkpoints_change_nothing(loaded):
    config, _, model = loaded
    x = pixels(config)
    plain = gradients(model, x)
    model.checkpoint = True
    for name, array in gradients(model, x).items():
        np.testing.assert_allclose(array, plain[name], rtol=1e-3, atol=1e-3 * (1 + np.abs(array).max()), err_msg=name)


def test_gradients_of_first_and_second_order(loaded):
    config, _, model = loaded
    if config["model_type"] == "resnet":  # differences need a smooth function
        state = model.state_dict()
        model = dy.pretrained.ResNet({**config, "hidden_act": "silu"}, dy.ParameterCollection(), True)
        model.load_state_dict(state)
    x = pixels(config, 1)
    names = [n for n, _ in model.named_parameters()]
    weight = dict(model.named_parameters())[next(n for n in names if n.endswith(("inner.W", "conv2.W")))]
    small = weight.as_array() * 0.1
    weight.set_value(small)

    def slope():
        dy.renew_cg()
        loss = dy.sum_elems(dy.square(model.scores(x))) * 0.01
        (found,) = dy.gradients(loss, [dy.parameter(weight)])
        return loss, dy.sum_elems(dy.square(found))

    for k in range(2):
        weight.scale_gradient(0)
        slope()[k].backward()
        found, step = weight.grad_as_array(), 2e-3
        length = np.sqrt(np.square(found).sum())
        assert length > 0
        values = []
        for sign in (1, -1):
            weight.set_value(small + sign * step * found / length)
            values.append(slope()[k].value())
        weight.set_value(small)
        noise = 1e-6 * abs(values[0]) / step
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(length, rel=0.05, abs=noise)


@pytest.mark.skipif(bool(NO_ONNX), reason=NO_ONNX or "-")
def test_onnx_files(loaded, tmp_path):
    import onnxruntime

    config, _, model = loaded
    x = pixels(config)
    dy.onnx.export(lambda image: model.scores(image), {"image": dy.onnx.Floats(x.shape[:3])}, tmp_path / "file.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "file.onnx")
    dy.renew_cg()
    (found,) = session.run(None, {"image": x.transpose(3, 2, 1, 0)})
    want = model.scores(x).npvalue()
    np.testing.assert_allclose(found.T, want, atol=1e-4 * max(1, np.abs(want).max()))


def test_layers_learn_at_rates_of_their_own(loaded):
    _, _, model = loaded
    trainer = dy.AdamWTrainer(model, 1e-2)
    model.layerwise(trainer, 0.5)
    blocks = model.layers if isinstance(model, dy.pretrained.ViT) else [b for stage in model.layers for b in stage]
    assert [group.learning_rate for group in trainer.groups] == [1e-2 * 0.5 ** (i + 1) for i in range(len(blocks) + 1)]


def test_modes_of_a_resnet(tmp_path):
    """In training mode statistics are those of the minibatch, and the running ones move."""
    config = CONFIGS["basic"]
    made(config, tmp_path / "folder")
    model = dy.pretrained.load(tmp_path / "folder", dy.ParameterCollection())
    x, before = pixels(config, 3), model.bn1.mean.as_array()
    model.scores(x).npvalue()
    np.testing.assert_array_equal(model.bn1.mean.as_array(), before)
    model.train()
    dy.renew_cg()
    model.scores(x).npvalue()
    assert (model.bn1.mean.as_array() != before).all()
    dy.renew_cg()
    with pytest.raises(ValueError, match="in training mode a channel needs more than one element"):
        model.scores(x[:8, :8, :, :1])


def bad(change):
    config = {**_VIT, **change}
    return lambda: dy.pretrained.ViT(config, dy.ParameterCollection())


def bad_resnet(change):
    config = {**CONFIGS["basic"], **change}
    return lambda: dy.pretrained.ResNet(config, dy.ParameterCollection())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (bad({"image_size": 20}), "image_size is 20, a multiple of 8, the patch_size"),
        (bad({"image_size": [16]}), "image_size is .*, a whole number from 1 on, or two"),
        (bad({"image_size": "16"}), "image_size is '16', a whole number"),
        (bad({"patch_size": 0}), "patch_size is 0"),
        (bad({"num_attention_heads": 5}), "5 heads do not divide columns of 12"),
        (bad({"qkv_bias": False}), "qkv_bias is False, only True"),
        (bad({"hidden_act": "swoosh"}), "hidden_act is 'swoosh'"),
        (bad({"num_channels": -1}), "num_channels is -1"),
        (bad_resnet({"hidden_sizes": []}), "hidden_sizes is .*, a list of whole numbers"),
        (bad_resnet({"hidden_sizes": 64}), "hidden_sizes is 64, a list of whole numbers"),
        (bad_resnet({"depths": [1, 2]}), "depths is .*, as many numbers as hidden_sizes has, 3"),
        (bad_resnet({"depths": [1, True, 1]}), "depths is .*, a list of whole numbers"),
        (bad_resnet({"layer_type": "dense"}), "layer_type is 'dense', one of basic, bottleneck"),
        (bad_resnet({"layer_type": "bottleneck", "hidden_sizes": [2, 4, 4]}), "numbers from 4 on, for bottlenecks"),
        (bad_resnet({"downsample_in_bottleneck": True}), "downsample_in_bottleneck is True, only False"),
        (bad_resnet({"downsample_in_first_stage": "no"}), "downsample_in_first_stage is 'no', true or false"),
        (
            lambda: dy.pretrained.ResNet({**CONFIGS["basic"], "id2label": {"1": "x"}}, dy.ParameterCollection(), True),
            "id2label is .*, a name for each number",
        ),
        (
            lambda: dy.pretrained.ViT({**_VIT, "id2label": [1]}, dy.ParameterCollection(), False, True),
            "id2label is .*, a name for each number",
        ),
    ],
)
def test_settings_that_are_wrong(make, message):
    with pytest.raises(ModelFileError, match=message):
        make()


def test_files_that_do_not_fit(loaded, tmp_path):
    config, tensors, _ = loaded
    folder = tmp_path / "folder"
    size = "hidden_size" if config["model_type"] == "vit" else "embedding_size"
    for settings, names, error, message in [
        ({}, set(list(tensors)[:3]), ModelMismatchError, "there is no "),
        ({size: 3 << 28}, set(), ModelFileError, " is .*, for .* times 805306368 numbers, but the files hold"),
        ({size: config[size] + 3}, set(), ModelMismatchError, "has shape .* says"),
        ({"id2label": {**LABELS, "5": "x"}}, set(), ModelMismatchError, "classifier.*has shape"),
        ({"model_type": "swin"}, set(), ModelFileError, "the architectures that can be read are .*resnet.*vit"),
    ]:
        write(folder, {**config, **settings}, {k: v for k, v in tensors.items() if k not in names})
        holder = dy.ParameterCollection()
        with pytest.raises(error, match=message):
            dy.pretrained.load(folder, holder)
        assert holder.parameter_count() == 0
    write(folder, config, tensors)
    for arguments in ({"head": "token"}, {"tables": "bfloat16"}, {"labels": "cat"}):
        with pytest.raises(ValueError, match=f"load: argument {next(iter(arguments))}: "):
            dy.pretrained.load(folder, holder, **arguments)


def test_images_that_do_not_fit(loaded):
    config, _, model = loaded
    x = pixels(config)
    one, channels = x[..., 0], x.shape[2]
    cases = [
        (one[..., :0], dy.DimensionError, f"and {channels} channels, got"),
        (np.concatenate([one, one], 2), dy.DimensionError, f"expected rows, columns and {channels} channels"),
        (one.transpose(2, 0, 1), dy.DimensionError, r"channels first, as in PyTorch, write x.transpose\(1, 2, 0\)"),
        (x.transpose(3, 2, 0, 1), dy.DimensionError, r"write x.transpose\(2, 3, 1, 0\)"),
        (x.transpose(3, 0, 1, 2), dy.DimensionError, r"the batch first, write x.transpose\(1, 2, 3, 0\)"),
        (one[:, :, 0], dy.DimensionError, "expected an array of 3 axes, or of 4"),
        ((one * 255).astype(np.uint8), TypeError, "expected floats, got whole numbers: write"),
        ("file.png", TypeError, "expected floats, got an array of type"),
        ([one, one[:8]], dy.DimensionError, "images of one size are a minibatch"),
        ([], dy.DimensionError, "expected an array of 3 axes"),
        (dy.inputTensor(one[:, :, 0]), dy.DimensionError, "expected rows, columns and"),
    ]
    if config["model_type"] == "vit":
        cases.append((one[:8], dy.DimensionError, "expected 16 x .* pixels, .* resize the image"))
    for images, error, message in cases:
        with pytest.raises(error, match=message):
            model(images)


# ---- beside PyTorch

CLASSES = {"vit": "ViT", "resnet": "ResNet"}


def theirs(folder, kind, head):
    import transformers

    name = CLASSES[kind] + ("ForImageClassification" if head else "Model")
    return getattr(transformers, name).from_pretrained(folder).eval()


@needs_transformers
@pytest.mark.parametrize("name", CONFIGS)
def test_states_and_files_of_transformers(name, tmp_path):
    import torch

    config = CONFIGS[name]
    made(config, tmp_path / "one")
    x = pixels(config)
    for head in (True, False):
        model = theirs(tmp_path / "one", config["model_type"], head)
        model.save_pretrained(tmp_path / "two")
        ours = dy.pretrained.load(tmp_path / "two", dy.ParameterCollection())
        dy.renew_cg()
        with torch.no_grad():
            given = torch.tensor(x.transpose(3, 2, 0, 1))
            expected = model(given, output_hidden_states=True)
        found = ours(x, all_layers=True)
        states = list(expected.hidden_states)
        if config["model_type"] == "vit":
            states = [*states[:-1], expected.last_hidden_state] if not head else states[:-1]
        for a, b in zip(found, states):
            b = b.numpy().transpose(2, 1, 0) if b.ndim == 3 else b.numpy().transpose(2, 3, 1, 0)
            np.testing.assert_allclose(a.npvalue(), b, atol=1e-4)
        if head:
            np.testing.assert_allclose(ours.scores(x).npvalue(), expected.logits.numpy().T, atol=1e-4)
        else:
            want = expected.pooler_output.numpy().reshape(2, -1).T
            np.testing.assert_allclose(ours.pooled(found[-1]).npvalue(), want, atol=1e-4)
        ours.save(tmp_path / "three")
        again = theirs(tmp_path / "three", config["model_type"], head)
        with torch.no_grad():
            np.testing.assert_array_equal(again(given)[0].numpy(), expected[0].numpy())


@needs_transformers
@pytest.mark.parametrize("name", ["vit", "basic"])
def test_new_classes_of_transformers(name, tmp_path):
    import torch

    config = CONFIGS[name]
    made(config, tmp_path / "folder")
    ours = NEW["labels"](tmp_path / "folder")
    ours.save(tmp_path / "own")
    again = theirs(tmp_path / "own", config["model_type"], True)
    assert again.config.id2label == {0: "a", 1: "b", 2: "c"}
    x = pixels(config)
    dy.renew_cg()
    with torch.no_grad():
        scores = again(torch.tensor(x.transpose(3, 2, 0, 1))).logits.numpy().T
    np.testing.assert_allclose(ours.scores(x).npvalue(), scores, atol=1e-4)


@needs_transformers
@pytest.mark.parametrize("name", CONFIGS)
def test_fine_tuning_beside_pytorch(name, tmp_path):
    """A few updates in training mode give the same losses, parameters and running statistics."""
    import torch

    config = {**CONFIGS[name], "hidden_dropout_prob": 0.0}
    made(config, tmp_path / "one")
    model = theirs(tmp_path / "one", config["model_type"], True).train()
    ours = dy.pretrained.load(tmp_path / "one", dy.ParameterCollection()).train()
    trainer = dy.MomentumSGDTrainer(ours, 1e-3, 0.9)
    trainer.set_clip_threshold(0)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    labels = [1, 4, 0, 2]
    for step in range(3):
        x = pixels(config, 4, step)
        optimizer.zero_grad()
        expected = model(torch.tensor(x.transpose(3, 2, 0, 1)), labels=torch.tensor(labels)).loss
        expected.backward()
        optimizer.step()
        dy.renew_cg()
        loss = dy.mean_batches(dy.pickneglogsoftmax_batch(ours.scores(x), labels))
        assert loss.value() == pytest.approx(expected.item(), rel=1e-4, abs=1e-4)
        loss.backward()
        trainer.update()
    state = model.state_dict()
    ours.save(tmp_path / "two")
    for key, value in theirs(tmp_path / "two", config["model_type"], True).state_dict().items():
        if not key.endswith("num_batches_tracked"):
            np.testing.assert_allclose(value.numpy(), state[key].numpy(), atol=1e-4, rtol=1e-4, err_msg=key)
