"""Text model files exchanged with DyNet, in both directions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynet_cy.files.textfile import LOOKUP, PARAMETER, Entry, populate_entries, read_text_model, write_text_model

pytestmark = pytest.mark.peer
dynet = pytest.importorskip("dynet")

SHAPES = [("W", (3, 4)), ("b", (5,)), ("filter", (2, 3, 4, 2)), ("", (1, 3)), ("b", (1,))]
TABLES = [("E", (6, 3)), ("", (4, 2, 3))]


def build() -> Any:
    model = dynet.ParameterCollection()
    part = model.add_subcollection("part")
    for i, (name, shape) in enumerate(SHAPES):
        (part if i % 2 else model).add_parameters(shape, name=name)
    for i, (name, shape) in enumerate(TABLES):
        (part if i % 2 else model).add_lookup_parameters(shape, name=name)
    return model


def own_entries(model: Any) -> list[Entry]:
    found = []
    for p in model.parameters_list():
        found.append(Entry(PARAMETER, p.name(), p.shape(), p.as_array()))
    for e in model.lookup_parameters_list():
        array = np.moveaxis(e.as_array(), 0, -1)
        found.append(Entry(LOOKUP, e.name(), array.shape, array))
    return found


def with_gradients(model: Any) -> None:
    dynet.renew_cg()
    loss = dynet.sum_elems(model.parameters_list()[0] * 1.5) + dynet.sum_elems(model.lookup_parameters_list()[0][2])
    loss.forward()
    loss.backward()


def values_of(model: Any) -> list[np.ndarray]:
    return [p.as_array() for p in [*model.parameters_list(), *model.lookup_parameters_list()]]


def test_reads_what_dynet_writes(tmp_path: Path) -> None:
    model = build()
    with_gradients(model)
    model.save(str(tmp_path / "m"))
    found = list(read_text_model(tmp_path / "m"))
    want = own_entries(model)
    assert [e[:3] for e in found] == [e[:3] for e in want]
    for have, entry in zip(found, want):
        np.testing.assert_array_equal(have.values, np.asarray(entry.values).reshape(-1, order="F"))
    assert [e.name for e in found if e.grads is not None] == ["/W", "/E"]
    np.testing.assert_array_equal(found[0].grads, np.full(12, 1.5))
    np.testing.assert_array_equal(found[-2].grads, np.repeat([0, 0, 1, 0, 0, 0], 3))


def test_writes_the_same_bytes(tmp_path: Path) -> None:
    model = build()
    with_gradients(model)
    model.save(str(tmp_path / "m"))
    write_text_model(tmp_path / "again", read_text_model(tmp_path / "m"))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()


def test_dynet_reads_what_is_written(tmp_path: Path) -> None:
    model, other = build(), build()
    write_text_model(tmp_path / "m", own_entries(model))
    other.populate(str(tmp_path / "m"))
    for have, want in zip(values_of(other), values_of(model)):
        np.testing.assert_array_equal(have, want)
    loaded = other.load_lookup_param(str(tmp_path / "m"), "/part/_1")  # skips entries by the sizes in their headers
    np.testing.assert_array_equal(loaded.as_array(), values_of(model)[-1])


@pytest.mark.parametrize("key", ["", "/", "/part", "/part/", "/nope/"])
def test_keys(tmp_path: Path, key: str) -> None:
    model = build()
    model.save(str(tmp_path / "m"))
    names = [[s for i, (_, s) in enumerate(shapes) if "part" not in key or i % 2] for shapes in (SHAPES, TABLES)]
    target = dynet.ParameterCollection()
    for shape in names[0]:
        target.add_parameters(shape, init=0)
    for shape in names[1]:
        target.add_lookup_parameters(shape, init=0)
    wanted = [(p.name(), p.shape()) for p in target.parameters_list()]
    tables = [(e.name(), (*e.shape()[1:], e.shape()[0])) for e in target.lookup_parameters_list()]
    if key == "/nope/":
        with pytest.raises(RuntimeError, match=r"\(0/0\) did not match number to be populated \(5/2\)"):
            target.populate(str(tmp_path / "m"), key)
        with pytest.raises(RuntimeError, match=r"\(0/0\) did not match number to be populated \(5/2\)"):
            list(populate_entries(tmp_path / "m", wanted, tables, key))
        return
    target.populate(str(tmp_path / "m"), key)
    found = [entry.values for _, entry in populate_entries(tmp_path / "m", wanted, tables, key)]
    arrays = [p.as_array() for p in target.parameters_list()]
    arrays += [np.moveaxis(e.as_array(), 0, -1) for e in target.lookup_parameters_list()]
    assert len(found) == len(arrays)
    for have, want in zip(found, arrays):
        np.testing.assert_array_equal(have, want.reshape(-1, order="F"))


def test_save_and_load_of_lists(tmp_path: Path) -> None:
    model = build()
    dynet.save(str(tmp_path / "m"), [model.lookup_parameters_list()[0], model.parameters_list()[0]])
    kinds = [(e.kind, e.name) for e in read_text_model(tmp_path / "m.data")]
    assert kinds == [(LOOKUP, "/E"), (PARAMETER, "/W")]
