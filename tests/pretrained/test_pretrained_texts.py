"""Docstrings of `dy.pretrained`: parameters are described, and examples print what they show."""

from __future__ import annotations

import doctest
import inspect

import pytest
from test_docstrings import OPTIONS, has_example, known, undescribed

import dynet_cy as dy
from dynet_cy.pretrained.loading import ARCHITECTURES
from dynet_cy.pretrained.model import Pretrained

# Architectures of texts have the arguments and the example of `Encoder`; those who write one change two methods.
WITHOUT = {
    *(cls for cls in ARCHITECTURES.values() if issubclass(cls, dy.pretrained.Encoder)),
    dy.pretrained.VisionModel,
    *(
        vars(cls)[name]
        for cls in (Pretrained, dy.pretrained.VisionModel, dy.pretrained.ViT)
        for name in ("to_file", "from_file")
    ),
}


def documented():
    """The public names, and the methods and properties of their classes, without those that all layers have."""
    for name in dy.pretrained.__all__:
        value = getattr(dy.pretrained, name)
        yield name, value
        if isinstance(value, type) and (value not in WITHOUT or value is dy.pretrained.VisionModel):
            inherited = vars(Pretrained) if value is dy.pretrained.Encoder else {}
            for member, found in {**inherited, **vars(value)}.items():
                if not member.startswith("_") and (inspect.isfunction(found) or isinstance(found, property)):
                    yield f"{name}.{member}", found


DOCUMENTED = dict(documented())


@pytest.mark.parametrize("name", [name for name, value in DOCUMENTED.items() if value not in WITHOUT])
def test_example(name, tmp_path, monkeypatch):
    value = DOCUMENTED[name]
    if name == "Encoder.tokenize":
        pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    assert has_example(value)
    parsed = doctest.DocTestParser().get_doctest(inspect.getdoc(value), known(), name, None, None)
    told = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(parsed, out=told.append)
    assert not told, "".join(told)


@pytest.mark.parametrize("name", [name for name, value in DOCUMENTED.items() if value not in WITHOUT])
def test_parameters_are_described(name):
    assert name == "Adapters" or undescribed(DOCUMENTED[name]) == []  # `lora` makes them
