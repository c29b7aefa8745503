"""Every architecture against its formula in NumPy, and all that holds for any layer."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from architectures import CASES, LENGTHS, Tensors, random_ids
from safetensors.numpy import load_file

import dynet_cy as dy
from dynet_cy.pretrained.loading import ARCHITECTURES

NO_ONNX = "" if all(map(importlib.util.find_spec, ("onnx", "onnxruntime"))) else "onnx is not installed"


@pytest.fixture(params=CASES)
def loaded(request, tmp_path):
    case = CASES[request.param]
    tensors = case.write(tmp_path / "folder")
    return case, tensors, dy.pretrained.load(tmp_path / "folder", dy.ParameterCollection())


def test_all_architectures_are_here():
    texts = {kind for kind, cls in ARCHITECTURES.items() if not issubclass(cls, dy.pretrained.VisionModel)}
    assert {case.config["model_type"] for case in CASES.values()} == texts


def test_all_layers_are_those_of_the_formula(loaded):
    case, tensors, encoder = loaded
    for n in LENGTHS:
        ids, types = random_ids(n), [0] * n
        expected, pooled = case.formula(tensors, ids, types, case.config)
        dy.renew_cg()
        found = encoder(ids, all_layers=True)
        assert len(found) == len(expected)
        for x, y in zip(found, expected):
            assert x.dim() == (y.T.shape, 1)
            np.testing.assert_allclose(x.npvalue(), y.T, atol=1e-5 * max(1, np.abs(y).max()))
        if pooled is not None:
            np.testing.assert_allclose(encoder.pooled(found[-1]).npvalue(), pooled, atol=2e-5)


def test_types_of_pieces():
    case, w, ids, types = CASES["bert"], Tensors(), random_ids(6), [0, 0, 0, 1, 1, 1]
    expected, _ = case.formula(w, ids, types, case.config)
    encoder = dy.pretrained.Bert(case.config, dy.ParameterCollection(), pooler=True)
    encoder.load_state_dict({name: w[encoder.tensor_name(name)] for name, _ in encoder.named_parameters()})
    found = encoder(dy.pretrained.Code(ids, ["x"] * 6, [None] * 6, [], types))
    np.testing.assert_allclose(found.npvalue(), expected[-1].T, atol=1e-5)


def test_what_is_saved_is_what_was_read(loaded, tmp_path):
    case, tensors, encoder = loaded
    encoder.save(tmp_path / "again")
    found = load_file(tmp_path / "again" / "model.safetensors")
    assert set(found) == set(tensors)
    for name, array in found.items():
        np.testing.assert_array_equal(array, tensors[name], name)
    again = dy.pretrained.load(tmp_path / "again", dy.ParameterCollection())
    ids = random_ids(7)
    np.testing.assert_array_equal(again(ids).npvalue(), encoder(ids).npvalue())


def test_texts_of_any_length_are_computed_together(loaded):
    _, _, encoder = loaded
    texts = [random_ids(n) for n in (3, 1, 9, 20, 20, 2)]
    alone = []
    for ids in texts:
        dy.renew_cg()
        alone.append(encoder(ids).npvalue())
    dy.renew_cg()
    together = dy.npvalues([encoder(ids) for ids in texts])
    mapped = dy.batched_map(lambda ids: encoder(ids).npvalue(), texts)
    for x, y, z in zip(alone, together, mapped):
        np.testing.assert_allclose(y, x, atol=1e-5)
        np.testing.assert_allclose(z, x, atol=1e-5)


@pytest.mark.parametrize("rows", [34, 20])
def test_further_pieces_and_fewer(loaded, rows, tmp_path):
    """All tables follow, with the scores of decoders; a trainer goes on; files have the new size."""
    case, _, encoder = loaded
    both = isinstance(encoder, dy.pretrained.EncoderDecoder)
    scored = both or isinstance(encoder, dy.pretrained.Decoder)
    trainer = dy.SimpleSGDTrainer(encoder, 0.1)

    def found():
        dy.renew_cg()
        states = encoder([5, 6, 7]).npvalue()
        scores = encoder.scores(*([[5, 6], [4, 5]] if both else [[5, 6]])) if scored else None
        return states, None if scores is None else scores.npvalue()

    before, scores = found()
    encoder.resize(rows)
    after, others = found()
    np.testing.assert_array_equal(after, before)
    if scores is not None:
        assert len(others) == rows
        np.testing.assert_allclose(others[:20], scores[:20], atol=1e-5)
    dy.renew_cg()
    dy.sum_elems(dy.square(encoder([5, rows - 1]))).backward()
    row = encoder.embeddings.pieces.table.row_as_array(rows - 1)
    trainer.update()
    assert (encoder.embeddings.pieces.table.row_as_array(rows - 1) != row).any()
    encoder.save(tmp_path / "again")
    again = dy.pretrained.load(tmp_path / "again", dy.ParameterCollection())
    dy.renew_cg()
    np.testing.assert_array_equal(again([rows - 1]).npvalue(), encoder([rows - 1]).npvalue())
    assert type(encoder).from_spec(encoder.spec, dy.ParameterCollection()).settings.vocabulary == rows


def gradients(encoder, ids):
    dy.renew_cg()
    for parameter in encoder.parameters():
        parameter.scale_gradient(0)
    dy.sum_elems(dy.square(encoder(ids)[:, :3])).backward()
    return {name: parameter.grad_as_array() for name, parameter in encoder.named_parameters()}


def test_checkpoints_change_nothing(loaded):
    _, _, encoder = loaded
    plain = gradients(encoder, random_ids(9))
    encoder.checkpoint = True
    for name, array in gradients(encoder, random_ids(9)).items():
        np.testing.assert_allclose(array, plain[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_gradients_are_differences(loaded):
    _, _, encoder = loaded
    ids = random_ids(8)
    found = gradients(encoder, ids)
    rng = np.random.default_rng(1)
    direction = {name: rng.normal(size=array.shape) * np.abs(array).max() for name, array in found.items()}
    slope = sum((found[name] * array).sum() for name, array in direction.items())
    before, values = encoder.state_dict(), []
    step = 1e-3 / max(1e-9, max(np.abs(array).max() for array in direction.values()))
    for sign in (1, -1):
        encoder.load_state_dict({name: array + sign * step * direction[name] for name, array in before.items()})
        dy.renew_cg()
        values.append(np.square(encoder(ids)[:, :3].npvalue().astype(np.float64)).sum())
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=0.03)


def test_gradients_of_second_order(loaded):
    _, _, encoder = loaded
    ids, name = random_ids(5), next(n for n, _ in encoder.named_parameters() if n.endswith("inner.W"))
    weight = dict(encoder.named_parameters())[name]

    def slope():
        dy.renew_cg()
        loss = dy.sum_elems(dy.square(encoder(ids)[:2]))
        (found,) = dy.gradients(loss, [dy.parameter(weight)])
        return dy.sum_elems(dy.square(found))

    weight.scale_gradient(0)
    slope().backward()
    second = weight.grad_as_array()
    rng = np.random.default_rng(0)
    direction = rng.normal(size=second.shape)
    before, values, step = weight.as_array(), [], 2e-3
    for sign in (1, -1):
        weight.set_value(before + sign * step * direction)
        values.append(slope().value())
    assert (values[0] - values[1]) / (2 * step) == pytest.approx((second * direction).sum(), rel=0.05)


@pytest.mark.skipif(bool(NO_ONNX), reason=NO_ONNX or "-")
def test_onnx_files(loaded, tmp_path):
    import onnxruntime

    _, _, encoder = loaded
    file = tmp_path / "encoder.onnx"
    dy.onnx.export(lambda ids: encoder(ids), {"ids": dy.onnx.Indices("length", 30)}, file, longest=30)
    session = onnxruntime.InferenceSession(file)
    for n in (2, 7, 20):
        ids = random_ids(n)
        dy.renew_cg()
        (found,) = session.run(None, {"ids": np.array([ids[::-1], ids])})
        np.testing.assert_allclose(found[1].T, encoder(ids).npvalue(), atol=1e-4)
