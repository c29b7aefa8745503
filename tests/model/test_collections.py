"""Collections: parameters by name, values as arrays, and parts of other models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dynet_cy as dy
from dynet_cy.files.textfile import ModelMismatchError


def model_of(seed: int) -> dy.ParameterCollection:
    rng = np.random.default_rng(seed)
    model = dy.ParameterCollection()
    model.parameters_from_numpy(rng.normal(size=(4, 3)), "W")
    encoder = model.add_subcollection("encoder")
    encoder.lookup_parameters_from_numpy(rng.normal(size=(7, 2)), "E")
    encoder.parameters_from_numpy(rng.normal(size=(2,)), "b")
    return model


def same(a: dy.ParameterCollection, b: dy.ParameterCollection) -> list[str]:
    """The names of the parameters with equal values."""
    other = b.state_dict()
    return [name for name, value in a.state_dict().items() if name in other and np.array_equal(value, other[name])]


def test_names() -> None:
    model = model_of(1)
    assert list(model) == model.keys() == ["W", "encoder/E", "encoder/b"]
    assert len(model) == 3
    assert model["W"] is model["/W"] is dict(model.named_parameters())["W"]
    assert model["encoder/E"].shape == (7, 2)
    assert "encoder/b" in model
    assert "b" not in model
    assert dict(model)["encoder/b"].name() == "/encoder/b"
    assert model.parameter_count() == 12 + 14 + 2
    assert bool(dy.ParameterCollection())
    assert len(dy.ParameterCollection()) == 0


def test_names_below() -> None:
    model = dy.ParameterCollection()
    below = model.add_subcollection("encoder")
    w = below.add_parameters(3, name="W")
    assert below["W"] is below["/encoder/W"] is model["encoder/W"] is w
    assert list(below) == ["W"]
    again = below.add_parameters(3, name="W")
    assert list(below) == ["W", "W_1"]
    assert below["W_1"] is again


def test_names_that_are_not_there() -> None:
    model = model_of(1)
    with pytest.raises(KeyError, match="/ has no parameter 'encoder/B'; it has encoder/b, encoder/E"):
        model["encoder/B"]
    with pytest.raises(KeyError, match="it has W, encoder/E, encoder/b"):
        model["x"]
    with pytest.raises(TypeError, match="the name of a parameter is needed, not 0"):
        model[0]


def test_values_as_arrays(tmp_path: Path) -> None:
    model, other = model_of(1), model_of(2)
    state = model.state_dict()
    assert {k: v.shape for k, v in state.items()} == {"W": (4, 3), "encoder/E": (7, 2), "encoder/b": (2,)}
    state["W"][:] = 0  # a copy
    assert model["W"].as_array().any()
    np.savez(tmp_path / "model.npz", **model.state_dict())
    with np.load(tmp_path / "model.npz") as file:
        report = other.load_state_dict(file)
    assert report == (["W", "encoder/E", "encoder/b"], [], [])
    assert same(model, other) == list(model)


def test_parts_of_values() -> None:
    model, other = model_of(1), model_of(2)
    before = other.state_dict()
    state = {"old/weight": model["W"].as_array(), "old/E": model["encoder/E"].as_array(), "new/x": np.ones(2)}
    report = other.load_state_dict(state, strict=False, prefix="old/", rename={"weight": "W"})
    assert report.loaded == ["W"]
    assert report.missing == ["encoder/E", "encoder/b"]
    assert report.unexpected == ["old/E"]
    assert same(model, other) == ["W"]
    np.testing.assert_array_equal(other["encoder/b"].as_array(), before["encoder/b"])
    report = other.load_state_dict(state, False, "old/", lambda name: "encoder/" + name)
    assert report.loaded == ["encoder/E"]


def test_values_that_do_not_fit() -> None:
    model, other = model_of(1), model_of(2)
    before = other.state_dict()
    state = model.state_dict()
    del state["W"]
    state["V"] = np.ones(2)
    with pytest.raises(ValueError, match="load_state_dict of /: missing: W; unexpected: V"):
        other.load_state_dict(state)
    state = {**model.state_dict(), "encoder/b": np.ones(3)}
    message = r"load_state_dict of /encoder/b from encoder/b: the value has shape \(3,\), \(2,\) is needed"
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="both W and V become W"):
        other.load_state_dict({"W": np.ones((4, 3)), "V": np.ones((4, 3))}, False, rename={"V": "W"})
    for name, value in other.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_copies_between_models() -> None:
    model, other = model_of(1), model_of(2)
    sub = dy.ParameterCollection()
    sub.lookup_parameters_from_numpy(np.zeros((7, 2)), "E")
    sub.add_parameters(9, name="more")
    report = sub.copy_from(model, strict=False, rename={"encoder/E": "E"})
    assert report == (["E"], ["more"], ["W", "encoder/b"])
    np.testing.assert_array_equal(sub["E"].as_array(), model["encoder/E"].as_array())
    other.copy_from(model)
    assert same(model, other) == list(model)
    with pytest.raises(TypeError, match="copy_from: a ParameterCollection is needed, not dict"):
        other.copy_from(model.state_dict())  # type: ignore[arg-type]


def test_files_by_name(tmp_path: Path) -> None:
    model, other = model_of(1), model_of(2)
    file = tmp_path / "model"
    model.save(file)
    assert other.populate_by_name(file).loaded == list(other)
    assert same(model, other) == list(model)

    part = dy.ParameterCollection()  # in another order, with more
    part.add_parameters(2, name="bias")
    part.add_parameters(5, name="head")
    part.add_lookup_parameters((7, 2), name="E")
    with pytest.raises(ModelMismatchError, match="missing: head"):
        part.populate_by_name(file, "/encoder", rename={"b": "bias"})
    report = part.populate_by_name(file, "/encoder", strict=False, rename={"b": "bias"})
    assert report == (["bias", "E"], ["head"], [])
    np.testing.assert_array_equal(part["E"].as_array(), model["encoder/E"].as_array())
    np.testing.assert_array_equal(part["bias"].as_array(), model["encoder/b"].as_array())


def test_files_whose_entries_have_other_shapes(tmp_path: Path) -> None:
    model = model_of(1)
    file = tmp_path / "model"
    model.save(file)
    other = dy.ParameterCollection()
    other.add_parameters((4, 3), name="W")
    other.add_parameters((7, 2), name="E")
    before = other.state_dict()
    with pytest.raises(ModelMismatchError, match="is a LookupParameter of dimensions"):
        other.populate_by_name(file, strict=False, rename={"encoder/E": "E"})
    np.testing.assert_array_equal(other["W"].as_array(), before["W"])
